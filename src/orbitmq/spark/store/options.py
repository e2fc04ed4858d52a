"""The options of format ``rocketmq-store``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orbitmq.errors import ConfigError
from orbitmq.spark.options import flag, number, refuse_unknown, required, text

__all__ = ["StoreOptions"]

PARTITION_BYTES: Final = 128 * 1024 * 1024
"""Spark's own default size of a file split."""
_OPTIONS: Final = (
    "path",
    "paths",
    "topic",
    "topicPattern",
    "startingTimestamp",
    "endingTimestamp",
    "broker",
    "verifyCrc",
    "failOnDataLoss",
    "maxPartitionBytes",
    "minPartitions",
    "splitSegments",
    "startingOffsets",
    "maxBytesPerTrigger",
    "useQueues",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """All options of the format. Sent to the executors."""

    paths: tuple[str, ...]
    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    starting_ms: int | None = None
    ending_ms: int | None = None
    broker: str | None = None
    """Set by the user, because the log does not contain the broker's name."""
    verify_crc: bool = True
    fail_on_data_loss: bool = True
    partition_bytes: int = PARTITION_BYTES
    """0 means one task per segment."""
    partitions_min: int = 1
    starting_latest: bool = False
    """Start a stream at the end of the log."""
    bytes_per_trigger_max: int | None = None
    use_queues: bool = True
    """Find the messages of topics through their consume queues where that is cheaper."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> StoreOptions:
        """Returns the checked options. Raises ``ConfigError`` that names the option and the accepted values."""
        refuse_unknown(options, _OPTIONS)
        starting_offsets = text(options, "startingOffsets") or "earliest"
        if starting_offsets not in ("earliest", "latest"):
            raise ConfigError(
                f"option 'startingOffsets' is {starting_offsets!r}; earliest and latest are accepted"
            )
        for name in () if streaming else ("startingOffsets", "maxBytesPerTrigger"):
            if text(options, name) is not None:
                raise ConfigError(f"option {name!r} is for readStream")
        named, pattern = text(options, "topic"), text(options, "topicPattern")
        if named is not None and pattern is not None:
            raise ConfigError("give 'topic' or 'topicPattern', not both")
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"option 'topicPattern' is not a regular expression: {error}") from None
        starting, ending = number(options, "startingTimestamp"), number(options, "endingTimestamp")
        if starting is not None and ending is not None and starting >= ending:
            raise ConfigError(f"startingTimestamp {starting} is not before endingTimestamp {ending}")
        partition_bytes = number(options, "maxPartitionBytes", PARTITION_BYTES, low=1)
        assert partition_bytes is not None
        return cls(
            paths=_paths(options),
            topics=None if named is None else frozenset(part.strip() for part in named.split(",")),
            topic_pattern=pattern,
            starting_ms=starting,
            ending_ms=ending,
            broker=text(options, "broker"),
            verify_crc=flag(options, "verifyCrc", True),
            fail_on_data_loss=flag(options, "failOnDataLoss", True),
            partition_bytes=partition_bytes if flag(options, "splitSegments", True) else 0,
            partitions_min=number(options, "minPartitions", 1, low=1, high=1_000_000) or 1,
            use_queues=flag(options, "useQueues", True),
            starting_latest=starting_offsets == "latest",
            bytes_per_trigger_max=number(options, "maxBytesPerTrigger", low=1),
        )


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    several = text(options, "paths")  # what Spark makes of load([...])
    if several is None:
        return (required(options, "path"),)
    try:
        paths = json.loads(several)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise ConfigError(f"option 'paths' is {several!r}; a JSON list of paths is accepted")
    return tuple(paths)

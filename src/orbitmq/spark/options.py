"""The options of the Spark formats: parses text into checked values, and raises errors that say what is accepted.

Spark passes every option as text and may lower-case its name, so names are compared without case. An unknown name is
rejected with a suggestion, because an ignored option would only be noticed through wrong rows. Names of Spark's Kafka
reader are accepted where they have the same meaning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orbitmq.client.options import Credentials
from orbitmq.errors import ConfigError, SubscriptionParseFailed
from orbitmq.filter.parsing import parse as parse_filter
from orbitmq.transport.tls import client_context

if TYPE_CHECKING:
    import ssl

    from orbitmq.client.settings import ClientSettings

__all__ = [
    "EARLIEST",
    "GROUP",
    "LATEST",
    "Access",
    "Offsets",
    "SourceOptions",
    "TlsFiles",
    "access",
    "client_settings",
    "flag",
    "name_servers",
    "number",
    "parse_offsets",
    "refuse_unknown",
    "required",
    "text",
]

Offsets = dict[str, dict[str, dict[str, int]]]
"""Offsets by topic, broker and queue, the form used in options and checkpoints. Queue numbers are text, as in any
JSON."""

LATEST: Final = -1
EARLIEST: Final = -2
GROUP: Final = -3
"""The position of the query's consumer group."""
_QUEUE_OFFSET_MAX: Final = 2**63 - 1

CLIENT_OPTIONS: Final = (
    "namesrvAddr",
    "nameServer",
    "accessKey",
    "secretKey",
    "securityToken",
    "tls.enable",
    "tls.trustCertPath",
    "tls.certPath",
    "tls.keyPath",
    "tls.keyPassword",
    "tls.checkHostName",
)
_SOURCE_OPTIONS: Final = (
    *CLIENT_OPTIONS,
    "topic",
    "topicPattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxTriggerDelayMs",
    "minPartitions",
    "maxPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "tags",
    "subExpression",
    "sql",
    "group",
    "pullTimeoutMs",
    "retryTimeoutMs",
    "routeRefreshMs",
    "pullBatchSize",
)
_ALIASES: Final = {
    "topic": ("topic", "subscribe", "path"),
    "topicPattern": ("topicPattern", "subscribePattern"),
    "pullTimeoutMs": ("pullTimeoutMs", "kafkaConsumer.pollTimeoutMs"),
}
"""Names of Spark's Kafka reader with the same meaning."""
_SPARKS_OWN: Final = ("path", "checkpointLocation", "queryName", "serialization.format")
_ELSEWHERE: Final = {
    "kafka.bootstrap.servers": "the servers are given as 'namesrvAddr'",
    "includeheaders": "the column 'properties' is always there",
    "kafka.group.id": "the group is given as 'group'",
    "groupidprefix": "the group is given as 'group'",
    "fetchoffset.numretries": "the time for all attempts is 'retryTimeoutMs'",
    "fetchoffset.retryintervalms": "the time for all attempts is 'retryTimeoutMs'",
}
"""Names of Spark's Kafka reader that correspond to something else here."""


# -- single values -------------------------------------------------------------------------------------


def text(options: Mapping[str, str], *names: str) -> str | None:
    """Returns the value of the first of these options that is set, without surrounding blanks, or None."""
    lowered = {key.lower(): value for key, value in options.items()}
    for name in names:
        value = lowered.get(name.lower())
        if value is not None and str(value).strip():
            return str(value).strip()
    return None


def required(options: Mapping[str, str], *names: str) -> str:
    """Like ``text``, but raises ``ConfigError``, which shows the first name, if none is set."""
    value = text(options, *names)
    if value is None:
        raise ConfigError(f"option {names[0]!r} is required: .option({names[0]!r}, ...)")
    return value


def number(
    options: Mapping[str, str], name: str, default: int | None = None, *, low: int = 0, high: int = 2**63 - 1
) -> int | None:
    """Returns an option's whole number, or the default. Raises ``ConfigError`` unless ``low`` <= number <=
    ``high``."""
    value = text(options, name)
    if value is None:
        return default
    try:
        parsed = int(value)
    except ValueError:
        raise ConfigError(f"option {name!r} is {value!r}; a whole number is needed") from None
    if not low <= parsed <= high:
        raise ConfigError(f"option {name!r} is {parsed}; {low} to {high} is accepted")
    return parsed


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Returns whether an option is true. Raises ``ConfigError`` unless its text is ``true`` or ``false``."""
    value = text(options, name)
    if value is None:
        return default
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"option {name!r} is {value!r}; true or false is accepted")
    return value.lower() == "true"


def refuse_unknown(options: Mapping[str, str], known: Iterable[str]) -> None:
    """Raises ``ConfigError`` for an unknown name, with a suggestion."""
    names = [*known, *(name for names in _ALIASES.values() for name in names), *_SPARKS_OWN]
    by_lower = {name.lower(): name for name in names}
    for given in options:
        name = given.strip().lower()
        if given.lower() in by_lower or name.startswith("spark."):
            continue
        if name in _ELSEWHERE:
            raise ConfigError(f"there is no option {given!r}: {_ELSEWHERE[name]}")
        close = get_close_matches(name, by_lower, 1, cutoff=0.6)
        meant = (
            f"; did you mean {by_lower[close[0]]!r}?" if close else f" (known: {', '.join(sorted(known))})"
        )
        raise ConfigError(f"there is no option {given!r}{meant}")


def _aliased(options: Mapping[str, str], name: str) -> str | None:
    return text(options, *_ALIASES[name])


def parse_offsets(name: str, value: str, *, ending: bool = False) -> int | Offsets:
    """Parses ``earliest``, ``latest``, ``group``, or JSON ``{topic: {broker: {queue: offset}}}``, in which -2 stands
    for earliest and -1 for latest.

    Returns ``EARLIEST``, ``LATEST``, ``GROUP`` or the offsets. With ``ending``, earliest and group are rejected.
    """
    word = value.strip().lower()
    if word == "latest":
        return LATEST
    if not ending and word in ("earliest", "group"):
        return EARLIEST if word == "earliest" else GROUP
    accepted = (
        "" if ending else '"earliest", "group", '
    ) + '"latest" or JSON such as {"topic": {"broker-a": {"0": 42}}}'
    try:
        parsed = json.loads(value)
    except ValueError:
        raise ConfigError(f"option {name!r} is {value!r}; accepted are {accepted}") from None
    low = LATEST if ending else EARLIEST
    offsets: Offsets = {}
    try:
        for topic, brokers in parsed.items():
            for broker, queues in brokers.items():
                for queue, offset in queues.items():
                    if not (queue.isascii() and queue.isdigit()) or type(offset) is not int:
                        raise TypeError
                    if not low <= offset <= _QUEUE_OFFSET_MAX:
                        raise ConfigError(
                            f"option {name!r}: offset {offset} of {topic}, {broker}, queue {queue} is out of range"
                        )
                    offsets.setdefault(topic, {}).setdefault(broker, {})[str(int(queue))] = offset
    except (AttributeError, TypeError):
        raise ConfigError(f"option {name!r} is {value!r}; accepted are {accepted}") from None
    return offsets


def parse_times(options: Mapping[str, str], name: str) -> Offsets | None:
    """Parses JSON ``{topic: {broker: {queue: milliseconds}}}``; returns None if the option is not set."""
    value = text(options, name)
    if value is None:
        return None
    parsed = parse_offsets(name, value, ending=True)
    if isinstance(parsed, int):
        raise ConfigError(
            f"option {name!r} is {value!r}; accepted is "
            'JSON such as {"topic": {"broker-a": {"0": 1700000000000}}}'
        )
    return parsed


def parse_assigned(value: str) -> tuple[tuple[str, str, int], ...]:
    """Parses JSON ``{topic: {broker: [queues]}}``, or ``{topic: [queues]}`` for the same queues of every broker.

    Returns topic, broker and queue number of each queue. The broker is empty if it was not given.
    """
    accepted = 'JSON such as {"topic": {"broker-a": [0, 1]}} or {"topic": [0, 1]} is accepted'
    found: set[tuple[str, str, int]] = set()
    try:
        for topic, brokers in json.loads(value).items():
            by_broker = brokers.items() if isinstance(brokers, dict) else [("", brokers)]
            for broker, numbers in by_broker:
                if not isinstance(numbers, list) or any(type(one) is not int or one < 0 for one in numbers):
                    raise TypeError
                found.update((topic, broker, one) for one in numbers)
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"option 'assign' is {value!r}; {accepted}") from None
    if not found:
        raise ConfigError(f"option 'assign' names no queue; {accepted}")
    return tuple(sorted(found))


_DELAY: Final = re.compile(r"(\d+)\s*(ms|s|m|min|h|d|)", re.IGNORECASE)
_DELAY_UNIT_MS: Final = {
    "ms": 1,
    "": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def _trigger_delay_ms(options: Mapping[str, str]) -> int:
    """Returns ``maxTriggerDelay``, which has the form of Spark's Kafka reader (``15m``), or else
    ``maxTriggerDelayMs``."""
    value = text(options, "maxTriggerDelay")
    if value is None:
        return _int(options, "maxTriggerDelayMs", 900_000, 1, 86_400_000)
    found = _DELAY.fullmatch(value)
    if found is None:
        raise ConfigError(
            f"option 'maxTriggerDelay' is {value!r}; a number and ms, s, m, h or d is accepted, as in 15m"
        )
    return max(int(found[1]) * _DELAY_UNIT_MS[found[2].lower()], 1)


# -- servers and credentials ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """TLS file paths instead of a context, because executors receive this and open the files themselves."""

    trusted: str = ""
    certificate: str = ""
    key: str = ""
    password: str = field(default="", repr=False)
    check_host: bool = True

    def context(self) -> ssl.SSLContext:
        """Creates a TLS context. Raises ``ConfigError`` if the files cannot be used."""
        return client_context(
            trusted=Path(self.trusted) if self.trusted else None,
            certificate=Path(self.certificate) if self.certificate else None,
            key=Path(self.key) if self.key else None,
            password=self.password or None,
            check_host=self.check_host,
        )


@dataclass(frozen=True, slots=True)
class Access:
    """Everything that a connection needs. Hashable, because it is part of the key of pooled connections."""

    name_servers: str
    credentials: Credentials | None = None
    tls: TlsFiles | None = None


def name_servers(options: Mapping[str, str]) -> str:
    """Returns the addresses of the name servers as they were given. Raises ``ConfigError`` if there are none."""
    return required(options, "namesrvAddr", "nameServer")


def access(options: Mapping[str, str]) -> Access:
    """Returns the name servers, keys and TLS files set in the options."""
    key, secret = text(options, "accessKey"), text(options, "secretKey")
    if (key is None) != (secret is None):
        raise ConfigError("options 'accessKey' and 'secretKey' must be set together")
    credentials = None
    if key is not None and secret is not None:
        credentials = Credentials(key, secret, text(options, "securityToken") or "")
    files = TlsFiles(
        text(options, "tls.trustCertPath") or "",
        text(options, "tls.certPath") or "",
        text(options, "tls.keyPath") or "",
        text(options, "tls.keyPassword") or "",
        flag(options, "tls.checkHostName", True),
    )
    tls = files if flag(options, "tls.enable", files != TlsFiles(check_host=files.check_host)) else None
    return Access(name_servers(options), credentials, tls)


def client_settings(options: Mapping[str, str]) -> ClientSettings:
    """Returns keys and TLS settings as keyword arguments of a client: ``Producer(group, name_servers(options),
    **client_settings(options))``."""
    found = access(options)
    settings: ClientSettings = {}
    if found.credentials is not None:
        settings["credentials"] = found.credentials
    if found.tls is not None:
        settings["tls"] = found.tls.context()
    return settings


# -- reading topics ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options of the reader of format ``rocketmq``. Sent to the executors with the reader."""

    access: Access
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    assigned: tuple[tuple[str, str, int], ...] = ()
    """The only queues to read, each as topic, broker (empty for any broker) and number."""
    starting: int | Offsets = EARLIEST
    ending: int | Offsets = LATEST
    starting_timestamp_ms: int | None = None
    ending_timestamp_ms: int | None = None
    starting_times: Offsets | None = None
    ending_times: Offsets | None = None
    fail_on_late_time: bool = False
    """Treat a starting time after the last message of a queue as an error instead of starting at the queue's end."""
    bytes_per_trigger_max: int | None = None
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_max_ms: int = 900_000
    partitions_min: int | None = None
    partitions_max: int = 256
    records_per_partition_max: int | None = None
    fail_on_data_loss: bool = True
    tags: str | None = None
    sql: str | None = None
    group: str | None = None
    pull_timeout_ms: int = 30_000
    retry_timeout_ms: int = 120_000
    """How long a read or query is retried while a broker is unreachable or temporarily refuses."""
    route_refresh_ms: int = 10_000
    pull_batch_size: int = 4096
    """The most messages to request in one pull; the broker's own limits are usually lower."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Returns the checked options. Raises ``ConfigError`` that names the option and the accepted values."""
        refuse_unknown(options, _SOURCE_OPTIONS)
        topics, pattern, assigned = _which_topics(options)
        _check_kind(options, streaming=streaming)
        tags, sql = _filters(options)
        least, most = (
            number(options, "minOffsetsPerTrigger", low=1),
            number(options, "maxOffsetsPerTrigger", low=1),
        )
        if least is not None and most is not None and least > most:
            raise ConfigError(f"'minOffsetsPerTrigger' {least} is more than 'maxOffsetsPerTrigger' {most}")
        start = text(options, "startingOffsets") or ("latest" if streaming else "earliest")
        starting, group = parse_offsets("startingOffsets", start), text(options, "group")
        if starting == GROUP and group is None:
            raise ConfigError("'startingOffsets' is 'group': name the group with the option 'group'")
        strategy = text(options, "startingOffsetsByTimestampStrategy") or "latest"
        if strategy not in ("error", "latest"):
            raise ConfigError(
                f"option 'startingOffsetsByTimestampStrategy' is {strategy!r}; error or latest is accepted"
            )
        pull_timeout = {"pullTimeoutMs": _aliased(options, "pullTimeoutMs") or "30000"}
        return cls(
            access=access(options),
            topics=topics,
            topic_pattern=pattern,
            assigned=assigned,
            starting=starting,
            ending=parse_offsets("endingOffsets", text(options, "endingOffsets") or "latest", ending=True),
            starting_timestamp_ms=number(options, "startingTimestamp"),
            ending_timestamp_ms=number(options, "endingTimestamp"),
            starting_times=parse_times(options, "startingOffsetsByTimestamp"),
            ending_times=parse_times(options, "endingOffsetsByTimestamp"),
            fail_on_late_time=strategy == "error",
            bytes_per_trigger_max=number(options, "maxBytesPerTrigger", low=1),
            offsets_per_trigger_max=most,
            offsets_per_trigger_min=least,
            trigger_delay_max_ms=_trigger_delay_ms(options),
            partitions_min=number(options, "minPartitions", low=1, high=1_000_000),
            partitions_max=number(options, "maxPartitions", 256, low=1, high=1_000_000) or 256,
            records_per_partition_max=number(options, "maxRecordsPerPartition", low=1),
            fail_on_data_loss=flag(options, "failOnDataLoss", True),
            tags=None if tags == "*" else tags,
            sql=sql,
            group=group,
            pull_timeout_ms=_int(pull_timeout, "pullTimeoutMs", 30_000, 100, 3_600_000),
            retry_timeout_ms=_int(options, "retryTimeoutMs", 120_000, 0, 86_400_000),
            route_refresh_ms=_int(options, "routeRefreshMs", 10_000, 0, 3_600_000),
            pull_batch_size=_int(options, "pullBatchSize", 4096, 1, 65_536),
        )


def _which_topics(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...], str | None, tuple[tuple[str, str, int], ...]]:
    """Returns the topics, the pattern, or the queues that the options select."""
    named, pattern = _aliased(options, "topic"), _aliased(options, "topicPattern")
    chosen = text(options, "assign")
    if sum(one is not None for one in (named, pattern, chosen)) != 1:
        raise ConfigError(
            "one of the options 'topic' and 'topicPattern' is required, not both (or 'assign' alone)"
        )
    topics = tuple(dict.fromkeys(part.strip() for part in (named or "").split(",") if part.strip()))
    if named is not None and not topics:
        raise ConfigError("option 'topic' names no topic")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"option 'topicPattern' is not a regular expression: {error}") from None
    assigned = () if chosen is None else parse_assigned(chosen)
    return topics or tuple(dict.fromkeys(topic for topic, _, _ in assigned)), pattern, assigned


def _check_kind(options: Mapping[str, str], *, streaming: bool) -> None:
    """Rejects options of streaming reads in batch reads, and vice versa."""
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if text(options, name) is not None:
                raise ConfigError(f"option {name!r} applies to batch reads; a stream has no end")
        return
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger"):
        if text(options, name) is not None:
            raise ConfigError(f"option {name!r} applies to streams; a batch read has no trigger")


def _filters(options: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Returns the tag filter and the SQL filter, or None for each that is not set. Checks that the SQL can be
    parsed."""
    tags, sql = text(options, "tags", "subExpression"), text(options, "sql")
    if tags is not None and sql is not None:
        raise ConfigError("options 'tags' and 'sql' exclude each other: a broker takes one kind of filter")
    if sql is not None:
        try:
            parse_filter(sql)
        except SubscriptionParseFailed as error:
            raise ConfigError(f"option 'sql': {error.remark}") from None
    return tags, sql


def _int(options: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    value = number(options, name, default, low=low, high=high)
    assert value is not None, "there is a default"
    return value

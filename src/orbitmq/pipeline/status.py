"""The status of a pipeline for other processes, read from a file next to its checkpoints and from the checkpoints.

A running stream writes ``_status.json`` to its checkpoint directory, atomically, after batches and every few seconds.
The checkpoints themselves record the position of each query, even for queries that Spark runs without us. The brokers
tell how far these positions are behind.
"""

from __future__ import annotations

import json
import logging
import os
import posixpath
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow.fs as pafs  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.errors import ConfigError, OrbitError
from orbitmq.pipeline.plan import Plan
from orbitmq.pipeline.run import BatchReport
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.cluster import Cluster
from orbitmq.spark.errors import EnvironmentFault
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.source.planning import QueueOffsets, from_offsets
from orbitmq.spark.store.files import open_location

__all__ = ["PipelineStatus", "QueryStatus", "SinkStatus", "StatusFile", "read_status"]

logger = logging.getLogger(__name__)

_FILE: Final = "_status.json"
_BATCH_S: Final = 1.0
_BEAT_S: Final = 5.0
_SILENT_MS: Final = 30_000
"""A running pipeline without an update for this long is considered dead."""


@dataclass(slots=True)
class SinkStatus:
    """The totals of one sink over all runs with this checkpoint."""

    rows: int = 0
    batch_id: int = -1
    rows_per_second: float = 0.0
    behind: int | None = None
    committed_ms: int = 0


class StatusFile:
    """The status file that a running stream maintains."""

    def __init__(self, plan: Plan, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._path = f"{plan.located(plan.pipeline.checkpoint)}/{_FILE}" if plan.pipeline.checkpoint else ""
        self._base = {
            "pipeline": plan.pipeline.name,
            "namesrvAddr": plan.pipeline.namesrv_addr,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "startedMs": clock.now_ms(),
        }
        known = _read_json(self._path) if self._path else None
        self._sinks = {query.name: SinkStatus() for query in plan.queries}
        for name, values in ((known or {}).get("sinks") or {}).items():
            if name in self._sinks:
                self._sinks[name] = SinkStatus(**values)
        self._written: float | None = None

    def report(self, batch: BatchReport) -> None:
        """Adds the report of a batch to the totals."""
        sink = self._sinks[batch.query]
        sink.rows += batch.rows
        sink.batch_id = batch.batch_id
        sink.rows_per_second, sink.behind = batch.rows_per_second, batch.behind
        sink.committed_ms = self._clock.now_ms()
        self._write("running", _BATCH_S)

    def beat(self) -> None:
        """Records that the stream is still running."""
        self._write("running", _BEAT_S)

    def end(self, reason: str = "") -> None:
        """Records that the stream ended, or that it failed and the reason."""
        self._write("failed" if reason else "ended", 0.0, reason)

    def _write(self, state: str, quiet_s: float, reason: str = "") -> None:
        now = self._clock.monotonic()
        if not self._path or (self._written is not None and now - self._written < quiet_s):
            return
        self._written = now
        values = {
            **self._base,
            "state": state,
            **({"reason": reason} if reason else {}),
            "writtenMs": self._clock.now_ms(),
            "sinks": {name: asdict(sink) for name, sink in self._sinks.items()},
        }
        try:
            filesystem, path = open_location(self._path)
            filesystem.create_dir(posixpath.dirname(path), recursive=True)
            with filesystem.open_output_stream(f"{path}.unfinished") as file:
                file.write(json.dumps(values).encode())
            filesystem.move(f"{path}.unfinished", path)
        except (OSError, ConfigError) as error:
            # The data does not depend on the status file.
            logger.warning("status not written path=%s error=%s", self._path, error)
            self._path = ""


# -- reading the status --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """The state of one query according to its checkpoint."""

    name: str
    query_id: str
    planned: int
    committed: int
    committed_ms: int
    """Commit time, according to the commit file; 0 before the first commit."""
    messages: int
    """The sum of its offsets, which is the number of messages it has passed."""
    behind: int | None = None


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The state of a pipeline, running or not."""

    state: str
    """``running``, ``ended``, ``failed``, ``silent`` (killed, or its machine is gone), or ``unknown``."""
    reason: str = ""
    host: str = ""
    pid: int = 0
    written_ms: int = 0
    sinks: Mapping[str, SinkStatus] = field(default_factory=dict)
    queries: tuple[QueryStatus, ...] = ()


def read_status(
    checkpoint: str,
    name_servers: str = "",
    options: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> PipelineStatus:
    """Returns the status of the pipeline with this checkpoint directory, or of a single query if the directory is a
    query's.

    Raises ``EnvironmentFault`` if it is neither.
    """
    filesystem, root = open_location(checkpoint)
    kept = _read_json(f"{checkpoint}/{_FILE}") or {}
    address = name_servers or str(kept.get("namesrvAddr") or "")
    found = filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True))
    below = sorted(one.base_name for one in found if one.type == pafs.FileType.Directory)
    places = [checkpoint] if "offsets" in below else [f"{checkpoint}/{name}" for name in below]
    queries = tuple(
        status for place in places if (status := _query(place, address, options or {})) is not None
    )
    if not queries and not kept:
        raise EnvironmentFault(f"{checkpoint} holds no checkpoint of a stream")
    state = str(kept.get("state") or "unknown")
    written_ms = int(kept.get("writtenMs") or 0)
    if state == "running" and (
        clock.now_ms() - written_ms > _SILENT_MS or _is_dead(kept.get("host"), kept.get("pid"))
    ):
        state = "silent"
    return PipelineStatus(
        state=state,
        reason=str(kept.get("reason") or ""),
        host=str(kept.get("host") or ""),
        pid=int(kept.get("pid") or 0),
        written_ms=written_ms,
        sinks={name: SinkStatus(**values) for name, values in (kept.get("sinks") or {}).items()},
        queries=queries,
    )


def _is_dead(host: Any, pid: Any) -> bool:
    """Returns whether a process of this machine has exited. False for a process of another machine, which cannot be
    checked."""
    if host != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _query(place: str, name_servers: str, options: Mapping[str, str]) -> QueryStatus | None:
    metadata = _read_json(f"{place}/metadata")
    if metadata is None:
        return None
    planned, _ = _newest(f"{place}/offsets")
    committed, committed_ms = _newest(f"{place}/commits")
    offsets = _offsets(f"{place}/offsets/{committed}") if committed >= 0 else {}
    return QueryStatus(
        name=posixpath.basename(place.rstrip("/")),
        query_id=str(metadata.get("id") or ""),
        planned=planned,
        committed=committed,
        committed_ms=committed_ms,
        messages=sum(offsets.values()),
        behind=_behind(offsets, name_servers, options),
    )


def _newest(directory: str) -> tuple[int, int]:
    """Returns the number of the newest batch in one of Spark's logs, and its write time in milliseconds; -1 and 0 if
    there is none."""
    filesystem, root = open_location(directory)
    found = [
        (int(one.base_name), (one.mtime_ns or 0) // 1_000_000)
        for one in filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True))
        if one.base_name.isdigit()
    ]
    return max(found, default=(-1, 0))


def _offsets(path: str) -> QueueOffsets:
    """Returns the offsets of all our sources, read from a file of Spark's offset log."""
    filesystem, root = open_location(path)
    offsets: QueueOffsets = {}
    try:
        with filesystem.open_input_file(root) as file:
            lines = file.read().decode("utf-8").splitlines()
    except OSError:
        return {}
    for line in lines[2:]:  # after the version and Spark's own settings, one line per source
        try:
            offsets |= from_offsets(json.loads(line))
        except (ValueError, AttributeError, ConfigError):
            continue  # from a source of another format
    return offsets


def _behind(offsets: QueueOffsets, name_servers: str, options: Mapping[str, str]) -> int | None:
    """Returns the number of unread messages according to the brokers, or None if they do not answer."""
    if not offsets or not name_servers:
        return None
    given = {"namesrvAddr": name_servers, "topic": ",".join(sorted({key.topic for key in offsets}))}
    try:
        cluster = Cluster(SourceOptions.parse({**given, "retryTimeoutMs": "0", **options}, streaming=False))
        ends = cluster.latest(cluster.queues())
    except OrbitError as error:
        logger.warning("lag unknown error=%s", error)
        return None
    return sum(max(end - offsets.get(key, 0), 0) for key, end in ends.items())


def _read_json(location: str) -> dict[str, Any] | None:
    filesystem, path = open_location(location)
    try:
        with filesystem.open_input_file(path) as file:
            value = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None

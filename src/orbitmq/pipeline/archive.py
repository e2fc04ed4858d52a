"""Archives topics to Parquet and replays them, with every row accounted for.

An archive is a directory of runs, ``run=<n>/topic=.../date=.../*.parquet``. Its manifest ``_archive.json`` lists the
completed runs with the offset range of every queue. An interrupted run is not in the manifest, and the next one
replaces it under the same number. So the listed runs contain each message of their ranges exactly once.
"""

from __future__ import annotations

import json
import posixpath
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.codes import Property
from orbitmq.errors import ConfigError
from orbitmq.pipeline.failures import explained, failure
from orbitmq.pipeline.preflight import require_topics
from orbitmq.pipeline.times import moment_text
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.cluster import Cluster
from orbitmq.spark.errors import EnvironmentFault, RunFailed
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.source.planning import QueueKey, as_offsets
from orbitmq.spark.store.files import open_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Archive",
    "QueueRows",
    "Replay",
    "Run",
    "archive_topics",
    "plan_archive",
    "read_manifest",
    "replay",
]

MANIFEST: Final = "_archive.json"
_MANIFEST_BYTES_MAX: Final = 256 << 20
_CHUNK_S: Final = 0.1
_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_CHUNK_ROWS_MAX: Final = 1000


class QueueRows(msgspec.Struct, frozen=True):
    """The part of a queue that a run contains; ``end`` is exclusive."""

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int


class Run(msgspec.Struct, frozen=True):
    """One completed call of ``archive``."""

    number: int
    made: str
    since: str
    until: str
    rows: int
    queues: list[QueueRows]


class Archive(msgspec.Struct, frozen=True):
    """The manifest of an archive directory."""

    version: int = 1
    runs: list[Run] = []

    def end_of(self, key: QueueKey) -> int | None:
        """Returns the offset where the archive of a queue ends, or None if it has no messages of the queue."""
        ends = [
            one.end for run in self.runs for one in run.queues if (one.topic, one.broker, one.queue_id) == key
        ]
        return max(ends, default=None)


@dataclass(frozen=True, slots=True)
class Replay:
    """A request to replay messages: which ones, and how."""

    source: str
    options: Mapping[str, str]
    """Options of the sink: address, keys, TLS."""
    topics: tuple[str, ...] = ()
    """Empty means all topics."""
    renamed: Mapping[str, str] | None = None
    """Target topics by source topic. Other topics keep their names."""
    since_ms: int | None = None
    until_ms: int | None = None
    rate: float | None = None
    """Total messages per second; None for unlimited."""
    keep_ids: bool = True
    keep_queue: bool = False


# -- manifest ------------------------------------------------------------------------------------------


def read_manifest(directory: str) -> Archive | None:
    """Returns the manifest of an archive, or None if there is none. Raises ``EnvironmentFault``."""
    filesystem, root = open_location(directory)
    path = posixpath.join(root, MANIFEST)
    try:
        if not filesystem.get_file_info(path).is_file:
            return None
        with filesystem.open_input_stream(path) as stream:
            return msgspec.json.decode(stream.read(_MANIFEST_BYTES_MAX), type=Archive)
    except (OSError, msgspec.DecodeError) as error:
        raise EnvironmentFault(f"{directory}/{MANIFEST} cannot be read: {error}") from error


def _write_manifest(directory: str, archive: Archive) -> None:
    filesystem, root = open_location(directory)
    path = posixpath.join(root, MANIFEST)
    with filesystem.open_output_stream(path + ".new") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(archive), indent=1))
    filesystem.move(path + ".new", path)


# -- topics to files -----------------------------------------------------------------------------------


def plan_archive(
    options: Mapping[str, str], since_ms: int | None, until_ms: int | None, known: Archive
) -> list[QueueRows]:
    """Returns the range of every queue that the next run writes. Raises ``EnvironmentFault`` and connection
    errors."""
    try:
        parsed = SourceOptions.parse({**options, "retryTimeoutMs": "5000"}, streaming=False)
    except ConfigError as error:
        raise EnvironmentFault(str(error)) from error
    require_topics(parsed, parsed.topics)
    cluster = Cluster(parsed)
    keys = cluster.queues()
    if not keys:
        raise EnvironmentFault(f"no topic matches {parsed.topic_pattern}")
    low, high = cluster.earliest(keys), cluster.latest(keys)
    start = cluster.at_time(keys, since_ms) if since_ms is not None else low
    end = cluster.at_time(keys, until_ms) if until_ms is not None else high
    ranges: list[QueueRows] = []
    for key in keys:
        # Messages of an earlier run are not written again, even if this run includes them.
        first = max(start[key], low[key], known.end_of(key) or 0)
        last = min(end[key], high[key])
        ranges.append(QueueRows(key.topic, key.broker, key.queue_id, min(first, last), last))
    return ranges


def archive_topics(
    session: SparkSession,
    options: Mapping[str, str],
    directory: str,
    ranges: list[QueueRows],
    known: Archive,
    span: tuple[str, str],
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> Run:
    """Writes the ranges as a new run and verifies every message. Raises ``RunFailed``.

    ``span`` is the requested time range, as recorded in the manifest.
    """
    from pyspark.sql import functions as f

    number = max((run.number for run in known.runs), default=-1) + 1
    place = f"{directory}/run={number:05d}"
    by_queue = {QueueKey(one.topic, one.broker, one.queue_id): one for one in ranges}
    starts = as_offsets({key: one.start for key, one in by_queue.items()})
    ends = as_offsets({key: one.end for key, one in by_queue.items()})
    try:
        if any(one.end > one.start for one in ranges):
            reader = session.read.format("rocketmq").options(**options)
            frame = reader.options(startingOffsets=json.dumps(starts), endingOffsets=json.dumps(ends)).load()
            dated = frame.withColumn("date", f.to_date("store_timestamp"))
            writer = dated.write.mode("overwrite").option("compression", "zstd")
            writer.partitionBy("topic", "date").parquet(place)
            written = _read(session, directory, [number])
            _check_rows(written, by_queue)
    except Exception as error:
        raise failure("archive", error) from error
    run = Run(
        number,
        moment_text(clock.now_ms()),
        span[0],
        span[1],
        sum(one.end - one.start for one in ranges),
        ranges,
    )
    if run.rows:
        _write_manifest(directory, Archive(runs=[*known.runs, run]))
    return run


def _check_rows(written: DataFrame, expected: Mapping[QueueKey, QueueRows]) -> None:
    """Raises ``RunFailed`` unless the files contain every offset of every range exactly once, and no others."""
    from pyspark.sql import functions as f

    rows = written.groupBy("topic", "broker", "queue_id").agg(
        f.count(f.lit(1)).alias("rows"),
        f.countDistinct("queue_offset").alias("offsets"),
        f.min("queue_offset").alias("low"),
        f.max("queue_offset").alias("high"),
    )
    found = {QueueKey(row.topic, row.broker, row.queue_id): row for row in rows.collect()}
    wrong: list[str] = []
    for key, wanted in expected.items():
        count = wanted.end - wanted.start
        row = found.pop(key, None)
        have = (
            (0, 0, wanted.start, wanted.end - 1)
            if row is None
            else (row.rows, row.offsets, row.low, row.high)
        )
        if have != (count, count, wanted.start, wanted.end - 1):
            wrong.append(f"{key}: {have[0]} rows of offsets {wanted.start} to {wanted.end}")
    wrong += [f"{key}: {row.rows} rows that nobody asked for" for key, row in found.items()]
    if wrong:
        raise RunFailed(f"archive: the files differ from the queues: {'; '.join(wrong[:20])}")


def _read(session: SparkSession, directory: str, numbers: list[int]) -> DataFrame:
    from pyspark.sql import functions as f

    # A topic may be named 2026, which is still text.
    session.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    paths = [f"{directory}/run={number:05d}" for number in numbers]
    frame = session.read.option("basePath", directory).parquet(*paths)
    return frame.withColumn("topic", f.col("topic").cast("string"))


# -- files to topics -----------------------------------------------------------------------------------


def replay(session: SparkSession, request: Replay) -> tuple[int, dict[str, int]]:
    """Sends the messages of an archive, or of any Parquet files with the columns of messages. Returns the total
    number of rows sent, and the number by topic.

    The order within each source queue is kept. Raises ``RunFailed`` if the numbers of rows read and sent differ.
    """
    with tempfile.TemporaryDirectory(prefix="orbitmq-replay-") as scratch:
        report = Path(scratch) / "report.json"
        try:
            frame = _chosen(session, request)
            wanted = frame.count()
            if wanted:
                _send(session, frame, request, report)
        except Exception as error:
            raise failure("replay", error) from error
        if not wanted:
            return 0, {}
        sent = json.loads(report.read_text("utf-8"))
    by_topic: dict[str, int] = {}
    for queue in sent["queues"]:
        by_topic[queue["topic"]] = by_topic.get(queue["topic"], 0) + int(queue["rows"])
    if int(sent["rows"]) != wanted:
        raise RunFailed(f"replay: {wanted} rows were read and {sent['rows']} were stored by the brokers")
    return wanted, by_topic


def _chosen(session: SparkSession, request: Replay) -> DataFrame:
    from pyspark.sql import functions as f

    known = read_manifest(request.source)
    if known is None:
        with explained(f"archive {request.source}"):
            session.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
            frame = session.read.parquet(request.source)
    elif not known.runs:
        raise EnvironmentFault(f"archive {request.source} contains no finished run")
    else:
        frame = _read(session, request.source, [run.number for run in known.runs])
        listed = sum(run.rows for run in known.runs)
        found = frame.count()
        if found != listed:
            raise RunFailed(
                f"archive {request.source}: its list says {listed} rows, its files hold {found}; nothing was sent"
            )
    missing = {"topic", "body"} - set(frame.columns)
    if missing:
        raise EnvironmentFault(f"{request.source} has no column {', '.join(sorted(missing))}: no messages")
    if request.topics:
        frame = frame.where(f.col("topic").isin(*request.topics))
    stored = f.unix_millis("store_timestamp")
    if request.since_ms is not None:
        frame = frame.where(stored >= request.since_ms)
    if request.until_ms is not None:
        frame = frame.where(stored < request.until_ms)
    return frame


def _send(session: SparkSession, frame: DataFrame, request: Replay, report: Path) -> None:
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.functions import arrow_udf

    columns = frame.columns
    origin = [name for name in ("topic", "broker", "queue_id") if name in columns]
    tasks = max(1, session.sparkContext.defaultParallelism)
    frame = frame.repartition(tasks, *origin)
    if "queue_offset" in columns:
        frame = frame.sortWithinPartitions(*origin, "queue_offset")
    for old, new in (request.renamed or {}).items():
        frame = frame.withColumn("topic", f.when(f.col("topic") == old, new).otherwise(f.col("topic")))
    chosen = ["topic", "body"] + [name for name in ("keys", "tags", "properties") if name in columns]
    options = dict(request.options) | {"reportPath": str(report)}
    if request.keep_queue:
        chosen += [name for name in ("broker", "queue_id") if name in columns]
    elif "properties" in columns:
        frame = frame.withColumn("sharding_key", f.element_at("properties", str(Property.SHARDING_KEY)))
        chosen.append("sharding_key")
    if request.keep_ids and "msg_id" in columns:
        chosen.append("msg_id")
        options["uniqueKeyColumn"] = "msg_id"
    frame = frame.select(*chosen)
    if request.rate is not None:
        per_task = request.rate / tasks
        rows = max(1, min(_CHUNK_ROWS_MAX, int(per_task * _CHUNK_S)))
        # The sink gets its rows in batches of this size, too. Otherwise they would arrive in bursts of ten thousand.
        session.conf.set(_BATCH_ROWS, str(rows))
        slow: Any = arrow_udf(paced(per_task), "binary")  # type: ignore[call-overload]  # known by its hints
        frame = frame.withColumn("body", slow.asNondeterministic()("body"))
    try:
        frame.write.format("rocketmq").options(**options).mode("append").save()
    finally:
        session.conf.unset(_BATCH_ROWS)


def paced(
    rows_per_second: float, clock: Clock = SYSTEM_CLOCK
) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    """Returns a function that passes a column through, batch by batch, at no more than this rate."""

    def pace(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
        pause = threading.Event()
        start = clock.monotonic()
        done = 0
        for column in columns:
            done += len(column)
            ahead_s = done / rows_per_second - (clock.monotonic() - start)
            if ahead_s > 0:
                pause.wait(ahead_s)
            yield column

    return pace

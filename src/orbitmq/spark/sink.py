"""``write.format("rocketmq")``: rows of a batch or a stream become messages.

Every attempt of a task gives its rows the same unique keys (column ``msg_id`` of a reader): from the query and the
micro-batch, the partition and the number of the row, or from a column. So at least once becomes exactly once by
dropping duplicates of that key. Rows that come in another order when a stage runs again (behind a shuffle of
unordered data) need the column: ``uniqueKeyColumn``.

What was stored where is logged once per write or micro-batch, and written as JSON to ``reportPath`` if that is given.
"""

from __future__ import annotations

import json
import logging
import posixpath
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    LongType,
    MapType,
    StringType,
    TimestampType,
)

from orbitmq.client.options import ProducerOptions
from orbitmq.errors import ConfigError
from orbitmq.spark.options import CLIENT_OPTIONS, access, client_settings, number, refuse_unknown, text
from orbitmq.spark.sink_place import RowSender
from orbitmq.spark.sink_rows import RowKeys, encode_rows, key_prefix, split_by_size
from orbitmq.spark.sink_send import QueueTally, SendSession, SinkClient, sink_client
from orbitmq.spark.store_files import open_location

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["RowsSent", "SinkPlan", "batch_writer", "plan_sink", "stream_writer"]

logger = logging.getLogger(__name__)

GROUP_DEFAULT: Final = "orbitmq-spark-sink"
BATCH_BYTES: Final = 256 * 1024
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
SEND_TIMEOUT_MS: Final = 60_000
ATTEMPT_TIMEOUT_S: Final = 10.0
IN_FLIGHT: Final = 16

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"

_OPTIONS: Final = (
    *CLIENT_OPTIONS,
    "topic",
    "broker",
    "group",
    "uniqueKeyColumn",
    "uniqueKeyScope",
    "batchBytes",
    "inFlight",
    "maxMessageBytes",
    "sendTimeoutMs",
    "reportPath",
    "checkpointLocation",
)
_TEXT: Final = "string"
_Kind = tuple[str, tuple[type[DataType], ...]]
_UNIQUE_KEY: Final[_Kind] = (_TEXT, (StringType,))
_COLUMNS: Final[Mapping[str, _Kind]] = {
    "topic": (_TEXT, (StringType,)),
    "body": ("binary or string", (BinaryType, StringType)),
    "keys": ("string or array<string>", (StringType, ArrayType)),
    "tags": (_TEXT, (StringType,)),
    "sharding_key": ("string or integer", (StringType, IntegralType)),
    "queue_id": ("integer", (IntegralType,)),
    "broker": (_TEXT, (StringType,)),
    "properties": ("map<string,string>", (MapType,)),
    "delay_level": ("integer", (IntegralType,)),
    "deliver_at": ("timestamp or bigint (ms)", (TimestampType, LongType)),
}


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Everything a task needs to know; travels to the executors."""

    options: Mapping[str, str]
    group: str
    topic: str | None
    broker: str | None
    unique_column: str | None
    scope: str
    batch_bytes: int
    message_bytes_max: int
    timeout_s: float
    in_flight_max: int
    report_path: str | None

    def client(self) -> SinkClient:
        """The client of this process for these options."""
        found = access(self.options)

        def make() -> SinkClient:
            producer = ProducerOptions(
                send_timeout_s=ATTEMPT_TIMEOUT_S,
                message_bytes_max=self.message_bytes_max,
                **client_settings(self.options),
            )
            return SinkClient(self.group, found.name_servers, producer)

        return sink_client((found, self.group, self.message_bytes_max), make)


@dataclass(frozen=True, slots=True)
class RowsSent(WriterCommitMessage):
    """What one task stored, by (topic, broker, queue id)."""

    partition: int
    attempt: int
    queues: Mapping[tuple[str, str, int], QueueTally]


def plan_sink(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> SinkPlan:
    """Check options and columns. Raises ``ConfigError`` that says what is accepted."""
    refuse_unknown(options, _OPTIONS)
    access(options)
    topic = text(options, "topic", "path")
    unique_column = text(options, "uniqueKeyColumn")
    _check_columns(schema, topic, unique_column)
    message_bytes_max = _positive(options, "maxMessageBytes", MESSAGE_BYTES_MAX)
    return SinkPlan(
        options=dict(options),
        group=text(options, "group") or GROUP_DEFAULT,
        topic=topic,
        broker=text(options, "broker"),
        unique_column=unique_column,
        # A stream is known by its query, which a restart from its checkpoint keeps. A batch has a name of its own.
        scope=text(options, "uniqueKeyScope") or ("" if streaming else uuid.uuid4().hex),
        batch_bytes=min(_positive(options, "batchBytes", BATCH_BYTES), message_bytes_max),
        message_bytes_max=message_bytes_max,
        timeout_s=_positive(options, "sendTimeoutMs", SEND_TIMEOUT_MS) / 1000,
        in_flight_max=_positive(options, "inFlight", IN_FLIGHT),
        report_path=text(options, "reportPath"),
    )


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    value = number(options, name, default, low=1, high=2**31 - 1)
    assert value is not None, "there is a default"
    return value


def _check_columns(schema: StructType, topic: str | None, unique_column: str | None) -> None:
    accepted = ", ".join(f"{name} ({text})" for name, (text, _) in _COLUMNS.items())
    names = [field.name for field in schema.fields]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ConfigError(f"the frame has more than one column {doubled[0]!r}")
    for field in schema.fields:
        known = _UNIQUE_KEY if field.name == unique_column else _COLUMNS.get(field.name)
        if known is None:
            raise ConfigError(
                f"column {field.name!r} has no meaning for a message; select() or rename what is to be sent. "
                f"Accepted: {accepted}"
            )
        if not isinstance(field.dataType, known[1]) or not _elements_fit(field.dataType):
            raise ConfigError(
                f"column {field.name!r} is {field.dataType.simpleString()}; it must be {known[0]}"
            )
    if "body" not in names:
        raise ConfigError(f"the frame has no column 'body'. Accepted: {accepted}")
    if "topic" not in names and topic is None:
        raise ConfigError("where to send? Give the option 'topic' or a column 'topic'")
    if unique_column is not None and unique_column not in names:
        raise ConfigError(f"uniqueKeyColumn names {unique_column!r}; the frame has {', '.join(names)}")
    if "queue_id" in names and "sharding_key" in names:
        raise ConfigError("both queue_id and sharding_key choose the queue: give one of them")


def _elements_fit(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return isinstance(kind.elementType, StringType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
    return True


# -- on the executors ----------------------------------------------------------------------------------


def send_partition(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> RowsSent:
    """Send all rows of a task; returns when the brokers have stored them."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "write() runs in a task"
    query = context.getLocalProperty(_QUERY_ID) or ""
    batch = context.getLocalProperty(_BATCH_ID) or ""
    unique: RowKeys | str = plan.unique_column or RowKeys(
        key_prefix(plan.scope or query, batch, context.partitionId())
    )
    client = plan.client()
    session = SendSession(client, plan.timeout_s, plan.in_flight_max)
    sender = RowSender(client, session, plan.topic, plan.broker, plan.batch_bytes)
    first_row = 0
    try:
        for record_batch in batches:
            for start, piece in split_by_size(record_batch):
                sender.send(encode_rows(piece, first_row + start, unique, plan.message_bytes_max))
            first_row += record_batch.num_rows
    finally:
        session.finish()
    return RowsSent(context.partitionId(), context.attemptNumber(), session.tallies)


# -- on the driver -------------------------------------------------------------------------------------


def summarise(messages: Iterable[RowsSent | None]) -> dict[tuple[str, str, int], QueueTally]:
    """All tasks together."""
    total: dict[tuple[str, str, int], QueueTally] = {}
    for message in messages:
        for key, tally in message.queues.items() if message is not None else ():
            total.setdefault(key, QueueTally()).add(tally)
    return dict(sorted(total.items()))


def report(plan: SinkPlan, messages: Sequence[RowsSent | None], batch_id: int | None, outcome: str) -> None:
    """Say how many rows went where."""
    total = summarise(messages)
    rows = sum(tally.rows for tally in total.values())
    not_safe = sum(tally.not_safe_rows for tally in total.values())
    logger.log(
        logging.WARNING if not_safe or outcome != "committed" else logging.INFO,
        "sink %s batch=%s rows=%d not_safe=%d queues=%s",
        outcome,
        "" if batch_id is None else batch_id,
        rows,
        not_safe,
        " ".join(f"{topic}/{broker}/{queue}:{tally.rows}" for (topic, broker, queue), tally in total.items()),
    )
    if plan.report_path is None:
        return
    document: dict[str, Any] = {
        "outcome": outcome,
        "rows": rows,
        "body_bytes": sum(tally.body_bytes for tally in total.values()),
        "not_safe_rows": not_safe,
        "queues": [
            {"topic": topic, "broker": broker, "queue_id": queue_id, **asdict(tally)}
            for (topic, broker, queue_id), tally in total.items()
        ],
        "tasks": [
            {"partition": message.partition, "attempt": message.attempt}
            for message in messages
            if message is not None
        ],
    }
    path = plan.report_path
    if batch_id is not None:
        document["batch_id"] = batch_id
        path = posixpath.join(path, f"batch-{batch_id}.json")
    filesystem, place = open_location(path)
    filesystem.create_dir(posixpath.dirname(place), recursive=True)
    with filesystem.open_output_stream(place) as stream:
        stream.write(json.dumps(document, indent=1).encode() + b"\n")


class BatchWriter(DataSourceArrowWriter):
    """One ``df.write``."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return send_partition(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        report(self._plan, _ours(messages), None, "committed")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        report(self._plan, _ours(messages), None, "aborted")


class StreamWriter(DataSourceStreamArrowWriter):
    """One micro-batch of a query."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return send_partition(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        report(self._plan, _ours(messages), batchId, "committed")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        report(self._plan, _ours(messages), batchId, "aborted")


def _ours(messages: Sequence[WriterCommitMessage | None]) -> list[RowsSent | None]:
    return [message if isinstance(message, RowsSent) else None for message in messages]


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """The writer of ``df.write``. Raises ``ConfigError``."""
    if overwrite:
        raise ConfigError("a topic cannot be overwritten: use .mode('append')")
    return BatchWriter(plan_sink(options, schema, streaming=False))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """The writer of ``df.writeStream``; in output mode complete every micro-batch sends the whole result again."""
    del overwrite
    return StreamWriter(plan_sink(options, schema, streaming=True))

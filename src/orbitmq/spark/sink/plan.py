"""``write.format("rocketmq")``: sends the rows of a batch or a stream as messages.

There are two modes: ``dedup``, described here, and ``transactional``, described in ``transactional.py``.

Every attempt of a task gives its rows the same unique keys (column ``msg_id`` of a reader). They are made from the
query and micro-batch, the partition and the row number, or taken from a column. Dropping duplicates of that key turns
at-least-once into exactly-once. If the order of rows may change when a stage is rerun (after a shuffle of unordered
data), the keys must come from a column: ``uniqueKeyColumn``.

The number of rows stored in each queue is logged once per write or micro-batch, and written as JSON to ``reportPath``
if that is set.
"""

from __future__ import annotations

import json
import logging
import posixpath
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
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
from orbitmq.spark.sink.place import RowSender
from orbitmq.spark.sink.rows import RowKeys, encode_rows, key_prefix, split_by_size
from orbitmq.spark.sink.send import QueueTally, SendSession, SinkClient, sink_client
from orbitmq.spark.store.files import open_location

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = [
    "BatchWriter",
    "RowsSent",
    "SinkPlan",
    "StreamWriter",
    "TaskOf",
    "plan_sink",
    "report",
    "send_rows",
    "sent_by",
]

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
    "mode",
    "transactionLog",
)
_MODES: Final = ("dedup", "transactional")
_LOG_FOLDER: Final = "rocketmq-sink"
_NOT_HALF: Final = ("delay_level", "deliver_at")
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
    """Everything that a task needs to send its rows. Sent to the executors."""

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
    transactional: bool = False
    log_location: str = ""
    """Directory of the decisions about micro-batches."""

    def client(self) -> SinkClient:
        """Returns this process's client for these options."""
        found = access(self.options)

        def make() -> SinkClient:
            producer = ProducerOptions(
                send_timeout_s=ATTEMPT_TIMEOUT_S,
                message_bytes_max=self.message_bytes_max,
                **client_settings(self.options),
            )
            # In a group with half messages only the driver is a member, so that brokers check with it.
            return SinkClient(self.group, found, producer, member=not self.transactional)

        return sink_client((found, self.group, self.message_bytes_max, self.transactional), make)


@dataclass(frozen=True, slots=True)
class RowsSent(WriterCommitMessage):
    """The counts of rows stored by one task, by (topic, broker, queue id)."""

    partition: int
    attempt: int
    queues: Mapping[tuple[str, str, int], QueueTally]
    query: str = ""
    halves: bytes = b""
    """Half messages, packed."""
    replayed: bool = False
    """The micro-batch had already been decided, so nothing was sent."""


def plan_sink(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> SinkPlan:
    """Returns the plan after checking options and columns. Raises ``ConfigError`` that says what is accepted."""
    refuse_unknown(options, _OPTIONS)
    access(options)
    topic = text(options, "topic", "path")
    unique_column = text(options, "uniqueKeyColumn")
    _check_columns(schema, topic, unique_column)
    message_bytes_max = _positive(options, "maxMessageBytes", MESSAGE_BYTES_MAX)
    transactional = _mode(options) == "transactional"
    location = _log_location(options, streaming) if transactional else ""
    if transactional:
        _check_halves(schema)
    return SinkPlan(
        options=dict(options),
        group=text(options, "group") or _group(location),
        topic=topic,
        broker=text(options, "broker"),
        unique_column=unique_column,
        # A stream is identified by its query, which survives a restart from its checkpoint. A batch gets a unique
        # name.
        scope=text(options, "uniqueKeyScope") or ("" if streaming else uuid.uuid4().hex),
        batch_bytes=min(_positive(options, "batchBytes", BATCH_BYTES), message_bytes_max),
        message_bytes_max=message_bytes_max,
        timeout_s=_positive(options, "sendTimeoutMs", SEND_TIMEOUT_MS) / 1000,
        in_flight_max=_positive(options, "inFlight", IN_FLIGHT),
        report_path=text(options, "reportPath"),
        transactional=transactional,
        log_location=location,
    )


def _mode(options: Mapping[str, str]) -> str:
    mode = text(options, "mode") or _MODES[0]
    if mode not in _MODES:
        raise ConfigError(f"option 'mode' is {mode!r}; {' and '.join(_MODES)} are accepted")
    return mode


def _log_location(options: Mapping[str, str], streaming: bool) -> str:
    """Returns the location of the transaction log. A stream's log is in its checkpoint unless an option overrides
    it."""
    given, checkpoint = text(options, "transactionLog"), text(options, "checkpointLocation")
    if given is None and checkpoint is None and streaming:
        raise ConfigError(
            "mode=transactional keeps its log in the checkpoint: give the option 'checkpointLocation' to this "
            "writer, or 'transactionLog', a directory that every driver of this query reaches"
        )
    return given or (posixpath.join(checkpoint, _LOG_FOLDER) if checkpoint else "")


def _group(location: str) -> str:
    """Returns the producer group. Queries with half messages each have their own group, because a broker sends checks
    to any member of the group, and they must reach the right driver."""
    if not location:
        return GROUP_DEFAULT
    return f"{GROUP_DEFAULT}-{blake2b(location.encode(), digest_size=6).hexdigest()}"


def _check_halves(schema: StructType) -> None:
    for field in schema.fields:
        if field.name in _NOT_HALF:
            raise ConfigError(
                f"column {field.name!r} cannot be used with mode=transactional, because committed messages are "
                "delivered immediately"
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
        raise ConfigError("no topic: give the option 'topic' or a column 'topic'")
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


@dataclass(frozen=True, slots=True)
class TaskOf:
    """The task that runs in this process. Its values identify the rows, regardless of the attempt."""

    query: str
    batch: str
    partition: int
    attempt: int

    @classmethod
    def current(cls) -> TaskOf:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "write() runs in a task"
        return cls(
            context.getLocalProperty(_QUERY_ID) or "",
            context.getLocalProperty(_BATCH_ID) or "",
            context.partitionId(),
            context.attemptNumber(),
        )


def send_rows(
    plan: SinkPlan, task: TaskOf, session: SendSession, batches: Iterator[pa.RecordBatch], half: bytes = b""
) -> None:
    """Sends all rows of a task and returns when the brokers have stored them. With ``half``, they become half
    messages with these properties."""
    unique: RowKeys | str = plan.unique_column or RowKeys(
        key_prefix(plan.scope or task.query, task.batch, task.partition)
    )
    sender = RowSender(session.client, session, plan.topic, plan.broker, plan.batch_bytes, half)
    first_row = 0
    try:
        for record_batch in batches:
            for start, piece in split_by_size(record_batch):
                sender.send(encode_rows(piece, first_row + start, unique, plan.message_bytes_max))
            first_row += record_batch.num_rows
    finally:
        session.finish()


def send_partition(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> RowsSent:
    """Sends all rows of a task, waits until the brokers have stored them, and returns their counts by queue."""
    task = TaskOf.current()
    session = SendSession(plan.client(), plan.timeout_s, plan.in_flight_max)
    send_rows(plan, task, session, batches)
    return RowsSent(task.partition, task.attempt, session.tallies)


# -- on the driver -------------------------------------------------------------------------------------


def summarise(messages: Iterable[RowsSent | None]) -> dict[tuple[str, str, int], QueueTally]:
    """Returns the totals of all tasks by (topic, broker, queue id)."""
    total: dict[tuple[str, str, int], QueueTally] = {}
    for message in messages:
        for key, tally in message.queues.items() if message is not None else ():
            total.setdefault(key, QueueTally()).add(tally)
    return dict(sorted(total.items()))


def report(plan: SinkPlan, messages: Sequence[RowsSent | None], batch_id: int | None, outcome: str) -> None:
    """Logs how many rows each queue stored, and writes the report file if one is configured."""
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
    """The writer of one ``df.write``."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return send_partition(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        report(self._plan, sent_by(messages), None, "committed")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        report(self._plan, sent_by(messages), None, "aborted")


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of one micro-batch of a query."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return send_partition(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        report(self._plan, sent_by(messages), batchId, "committed")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        report(self._plan, sent_by(messages), batchId, "aborted")


def sent_by(messages: Sequence[WriterCommitMessage | None]) -> list[RowsSent | None]:
    """Returns the tasks' commit messages, with None for each task that failed."""
    return [message if isinstance(message, RowsSent) else None for message in messages]

"""Half messages of a micro-batch, and the log of the micro-batches to commit.

The log is a directory of the driver, with one folder per query. ``N.parquet`` is the decision to commit micro-batch
N. It lists every half message, and where the queues ended before the first of them was committed. ``N.done`` says
that all of them have been committed. Files appear atomically.
"""

from __future__ import annotations

import json
import posixpath
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # the same
from pyarrow import fs as pafs

from orbitmq.errors import ConfigError
from orbitmq.model.route import MessageQueue
from orbitmq.spark.store.files import open_location

__all__ = ["Decision", "Half", "TransactionLog"]

_DONE_KEPT: Final = 100
_STARTS: Final = b"orbitmq.starts"
_NAME: Final = re.compile(r"(\d+)\.(parquet|done)")
_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue_id", pa.int32()),
        ("half_offset", pa.int64()),
        ("log_offset", pa.int64()),
        ("key", pa.string()),
        ("placed", pa.bool_()),
        ("partition", pa.int32()),
        ("row", pa.int64()),
    ]
)


class Half(NamedTuple):
    """A stored half message and its target queue."""

    topic: str
    broker: str
    queue_id: int
    half_offset: int
    log_offset: int
    key: str
    """Its unique key."""
    placed: bool
    """The row chose its queue, so rows of that queue keep their order."""
    partition: int
    row: int

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(topic=self.topic, broker_name=self.broker, queue_id=self.queue_id)


def pack(halves: Sequence[Half]) -> bytes:
    """Returns half messages encoded for the commit message of a task."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_table(_table(halves))
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(packed: bytes) -> list[Half]:
    """Returns the half messages that ``pack`` has encoded."""
    return _halves(pa.ipc.open_stream(packed).read_all())


def _table(halves: Sequence[Half]) -> pa.Table:
    columns = zip(*halves, strict=True) if halves else [()] * len(_SCHEMA)
    return pa.table(
        [pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)], _SCHEMA
    )


def _halves(table: pa.Table) -> list[Half]:
    return [Half(*values) for values in zip(*(column.to_pylist() for column in table.columns), strict=True)]


@dataclass(frozen=True, slots=True)
class Decision:
    """The pending commits of a micro-batch."""

    halves: Sequence[Half]
    starts: Mapping[MessageQueue, int]
    """Where each queue ended before. This micro-batch's committed messages come after that."""


class TransactionLog:
    """The log of the decisions of all queries that share a directory. Used by the driver only."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._filesystem, self._root = open_location(location)

    def _names(self, query: str) -> list[tuple[int, str]]:
        selector = pafs.FileSelector(posixpath.join(self._root, query), allow_not_found=True)
        matches = (_NAME.fullmatch(one.base_name) for one in self._filesystem.get_file_info(selector))
        return sorted((int(found[1]), found[2]) for found in matches if found)

    def decided(self) -> dict[str, int]:
        """Returns each query's last decided micro-batch. Raises ``ConfigError`` if it cannot be determined."""
        try:
            selector = pafs.FileSelector(self._root, allow_not_found=True)
            folders = [
                one.base_name
                for one in self._filesystem.get_file_info(selector)
                if one.type == pafs.FileType.Directory
            ]
            found = {query: max((batch for batch, _ in self._names(query)), default=-1) for query in folders}
        except OSError as error:
            raise ConfigError(f"cannot list the transaction log {self._location!r}: {error}") from None
        return {query: batch for query, batch in found.items() if batch >= 0}

    def done(self, query: str) -> int:
        """Returns a query's last completely committed micro-batch, or -1 if there is none."""
        return max((batch for batch, kind in self._names(query) if kind == "done"), default=-1)

    def read(self, query: str, batch: int) -> Decision | None:
        """Returns the decision about a micro-batch, or None if there is no decision or its commits are complete."""
        path = self._path(query, batch, "parquet")
        if self._filesystem.get_file_info(path).type != pafs.FileType.File:
            return None
        with self._filesystem.open_input_file(path) as stream:
            table = pq.read_table(stream)
        starts = {
            MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id): offset
            for topic, broker, queue_id, offset in json.loads(table.schema.metadata[_STARTS])
        }
        return Decision(_halves(table.select(_SCHEMA.names)), starts)

    def decide(self, query: str, batch: int, decision: Decision) -> None:
        """Records the decision. From here on the micro-batch will be committed, by this or another driver."""
        starts = [
            (queue.topic, queue.broker_name, queue.queue_id, offset)
            for queue, offset in decision.starts.items()
        ]
        table = _table(decision.halves).replace_schema_metadata({_STARTS: json.dumps(starts).encode()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        self._write(self._path(query, batch, "parquet"), sink.getvalue())

    def finish(self, query: str, batch: int) -> None:
        """Records that all half messages of the micro-batch have been committed."""
        self._write(self._path(query, batch, "done"), b"")
        for other, kind in self._names(query):
            if (kind == "parquet" and other <= batch) or other <= batch - _DONE_KEPT:
                self._filesystem.delete_file(self._path(query, other, kind))

    def _path(self, query: str, batch: int, kind: str) -> str:
        return posixpath.join(self._root, query, f"{batch}.{kind}")

    def _write(self, path: str, data: bytes | pa.Buffer) -> None:
        self._filesystem.create_dir(posixpath.dirname(path), recursive=True)
        half_written = f"{path}.{uuid.uuid4().hex}"
        with self._filesystem.open_output_stream(half_written) as stream:
            stream.write(data)
        self._filesystem.move(half_written, path)

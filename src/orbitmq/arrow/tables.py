"""``read_topic`` and ``read_store``: messages as a table that is read when it is used.

Invariants
1. Creating a table asks no server. The first batch of the first read plans the read, once: every read of a table
   returns the same rows, as long as the broker retains them.
2. Each read has its own stream, so several readers and threads may use a table at the same time.
3. Memory: one receive buffer and a few batches of about 1 MiB per stream, whatever the size of the topic.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self, Unpack

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.compute as pc  # type: ignore[import-untyped]  # the same

from orbitmq.arrow.settings import (
    Bound,
    StoreSettings,
    TopicSettings,
    bare_offsets,
    checked_columns,
    store_options,
    topic_options,
)
from orbitmq.model.names import unwrap_namespace
from orbitmq.spark.cluster import Cluster
from orbitmq.spark.options import Offsets, SourceOptions
from orbitmq.spark.schema import arrow_schema
from orbitmq.spark.source.bounds import BatchPlan, batch_plan
from orbitmq.spark.source.planning import as_offsets
from orbitmq.spark.source.reading import read_ranges
from orbitmq.spark.store.files import Block
from orbitmq.spark.store.options import StoreOptions
from orbitmq.spark.store.queues import UnitBlock
from orbitmq.spark.store.reading import plan_parts, read_block, read_units

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]  # its types are a package of their own
    import polars as pl

__all__ = ["MessageTable", "StoreTable", "TopicTable", "read_store", "read_topic"]


def read_topic(
    topic: str | Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    start: Bound = None,
    stop: Bound = None,
    **settings: Unpack[TopicSettings],
) -> TopicTable:
    """The messages of one or several topics as a lazy table.

    ``columns`` are the columns to decode; all by default. ``start`` is the earliest message by default, ``stop`` the
    end of each queue at the first read. Both take a store time (``datetime``, ISO 8601 text, or milliseconds since
    1970), offsets ``{topic: {broker: {queue: offset}}}``, ``"earliest"`` and ``"latest"``; ``start`` also
    ``"group"``. ``stop`` is exclusive. Reading commits no offset.

    Raises ``ConfigError`` for arguments that do not fit. Reading raises ``OrbitError``: ``DataLossError`` for
    messages that expired before they were read, ``ConfigError`` for an unknown topic, and the last failure of a
    broker that stayed unavailable for ``retryTimeoutMs`` (two minutes).
    """
    chosen = checked_columns(columns)
    options = topic_options(topic, start, stop, settings)
    return TopicTable(options, chosen, namespace=settings.get("namespace", ""))


def read_store(
    path: str | Sequence[str], *, columns: Sequence[str] | None = None, **settings: Unpack[StoreSettings]
) -> StoreTable:
    """The messages in the log of a store directory, or several, as a lazy table; no broker is needed.

    ``path`` may be a URI that ``pyarrow.fs`` can open, such as ``s3://bucket/store``. Raises ``ConfigError`` for
    arguments that do not fit. Reading raises ``CorruptionError`` or ``RecordError`` for damaged records, unless
    ``options={"failOnDataLoss": "false"}`` skips and logs them.
    """
    return StoreTable(store_options(path, settings), checked_columns(columns))


class MessageTable(ABC):
    """Messages as a table. Every use reads it from its beginning."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._lock = threading.Lock()

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return arrow_schema(self._columns)

    @abstractmethod
    def select(self, columns: Sequence[str]) -> Self:
        """The same messages with only these columns, planned together."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, about 1 MiB of records at a time. Closing the iterator closes its connection."""

    def reader(self) -> pa.RecordBatchReader:
        """The rows as a stream, to be read once."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A new stream. Nothing is read before its first batch is requested: DuckDB opens three for one query."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def table(self) -> pa.Table:
        """All rows in memory."""
        return self.reader().read_all()

    def pandas(self) -> pd.DataFrame:
        """All rows in memory, as a pandas frame."""
        return self.reader().read_pandas()

    def polars(self) -> pl.LazyFrame:
        """A lazy Polars frame. Columns it does not use are not decoded, and ``head`` ends the read early."""
        import polars as pl
        from polars.io.plugins import register_io_source

        def frames(
            with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _size: int | None
        ) -> Iterator[pl.DataFrame]:
            # Without any column a frame has no height: one cheap column carries it.
            table = self if with_columns is None else self.select(with_columns or self._columns[:1])
            left = n_rows
            for batch in table.batches():
                frame = pl.DataFrame(batch)
                if left is not None:
                    frame = frame.head(left)
                    left -= frame.height
                yield frame if predicate is None else frame.filter(predicate)
                if left == 0:
                    return

        schema = pl.DataFrame(self.schema.empty_table()).schema
        return register_io_source(frames, schema=schema, is_pure=True)


# -- topics --------------------------------------------------------------------------------------------


class _Planned(NamedTuple):
    cluster: Cluster
    plan: BatchPlan


class _Plan:
    """The ranges of a read, requested once and shared by all tables that were selected from one."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._lock = threading.Lock()
        self._planned: _Planned | None = None

    def planned(self) -> _Planned:
        with self._lock:
            if self._planned is None:
                cluster = Cluster(self.options)
                self._planned = _Planned(cluster, batch_plan(cluster, self.options))
            return self._planned


class TopicTable(MessageTable):
    """What ``read_topic`` returns."""

    def __init__(
        self,
        options: SourceOptions,
        columns: Sequence[str],
        *,
        namespace: str = "",
        plan: _Plan | None = None,
    ) -> None:
        super().__init__(columns)
        self._plan = plan or _Plan(options)
        self._namespace = namespace

    def select(self, columns: Sequence[str]) -> Self:
        chosen = checked_columns(columns)
        return type(self)(self._plan.options, chosen, namespace=self._namespace, plan=self._plan)

    def latest(self) -> Self:
        """The same read with its bounds resolved again: with the messages that were stored since."""
        return type(self)(self._plan.options, self._columns, namespace=self._namespace)

    @property
    def end_offsets(self) -> Offsets:
        """Where the read ends, by topic, broker and queue. As ``start`` of another read it continues there."""
        return bare_offsets(as_offsets(self._plan.planned().plan.end), self._namespace)

    def batches(self) -> Iterator[pa.RecordBatch]:
        cluster, plan = self._plan.planned()
        for piece in plan.ranges:
            address, from_master = cluster.read_address(piece.queue)
            for batch in read_ranges(
                self._plan.options, [piece], address, self._columns, from_master=from_master
            ):
                yield self._named(batch, piece.queue.topic)

    def _named(self, batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
        """The batch with the name of the topic as the user gave it."""
        bare = unwrap_namespace(topic, self._namespace)
        if bare == topic or "topic" not in self._columns:
            return batch
        column = self._columns.index("topic")
        names = pc.if_else(pc.equal(batch.column(column), topic), bare, batch.column(column))
        return batch.set_column(column, batch.schema.field(column), names)


# -- stores --------------------------------------------------------------------------------------------


class StoreTable(MessageTable):
    """What ``read_store`` returns. Its parts are planned by the first read, and read in the order of the log."""

    def __init__(
        self,
        options: StoreOptions,
        columns: Sequence[str],
        *,
        parts: list[list[Block | UnitBlock]] | None = None,
    ) -> None:
        super().__init__(columns)
        self._options = options
        self._parts: list[list[Block | UnitBlock]] = [] if parts is None else parts
        """Empty until the first read; shared by the tables that were selected from one."""

    def select(self, columns: Sequence[str]) -> Self:
        return type(self)(self._options, checked_columns(columns), parts=self._parts)

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._lock:
            if not self._parts:
                self._parts.append(plan_parts(self._options))
        for part in self._parts[0]:
            if isinstance(part, Block):
                yield from read_block(part, self._options, self._columns)
            else:
                yield from read_units(part, self._options, self._columns)

"""``read_topic`` and ``read_store``: messages as a lazy table.

Invariants
1. Creating a table sends no request. The first batch of the first read plans the read once, so every read of a
   table returns the same rows for as long as the broker retains them.
2. Each read has its own stream, so several readers and threads may use a table concurrently.
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
    """Returns the messages of one or more topics as a lazy table.

    ``columns`` are the columns to decode; all by default. ``start`` defaults to the earliest message, ``stop`` to the
    end of each queue at the first read. Both accept a store time (``datetime``, ISO 8601 text, or milliseconds since
    1970), offsets ``{topic: {broker: {queue: offset}}}``, ``"earliest"`` and ``"latest"``; ``start`` also accepts
    ``"group"``. ``stop`` is exclusive. Reading commits no offset.

    Raises ``ConfigError`` for invalid arguments. Reading raises ``OrbitError``: ``DataLossError`` for messages that
    expired before they were read, ``ConfigError`` for an unknown topic, and the last failure of a broker that stayed
    unavailable for ``retryTimeoutMs`` (two minutes).
    """
    chosen = checked_columns(columns)
    options = topic_options(topic, start, stop, settings)
    return TopicTable(options, chosen, namespace=settings.get("namespace", ""))


def read_store(
    path: str | Sequence[str], *, columns: Sequence[str] | None = None, **settings: Unpack[StoreSettings]
) -> StoreTable:
    """Returns the messages in the log of one or more store directories as a lazy table. Needs no broker.

    ``path`` may be a URI that ``pyarrow.fs`` can open, such as ``s3://bucket/store``. Raises ``ConfigError`` for
    invalid arguments. Reading raises ``CorruptionError`` or ``RecordError`` for damaged records, unless
    ``options={"failOnDataLoss": "false"}`` skips and logs them.
    """
    return StoreTable(store_options(path, settings), checked_columns(columns))


class MessageTable(ABC):
    """Messages as a table. Each use reads it from the beginning."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._lock = threading.Lock()

    @property
    def schema(self) -> pa.Schema:
        """The names and types of the columns."""
        return arrow_schema(self._columns)

    @abstractmethod
    def select(self, columns: Sequence[str]) -> Self:
        """Returns the same messages with only these columns. The plan is shared."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows, about 1 MiB of records at a time. Closing the iterator closes its connection."""

    def reader(self) -> pa.RecordBatchReader:
        """Returns the rows as a stream that can be read once."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Returns a new stream. Nothing is read until its first batch is requested, because DuckDB opens three
        streams per query."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def table(self) -> pa.Table:
        """Returns all rows as an Arrow table in memory."""
        return self.reader().read_all()

    def pandas(self) -> pd.DataFrame:
        """Returns all rows as a pandas frame in memory."""
        return self.reader().read_pandas()

    def polars(self) -> pl.LazyFrame:
        """Returns a lazy Polars frame. Unused columns are not decoded, and ``head`` ends the read early."""
        import polars as pl
        from polars.io.plugins import register_io_source

        def frames(
            with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _size: int | None
        ) -> Iterator[pl.DataFrame]:
            # A frame without columns has no height, so one cheap column carries it.
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
    """The ranges of a read, planned once and shared by all tables that were created with ``select`` from the same
    table."""

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
    """The table returned by ``read_topic``."""

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
        """Returns the same read with its bounds resolved again, so that it includes the messages stored since."""
        return type(self)(self._plan.options, self._columns, namespace=self._namespace)

    @property
    def end_offsets(self) -> Offsets:
        """The offsets where the read ends, by topic, broker and queue. Pass them as ``start`` of another read to
        continue there."""
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
        """Returns the batch with the topic name that the user gave, which has no namespace."""
        bare = unwrap_namespace(topic, self._namespace)
        if bare == topic or "topic" not in self._columns:
            return batch
        column = self._columns.index("topic")
        names = pc.if_else(pc.equal(batch.column(column), topic), bare, batch.column(column))
        return batch.set_column(column, batch.schema.field(column), names)


# -- stores --------------------------------------------------------------------------------------------


class StoreTable(MessageTable):
    """The table returned by ``read_store``. Its parts are planned by the first read, and read in log order."""

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
        """Empty until the first read. Shared by the tables selected from the same one."""

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

"""A batch read of store files, which is planned on the driver and read on the executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
from pyspark.sql.datasource import DataSourceReader, InputPartition

from orbitmq.spark.store.files import Block
from orbitmq.spark.store.options import StoreOptions
from orbitmq.spark.store.queues import UnitBlock
from orbitmq.spark.store.reading import plan_parts, read_block, read_units
from orbitmq.spark.worker import leave_modules_uncollected

__all__ = ["BlockPartition", "StoreReader", "UnitPartition"]


@dataclass(frozen=True, slots=True)
class BlockPartition(InputPartition):
    """A task that reads a block of the log."""

    block: Block


@dataclass(frozen=True, slots=True)
class UnitPartition(InputPartition):
    """A task that reads through a consume queue."""

    units: UnitBlock


class StoreReader(DataSourceReader):
    """Spark's reader for one batch. It plans on the driver and reads on the executors."""

    def __init__(self, options: StoreOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        return [
            BlockPartition(part) if isinstance(part, Block) else UnitPartition(part)
            for part in plan_parts(self._options)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark reads an empty plan as one partition without a value.
        if isinstance(partition, BlockPartition):
            yield from read_block(partition.block, self._options, self._columns)
        elif isinstance(partition, UnitPartition):
            yield from read_units(partition.units, self._options, self._columns)
        leave_modules_uncollected()

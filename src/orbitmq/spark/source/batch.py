"""A batch read of topics, which is planned once on the driver and read on the executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from orbitmq.spark.cluster import Cluster
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.schema import COLUMNS
from orbitmq.spark.source.bounds import batch_plan
from orbitmq.spark.source.planning import QueueRange, grouped_ranges, split_ranges
from orbitmq.spark.worker import leave_modules_uncollected

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

__all__ = ["TopicPartition", "TopicReader", "planned_partitions"]


class TopicPartition(InputPartition):
    """Ranges of queues of one broker, and the address to read them from, as known at planning time."""

    def __init__(self, pieces: Sequence[QueueRange], address: str, from_master: bool) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)
        self.address = address
        self.from_master = from_master


class TopicReader(DataSourceReader):
    """Spark's reader for one batch."""

    def __init__(self, options: SourceOptions, columns: Sequence[str] = COLUMNS) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        cluster = Cluster(options)
        return planned_partitions(cluster, options, batch_plan(cluster, options).ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from orbitmq.spark.source.reading import read_ranges

        # Spark turns an empty list of partitions into one partition without a value.
        if isinstance(partition, TopicPartition):
            yield from read_ranges(
                self._options,
                partition.pieces,
                partition.address,
                self._columns,
                from_master=partition.from_master,
            )
        leave_modules_uncollected()


def planned_partitions(
    cluster: Cluster, options: SourceOptions, ranges: Sequence[QueueRange]
) -> list[InputPartition]:
    """Returns the ranges as Spark partitions, split according to the options."""
    pieces = split_ranges(ranges, options.partitions_min, options.records_per_partition_max)
    groups = grouped_ranges(pieces, options.partitions_max, options.records_per_partition_max)
    return [TopicPartition(group, *cluster.read_address(group[0].queue)) for group in groups]

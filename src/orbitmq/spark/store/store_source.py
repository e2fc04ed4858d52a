"""``spark.read.format("rocketmq-store").load(path)``: the log of a store directory as a table, without a broker.

There is one row per record of every topic, in log order. That includes delayed messages and records of transactions,
under the topics that store them. Options first exclude whole segments and blocks on the driver, and then single rows:
``topic`` (a list), ``topicPattern``, ``startingTimestamp`` and ``endingTimestamp`` (ms, the end exclusive).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from orbitmq.spark.schema import SCHEMA_DDL, selected_columns
from orbitmq.spark.store.batch import StoreReader
from orbitmq.spark.store.options import StoreOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["RocketmqStoreSource"]


class RocketmqStoreSource(DataSource):
    """The format ``rocketmq-store``."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    def schema(self) -> str:
        StoreOptions.parse(self.options, streaming=True)  # an error raised here is shown once and unchanged
        return SCHEMA_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return StoreReader(StoreOptions.parse(self.options), selected_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from orbitmq.spark.store.stream import StoreStreamReader

        return StoreStreamReader(StoreOptions.parse(self.options, streaming=True), selected_columns(schema))

"""The format ``rocketmq``, which shows topics as a table.

``planning`` decides what to read, ``cluster`` queries the servers on the driver, ``reading`` reads on the executors,
Spark calls ``batch`` and ``stream``, and the package ``sink`` writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from orbitmq.spark.options import SourceOptions
from orbitmq.spark.schema import SCHEMA_DDL, selected_columns
from orbitmq.spark.source.batch import TopicReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["RocketmqSource"]


class RocketmqSource(DataSource):
    """The data source behind ``spark.read.format("rocketmq")``, ``spark.readStream`` and the corresponding
    writers."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        return SCHEMA_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return TopicReader(SourceOptions.parse(self.options, streaming=False), selected_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # PySpark's name
        from orbitmq.spark.source.stream import TopicStreamReader

        return TopicStreamReader(SourceOptions.parse(self.options, streaming=True), selected_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from orbitmq.spark.sink.writers import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # the same
        from orbitmq.spark.sink.writers import stream_writer

        return stream_writer(self.options, schema, overwrite)

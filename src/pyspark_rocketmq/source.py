"""Declares the format ``rocketmq`` by its name. The implementation is imported when the format is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Delegates to ``orbitmq.spark.source.topic_source.RocketmqSource``."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    @property
    def _real(self) -> DataSource:
        from orbitmq.spark.source.topic_source import RocketmqSource

        return RocketmqSource(self.options)

    def schema(self) -> Any:
        return self._real.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._real.reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # PySpark's name
        return self._real.streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._real.writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  # the same
        return self._real.streamWriter(schema, overwrite)

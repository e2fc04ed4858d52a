"""Declares the format ``rocketmq-store`` by its name. The implementation is imported when the format is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Delegates to ``orbitmq.spark.store.store_source.RocketmqStoreSource``."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq-store"

    @property
    def _real(self) -> DataSource:
        from orbitmq.spark.store.store_source import RocketmqStoreSource

        return RocketmqStoreSource(self.options)

    def schema(self) -> Any:
        return self._real.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._real.reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # PySpark's name
        return self._real.streamReader(schema)

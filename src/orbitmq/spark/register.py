"""Registers the formats with a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> SparkSession:
    """Registers ``rocketmq`` and ``rocketmq-store`` with a session and returns it.

    Needed only where Spark does not find them on its own. It searches once, at the first use of any Python data
    source, and gives up silently if some other package's source cannot be imported.
    """
    from orbitmq.spark.source.topic_source import RocketmqSource
    from orbitmq.spark.store.store_source import RocketmqStoreSource

    spark.dataSource.register(RocketmqSource)
    spark.dataSource.register(RocketmqStoreSource)
    return spark

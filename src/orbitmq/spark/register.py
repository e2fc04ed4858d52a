"""Registers the formats with a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> SparkSession:
    """Registers ``rocketmq`` and ``rocketmq-store`` with a session and returns the session.

    Needed only if Spark does not find the formats automatically. It searches once, at the first use of any Python
    data source, and gives up silently if another package's source cannot be imported.
    """
    from orbitmq.spark.source.topic_source import RocketmqSource
    from orbitmq.spark.store.store_source import RocketmqStoreSource

    spark.dataSource.register(RocketmqSource)
    spark.dataSource.register(RocketmqStoreSource)
    return spark

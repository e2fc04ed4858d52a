"""Makes Spark find the format ``rocketmq-store`` automatically, like ``pyspark_rocketmq`` does for ``rocketmq``."""

from pyspark_rocketmq_store.source import DefaultSource

__all__ = ["DefaultSource"]

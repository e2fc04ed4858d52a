"""Where Spark finds format ``rocketmq-store`` on its own, as ``pyspark_rocketmq`` is for ``rocketmq``."""

from pyspark_rocketmq_store.source import DefaultSource

__all__ = ["DefaultSource"]

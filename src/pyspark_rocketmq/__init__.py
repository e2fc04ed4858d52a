"""Makes Spark find the format ``rocketmq`` automatically: it takes ``DefaultSource`` from every top-level
``pyspark_*`` module.

If one of these modules cannot be imported, Spark ignores all of them, so this one imports next to nothing.
"""

from pyspark_rocketmq.source import DefaultSource

__all__ = ["DefaultSource"]

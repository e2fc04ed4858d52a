"""Where Spark finds format ``rocketmq`` on its own: of every top-level ``pyspark_*`` it takes ``DefaultSource``.

One such module that cannot be imported makes Spark forget all of them, so this one imports next to nothing.
"""

from pyspark_rocketmq.source import DefaultSource

__all__ = ["DefaultSource"]

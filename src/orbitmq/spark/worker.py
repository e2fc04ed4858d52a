"""The Spark Python process that a task runs in."""

from __future__ import annotations

import gc

from pyspark import TaskContext

__all__ = ["leave_modules_uncollected"]

_done = False


def leave_modules_uncollected() -> None:
    """Excludes all existing objects from garbage collection at the end of a worker's first task.

    Spark's workers run a full collection after each task, which visits every object of PySpark, Arrow, numpy and this
    package. That took 22 % of the CPU of workers that read a raw store of a million messages in eight tasks. In other
    processes (tests, a notebook) this does nothing, because it must not change their garbage collection.
    """
    global _done
    if not _done and TaskContext.get() is not None:
        _done = True
        gc.freeze()

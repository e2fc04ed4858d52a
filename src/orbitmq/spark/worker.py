"""The Python process of Spark's that a task runs in."""

from __future__ import annotations

import gc

from pyspark import TaskContext

__all__ = ["leave_modules_uncollected"]

_done = False


def leave_modules_uncollected() -> None:
    """At the end of a worker's first task: collections of garbage pass over everything there is so far.

    Spark's workers collect all generations after each task, which means to walk over every object of PySpark, Arrow,
    numpy and this package: 22 % of the CPU of the workers that read a raw store of a million messages in eight tasks.
    Elsewhere (tests, a notebook) nothing happens: the collector of such a process is its owner's.
    """
    global _done
    if not _done and TaskContext.get() is not None:
        _done = True
        gc.freeze()

"""What the package does to the Python processes its tasks run in."""

from __future__ import annotations

import gc
import subprocess
import sys

IN_A_TASK = """
import gc
from pyspark import TaskContext
from orbitmq.spark.worker import leave_modules_uncollected

leave_modules_uncollected()
assert gc.get_freeze_count() == 0, "not a task"
TaskContext._getOrCreate()
leave_modules_uncollected()
frozen = gc.get_freeze_count()
assert frozen > 10_000, frozen
later = [[] for _ in range(100)]
leave_modules_uncollected()
assert gc.get_freeze_count() <= frozen, "once for each process"
"""


def test_collections_pass_over_what_was_there_after_the_first_task() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_TASK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert gc.get_freeze_count() == 0

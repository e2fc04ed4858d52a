"""Decides which worker of pytest-xdist runs which file, and when.

A file is the unit, as with ``--dist loadfile``. The files of slow folders come first, so that no worker is left with
a long one while the others have nothing to do. Each worker begins with another of the folders that share servers,
JVMs or a Spark session, so that these are started by one worker where possible, not by each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

__all__ = ["FileScheduling", "next_file", "pytest_xdist_make_scheduler", "turn_of"]

SHARED: Final = (
    ("tests/spark/", "tests/console/"),
    ("tests/apache/", "tests/conformance/"),
)
"""Folders in groups; worker n begins with group n."""
SLOW: Final = (
    "tests/integration/",
    "tests/fault/",
    "tests/sim/",
    "tests/fuzz/",
    "tests/golden/",
    "integrations/",
)
"""Then come these, then what is left of the other groups, and last all short files."""


def turn_of(file: str, worker: int) -> int:
    """Returns the turn of a file for a worker: it takes the files with the lowest one first."""
    own = worker % len(SHARED)
    for number, folders in enumerate(SHARED):
        if file.startswith(folders):
            return 0 if number == own else 2
    return 1 if file.startswith(SLOW) else 3


def next_file(files: Iterable[str], worker: int) -> str:
    """Returns the file to run next; the first of those with the same turn."""
    return min(files, key=lambda file: turn_of(file, worker))


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]  # without types
    """Assigns each worker the file whose turn it is."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        worker = int(node.gateway.id.removeprefix("gw"))
        self.workqueue.move_to_end(next_file(self.workqueue, worker), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling | None:
    """Replaces the scheduler of ``--dist loadfile``."""
    return FileScheduling(config, log) if config.getoption("dist") == "loadfile" else None

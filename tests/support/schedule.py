"""Decides which worker of pytest-xdist runs which file, and when.

A file is the unit, as with ``--dist loadfile``. Each worker begins with its own folders, so that a cluster of
Apache's servers, a Spark session or a browser is started by one worker where possible, not by each. Then come slow
folders and last short files, so that no worker is left with a long file while the others have nothing to do.

The first two workers run tests that wait for a JVM most of the time. The third one uses the processor meanwhile, with
a lower priority, so that it hardly delays the other two.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

__all__ = ["FileScheduling", "next_file", "pytest_xdist_make_scheduler", "turn_of"]

GROUPS: Final = (
    ("tests/spark/", "tests/console/", "tests/conformance/"),
    ("tests/apache/",),
    ("tests/integration/", "tests/fault/", "tests/sim/", "tests/fuzz/", "tests/golden/", "integrations/"),
)
"""Slow folders; worker n begins with group n, in this order of folders."""
BACKGROUND: Final = "gw2"
_BACKGROUND_NICE: Final = 5
_OWN_SERVERS: Final = 2
"""The group whose tests share no expensive server: it is every worker's second choice."""


def turn_of(file: str, worker: int) -> int:
    """Returns the turn of a file for a worker: it takes the files with the lowest one first."""
    own = worker % len(GROUPS)
    for number, folders in enumerate(GROUPS):
        for place, folder in enumerate(folders):
            if file.startswith(folder):
                choice = 0 if number == own else 1 if number == _OWN_SERVERS else 2
                return 10 * choice + place
    # The background worker leaves the folders that start Apache's servers and Spark to the others until the end.
    return 15 if own == _OWN_SERVERS else 30


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


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config, "workerinput", {}).get("workerid") == BACKGROUND:
        os.nice(_BACKGROUND_NICE)

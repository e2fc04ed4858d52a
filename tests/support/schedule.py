"""Decides which worker of pytest-xdist runs which file, and when.

A file is the unit, as with ``--dist loadfile``. Each worker begins with its own folders, so that a cluster of
Apache's servers, a Spark session or a browser is started by one worker where possible, not by each. When they are
done it helps with folders that share nothing, and only at the end with those of other workers.

The first two workers wait for JVMs most of the time. The others use the CPU meanwhile, at a lower priority, so they
hardly delay the first two.
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
    ("tests/spark/test_changes.py", "tests/spark/test_tables.py", "tests/spark/", "tests/console/"),
    (
        "tests/apache/test_ha_with_apache.py",
        "tests/apache/test_proxy_clients.py",
        "tests/apache/test_proxy_kill.py",
        "tests/apache/test_init_failover.py",
        "tests/apache/",
    ),
    ("tests/conformance/", "tests/integration/"),
    ("tests/sim/", "tests/fault/", "tests/fuzz/", "tests/golden/", "integrations/", ""),
)
"""Beginnings of paths. Worker n begins with group n, in this order, the longest files first; the last group holds
every other file."""
NICE: Final = (0, 0, 5, 10)
"""The priorities of the workers."""
_HELPED_FIRST: Final = (3, 2, 0, 1)
"""The groups in the order in which the workers of other groups help with them."""


def turn_of(file: str, worker: int) -> tuple[int, int]:
    """Returns the turn of a file for a worker. A worker takes the files with the lowest turn first."""
    group, place = next(
        (group, place)
        for group, beginnings in enumerate(GROUPS)
        for place, beginning in enumerate(beginnings)
        if file.startswith(beginning)
    )
    own = worker % len(GROUPS)
    return (0 if group == own else 1 + _HELPED_FIRST.index(group), place)


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
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    os.nice(NICE[int(worker.removeprefix("gw")) % len(NICE)])

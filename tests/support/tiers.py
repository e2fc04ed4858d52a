"""Moves tests that are unlikely to find a fault in our code to `make soak`, each with its reason, and prints the
table.

Long and repetitive tests carry the marker ``soak`` where they are defined. This table is for tests short enough for
`make test`, and names the other test that finds the same fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pytest

__all__ = ["SOAK", "Moved", "moved_by", "table"]


@dataclass(frozen=True, slots=True)
class Moved:
    """Tests moved to another tier: the id ``tests`` itself, its parametrized cases, and the tests it contains."""

    tests: str
    reason: str
    found_by: str

    def covers(self, test: str) -> bool:
        return test == self.tests or test.startswith((f"{self.tests}[", f"{self.tests}::"))


SOAK: Final = (
    Moved(
        "tests/apache/test_harness.py",
        "Apache's clients against Apache's servers, none of our code",
        "every other file of tests/apache, which uses the same harness against both",
    ),
    Moved(
        "tests/spark/test_changes.py::test_late_repeated_and_missing_pieces_change_nothing_wrong[iceberg]",
        "eleven Spark batches that differ from those of delta only in the writer",
        "the same test with delta, and test_recorded_events_make_the_table_of_the_database[iceberg-flattened.jsonl]",
    ),
    Moved(
        "tests/spark/test_changes.py::test_history_keeps_every_version_in_the_order_of_the_source[delta]",
        "seven Spark batches that differ from those of iceberg only in the writer",
        "the same test with iceberg, and test_recorded_events_make_the_table_of_the_database[delta-envelope.jsonl]",
    ),
)


def moved_by(test: str) -> Moved | None:
    """Returns the entry that moves a test to `make soak`."""
    return next((entry for entry in SOAK if entry.covers(test)), None)


def table(entries: Sequence[Moved] = SOAK) -> Iterator[str]:
    """Yields one line per entry."""
    for entry in entries:
        yield f"{entry.tests}: {entry.reason}; a fault is found by {entry.found_by}"


@pytest.hookimpl(tryfirst=True)  # before tests are selected by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if moved_by(item.nodeid):
            item.add_marker(pytest.mark.soak)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.args_source is config.ArgsSource.TESTPATHS and config.getoption("markexpr") == "not soak":
        terminalreporter.section("left to make soak")
        for line in table():
            terminalreporter.write_line(line)

"""Tests the summary at the end of a run."""

from __future__ import annotations

from tests.support.measure import Measurement, summary


def test_summary_adds_up_time_and_processes_by_folder_and_names_the_slowest_test() -> None:
    rows = [
        Measurement("tests/a/test_a.py::test_one", "setup", 1.0, 0.5, "passed", processes={"java": 2}),
        Measurement("tests/a/test_a.py::test_one", "call", 2.0, 0.25, "passed", processes={"browser": 1}),
        Measurement("tests/b/test_b.py::test_two", "call", 5.0, 4.0, "failed", processes={"python": 3}),
    ]
    lines = [" ".join(line.split()) for line in summary(rows)]
    assert lines == [
        "5.0 s 4.0 s of CPU 1 tests tests/b",
        "3.0 s 0.8 s of CPU 1 tests tests/a",
        "the 25 longest files:",
        "5.0 s tests/b/test_b.py",
        "3.0 s tests/a/test_a.py",
        "the 10 slowest:",
        "5.0 s tests/b/test_b.py::test_two",
        "3.0 s tests/a/test_a.py::test_one",
        "2 JVMs, 1 browsers, 6 processes started",
    ]

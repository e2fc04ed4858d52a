"""Tests the command that repeats tests on a busy machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.flaky import Run, failed_tests, main, outcome_of, pressure, table

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_good"/>
<testcase classname="tests.a" name="test_bad[x y]"><failure message="no"/></testcase>
<testcase classname="tests.a" name="test_bad[x y]"><error message="teardown"/></testcase>
<testcase classname="tests.a" name="test_skipped"><skipped/></testcase>
</testsuite></testsuites>"""


def test_failed_tests_are_listed_once() -> None:
    assert failed_tests(REPORT) == ["tests.a::test_bad[x y]"]


@pytest.mark.parametrize(
    ("code", "paused", "expected", "passed"),
    [
        (0, False, "passed", True),
        (0, True, "passed, paused", True),
        (1, False, "failed", False),
        (5, False, "no tests", False),
        (-9, True, "ended with -9, paused", False),
    ],
)
def test_exit_codes_become_words(code: int, paused: bool, expected: str, passed: bool) -> None:
    assert outcome_of(code, paused) == expected
    assert Run(1, expected).passed is passed


def test_table_has_a_row_for_each_run() -> None:
    rows = list(table([Run(1, "passed"), Run(2, "failed", ("a", "b"))]))
    assert rows[2:] == ["| 1 | passed |  |", "| 2 | failed | a, b |"]


def test_pressure_ends_with_its_block() -> None:
    with pressure([0]) as busy:
        assert [process.poll() for process in busy] == [None]
    assert [process.returncode for process in busy] == [-9]


@pytest.mark.slow
def test_file_that_fails_in_one_of_two_runs_fails_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = "from pathlib import Path\n\ndef test_once():\n    seen = Path(__file__).with_name('seen')\n"
    source += "    first = not seen.exists()\n    seen.touch()\n    assert first\n"
    (tmp_path / "test_once.py").write_text(source)
    assert main(["--runs", "2", str(tmp_path / "test_once.py")]) == 1
    rows = capfd.readouterr().out.splitlines()
    assert rows[2] == "| 1 | passed |  |"
    assert rows[3].startswith("| 2 | failed")
    assert "test_once" in rows[3]

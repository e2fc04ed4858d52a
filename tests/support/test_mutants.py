"""Tests the command that breaks the code on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.mutant_table import Edit, Mutant
from tests.support.mutants import Outcome, apply, misfits, table

MUTANT = Mutant("sums are differences", (Edit("src/a.py", "one + two", "one - two"),), ("tests/test_a.py",))


def test_mutant_changes_its_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("first = one + two\n")
    (tmp_path / "src/b.py").write_text("second = one + two\n")
    apply(MUTANT, tmp_path)
    assert (tmp_path / "src/a.py").read_text() == "first = one - two\n"
    assert (tmp_path / "src/b.py").read_text() == "second = one + two\n"


@pytest.mark.parametrize(("text", "count"), [("", 0), ("one + two, one + two", 2), (None, 0)])
def test_mutant_that_does_not_fit_one_place_is_named(tmp_path: Path, text: str | None, count: int) -> None:
    (tmp_path / "src").mkdir()
    if text is not None:
        (tmp_path / "src/a.py").write_text(text)
    [line] = misfits([MUTANT], tmp_path)
    assert f"'sums are differences': its old text is {count} times in src/a.py" in line
    with pytest.raises(ValueError, match="sums are differences"):
        apply(MUTANT, tmp_path)


@pytest.mark.parametrize(("code", "noticed"), [(1, True), (0, False), (2, False), (4, False), (5, False)])
def test_only_failed_tests_notice_a_mutant(code: int, noticed: bool) -> None:
    outcome = Outcome(MUTANT, code, 2.6, "tests/test_a.py::test_sum" if noticed else "")
    assert outcome.noticed is noticed
    row = list(table([outcome]))[-1]
    assert ("SURVIVED" in row) is not noticed
    assert ("| 3 | tests/test_a.py::test_sum |" in row) is noticed

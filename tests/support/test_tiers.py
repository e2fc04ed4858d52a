"""Tests the table of tests that run with `make soak`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.tiers import SOAK, Moved, moved_by, table

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("entry", "test", "covered"),
    [
        ("tests/a/test_a.py", "tests/a/test_a.py::test_one[x]", True),
        ("tests/a/test_a.py", "tests/a/test_ab.py::test_one", False),
        ("tests/a/test_a.py::test_one", "tests/a/test_a.py::test_one", True),
        ("tests/a/test_a.py::test_one", "tests/a/test_a.py::test_one[x]", True),
        ("tests/a/test_a.py::test_one", "tests/a/test_a.py::test_one_more", False),
        ("tests/a/test_a.py::test_one[x]", "tests/a/test_a.py::test_one[y]", False),
    ],
)
def test_entry_covers_a_file_a_test_or_one_of_its_parameters(entry: str, test: str, covered: bool) -> None:
    assert Moved(entry, "reason", "another").covers(test) is covered


@pytest.mark.parametrize("entry", SOAK, ids=lambda entry: entry.tests)
def test_every_entry_names_a_test_that_is_there(entry: Moved) -> None:
    file, _, name = entry.tests.partition("::")
    text = (ROOT / file).read_text()
    assert not name or re.search(rf"^(async )?def {re.escape(name.partition('[')[0])}\(", text, re.MULTILINE)
    assert moved_by(entry.tests) is entry
    assert any(entry.reason in line for line in table())

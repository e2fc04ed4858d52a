"""The table of mutants fits the code, so `python -m tests.support.mutants` can break it where it says."""

from __future__ import annotations

from tests.support.mutant_table import MUTANTS
from tests.support.mutants import misfits


def test_every_mutant_fits_the_code_in_one_place() -> None:
    assert list(misfits(MUTANTS)) == []


def test_names_of_mutants_are_unique_and_each_has_a_test() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.edits and mutant.tests for mutant in MUTANTS)

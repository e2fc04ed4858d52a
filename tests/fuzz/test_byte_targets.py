"""Every input kept by guided fuzzing, once more; and guided fuzzing itself for a while, which needs atheris."""

from __future__ import annotations

import pytest
from tests.fuzz.byte_targets import BYTE_TARGETS, mutated
from tests.fuzz.corpus_files import kept_inputs
from tests.fuzz.guided import is_available, run_target

SOAK_S = 20.0


@pytest.mark.parametrize("name", sorted(BYTE_TARGETS))
def test_kept_and_recorded_inputs_raise_only_declared_errors(name: str) -> None:
    target = BYTE_TARGETS[name]
    seeds = target.seeds()
    assert seeds
    for raw in (*seeds, *kept_inputs(name)):
        target.run(raw)
    for number in range(40):
        target.run(mutated(seeds[number % len(seeds)], number, seeds))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BYTE_TARGETS))
def test_guided_fuzzing_finds_nothing(name: str) -> None:
    assert is_available(), "pip install atheris: it is not among the packages of make setup"
    assert run_target(name, SOAK_S) == ""

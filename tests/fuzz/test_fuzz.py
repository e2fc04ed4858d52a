"""Runs the fuzz targets for a fixed time: ``pytest -m fuzz --fuzz-seconds=600``.

Every input has its own seed, one more than that of the input before. A failure names it; with
``--fuzz-seed=<that number>`` the same input comes first.
"""

from __future__ import annotations

import random
import time

import pytest
from tests.fuzz.targets import TARGETS

SEEDS = 2**48


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_damaged_input_raises_only_declared_errors(name: str, request: pytest.FixtureRequest) -> None:
    target = TARGETS[name]
    seconds = float(request.config.getoption("--fuzz-seconds")) / len(TARGETS)
    given = request.config.getoption("--fuzz-seed")
    seed = random.randrange(SEEDS) if given is None else int(given)
    deadline = time.monotonic() + seconds
    inputs: list[bytes] = []
    count = 0
    while count == 0 or time.monotonic() < deadline:
        inputs.clear()
        try:
            target(random.Random(seed), inputs.append)
        except BaseException as error:
            error.add_note(
                f"{name}: --fuzz-seed={seed} after {count} good inputs; input {inputs[-1:]!r:.2000}"
            )
            raise
        seed += 1
        count += 1
    assert count > 0

"""Runs seeds of the simulated cluster, and defects that it has to find.

Each run is a separate process with fixed hashes, so that a seed always gives the same history. The line ``replay:``
in a failure is the command that reproduces it.
"""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.sim.plants import PLANTS

# The processor is the only limit. On a shared one, 100 seeds took 390 s.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

SEEDS = 40
"""Seeds of every `make test`. With 100 this was the slowest file of all (369 s, more than twice the next one);
`make soak` runs those 100 and 2,000 more."""
SOAK_RANGES = ((0, 100), (10_000, 2_000))
PROCESSES = 2
PLANT_SEEDS = 200


def run(*arguments: str, timeout_s: float = 1_800.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )


def run_seeds(first: int, count: int, timeout_s: float = 1_800.0) -> dict[str, float]:
    """Runs all of them, in as many processes as there are cores; returns the combined results."""
    share = count // PROCESSES
    with ThreadPoolExecutor(PROCESSES) as threads:
        runs = list(
            threads.map(
                lambda start: run("--from", str(start), "--count", str(share), timeout_s=timeout_s),
                range(first, first + count, share),
            )
        )
    for done in runs:
        assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    figures = [json.loads(done.stdout.splitlines()[-1]) for done in runs]
    return {name: sum(one[name] for one in figures) for name in figures[0]}


def test_no_seed_violates_an_invariant() -> None:
    total = run_seeds(0, SEEDS)
    assert total["seeds"] == SEEDS
    assert total["acked"] > 500 * SEEDS, "faults must not stop everything"
    assert total["handled"] > 500 * SEEDS


@pytest.mark.soak
@pytest.mark.parametrize(("first", "count"), SOAK_RANGES)
def test_no_seed_of_many_violates_an_invariant(first: int, count: int) -> None:
    assert run_seeds(first, count, timeout_s=14_000.0)["seeds"] == count


@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_a_planted_defect_is_found(plant: str) -> None:
    found = run("--plant", plant, "--count", str(PLANT_SEEDS), "--stop")
    assert found.returncode == 1, f"{plant} was not found in {PLANT_SEEDS} seeds: {found.stdout[-500:]}"
    assert f"--plant {plant}" in found.stdout, "the command that replays it"


def test_a_seed_is_one_history() -> None:
    first, second = (run("--seed", "4", "--verbose").stdout.splitlines()[:-1] for _ in range(2))
    assert first == second
    assert len(first) > 5


def test_a_timeline_shows_every_fault(tmp_path: Path) -> None:
    page = tmp_path / "seed.html"
    done = run("--seed", "2", "--verbose", "--html", str(page))
    text = page.read_text("utf-8")
    assert "no violation" in text
    notes = [line.split(None, 1)[1] for line in done.stdout.splitlines()[:-1] if line.startswith(" ")]
    assert len(notes) > 10
    assert all(html.escape(note) in text for note in notes)
    assert text.count("<circle") >= len(notes)

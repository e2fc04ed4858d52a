"""Seeds one after the other, in processes that are replaced now and then."""

from __future__ import annotations

import functools
import gc
import logging
import multiprocessing
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.sim.plants import planted
from tests.sim.scenario import Simulation

CHILD_SEEDS = 50
"""What a killed broker leaves in memory goes only with its real process."""


@dataclass
class Outcome:
    """Of one seed."""

    seed: int
    violation: str
    log: list[str]
    simulated_s: float
    summary: dict[str, float]


def run_seed(seed: int, plant: str | None) -> Outcome:
    simulation = Simulation(seed)
    violation = ""
    with planted(plant):
        try:
            simulation.run()
        except AssertionError as error:
            violation = str(error) or "an assertion without a text"
    return Outcome(seed, violation, simulation.log, simulation.loop.now - 1000, simulation.history.summary())


def prepare(level: int) -> None:
    """Of every process that runs seeds."""
    # Coroutines of killed processes are closed with the loop already gone.
    sys.unraisablehook = lambda _: None
    logging.basicConfig(level=level)
    # Nothing of a seed is freed before its end.
    gc.disable()


def outcomes(seeds: list[int], plant: str | None, jobs: int) -> Iterator[Outcome]:
    """In order."""
    level = logging.getLogger().getEffectiveLevel()
    if len(seeds) <= CHILD_SEEDS and jobs == 1:
        prepare(level)
        yield from (run_seed(seed, plant) for seed in seeds)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, prepare, (level,), maxtasksperchild=CHILD_SEEDS) as pool:
        yield from pool.imap(functools.partial(run_seed, plant=plant), seeds)

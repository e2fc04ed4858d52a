"""Runs a range of seeds, in one process or several."""

from __future__ import annotations

import functools
import gc
import logging
import multiprocessing
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from tests.sim.loop import SimLoop
from tests.sim.plants import PLANTS, planted
from tests.sim.scenario import Simulation


@dataclass
class Outcome:
    """The outcome of one seed."""

    seed: int
    violation: str
    log: list[str]
    simulated_s: float
    summary: dict[str, float]


def run_seed(seed: int, plant: str | None) -> Outcome:
    simulation = Simulation(seed, PLANTS[plant].faults if plant else ())
    violation = ""
    with planted(plant):
        try:
            simulation.run()
        except AssertionError as error:
            violation = str(error) or "an assertion without a text"
    outcome = Outcome(
        seed, violation, simulation.log, simulation.loop.now - 1000, simulation.history.summary()
    )
    loop = weakref.ref(simulation.loop)
    del simulation
    if not freed(loop) and not violation:
        outcome.violation = "memory: something keeps what the processes had, who are all dead"
    return outcome


def freed(loop: weakref.ref[SimLoop]) -> bool:
    """Returns whether garbage collection freed the loop. Closed coroutines may keep objects alive until the next
    collection.
    """
    for _ in range(3):
        gc.collect()
        if loop() is None:
            return True
    return False


def prepare(level: int) -> None:
    """Prepares every process that runs seeds."""
    # Coroutines of killed processes are closed after their loop.
    sys.unraisablehook = lambda _: None
    logging.basicConfig(level=level)
    # No object of a seed is freed before its end.
    gc.disable()


def outcomes(seeds: list[int], plant: str | None, jobs: int) -> Iterator[Outcome]:
    """Yields the outcomes in order."""
    level = logging.getLogger().getEffectiveLevel()
    if jobs == 1:
        prepare(level)
        yield from (run_seed(seed, plant) for seed in seeds)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, prepare, (level,)) as pool:
        yield from pool.imap(functools.partial(run_seed, plant=plant), seeds)

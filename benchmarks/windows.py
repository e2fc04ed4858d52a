"""Measures in alternating windows: two servers are up and warm, one is under load at a time, and only pairs are
compared.

The speed of a virtual machine changes within minutes, so measurements taken one after the other compare the machine
with itself. Here the load of one side is paused (SIGSTOP) while the other side is measured, for a few seconds each,
in turn. A ratio is taken within each pair of neighbouring windows; the result is the median of the ratios.
"""

from __future__ import annotations

import mmap
import shutil
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.apache.artifacts import LATEST, driver_classes
from tests.apache.process import ChildProcess, java_command
from tests.apache.servers import Addressed, address_of

__all__ = ["BENCH_JVM", "JavaLoad", "Pair", "Side", "Window", "alternate", "measure", "summary"]

PAIRS: Final = 8
SETTLE_S: Final = 0.5
COUNTERS: Final = struct.Struct(">qq")
BENCH_JVM: Final = ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseG1GC")


@dataclass(frozen=True, slots=True)
class Window:
    """The work of one side while it was under load."""

    seconds: float
    count: int
    cpu_s: float

    @property
    def per_s(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU of the servers, in microseconds per message."""
        return self.cpu_s / self.count * 1e6


Pair = tuple[Window, Window]


@dataclass(frozen=True, slots=True)
class Side:
    """One server under test: its load, and how its work and its CPU are read."""

    count: Callable[[], int]
    cpu_s: Callable[[], float]
    resume: Callable[[], None]
    pause: Callable[[], None]


class JavaLoad(ChildProcess):
    """``orbitmq.driver.Load``: the official Java client as a load that can be paused. ``options`` are those of the
    load.

    ``main`` is another program that takes the same options, in the class path ``classes``.
    """

    def __init__(
        self,
        mode: str,
        namesrv: Addressed | str,
        topic: str,
        *,
        version: str = LATEST,
        main: str = "orbitmq.driver.Load",
        classes: str = "",
        **options: str,
    ) -> None:
        workdir = Path(tempfile.mkdtemp(prefix=f"orbitmq-load-{mode}-"))
        self._counter_file = workdir / "counter"
        self._counter_file.write_bytes(bytes(COUNTERS.size))
        given = {"mode": mode, "namesrv": address_of(namesrv), "topic": topic, "group": f"load-{mode}"}
        given |= {"counter": str(self._counter_file)} | options
        arguments = [f"{name}={value}" for name, value in given.items()]
        command = java_command(
            version,
            workdir,
            "orbitmq.driver.Guard",
            main,
            *arguments,
            jvm_args=BENCH_JVM,
            classes=classes and f"{driver_classes(version)}:{classes}",
        )
        super().__init__(f"load-{mode}", command, workdir)
        with self._counter_file.open("r+b") as file:
            self._counters = mmap.mmap(file.fileno(), COUNTERS.size)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._counters.close()
        shutil.rmtree(self.workdir, ignore_errors=True)

    @property
    def done(self) -> int:
        return int(COUNTERS.unpack_from(self._counters)[0])

    @property
    def failed(self) -> int:
        return int(COUNTERS.unpack_from(self._counters)[1])

    def wait_first(self, timeout_s: float = 60.0) -> None:
        """Waits for the first message."""
        self.wait_ready(lambda: self.done > 0, timeout_s=timeout_s)

    def side(self, cpu_s: Callable[[], float]) -> Side:
        """Returns this load as a side, against servers whose CPU time is ``cpu_s()``."""
        return Side(lambda: self.done, cpu_s, self.resume, self.pause)


def measure(side: Side, seconds: float) -> Window:
    """Measures one window: the side is resumed, settles, is measured, and is paused again."""
    side.resume()
    try:
        time.sleep(SETTLE_S)
        started, count, cpu_s = time.perf_counter(), side.count(), side.cpu_s()
        time.sleep(seconds)
        return Window(time.perf_counter() - started, side.count() - count, side.cpu_s() - cpu_s)
    finally:
        side.pause()


def alternate(
    ours: Side, theirs: Side, *, seconds: float = 2.5, pairs: int = PAIRS, warm_up_s: float = 8.0
) -> list[Pair]:
    """Runs ``pairs`` pairs of windows, each side first in half of them. Both sides are warmed up and paused
    before.
    """
    for side in (ours, theirs):
        side.resume()
        time.sleep(warm_up_s)
        side.pause()
    measured: list[Pair] = []
    for number in range(pairs):
        if number % 2:
            second = measure(theirs, seconds)
            first = measure(ours, seconds)
        else:
            first = measure(ours, seconds)
            second = measure(theirs, seconds)
        if min(first.count, second.count) <= 0:
            raise RuntimeError(f"nothing happened in window {number}: {first}, {second}")
        measured.append((first, second))
    return measured


def summary(
    name: str, pairs: Sequence[Pair], other: str = f"apache-{LATEST}"
) -> Mapping[str, Mapping[str, float]]:
    """Returns the medians by side, and the median of the ratios ours / ``other`` with their extremes."""
    rates = [first.per_s / second.per_s for first, second in pairs]
    cpu = [first.cpu_us / second.cpu_us for first, second in pairs]
    sides = {
        side: {
            f"{name}, messages/s": statistics.median(pair[index].per_s for pair in pairs),
            f"{name}, broker CPU us/message": statistics.median(pair[index].cpu_us for pair in pairs),
        }
        for index, side in enumerate(("orbitmq", other))
    }
    ratio = {
        f"{name}, messages/s": statistics.median(rates),
        f"{name}, broker CPU us/message": statistics.median(cpu),
        f"{name}, rate ratio lowest": min(rates),
        f"{name}, rate ratio highest": max(rates),
        f"{name}, CPU ratio lowest": min(cpu),
        f"{name}, CPU ratio highest": max(cpu),
    }
    return {**sides, "ratio": ratio}

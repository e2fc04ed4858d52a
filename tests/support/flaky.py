"""``python -m tests.support.flaky --runs 20 FILE...``: repeats tests on a busy machine and lists the failures.

A process uses half of the time of every core. In one of the runs pytest's process group is stopped for two seconds,
as on a machine that swaps or suspends. The exit code is 1 if any run failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

__all__ = ["Run", "failed_tests", "main", "outcome_of", "pressure", "table"]

_PAUSE_S: Final = 2.0
_FIRST_PAUSE_AFTER_S: Final = 2.0
# Ends by itself when its parent has ended, so nothing keeps the cores busy after a kill.
_BUSY: Final = """
import os, sys, time
core, parent = int(sys.argv[1]), int(sys.argv[2])
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {core})
while os.getppid() == parent:
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass
    time.sleep(0.05)
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the files."""

    number: int
    outcome: str
    failed: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.outcome.startswith("passed")


def outcome_of(code: int, paused: bool) -> str:
    """Returns a description of pytest's exit code."""
    words = {0: "passed", 1: "failed", 5: "no tests"}.get(code, f"ended with {code}")
    return f"{words}, paused" if paused else words


def failed_tests(report: str) -> list[str]:
    """Returns the names of failed tests in a JUnit report, each once, in order."""
    found = {
        f"{case.get('classname')}::{case.get('name')}": None
        for case in ElementTree.fromstring(report).iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    }
    return list(found)


def table(runs: Sequence[Run]) -> Iterator[str]:
    """Yields one row per run."""
    yield "| run | outcome | failed tests |"
    yield "| --- | --- | --- |"
    for run in runs:
        yield f"| {run.number} | {run.outcome} | {', '.join(run.failed)} |"


@contextlib.contextmanager
def pressure(cores: Sequence[int]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keeps each of these cores busy for half of the time."""
    busy: list[subprocess.Popen[bytes]] = []
    try:
        for core in cores:
            command = [sys.executable, "-c", _BUSY, str(core), str(os.getpid())]
            busy.append(subprocess.Popen(command))
        yield busy
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _run(number: int, files: Sequence[str], pause_after_s: float | None) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *files],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            paused = pause_after_s is not None and _pause(process, pause_after_s)
            code = process.wait()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        failed = failed_tests(report.read_text("utf-8")) if report.exists() else []
        return Run(number, outcome_of(code, paused), tuple(failed))


def _pause(process: subprocess.Popen[bytes], after_s: float) -> bool:
    """Stops the process group temporarily; returns False if it ended before."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
        return False
    os.killpg(process.pid, signal.SIGSTOP)
    try:
        time.sleep(_PAUSE_S)
    finally:
        os.killpg(process.pid, signal.SIGCONT)
    return True


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 1 if any run failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.flaky", description="repeat tests under load"
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("files", nargs="+", metavar="FILE")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    runs: list[Run] = []
    took_s = 2 * _FIRST_PAUSE_AFTER_S
    with pressure(_cores()):
        for number in range(1, options.runs + 1):
            # The second run, after half of the first run's duration; a single run is paused near its start.
            pause = took_s / 2 if number == min(2, options.runs) else None
            begin = time.monotonic()
            runs.append(_run(number, options.files, pause))
            took_s = time.monotonic() - begin
            print(f"run {number}: {runs[-1].outcome}", file=sys.stderr, flush=True)  # noqa: T201 - a command
    print(*table(runs), sep="\n")  # noqa: T201 - a command
    return 0 if all(run.passed for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A pytest plugin that measures a test run: wall time, CPU, processes and memory, by test, fixture and file.

Failures are printed when they happen, and the run ends with a summary. ``--measure FILE`` also writes every
measurement as JSON, and ``python -m tests.support.measure FILE`` prints it as tables.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

__all__ = ["MeasurePlugin", "Measurement", "kind_of_process", "summary", "tables"]

_SAMPLE_S: Final = 1.0
_SLOWEST: Final = 10
_LONGEST: Final = 25
_JVM_COMMANDS: Final = frozenset({"java", "mvn", "spark-submit", "javac"})


@dataclass(slots=True)
class Measurement:
    """One phase (set-up, call or teardown) of one test."""

    test: str
    phase: str
    wall_s: float
    cpu_s: float
    outcome: str
    fixtures: dict[str, float] = field(default_factory=dict)
    processes: dict[str, int] = field(default_factory=dict)


def kind_of_process(command: Sequence[str]) -> str:
    """Returns the name under which a started process is counted: its program without folder and version."""
    name = os.path.basename(command[0]) if command else "?"
    if name.startswith("python") or name == os.path.basename(sys.executable):
        return "python"
    if name.startswith("chrom") or name == "headless_shell":
        return "browser"
    return name


class MeasurePlugin:
    """Measures in the process that runs the tests, and reports in the one that owns the terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._processes: Counter[str] = Counter()
        self._fixtures: dict[str, float] = {}
        self._started = (0.0, 0.0)
        self._measurements: list[Measurement] = []
        self._begin = time.perf_counter()
        self._memory = _MemoryPeak()
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            command = arguments[1]
            words = command.split() if isinstance(command, str) else [os.fsdecode(one) for one in command]
            self._processes[kind_of_process(words)] += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        begin = time.perf_counter()
        try:
            return (yield)
        finally:
            name = f"{fixturedef.argname} ({fixturedef.scope})"
            self._fixtures[name] = self._fixtures.get(name, 0.0) + time.perf_counter() - begin

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        cpu_s = _cpu_s()
        measured = Measurement(
            test=report.nodeid,
            phase=report.when,
            wall_s=round(call.duration, 4),
            cpu_s=round(cpu_s - self._started[1], 4),
            outcome=report.outcome,
            fixtures={name: round(spent, 4) for name, spent in self._fixtures.items() if spent >= 0.01},
            processes=dict(self._processes),
        )
        self._started = (0.0, cpu_s)
        self._fixtures.clear()
        self._processes.clear()
        report.user_properties.append(("measured", asdict(measured)))
        return report

    def pytest_sessionstart(self) -> None:
        self._started = (0.0, _cpu_s())
        if not hasattr(self._config, "workerinput"):
            self._memory.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(self._config, "workerinput"):
            return
        found = [value for name, value in report.user_properties if name == "measured"]
        if found:
            measured = found[-1]
            assert isinstance(measured, dict)
            self._measurements.append(Measurement(**measured))
        if report.failed:
            reason = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
            first = reason.splitlines()[0] if reason else ""
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            if terminal is not None:
                terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}) {first}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._memory.stop()
        if not self._measurements:
            return
        path = self._config.getoption("--measure")
        if path:
            Path(path).write_text(json.dumps([asdict(one) for one in self._measurements]))
        terminalreporter.section("measured")
        for line in summary(self._measurements):
            terminalreporter.write_line(line)
        terminalreporter.write_line(
            f"wall time {time.perf_counter() - self._begin:.0f} s, peak memory {self._memory.peak_mib} MiB"
        )


class _MemoryPeak:
    """The peak memory use of the machine, above the use at the start."""

    def __init__(self) -> None:
        self._first = self._least = _available_kib()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory peak", daemon=True)

    @property
    def peak_mib(self) -> int:
        return (self._first - self._least) // 1024

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self._least = min(self._least, _available_kib())


def _available_kib() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable"))


def _cpu_s() -> float:
    """CPU of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _file(test: str) -> str:
    return test.partition("::")[0]


def _folder(test: str) -> str:
    return "/".join(_file(test).split("/")[:2])


def summary(measurements: Iterable[Measurement]) -> Generator[str, None, None]:
    """Yields the time of each folder, the longest files, the slowest tests, and how many processes were started."""
    files: dict[str, float] = defaultdict(float)
    folders: dict[str, float] = defaultdict(float)
    cpu: dict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    tests: dict[str, float] = defaultdict(float)
    processes: Counter[str] = Counter()
    for one in measurements:
        folders[_folder(one.test)] += one.wall_s
        files[_file(one.test)] += one.wall_s
        cpu[_folder(one.test)] += one.cpu_s
        tests[one.test] += one.wall_s
        count[_folder(one.test)] += one.phase == "call"
        processes.update(one.processes)
    for folder, wall_s in sorted(folders.items(), key=lambda row: -row[1]):
        yield f"{wall_s:8.1f} s  {cpu[folder]:8.1f} s of CPU  {count[folder]:6d} tests  {folder}"
    yield f"the {_LONGEST} longest files:"
    for file, wall_s in sorted(files.items(), key=lambda row: -row[1])[:_LONGEST]:
        yield f"{wall_s:8.1f} s  {file}"
    yield f"the {_SLOWEST} slowest:"
    for test, wall_s in sorted(tests.items(), key=lambda row: -row[1])[:_SLOWEST]:
        yield f"{wall_s:8.1f} s  {test}"
    jvms = sum(number for name, number in processes.items() if name in _JVM_COMMANDS)
    yield f"{jvms} JVMs, {processes['browser']} browsers, {sum(processes.values())} processes started"


def tables(measurements: Sequence[Measurement]) -> Generator[str, None, None]:
    """Yields tables by file and by fixture, and the processes that were started."""
    wall: dict[str, float] = defaultdict(float)
    cpu: dict[str, float] = defaultdict(float)
    fixtures: dict[str, float] = defaultdict(float)
    started: dict[str, Counter[str]] = defaultdict(Counter)
    for one in measurements:
        name = _file(one.test)
        wall[name] += one.wall_s
        cpu[name] += one.cpu_s
        started[name].update(one.processes)
        for fixture, spent in one.fixtures.items():
            fixtures[f"{name}: {fixture}"] += spent
    yield "| file | wall s | CPU s | processes |"
    yield "| --- | --- | --- | --- |"
    for name in sorted(wall, key=lambda one: -wall[one]):
        text = ", ".join(f"{number} {kind}" for kind, number in started[name].most_common())
        yield f"| {name} | {wall[name]:.1f} | {cpu[name]:.1f} | {text} |"
    yield ""
    yield "| fixture | set-up s |"
    yield "| --- | --- |"
    for name, spent in sorted(fixtures.items(), key=lambda row: -row[1]):
        yield f"| {name} | {spent:.1f} |"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--measure", metavar="FILE", default=None, help="write every measurement to FILE as JSON"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(MeasurePlugin(config), "orbitmq-measure")


def _loaded(rows: Iterable[Mapping[str, Any]]) -> list[Measurement]:
    return [Measurement(**row) for row in rows]


if __name__ == "__main__":
    print(*tables(_loaded(json.loads(Path(sys.argv[1]).read_text()))), sep="\n")  # noqa: T201 - a command

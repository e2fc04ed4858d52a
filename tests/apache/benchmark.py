"""Runs Apache's own benchmark programs against any address, for a bounded time, and reads the figures they print.

They report over a sliding window of ten one-second samples, so the first figure comes about 11 s after the start.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from tests.apache.artifacts import LATEST
from tests.apache.process import ChildProcess, HarnessTimeout, java_command
from tests.apache.servers import Addressed, address_of

__all__ = ["BENCH_JVM", "Benchmark", "BenchmarkReport", "Kind", "run_benchmark"]

Kind = Literal["producer", "batch-producer", "consumer"]

# Memory and both compilers, as in Apache's start scripts on a machine of this size.
BENCH_JVM: Final = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseG1GC")
MAINS: Final[dict[Kind, str]] = {
    "producer": "org.apache.rocketmq.example.benchmark.Producer",
    "batch-producer": "org.apache.rocketmq.example.benchmark.BatchProducer",
    "consumer": "org.apache.rocketmq.example.benchmark.Consumer",
}
RATES: Final[dict[Kind, str]] = {
    "producer": "Send TPS",
    "batch-producer": "Send MPS",
    "consumer": "Consume TPS",
}
# With a message quantity the producer also prints a last line over the whole run.
LINE: Final = re.compile(r"^(?:Current Time:|\[Complete\] Send Total:)[^|]*\|(?P<figures>.*)$", re.MULTILINE)
INTERVAL_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkReport:
    """One printed line: messages per second over the last ten seconds, and every figure by its printed name."""

    messages_per_s: float
    figures: dict[str, float]

    @property
    def failed(self) -> int:
        return int(sum(value for name, value in self.figures.items() if "Fail" in name))


class Benchmark(ChildProcess):
    """A benchmark program that runs until it is stopped."""

    def __init__(
        self,
        kind: Kind,
        namesrv: Addressed | str,
        *,
        topic: str,
        args: Sequence[str] = (),
        version: str = LATEST,
        jvm_args: Sequence[str] = BENCH_JVM,
    ) -> None:
        workdir = Path(tempfile.mkdtemp(prefix=f"orbitmq-bench-{kind}-"))
        command = java_command(
            version,
            workdir,
            "orbitmq.driver.Guard",
            MAINS[kind],
            *("-n", address_of(namesrv), "-t", topic, "-ri", str(INTERVAL_MS), *args),
            jvm_args=jvm_args,
        )
        super().__init__(f"bench-{kind}", command, workdir)
        self.kind: Kind = kind

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self.workdir, ignore_errors=True)

    def reports(self) -> list[BenchmarkReport]:
        """Returns the reports printed so far."""
        return parse_reports(self.kind, (self.workdir / "stderr.log").read_text(errors="replace"))

    def wait_reports(self, count: int, *, timeout_s: float) -> list[BenchmarkReport]:
        """Returns the reports as soon as there are `count`."""
        try:
            self.wait_ready(lambda: len(self.reports()) >= count, timeout_s=timeout_s)
        except AssertionError as error:
            raise HarnessTimeout(f"{len(self.reports())} of {count} reports: {error}") from error
        return self.reports()


def run_benchmark(
    kind: Kind,
    namesrv: Addressed | str,
    *,
    topic: str,
    report_count: int = 3,
    timeout_s: float = 40.0,
    args: Sequence[str] = (),
    version: str = LATEST,
    jvm_args: Sequence[str] = BENCH_JVM,
) -> list[BenchmarkReport]:
    """Runs the program until it has printed `report_count` reports (about 10 s, plus one second per report), then
    ends it.

    `args` are the program's own: `-w 64` threads, `-s 1024` body bytes, `-b 32` messages a batch, `-y true` async
    sends, `-g group` of the consumer, and the rest that `-h` prints. A producer with `-q 1000` ends by itself
    after that many messages and reports once.
    """
    with Benchmark(kind, namesrv, topic=topic, args=args, version=version, jvm_args=jvm_args) as running:
        return running.wait_reports(report_count, timeout_s=timeout_s)


def parse_reports(kind: Kind, output: str) -> list[BenchmarkReport]:
    reports = []
    # The program may be in the middle of its last line.
    for line in LINE.finditer(output[: output.rfind("\n") + 1]):
        figures = {}
        for part in line["figures"].split("|"):
            name, _, value = part.rpartition(":")
            figures[name.strip()] = float(value)
        reports.append(BenchmarkReport(messages_per_s=figures[RATES[kind]], figures=figures))
    return reports

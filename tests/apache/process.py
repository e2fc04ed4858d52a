"""Child processes of the harness: start, watch, measure, stop. None outlives the test run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.apache.artifacts import classpath
from tests.support.ports import free_ports
from tests.support.waiting import LIMIT_S

__all__ = ["ChildProcess", "HarnessTimeout", "StartFailed", "free_ports", "java_command", "wait_until"]

POLL_S: Final = 0.02
START_LIMIT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 45.0  # an idle 5.5.0 broker takes about 18 s to end cleanly
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

# Apache reaches into these packages to unmap files; without them a broker on Java 17 fails on its first clean-up.
OPENED_PACKAGES: Final = (
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.base/jdk.internal.ref",
    "java.base/java.lang",
    "java.base/java.util",
)
# For functional tests: quick to start, small, and cheap on two cores. Benchmarks pass their own.
SMALL_JVM: Final = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
)

LOGBACK: Final = """<?xml version="1.0" encoding="UTF-8"?>
<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${harness.log}</file>
    <encoder>
      <pattern>%d{HH:mm:ss.SSS} %-5p %t %c{0} - %m%n</pattern>
    </encoder>
  </appender>
  <root level="INFO">
    <appender-ref ref="file"/>
  </root>
</configuration>
"""


class HarnessTimeout(AssertionError):
    """A bounded wait ended without its condition; the text names the condition."""


class StartFailed(AssertionError):
    """A child ended or stayed silent while starting; the text contains the end of its output."""


def wait_until(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Polls until `condition` holds. A limit below a minute is raised to it: a busy machine must not fail a test."""
    timeout_s = max(timeout_s, LIMIT_S)
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise HarnessTimeout(f"waited {timeout_s} s for {what}")
        time.sleep(POLL_S)


def java_command(
    version: str,
    workdir: Path,
    main: str,
    *args: str,
    jvm_args: Sequence[str] = SMALL_JVM,
    properties: Mapping[str, str] | None = None,
    classes: str = "",
) -> list[str]:
    """Returns the command for a JVM with Apache's jars (or the given class path) whose logs, home and configuration
    are in `workdir`.
    """
    conf = workdir / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    # 4.9.7 looks these up under ROCKETMQ_HOME; 5.5.0 uses a property.
    for name in ("logback_broker.xml", "logback_namesrv.xml", "logback_tools.xml"):
        (conf / name).write_text(LOGBACK)
    settings = {
        "harness.log": str(workdir / "apache.log"),
        "rmq.logback.configurationFile": str(conf / "logback_broker.xml"),
        "logback.configurationFile": str(conf / "logback_broker.xml"),
        "rocketmq.client.logRoot": str(workdir),
        "rocketmq.home.dir": str(workdir),
        "user.home": str(workdir),
        "file.encoding": "UTF-8",
        # The usual form of ids and addresses, also on a machine whose only outside address is an IPv6 one.
        "java.net.preferIPv4Stack": "true",
        **(properties or {}),
    }
    return [
        "java",
        *jvm_args,
        *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED_PACKAGES),
        *(f"-D{name}={value}" for name, value in settings.items()),
        "-cp",
        classes or classpath(version),
        main,
        *args,
    ]


class ChildProcess:
    """A child process. We hold the pipe of its standard input: every program of the harness ends when it closes."""

    def __init__(
        self, name: str, command: Sequence[str], workdir: Path, *, pipe_output: bool = False
    ) -> None:
        self.name = name
        self.workdir = workdir
        self._command = list(command)
        self._pipe_output = pipe_output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert not self.running, f"{self.name} runs already"
        self.workdir.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ, ROCKETMQ_HOME=str(self.workdir), HOME=str(self.workdir))
        environment["ROCKETMQ_GO_LOG_LEVEL"] = "warn"
        environment.pop("NAMESRV_ADDR", None)
        with (self.workdir / "stderr.log").open("ab") as errors:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.workdir,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._pipe_output else errors,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_ready(self, ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Polls `ready`; raises with the child's last output when it ends or the time (at least two
        minutes) is over.
        """
        timeout_s = max(timeout_s, START_LIMIT_S)
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                raise StartFailed(f"{self.name} ended with {self.process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise StartFailed(f"{self.name} not ready after {timeout_s} s:\n{self.log_tail()}")
            time.sleep(POLL_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Sends SIGTERM, and SIGKILL if that does not end it in time. Safe to call twice."""
        if self._process is None:
            return
        if self.running:
            self.process.terminate()
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._reap()

    def kill(self) -> None:
        """Sends SIGKILL: to others it looks like a crash of the process."""
        if self._process is None:
            return
        if self.running:
            self.process.kill()
        self._reap()

    def pause(self) -> None:
        """Sends SIGSTOP: the process hangs with its sockets open."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _reap(self) -> None:
        self.process.wait(STOP_TIMEOUT_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def rss_bytes(self) -> int:
        """Returns resident memory, including mapped store files."""
        return self._status_bytes("VmRSS")

    def private_bytes(self) -> int:
        """Returns resident memory without files: the memory the process permanently uses (heap, buffers, code)."""
        return self._status_bytes("RssAnon")

    def cpu_seconds(self) -> float:
        """Returns user and system time so far, of all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def _status_bytes(self, field: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return int(value.split()[0]) * 1024
        raise RuntimeError(f"no {field} for {self.name}")

    def log_tail(self, lines: int = 60) -> str:
        """Returns the end of everything it printed or logged."""
        return "\n".join(self._tails(lines))

    def _tails(self, lines: int) -> Iterator[str]:
        for name in ("stderr.log", "apache.log", "rocketmq_client.log"):
            path = self.workdir / name
            if path.exists():
                yield f"--- {self.name} {name}"
                yield from path.read_text(errors="replace").splitlines()[-lines:]

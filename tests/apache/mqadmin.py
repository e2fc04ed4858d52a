"""Apache's own mqadmin: one command in its own JVM, or many in one JVM."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.apache.artifacts import LATEST
from tests.apache.driver import CALL_TIMEOUT_S, Driver
from tests.apache.process import SMALL_JVM, java_command
from tests.apache.servers import Addressed, address_of

__all__ = ["AdminResult", "AdminShell", "mqadmin"]

MAIN: Final = "org.apache.rocketmq.tools.command.MQAdminStartup"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminResult:
    """The output of a command. mqadmin exits with 0 even after most failures: read `output`."""

    args: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr

    def rows(self) -> list[list[str]]:
        """Returns the lines of a table, split at blanks, without blank lines and comment lines."""
        return [
            line.split() for line in self.stdout.splitlines() if line.strip() and not line.startswith("#")
        ]


def mqadmin(
    version: str, namesrv: Addressed | str | None, *args: str, timeout_s: float = CALL_TIMEOUT_S
) -> AdminResult:
    """Runs `mqadmin("5.5.0", namesrv, "clusterList")` like a user, including one to two seconds of JVM start."""
    with tempfile.TemporaryDirectory(prefix="orbitmq-mqadmin-") as directory:
        command = java_command(version, Path(directory), MAIN, *_arguments(namesrv, args))
        done = subprocess.run(
            command,
            cwd=directory,
            timeout=timeout_s,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    return AdminResult(args=args, returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


class AdminShell:
    """mqadmin commands one after the other in one JVM; a command takes some tens of milliseconds.

    A command that does not end in time costs the JVM: it is killed and the next command starts a new one.
    """

    def __init__(
        self,
        version: str = LATEST,
        namesrv: Addressed | str | None = None,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """`properties` are system properties, such as `tls.enable`."""
        self.version = version
        self._properties = dict(properties or {})
        self.namesrv = namesrv
        self._workdir = Path(tempfile.mkdtemp(prefix=f"orbitmq-admin-{version}-"))
        self._driver: Driver | None = None

    def __enter__(self) -> AdminShell:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None
        shutil.rmtree(self._workdir, ignore_errors=True)

    def sign_in(self, access_key: str, secret_key: str) -> None:
        """Signs all further commands, like mqadmin: with `conf/tools.yml` of its home."""
        conf = self._workdir / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "tools.yml").write_text(f"accessKey: {access_key}\nsecretKey: {secret_key}\n")

    def run(
        self, *args: str, namesrv: Addressed | str | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> AdminResult:
        """Runs `shell.run("topicRoute", "-t", "T")` with the shell's name server unless another is given."""
        driver = self._running()
        target = namesrv if namesrv is not None else self.namesrv
        try:
            result = driver.call("run", args=_arguments(target, args), timeout_s=timeout_s)
        except AssertionError:
            driver.close()
            raise
        return AdminResult(
            args=args, returncode=result["exit"], stdout=result["stdout"], stderr=result["stderr"]
        )

    def _running(self) -> Driver:
        if self._driver is None or not self._driver.child.running:
            self._driver = Driver(f"mqadmin-{self.version}", self._command, self._workdir)
            self._driver.start()
        return self._driver

    def _command(self, workdir: Path) -> list[str]:
        # The security manager turns a command's System.exit into a result (see AdminShell.java).
        settings = {"java.security.manager": "allow", **self._properties}
        main = "orbitmq.driver.AdminShell"
        return java_command(self.version, workdir, main, jvm_args=SMALL_JVM, properties=settings)


def _arguments(namesrv: Addressed | str | None, args: tuple[str, ...]) -> list[str]:
    if namesrv is None or "-n" in args or not args or args[0] == "help":  # help takes no address
        return list(args)
    return [args[0], "-n", address_of(namesrv), *args[1:]]

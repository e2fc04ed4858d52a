"""Types the tutorial and the how-tos from top to bottom, like a new user, on the ports the pages name.

Usage: python scripts/type_docs.py [PAGE...]

Servers a page starts (`orbitmq up`, `namesrv`, `broker`, ...) run until the end of their page; every other command
must exit with 0, and a program must print the output shown on the page. A program whose first line is a comment with
a file name is saved under that name. The script runs in its own network namespace (``unshare``), so no other program
can hold the ports. Packages that a page installs are fetched in advance, since there is no network inside. The
how-tos use the servers and data left by the tutorial. Pages with Spark commands need Java.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
INSIDE: Final = "ORBITMQ_TYPE_DOCS_INSIDE"
READY_S: Final = 180.0
COMMAND_S: Final = 600.0
SERVERS: Final = frozenset({"up", "namesrv", "broker", "proxy", "filtersrv"})
ALSO: Final = ("filters.md",)
"""Pages other than the tutorial and the how-tos that can be typed."""
LEFT_OUT: Final = {
    "index.md": "tests/integration/test_client_commands.py",
    "admin.md": "tests/integration/test_admin.py",
    "console.md": "tests/integration/test_dlq_command.py",
    "failover.md": "tests/apache/test_init_failover.py",
    "from-apache.md": "tests/apache/test_store_interop.py",
    "how-to/secure.md": "tests/integration/test_access_control.py",
    "mcp.md": "tests/integration/test_mcp.py",
    "operations.md": "tests/integration/test_packaging.py",
    "pipelines.md": "tests/spark/test_pipeline_command.py",
}
"""Pages with commands that are not typed here, and the test that runs those commands."""
INSTALLED: Final = {"/var/lib/orbitmq/store": "data/store"}
"""Paths of an installation by packages, and where the tutorial has the same."""
_BLOCK: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_FILE: Final = re.compile(r"\A# (\S+\.py)\n")
_OUTPUT: Final = re.compile(r"\A\s*It prints(, in some order)?:\s*\Z")


@dataclass
class Session:
    """A terminal and a directory; servers run until it ends."""

    directory: Path
    packages: Path
    servers: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, arguments: list[str]) -> None:
        log = (self.directory / f"server-{len(self.servers)}.log").open("w")
        process = subprocess.Popen(
            ["orbitmq", *arguments], cwd=self.directory, stdout=log, stderr=subprocess.STDOUT, text=True
        )
        self.servers.append(process)
        deadline = time.monotonic() + READY_S
        while "ready" not in Path(log.name).read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"server did not start: {arguments}\n{Path(log.name).read_text()}")
            time.sleep(0.05)
        log.close()

    def run(self, command: list[str], where: str) -> list[str]:
        command = [INSTALLED.get(word, word) for word in command]
        done = subprocess.run(
            command,
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": str(self.packages)} if command[0] == sys.executable else None,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode:
            raise SystemExit(
                f"{where}: {shlex.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout.splitlines()

    def close(self) -> None:
        for process in reversed(self.servers):
            process.terminate()
            if process.wait(timeout=READY_S):
                raise SystemExit(f"a server ended with {process.returncode}")
        self.servers.clear()


def blocks(page: str) -> Iterator[tuple[int, str, str, tuple[list[str], bool] | None]]:
    """Yields line, kind and text of each block, and for a program its expected output and whether the order
    matters.
    """
    text = (DOCS / page).read_text("utf-8")
    found = list(_BLOCK.finditer(text))
    for number, block in enumerate(found):
        output = None
        if number + 1 < len(found):
            said = _OUTPUT.match(text[block.end() : found[number + 1].start()])
            if said:
                output = found[number + 1].group(2).splitlines(), said.group(1) is None
        yield text.count("\n", 0, block.start()) + 1, block.group(1), block.group(2), output


def commands(text: str) -> list[list[str]]:
    """Returns the words of each line with a prompt."""
    lines = (line.strip() for line in text.splitlines())
    return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]


def starts_servers(page: str) -> list[str]:
    return [
        command[1]
        for _, kind, text, _ in blocks(page)
        if kind == "console"
        for command in commands(text)
        if command[0] == "orbitmq" and command[1] in SERVERS
    ]


def type_page(page: str, session: Session) -> int:
    """Types everything on a page, in order; returns the number of steps."""
    steps = 0
    for line, kind, text, output in blocks(page):
        where = f"{page}:{line}"
        if kind == "console":
            for command in commands(text):
                if command[0] != "orbitmq":
                    continue  # pip: see fetch_packages
                if command[1] in SERVERS:
                    session.start(command[1:])
                else:
                    session.run(command, where)
                steps += 1
        elif kind == "python":
            named = _FILE.match(text)
            program = session.directory / (named.group(1) if named else "program.py")
            program.parent.mkdir(exist_ok=True)
            program.write_text(text, "utf-8")
            if named:
                continue
            printed = session.run([sys.executable, program.name], where)
            if output is not None and (printed if output[1] else sorted(printed)) != output[0]:
                raise SystemExit(f"{where} printed {printed}, not {output[0]}")
            steps += 1
    return steps


def fetch_packages(pages: list[str], target: Path) -> None:
    """Fetches the packages that the pages install from PyPI, except orbitmq itself."""
    wanted = [
        word
        for page in pages
        for _, kind, text, _ in blocks(page)
        if kind == "console"
        for command in commands(text)
        if command[:2] == ["pip", "install"]
        for word in command[2:]
        if not word.startswith("orbitmq[")
    ]
    if wanted:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), *wanted]
        subprocess.run(pip, check=True)


def type_all(pages: list[str], packages: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        session = Session(Path(name), packages)
        followers = [page for page in pages if page != "tutorial.md" and not starts_servers(page)]
        for page in ["tutorial.md", *followers]:
            sys.stdout.write(f"{page}: {type_page(page, session)} steps\n")
            sys.stdout.flush()
        session.close()
    for page in pages:
        if page == "tutorial.md" or page in followers:
            continue
        with tempfile.TemporaryDirectory() as name:
            session = Session(Path(name), packages)
            if "namesrv" not in starts_servers(page) and "up" not in starts_servers(page):
                session.start(["namesrv"])
            sys.stdout.write(f"{page}: {type_page(page, session)} steps\n")
            sys.stdout.flush()
            session.close()


def loopback_up() -> None:
    """Does the same as `ip link set lo up`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(control, 0x8914, request)  # SIOCSIFFLAGS


def pages_to_type() -> list[str]:
    how_tos = sorted(f"how-to/{path.name}" for path in (DOCS / "how-to").glob("*.md"))
    return ["tutorial.md", *(page for page in how_tos if page not in LEFT_OUT), *ALSO]


def main() -> None:
    pages = sys.argv[1:] or pages_to_type()
    if INSIDE not in os.environ:
        with tempfile.TemporaryDirectory() as packages:
            fetch_packages(pages, Path(packages))
            command = ["unshare", "--map-root-user", "--net", sys.executable, __file__, *pages]
            done = subprocess.run(command, env={**os.environ, INSIDE: packages}, check=False)
        raise SystemExit(done.returncode)
    loopback_up()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.pop("NAMESRV_ADDR", None)
    type_all(pages, Path(os.environ[INSIDE]))


if __name__ == "__main__":
    main()

"""Types the tutorial and the how-tos from top to bottom, as a new user would, on the ports the pages name.

Usage: python scripts/type_docs.py [PAGE...]

Servers a page starts (`orbitmq up`, `namesrv`, `broker`) run until the end of their page; every other command must
end with 0, and a program must print what the page says. Runs in a network namespace of its own (``unshare``), so that
no other program has the ports. The how-tos run on the servers and the data that the tutorial left.
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
READY_S: Final = 60.0
COMMAND_S: Final = 120.0
SERVERS: Final = frozenset({"up", "namesrv", "broker"})
LEFT_OUT: Final = {
    "how-to/5x-clients.md": "its clients are Java, Go and others; tests/proxy runs them",
    "how-to/backup.md": "reads /var/lib and starts Spark; the commands are tested on their own",
    "how-to/secure.md": "tests/integration/test_access_control.py types it",
}
_BLOCK: Final = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_OUTPUT: Final = re.compile(r"\A\s*It prints(, in some order)?:\s*\Z")


@dataclass
class Session:
    """A terminal and a directory; servers run until it ends."""

    directory: Path
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
        done = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, timeout=COMMAND_S, check=False
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
    """Line, kind and text of each block, and for a program what it prints and whether in that order."""
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
    return [shlex.split(line.strip()[2:]) for line in text.splitlines() if line.strip().startswith("$ ")]


def starts_servers(page: str) -> list[str]:
    return [
        command[1]
        for _, kind, text, _ in blocks(page)
        if kind == "console"
        for command in commands(text)
        if command[0] == "orbitmq" and command[1] in SERVERS
    ]


def type_page(page: str, session: Session) -> int:
    """Everything on a page, in order; gives how many steps that were."""
    steps = 0
    for line, kind, text, output in blocks(page):
        where = f"{page}:{line}"
        if kind == "console":
            for command in commands(text):
                if command[0] != "orbitmq":
                    continue  # of the system: users, services
                if command[1] in SERVERS:
                    session.start(command[1:])
                else:
                    session.run(command, where)
                steps += 1
        elif kind == "python":
            program = session.directory / "program.py"
            program.write_text(text, "utf-8")
            printed = session.run([sys.executable, program.name], where)
            if output is not None and (printed if output[1] else sorted(printed)) != output[0]:
                raise SystemExit(f"{where} printed {printed}, not {output[0]}")
            steps += 1
    return steps


def type_all(pages: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        session = Session(Path(name))
        followers = [page for page in pages if page != "tutorial.md" and not starts_servers(page)]
        for page in ["tutorial.md", *followers]:
            sys.stdout.write(f"{page}: {type_page(page, session)} steps\n")
            sys.stdout.flush()
        session.close()
    for page in pages:
        if page == "tutorial.md" or page in followers:
            continue
        with tempfile.TemporaryDirectory() as name:
            session = Session(Path(name))
            if "namesrv" not in starts_servers(page) and "up" not in starts_servers(page):
                session.start(["namesrv"])
            sys.stdout.write(f"{page}: {type_page(page, session)} steps\n")
            sys.stdout.flush()
            session.close()


def loopback_up() -> None:
    """What `ip link set lo up` does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP | IFF_RUNNING
        fcntl.ioctl(control, 0x8914, request)  # SIOCSIFFLAGS


def main() -> None:
    if INSIDE not in os.environ:
        arguments = ["unshare", "--map-root-user", "--net", sys.executable, __file__, *sys.argv[1:]]
        os.execvpe(arguments[0], arguments, {**os.environ, INSIDE: "1"})
    loopback_up()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ.pop("NAMESRV_ADDR", None)
    how_tos = sorted(f"how-to/{path.name}" for path in (DOCS / "how-to").glob("*.md"))
    pages = sys.argv[1:] or ["tutorial.md", *(page for page in how_tos if page not in LEFT_OUT)]
    type_all(pages)


if __name__ == "__main__":
    main()

"""Hands out TCP ports for servers that tests start.

A port that the kernel chooses (port 0) is safe only while it is bound: after a restart, and for neighbours such as a
broker's port + 1, any outgoing connection may have taken it. These ports are below the range the kernel chooses from.
Each process locks the blocks it takes them from, so that neither another worker of pytest-xdist nor another test run
on the machine gets the same ones, and it hands out each port once until every block is used up.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["PortBlocks", "broker_ports", "free_ports"]

FIRST: Final = 20_000
END: Final = 32_000
BLOCK: Final = 200
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class PortBlocks:
    """The ports from ``first`` to ``end`` in blocks, starting with a random one. ``folder`` holds the lock files."""

    def __init__(self, first: int, end: int, size: int, folder: Path) -> None:
        starts = list(range(first, end - size + 1, size))
        turn = random.randrange(len(starts))
        self._untried = starts[turn:] + starts[:turn]
        self._mine: list[int] = []
        self._locks: list[int] = []
        self._count, self._size, self._folder = len(starts), size, folder
        self._next = self._end = 0

    def take(self, *steps: int) -> list[int]:
        """Returns a port p and every p + step, all of them free."""
        low, high = min(0, *steps, 0), max(0, *steps, 0)
        for _ in range(self._count + 2):
            while self._next + high - low < self._end:
                base = self._next - low
                ports = [base, *(base + step for step in steps)]
                taken = [port for port in ports if not _is_free(port)]
                self._next = (max(taken) if taken else base + high) + 1
                if not taken:
                    return ports
            self._open_block()
        raise RuntimeError(
            f"no free ports with the steps {steps} in {len(self._mine)} blocks of {self._size}"
        )

    def close(self) -> None:
        """Releases the blocks; the end of the process does the same."""
        for lock in self._locks:
            os.close(lock)

    def _open_block(self) -> None:
        start = self._lock_another()
        if start is None:
            if not self._mine:
                raise RuntimeError("other test runs have locked every block of ports")
            start = self._mine.pop(0)
        self._mine.append(start)
        self._next, self._end = start, start + self._size

    def _lock_another(self) -> int | None:
        while self._untried:
            start = self._untried.pop(0)
            try:
                lock = os.open(self._folder / f"orbitmq-test-ports-{start}", os.O_CREAT | os.O_WRONLY, 0o600)
            except PermissionError:  # another user's
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._locks.append(lock)
            return start
        return None


_blocks: PortBlocks | None = None


def free_ports(*steps: int) -> list[int]:
    """Returns a port p and every p + step, all of them free: ``free_ports(-2, 1)`` suits a broker."""
    global _blocks
    if _blocks is None:
        _blocks = PortBlocks(FIRST, _end(), BLOCK, Path(tempfile.gettempdir()))
    return _blocks.take(*steps)


def broker_ports() -> dict[str, int]:
    """Returns ``port`` and ``name_server_port`` for a ``run_broker`` that is restarted on the same ports. The broker
    also uses its port - 2 and + 1.
    """
    broker, _, _, name_server = free_ports(-2, 1, 2)
    return {"port": broker, "name_server_port": name_server}


def _end() -> int:
    try:
        return min(END, int(_EPHEMERAL.read_text().split()[0]))
    except OSError:
        return END


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True

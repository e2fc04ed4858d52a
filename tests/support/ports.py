"""Hands out TCP ports for servers that tests start.

A port that the kernel chooses (port 0) is safe only while it is bound: after a restart, and for neighbours such as a
broker's port + 1, any outgoing connection may have taken it. These ports are below the range the kernel chooses from,
each process of pytest-xdist has its own part of them, and a process hands out each port once.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["PortRange", "free_ports", "range_of_worker"]

FIRST: Final = 20_000
END: Final = 32_000
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class PortRange:
    """The ports from ``first`` to ``end``, in order from a random one on."""

    def __init__(self, first: int, end: int) -> None:
        self._first, self._end = first, end
        self._next = random.randrange(first, end)

    def take(self, *steps: int) -> list[int]:
        """Returns a port p and every p + step, all of them free."""
        low, high = min(0, *steps, 0), max(0, *steps, 0)
        left = self._end - self._first
        while left > 0:
            if self._next + high - low >= self._end:
                left -= self._end - self._next
                self._next = self._first
            base = self._next - low
            ports = [base, *(base + step for step in steps)]
            taken = [port for port in ports if not _is_free(port)]
            behind = (max(taken) if taken else base + high) + 1
            left -= behind - self._next
            self._next = behind
            if not taken:
                return ports
        raise RuntimeError(f"no free ports from {self._first} to {self._end}")


def range_of_worker(environment: Mapping[str, str]) -> tuple[int, int]:
    """Returns the first port and the end of the range for a process of pytest-xdist, or of all without it."""
    try:
        end = min(END, int(_EPHEMERAL.read_text().split()[0]))
    except OSError:
        end = END
    count = int(environment.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(environment.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % count
    width = (end - FIRST) // count
    return FIRST + number * width, FIRST + (number + 1) * width


_ports: PortRange | None = None


def free_ports(*steps: int) -> list[int]:
    """Returns a port p and every p + step, all of them free: ``free_ports(-2, 1)`` suits a broker."""
    global _ports
    if _ports is None:
        _ports = PortRange(*range_of_worker(os.environ))
    return _ports.take(*steps)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True

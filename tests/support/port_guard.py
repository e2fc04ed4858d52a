"""A pytest plugin that refuses to start a server on a port in the range from which the kernel serves port 0.

Such a port may have been free earlier, but any outgoing connection of the machine can take it. A server that restarts
on the same port must get it from ``tests/support/ports.py``. A port that is in use at the time is allowed, because
then the test is about the refusal.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

__all__ = ["guard", "refusal"]

_PORT_OPTION: Final = re.compile(r"(?:--set=)?(?:listenPort|haListenPort)=(\d+)")
_DEPTH: Final = 8
_EVERYWHERE: Final = ("", "0.0.0.0", "127.0.0.1", "::", "::1")


def _first() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768


FIRST: Final = _first()


def refusal(port: int) -> str | None:
    """Returns why no server may be started on the port now."""
    if not FIRST <= port <= 65_535 or not _is_free(port):
        return None
    return (
        f"port {port} is one of those that the kernel gives to any connection, so it may be taken when a server "
        "starts on it again; take one from tests/support/ports.py"
    )


def guard(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook."""
    if event == "socket.bind":
        address = arguments[1]
        if not isinstance(address, tuple) or address[0] not in _EVERYWHERE or address[1] < FIRST:
            return
        if _is_server(arguments[0]) and not _beside_a_port_of_the_kernel():
            _raise(address[1])
    elif event == "subprocess.Popen" and not isinstance(arguments[1], str | bytes):
        for word in arguments[1]:
            if found := _PORT_OPTION.fullmatch(os.fsdecode(word)):
                _raise(int(found[1]))


def _raise(port: int) -> None:
    reason = refusal(port)
    if reason is not None:
        raise OSError(reason)  # the error of a refused bind: the code under test closes its sockets


def _is_server(bound: socket.socket) -> bool:
    return bound.type == socket.SOCK_STREAM and not isinstance(bound, _Probe)


def _is_free(port: int) -> bool:
    with _Probe(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class _Probe(socket.socket):
    """A socket that the guard ignores."""


def _beside_a_port_of_the_kernel() -> bool:
    """A broker on port 0 uses the neighbours of the port it got, and tries others if they are taken."""
    return any(
        (frame.f_code.co_name == "bind_port_and_fast_port" and frame.f_locals.get("port") == 0)
        or (frame.f_code.co_name == "_bind_ha" and frame.f_locals["config"].listen_port == 0)
        for frame in _callers()
    )


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(guard)

"""Sockets for blocking calls. The kernel enforces timeouts, because those of Python's sockets cost a poll before each
call."""

from __future__ import annotations

import socket
import struct
from typing import Final

from orbitmq.errors import ConnectFailedError
from orbitmq.transport.client import split_address

__all__ = ["connect_blocking", "is_open", "limit_waits"]

_TIMEVAL: Final = struct.Struct("ll")


def connect_blocking(address: str, timeout_s: float) -> socket.socket:
    """Returns a connected socket. Raises ``ConnectFailedError``."""
    host = split_address(address)
    try:
        connected = socket.create_connection(host, timeout_s)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(None)
    except (OSError, ValueError) as error:  # ValueError: a host name no resolver can take
        raise ConnectFailedError(f"cannot connect to {address}: {error}") from None
    return connected


def limit_waits(connected: socket.socket, timeout_s: float) -> None:
    """Set the timeout of reads and writes, in seconds. Those that take longer raise ``BlockingIOError``."""
    seconds, rest = divmod(max(timeout_s, 0.001), 1)
    limit = _TIMEVAL.pack(int(seconds), int(rest * 1e6))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def is_open(connected: socket.socket) -> bool:
    """Whether the connection is open, as far as this end knows."""
    try:
        return bool(connected.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False

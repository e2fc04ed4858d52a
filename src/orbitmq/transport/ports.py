"""Binds ports before anything is served on them, so that a server knows its address in advance."""

from __future__ import annotations

import errno
import socket
from typing import Final

from orbitmq.runtime.network import bare_host

__all__ = ["bind_port", "bind_port_and_fast_port"]

FAST_PORT_DISTANCE: Final = 2
"""The fast ("VIP") port is the listen port minus this; clients compute it themselves."""
_TRIES: Final = 50


def bind_port(host: str, port: int) -> socket.socket:
    """Returns a bound socket that is not listening yet. Port 0 lets the system choose one. Raises ``OSError``."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        bare_host(host) or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setblocking(False)
        bound.bind(address)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(error.errno, f"port {port} of {host or '0.0.0.0'} is in use") from None
        if error.errno in (errno.EADDRNOTAVAIL, errno.EACCES):
            raise OSError(
                error.errno, f"cannot bind port {port} of {host or '0.0.0.0'}: {error.strerror}"
            ) from None
        raise
    return bound


def bind_port_and_fast_port(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Returns sockets bound to the listen port and to the fast port two below it. Port 0 chooses a free pair."""
    for attempt in range(_TRIES):
        main = bind_port(host, port)
        try:
            return main, bind_port(host, main.getsockname()[1] - FAST_PORT_DISTANCE)
        except OSError:
            main.close()
            if port or attempt == _TRIES - 1:
                raise
    raise AssertionError("not reached")

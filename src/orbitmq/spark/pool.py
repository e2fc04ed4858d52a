"""Connections for the pulls of Spark's Python workers, kept between tasks, and the retry rules of all requests.

A worker runs one task at a time and waits for its answers, so it needs no event loop. A plain socket with many pulls
in flight costs less per answer, and the kernel writes directly into the buffer from which records are decoded. All
other requests go through ``connections.py``. Workers outlive tasks, so connections are pooled by address, access and
process (a forked worker must not use its parent's sockets).
"""

from __future__ import annotations

import atexit
import itertools
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from threading import Event
from typing import Final, TypeVar

from orbitmq.client.errors import NoRouteError, is_retriable
from orbitmq.client.net.signing import sign
from orbitmq.errors import (
    ConnectionLostError,
    NoPermission,
    OrbitError,
    RequestTimeoutError,
    ServerError,
    TopicNotFound,
)
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.runtime.machine import process_id
from orbitmq.spark.options import Access
from orbitmq.transport.client import split_address
from orbitmq.wire.frame import encode_binary_fields, encode_binary_request
from orbitmq.wire.header import Header, encode_ext

__all__ = ["Link", "borrow", "close_idle", "give_back", "is_passing", "patiently"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CONNECT_TIMEOUT_S: Final = 5.0
_IDLE_S: Final = 60.0
"""Brokers close connections that are silent for two minutes."""
_KEPT_PER_PEER: Final = 4
_SOCKET_BUFFER_BYTES: Final = 4 * 1024 * 1024
_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between attempts; the last one repeats."""


class Link:
    """One connection. Not thread-safe: only the borrower may use it."""

    def __init__(self, address: str, access: Access, timeout_s: float) -> None:
        self.address = address
        self._credentials = access.credentials
        self._opaque = itertools.count(1)
        host, port = split_address(address)
        try:
            self.socket = socket.create_connection((host, port), min(_CONNECT_TIMEOUT_S, timeout_s))
        except (OSError, ValueError) as error:  # ValueError: a host name that no resolver accepts
            raise ConnectionLostError(f"cannot connect to {address}: {error}") from None
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
            if access.tls is not None:
                self.socket = access.tls.context().wrap_socket(self.socket, server_hostname=host)
            self.socket.settimeout(timeout_s)
        except (OSError, ssl.SSLError) as error:
            self.socket.close()
            raise ConnectionLostError(f"cannot connect to {address}: {error}") from None

    def close(self) -> None:
        self.socket.close()

    def next_opaque(self) -> int:
        return next(self._opaque) & 0x7FFFFFFF

    def encode(self, code: int, header: Header, body: bytes, opaque: int) -> bytes:
        """Returns the encoded request, signed if there are keys."""
        fields = encode_ext(header)
        if self._credentials is not None:
            fields = sign(fields, body, self._credentials)
        return encode_binary_request(code, opaque, encode_binary_fields(fields), body)

    def send(self, data: bytes) -> None:
        """Sends data. Raises ``ConnectionLostError``."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from None

    def receive(self, into: memoryview) -> int:
        """Reads at least one byte and returns the number read. Raises ``ConnectionLostError`` or
        ``RequestTimeoutError``."""
        try:
            count = self.socket.recv_into(into)
        except TimeoutError:
            raise RequestTimeoutError(f"no answer from {self.address}") from None
        except OSError as error:
            raise self._lost(error) from None
        if not count:
            raise ConnectionLostError(f"{self.address} closed the connection")
        return count

    def _lost(self, error: OSError) -> ConnectionLostError:
        return ConnectionLostError(f"connection to {self.address} lost: {error}")


# -- the pool ------------------------------------------------------------------------------------------

_Key = tuple[str, Access, int]
_idle: dict[_Key, list[tuple[float, Link]]] = {}
_idle_lock: Final = threading.RLock()
"""Spark's workers have one thread; readers of ``orbitmq.arrow`` may have several."""


def borrow(address: str, access: Access, *, timeout_s: float, clock: Clock = SYSTEM_CLOCK) -> Link:
    """Returns an open connection, pooled or new. Raises ``ConnectionLostError``."""
    while (link := _kept(address, access, clock.monotonic())) is not None:
        if _is_quiet(link):
            link.socket.settimeout(timeout_s)
            return link
        link.close()
    return Link(address, access, timeout_s)


def _kept(address: str, access: Access, now: float) -> Link | None:
    """Takes the most recently used idle connection out of the pool, or returns None."""
    with _idle_lock:
        _drop_old(now)
        kept = _idle.get((address, access, process_id()))
        return kept.pop()[1] if kept else None


def give_back(link: Link, access: Access, *, clock: Clock = SYSTEM_CLOCK) -> None:
    """Puts a connection back into the pool. It must have no outstanding answers."""
    with _idle_lock:
        kept = _idle.setdefault((link.address, access, process_id()), [])
        if len(kept) < _KEPT_PER_PEER:
            kept.append((clock.monotonic(), link))
            return
    link.close()


@atexit.register
def close_idle() -> None:
    """Closes every pooled connection. Runs when the process exits."""
    while _idle:
        for _, link in _idle.popitem()[1]:
            link.close()


def _drop_old(now: float) -> None:
    pid = process_id()
    for key, kept in list(_idle.items()):
        if key[2] != pid:
            # These belong to the process this one was forked from, so drop them without using them.
            for _, link in kept:
                link.close()
            del _idle[key]
            continue
        while kept and kept[0][0] < now - _IDLE_S:
            kept.pop(0)[1].close()
        if not kept:
            del _idle[key]


def _is_quiet(link: Link) -> bool:
    """Returns whether the connection is still open with nothing to read."""
    try:
        link.socket.setblocking(False)
        if isinstance(link.socket, ssl.SSLSocket):
            return not link.socket.pending() and _nothing_to_read(link.socket)
        link.socket.recv(1, socket.MSG_PEEK)
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except OSError:
        return False
    return False


def _nothing_to_read(link: ssl.SSLSocket) -> bool:
    link.recv(1)  # raises SSLWantReadError on a quiet connection
    return False


# -- retries -------------------------------------------------------------------------------------------


def is_passing(error: OrbitError) -> bool:
    """Returns whether the same request may succeed shortly, for example after a restart, an overload or a failover.

    Applies the client's rule, except for errors that do not go away by waiting: missing permissions, missing topics
    and malformed requests.
    """
    return is_retriable(error) and not isinstance(error, _LASTING)


_LASTING: Final = (NoPermission, TopicNotFound, NoRouteError, ServerError)


def patiently(what: str, work: Callable[[], T], timeout_s: float, *, clock: Clock = SYSTEM_CLOCK) -> T:
    """Returns the result of ``work``. While it fails with a possibly temporary error, it is retried with pauses for
    up to ``timeout_s``. ``what`` names it in the log."""
    deadline = clock.monotonic() + timeout_s
    attempt = 0
    while True:
        try:
            return work()
        except OrbitError as error:
            if not is_passing(error) or clock.monotonic() >= deadline:
                raise
            if attempt == 0:
                logger.info("%s failed, trying again for %g s error=%s", what, timeout_s, error)
            pause(attempt)
            attempt += 1


def pause(attempt: int) -> None:
    """Waits before the next attempt, longer after each."""
    Event().wait(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])

"""The monitoring port: ``/metrics``, ``/healthz`` and ``/readyz`` over HTTP/1.1.

No framework is needed for three pages, GET and HEAD, and one request per connection. A peer may send up to 8 KiB of
headers within ten seconds, and up to sixteen connections may be open; anything beyond that is refused or closed. The
port listens on loopback unless the host option says otherwise.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, cast

from orbitmq.metrics.families import TEXT_CONTENT_TYPE, Families
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.transport.ports import bind_port

__all__ = ["MetricsEndpoint", "Pages", "bind_metrics", "parse_labels"]

logger = logging.getLogger(__name__)

_HEADER_BYTES_MAX: Final = 8_192
_REQUEST_S_MAX: Final = 10.0
_ANSWER_S_MAX: Final = 30.0
_CONNECTIONS_MAX: Final = 16
_PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Pages:
    """Functions that provide the content of the three pages."""

    metrics: Callable[[], Awaitable[Families]]
    not_alive: Callable[[], str]
    """Returns why the server should be restarted; empty if it is healthy."""
    not_ready: Callable[[], str]
    """Returns why the server should get no traffic now; empty if it should get traffic."""


def bind_metrics(host: str, port: int) -> socket.socket:
    """Bind the port before the endpoint starts. Raises ``OSError`` whose text names the option to change."""
    try:
        return bind_port(host, port)
    except OSError as error:
        raise OSError(
            error.errno,
            f"metrics cannot listen on {host}:{port}: {error.strerror}; set another metricsPromExporterPort",
        ) from None


class MetricsEndpoint:
    """Serves the pages from ``start`` to ``stop``."""

    def __init__(
        self, host: str, port: int, pages: Pages, bound: socket.socket | None = None, *, token: str = ""
    ) -> None:
        """``bound`` is a socket that ``bind_metrics`` has already bound. With a token, /metrics requires
        ``Authorization: Bearer TOKEN``; probes do not."""
        self._host = host
        self._port = port
        self._pages = pages
        self._bound = bound
        self._server: asyncio.Server | None = None
        self._tasks = TaskOwner("metrics")
        self._connections: dict[_Connection, None] = {}
        """Oldest first."""
        self.token = token

    @property
    def port(self) -> int:
        """The bound port, once the endpoint has started."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        host = "127.0.0.1" if self._host in ("", "0.0.0.0", "::") else self._host
        return f"{host}:{self.port}"

    async def start(self) -> None:
        """Start listening. Raises ``OSError`` whose text names the option to change."""
        bound = self._bound or bind_metrics(self._host, self._port)
        self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), sock=bound)
        logger.info("metrics served address=%s", self.address)

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        await self._tasks.close()
        self._server = None

    # -- what a connection calls ---------------------------------------------------------------------------

    def opened(self, connection: _Connection) -> bool:
        """Register a new connection. Returns False if there are too many.

        At the limit, the oldest connection that has not sent its request is closed. Otherwise a few silent
        connections would keep a probe from finding this server alive.
        """
        if self._server is None:
            return False
        if len(self._connections) >= _CONNECTIONS_MAX:
            silent = next((one for one in self._connections if not one.has_asked), None)
            if silent is None:
                return False
            del self._connections[silent]
            silent.abort()
        self._connections[connection] = None
        return True

    def closed(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    def answer(self, connection: _Connection, method: str, target: str, header: bytes) -> None:
        """Start a task that builds the page and sends it. A request without the required token is refused."""
        if self.token and target.partition("?")[0] == "/metrics" and not _bears(header, self.token):
            connection.finish(HTTPStatus.UNAUTHORIZED, _PLAIN, b"a token is needed\n", with_body=True)
            return
        self._tasks.start(self._answer(connection, method, target), "request")

    async def _answer(self, connection: _Connection, method: str, target: str) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                status, kind, body = await self._page(method, target.partition("?")[0])
        except Exception:  # a bug in one figure must not end the server, nor hide behind an empty page
            logger.exception("metrics request failed target=%s", target[:100])
            status, kind, body = (
                HTTPStatus.INTERNAL_SERVER_ERROR,
                _PLAIN,
                "the page could not be made; see the log\n",
            )
        connection.finish(status, kind, body.encode(), with_body=method != "HEAD")

    async def _page(self, method: str, path: str) -> tuple[HTTPStatus, str, str]:
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, _PLAIN, "only GET and HEAD\n"
        match path:
            case "/metrics":
                return HTTPStatus.OK, TEXT_CONTENT_TYPE, (await self._pages.metrics()).text()
            case "/healthz":
                return _verdict(self._pages.not_alive())
            case "/readyz":
                return _verdict(self._pages.not_alive() or self._pages.not_ready())
            case "/":
                return HTTPStatus.OK, _PLAIN, "/metrics\n/healthz\n/readyz\n"
        return HTTPStatus.NOT_FOUND, _PLAIN, "try /metrics, /healthz or /readyz\n"


def _bears(header: bytes, token: str) -> bool:
    for line in header.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"authorization":
            return hmac.compare_digest(value.strip(), b"Bearer " + token.encode())
    return False


def _verdict(problem: str) -> tuple[HTTPStatus, str, str]:
    if problem:
        return HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, f"{problem}\n"
    return HTTPStatus.OK, _PLAIN, "ok\n"


class _Connection(asyncio.Protocol):
    """A connection with one request and its answer."""

    def __init__(self, endpoint: MetricsEndpoint) -> None:
        self._endpoint = endpoint
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.has_asked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked with isinstance, because uvloop's transports do not subclass asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        if not self._endpoint.opened(self):
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(_REQUEST_S_MAX, self.abort)

    def data_received(self, data: bytes) -> None:
        if self.has_asked:
            return
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > _HEADER_BYTES_MAX:
                self.has_asked = True
                self.finish(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _PLAIN, b"", with_body=True)
            return
        self.has_asked = True
        line = bytes(self._received[: self._received.find(b"\r\n")]).decode("latin-1")
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self.finish(HTTPStatus.BAD_REQUEST, _PLAIN, b"not HTTP/1\n", with_body=True)
            return
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = asyncio.get_running_loop().call_later(2 * _ANSWER_S_MAX, self.abort)
        self._endpoint.answer(self, words[0], words[1], bytes(self._received[:end]))

    def finish(self, status: HTTPStatus, kind: str, body: bytes, *, with_body: bool) -> None:
        """Send the answer and close the connection."""
        if self._transport is None or self._transport.is_closing():
            return
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            f"Content-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\n"
            "Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (body if with_body else b""))
        self._transport.close()

    def abort(self) -> None:
        """Close the connection immediately, without an answer."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._endpoint.closed(self)


def parse_labels(text: str) -> dict[str, str]:
    """Parse the operator's own labels, ``name:value,name:value`` (metricsLabel). Malformed labels are logged and left
    out."""
    labels: dict[str, str] = {}
    for item in text.split(","):
        name, separator, value = item.strip().partition(":")
        if separator and name.isidentifier() and name.isascii():
            labels[name] = value
        elif item.strip():
            logger.warning("metricsLabel is not of the form name:value item=%s", item.strip())
    return labels

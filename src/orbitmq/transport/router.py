"""Maps request codes to handlers and their header types, by routes.

There are two kinds of routes. A ``Route`` has a typed header and answers with a ``Reply``; its handler may be plain
or ``async``. A ``RawRoute`` is for the send and pull paths. It takes the frame itself and returns encoded bytes, so
that no object, task or coroutine is created per message. A handler that will answer later returns ``PARKED``
(``None`` for raw routes) and keeps the connection. All routes are given at startup and cannot be added later.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from orbitmq.codes import FrameFlag, ResponseCode
from orbitmq.errors import BrokerError, RemoteProtocolError
from orbitmq.kernel import Sends
from orbitmq.wire.frame import Frame, encode_response
from orbitmq.wire.header import Header, decode_header, encode_ext

if TYPE_CHECKING:
    from orbitmq.transport.connection import Connection

__all__ = [
    "PARKED",
    "Answer",
    "Call",
    "Guard",
    "Parked",
    "RawRoute",
    "Reply",
    "Route",
    "Router",
    "RunServer",
    "SendServer",
    "encode_reply",
]

logger = logging.getLogger(__name__)

_ONEWAY: Final = int(FrameFlag.ONEWAY)

H = TypeVar("H", bound=Header)


class Reply(msgspec.Struct, gc=False):
    """The response to a request."""

    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    header: Header | None = None
    ext: dict[str, str] | None = None
    """Extension fields outside the typed header."""
    body: bytes = b""


class Parked:
    """The type of ``PARKED``, which means that the response is sent later or never."""

    __slots__ = ()


PARKED: Final = Parked()
Answer = Reply | Parked


@dataclass(slots=True)
class Call(Generic[H]):
    """A request, as a handler sees it."""

    header: H
    frame: Frame
    peer: Connection

    @property
    def body(self) -> bytes:
        return self.frame.body

    def reply(self, reply: Reply) -> None:
        """Answer a request that was parked."""
        if not self.frame.is_oneway:
            self.peer.send(encode_reply(self.frame, reply))


Handler = Callable[[Call[Any]], "Answer | Awaitable[Answer]"]
RawHandler = Callable[[Frame, "Connection"], bytes | None]
Guard = Callable[[Frame, "Connection"], None]
"""Checks a request before its handler and raises ``BrokerError`` to refuse it."""
RunServer = Callable[[list[Frame], int, "Connection"], tuple[bytes | None, int]]
"""Serves consecutive requests with the same code. Takes frames and the index of the first of them. Returns the
answers that can be sent now, if any, and the index of the first frame not served. If that is the first one, or the
server raises, the first request is dispatched on its own."""


SendServer = Callable[[Sends, "Connection"], bool]
"""Takes the plain sends of a read, and answers them later. False when each must be dispatched on its own. Never
raises."""


@dataclass(frozen=True, slots=True)
class Route:
    """A route with a typed header."""

    code: int
    handler: Handler
    header: type[Header] = Header
    fast_port: bool = True
    """Also served on listenPort - 2."""


@dataclass(frozen=True, slots=True)
class RawRoute:
    """A route whose handler takes frames and returns bytes."""

    code: int
    handler: RawHandler
    fast_port: bool = True


def encode_reply(frame: Frame, reply: Reply) -> bytes:
    """Returns ``reply`` encoded as the response to ``frame``, in the header form of the request."""
    ext = reply.ext
    if reply.header is not None:
        fields = encode_ext(reply.header)
        ext = fields | ext if ext else fields
    return encode_response(
        reply.code,
        frame.opaque,
        ext,
        reply.body,
        reply.remark,
        frame.serialize_type,
    )


@dataclass(slots=True)
class Router:
    """Dispatches requests by code. ``dispatch`` never raises."""

    routes: Iterable[Route | RawRoute]
    unsupported: Mapping[int, str] = field(default_factory=dict)
    """Known but unsupported codes, with the reason given in the remark."""
    after_read: Callable[[], None] | None = None
    """Called once after all requests of one socket read were dispatched, to finish work in bulk or to schedule it for
    the end of the loop turn, shared with the reads of other connections."""
    guard: Guard | None = None
    before_close: Callable[[], None] | None = None
    """Called before a graceful close. Finishes the work scheduled by ``after_read``, so that the connection's
    requests are answered first."""
    runs: Mapping[int, RunServer] = field(default_factory=dict)
    """Servers of consecutive requests of a read by code, with the same answers and guard as their routes."""
    sends: SendServer | None = None
    """Takes consecutive plain sends of a read together, with the same result as their route."""
    _handlers: dict[int, RawHandler] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.routes = tuple(self.routes)
        if self.guard is not None:
            self.sends = None  # a guard checks whole requests, such as their signatures
        for route in self.routes:
            if route.code in self._handlers or route.code in self.unsupported:
                raise ValueError(f"request code {route.code} is routed twice")
            self._handlers[route.code] = (
                route.handler if isinstance(route, RawRoute) else _typed(route.header, route.handler)
            )

    def dispatch(self, frame: Frame, connection: Connection) -> bytes | None:
        """Handle one request. Returns the encoded response, or None if it is sent later or never."""
        handler = self._handlers.get(frame.code)
        try:
            if self.guard is not None:
                self.guard(frame, connection)
            if handler is not None:
                answer = handler(frame, connection)
                return None if frame.flag & _ONEWAY else answer
            return refuse(frame, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, self._unknown(frame.code))
        except BrokerError as error:
            return refuse(frame, error.response_code, error.remark)
        except RemoteProtocolError as error:
            return refuse(frame, ResponseCode.SYSTEM_ERROR, str(error))
        except Exception as error:  # noqa: BLE001 - the one place where a bug becomes an answer
            return _internal_error(frame, connection, error)

    def _unknown(self, code: int) -> str:
        reason = self.unsupported.get(code, "unknown to this server")
        return f" request type {code} not supported: {reason}"


def refuse(frame: Frame, code: int, remark: str) -> bytes | None:
    """Returns an error response, or None for a oneway request."""
    if frame.is_oneway:
        return None
    # A remark may quote a file name or a peer; invalid UTF-8 in it must not break the refusal.
    safe = remark.encode(errors="replace").decode()
    return encode_response(code, frame.opaque, None, b"", safe, frame.serialize_type)


def _internal_error(frame: Frame, connection: Connection, error: Exception) -> bytes | None:
    logger.error(
        "request failed code=%d opaque=%d peer=%s",
        frame.code,
        frame.opaque,
        connection.remote_text,
        exc_info=error,
    )
    return refuse(frame, ResponseCode.SYSTEM_ERROR, f"internal error: {type(error).__name__}")


def _typed(header_type: type[Header], handler: Handler) -> RawHandler:
    def run(frame: Frame, connection: Connection) -> bytes | None:
        result = handler(Call(decode_header(header_type, frame), frame, connection))
        if isinstance(result, Reply):
            return encode_reply(frame, result)
        if result is PARKED:
            return None
        assert inspect.isawaitable(result), f"handler of code {frame.code} returned {result!r}"
        return connection.start_slow_request(frame, result)

    return run


async def finish_slow_request(frame: Frame, connection: Connection, answer: Awaitable[Answer]) -> None:
    """Await the result of an ``async`` handler, and send it as the response."""
    encoded: bytes | None
    try:
        result = await answer
        if result is PARKED or frame.is_oneway:
            return
        assert isinstance(result, Reply), f"handler of code {frame.code} returned {result!r}"
        encoded = encode_reply(frame, result)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        encoded = refuse(
            frame, ResponseCode.SYSTEM_ERROR, "internal error: what the request waits for was cancelled"
        )
    except BrokerError as error:
        encoded = refuse(frame, error.response_code, error.remark)
    except RemoteProtocolError as error:
        encoded = refuse(frame, ResponseCode.SYSTEM_ERROR, str(error))
    except Exception as error:  # noqa: BLE001 - the one place where a bug becomes an answer
        encoded = _internal_error(frame, connection, error)
    if encoded is not None:
        connection.send(encoded)

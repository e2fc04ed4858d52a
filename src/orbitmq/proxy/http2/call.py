"""A single call: the interface for its handler, and the state of its stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Final

from orbitmq.proxy.http2.hpack import Field, text

if TYPE_CHECKING:
    from orbitmq.proxy.http2.connection import Http2Connection

__all__ = ["Call", "CallEnded", "GrpcError", "GrpcStatus", "Kind", "Method"]

DRAIN_BYTES: Final = 1024 * 1024
"""A handler waits in ``drain`` while its call has more unsent bytes than this."""
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class GrpcStatus(IntEnum):
    """Status codes with which a call may end."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class GrpcError(Exception):
    """Ends a call with a gRPC status."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class CallEnded(Exception):
    """The client cancelled the call, or its connection was lost."""


class Kind(Enum):
    """Which side sends a stream of messages."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BOTH_STREAM = "both stream"


@dataclass(frozen=True, slots=True)
class Method:
    """The handler of one path.

    ``start`` receives the call and its first message (empty for ``BOTH_STREAM``). It returns a coroutine to run as a
    task, or None if the answer is sent by other means.
    """

    path: str
    kind: Kind
    start: Callable[[Call, bytes], Coroutine[Any, Any, None] | None]


class Call:
    """One stream. Connections create it."""

    __slots__ = (
        "_deadline",
        "_headers_sent",
        "connection",
        "done",
        "drained",
        "fields",
        "has_message",
        "header_bytes",
        "inbox",
        "inbox_waiter",
        "is_dated",
        "kept_bytes",
        "method",
        "on_end",
        "opened",
        "pending",
        "pending_bytes",
        "received",
        "remote_done",
        "stream_id",
        "task",
        "trailers",
        "unacknowledged_bytes",
        "window",
        "work",
    )

    def __init__(
        self, connection: Http2Connection, stream_id: int, method: Method | None, fields: dict[str, Field]
    ) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.method = method
        self.fields = fields
        self.window = 0
        """The client's flow-control window for this stream, relative to the initial window."""
        self.opened = 0.0
        self.header_bytes = 0
        self.kept_bytes = 0
        """Bytes of headers and messages that the connection counts for this call."""
        self.is_dated = False
        """Whether the signed date has been checked."""
        self.has_message = False
        """Whether a message of the client's stream has arrived."""
        self.received = bytearray()
        self.unacknowledged_bytes = 0
        self.remote_done = False
        """Whether the client has finished sending."""
        self.done = False
        """Whether the call has ended, by us or by the client."""
        self.pending: deque[bytes | memoryview] = deque()
        """Frame payloads waiting for the client's window."""
        self.pending_bytes = 0
        self.trailers: bytes | None = None
        """Trailers to send after everything else."""
        self.task: asyncio.Task[Any] | None = None
        self.work: Coroutine[Any, Any, None] | None = None
        """The coroutine of the task until the task starts."""
        self.inbox: deque[bytes] | None = None
        self.inbox_waiter: asyncio.Future[None] | None = None
        self.drained: asyncio.Future[None] | None = None
        self.on_end: Callable[[], None] | None = None
        """Called once when the client ends the call early or its connection is lost."""
        self._headers_sent = False
        self._deadline: float | None = None

    def header(self, name: str) -> str:
        """Returns one header of the request, empty if it is missing."""
        field = self.fields.get(name)
        return "" if field is None else text(field)

    @property
    def remote(self) -> str:
        """The client's address as ``host:port``."""
        return self.connection.remote_text

    def time_left_s(self) -> float | None:
        """Returns the seconds until the client's deadline, or None if the client set none.

        The deadline counts from the first time this is called.
        """
        if self._deadline is None:
            given = self.header("grpc-timeout")
            unit = _UNITS_S.get(given[-1:])
            number = given[:-1]
            if unit is None or not (number.isascii() and number.isdigit()) or len(number) > 8:
                return None
            self._deadline = self.connection.now() + int(number) * unit
        return self._deadline - self.connection.now()

    # -- answers ---------------------------------------------------------------------------------------

    def answer(self, message: bytes) -> None:
        """Send the only message of a unary call and end it. Does nothing if the client is gone."""
        self.connection.answer(self, message)

    def write(self, message: bytes) -> None:
        """Send another message of a stream."""
        self.connection.write_message(self, message)

    def finish(self, status: int = 0, message: str = "") -> None:
        """End the call with a gRPC status."""
        self.connection.finish(self, status, message)

    def headers_due(self) -> bool:
        """Returns whether the response headers must still be sent: True on the first call only."""
        due, self._headers_sent = not self._headers_sent, True
        return due

    async def drain(self, limit: int = DRAIN_BYTES) -> None:
        """Wait until at most ``limit`` bytes are unsent. Raises ``CallEnded``."""
        while not self.done and self.pending_bytes > limit:
            self.drained = asyncio.get_running_loop().create_future()
            await self.drained
        if self.done:
            raise CallEnded

    # -- messages from the client ----------------------------------------------------------------------

    async def receive(self) -> bytes | None:
        """Returns the client's next message, or None at the end of its stream. Raises ``CallEnded``."""
        assert self.inbox is not None
        while not self.inbox:
            if self.done:
                raise CallEnded
            if self.remote_done:
                return None
            self.inbox_waiter = asyncio.get_running_loop().create_future()
            await self.inbox_waiter
        message = self.inbox.popleft()
        if not self.done:
            self.connection.release(self, len(message))
        return message

    def wake(self) -> None:
        """Wake the waiters after data arrived or the call ended."""
        for waiter in (self.inbox_waiter, self.drained):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

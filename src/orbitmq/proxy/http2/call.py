"""One call: what a handler gets, and the state of its stream."""

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
"""Unsent bytes of one call above which its handler waits."""
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class GrpcStatus(IntEnum):
    """Codes a call may end with."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class GrpcError(Exception):
    """Ends a call with a status of gRPC itself."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class CallEnded(Exception):
    """The client cancelled the call, or its connection is gone."""


class Kind(Enum):
    """Who sends more than one message."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BOTH_STREAM = "both stream"


@dataclass(frozen=True, slots=True)
class Method:
    """What serves one path. ``start`` gets the call and its first message (empty for ``BOTH_STREAM``).

    It returns the work to be run as a task, or nothing when the answer comes by other means.
    """

    path: str
    kind: Kind
    start: Callable[[Call, bytes], Coroutine[Any, Any, None] | None]


class Call:
    """Made by the connection, one per stream."""

    __slots__ = (
        "_deadline",
        "_headers_sent",
        "connection",
        "done",
        "drained",
        "fields",
        "header_bytes",
        "heard",
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
        """How many bytes the client takes, more or less than its initial window."""
        self.opened = 0.0
        self.header_bytes = 0
        self.kept_bytes = 0
        """Counted by the connection for headers and messages."""
        self.is_dated = False
        """The date it is signed with was checked."""
        self.heard = False
        """A message of the client's stream came."""
        self.received = bytearray()
        self.unacknowledged_bytes = 0
        self.remote_done = False
        """The client sends no more."""
        self.done = False
        """Ended, by us or by the client."""
        self.pending: deque[bytes | memoryview] = deque()
        """Frame payloads that wait for the client's window."""
        self.pending_bytes = 0
        self.trailers: bytes | None = None
        """The end, once everything else is sent."""
        self.task: asyncio.Task[Any] | None = None
        self.work: Coroutine[Any, Any, None] | None = None
        """What the task runs, until it begins."""
        self.inbox: deque[bytes] | None = None
        self.inbox_waiter: asyncio.Future[None] | None = None
        self.drained: asyncio.Future[None] | None = None
        self.on_end: Callable[[], None] | None = None
        """Called once when the client ends the call early or its connection is lost."""
        self._headers_sent = False
        self._deadline: float | None = None

    def header(self, name: str) -> str:
        """One field of the request, empty when it is not there."""
        field = self.fields.get(name)
        return "" if field is None else text(field)

    @property
    def remote(self) -> str:
        """Address of the client as ``host:port``."""
        return self.connection.remote_text

    def time_left_s(self) -> float | None:
        """Until the client gives up; None when it did not say. Counts from when the call began."""
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
        """The one message of a unary call, and its end. Nothing happens when the client is gone."""
        self.connection.answer(self, message)

    def write(self, message: bytes) -> None:
        """One more message of a stream."""
        self.connection.write_message(self, message)

    def finish(self, status: int = 0, message: str = "") -> None:
        """End the call."""
        self.connection.finish(self, status, message)

    def headers_due(self) -> bool:
        """Whether the headers of the answer are still to be sent; True once."""
        due, self._headers_sent = not self._headers_sent, True
        return due

    async def drain(self, limit: int = DRAIN_BYTES) -> None:
        """Wait until the client read all but ``limit`` of what was written. Raises ``CallEnded``."""
        while not self.done and self.pending_bytes > limit:
            self.drained = asyncio.get_running_loop().create_future()
            await self.drained
        if self.done:
            raise CallEnded

    # -- messages of a client's stream -----------------------------------------------------------------

    async def receive(self) -> bytes | None:
        """The client's next message; None at the end of its stream. Raises ``CallEnded``."""
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
        """Something arrived, or the call ended."""
        for waiter in (self.inbox_waiter, self.drained):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

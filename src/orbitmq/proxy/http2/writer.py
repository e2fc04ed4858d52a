"""The writing half of a connection, which sends answers within the client's flow-control windows."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from orbitmq.proxy.http2 import frames
from orbitmq.proxy.http2.frames import H2Error, frame
from orbitmq.proxy.http2.limits import Http2Limits
from orbitmq.runtime.stalls import monotonic
from orbitmq.transport.held_memory import HeldMemory
from orbitmq.transport.tls import TlsFilter

if TYPE_CHECKING:
    from orbitmq.proxy.http2.call import Call

__all__ = ["Writer"]

logger = logging.getLogger(__name__)

_ANSWER_FLAGS: Final = frames.END_HEADERS
_END_FLAGS: Final = frames.END_HEADERS | frames.END_STREAM
_pack_header: Final = frames.HEADER.pack
_pack_prefix: Final = frames.MESSAGE_PREFIX.pack


class Writer(asyncio.Protocol, ABC):
    """Collects frames and writes them together at the end of a read or in the next turn of the loop."""

    def __init__(self, limits: Http2Limits, held: HeldMemory) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = monotonic
        self._limits = limits
        self._held = held
        self._transport: asyncio.Transport | None = None
        self._tls: TlsFilter | None = None
        self._window = frames.WINDOW_DEFAULT
        """The client's flow-control window for the connection."""
        self._peer_stream_window = frames.WINDOW_DEFAULT
        """The client's initial window for a stream; ``Call.window`` is relative to it."""
        self._peer_frame_bytes = frames.FRAME_BYTES_DEFAULT
        self._blocked: dict[int, Call] = {}
        self._unblock = False
        """Whether a window grew, so that blocked data is sent at the end of the turn."""
        self._pending_bytes = 0
        self._out: list[bytes] = []
        self._in_read = False
        self._flush_planned = False
        self.closed = False
        self.remote_text = ""
        self.last_active = self.now()

    @abstractmethod
    def _forget(self, call: Call) -> None:
        """Forget a call that has ended."""

    def answer(self, call: Call, message: bytes) -> None:
        """Send the answer of a unary call: headers, message and trailers."""
        if call.done:
            return
        size = 5 + len(message)
        stream_id = call.stream_id
        if (
            call.pending
            or size > self._window
            or size > call.window + self._peer_stream_window
            or size > self._peer_frame_bytes
            or not call.headers_due()
        ):
            self.write_message(call, message)
            self.finish(call, 0, "")
            return
        self._window -= size
        self._out.append(
            b"".join(
                (
                    _pack_header(0, len(frames.ANSWER_HEADERS), 1, _ANSWER_FLAGS, stream_id),
                    frames.ANSWER_HEADERS,
                    _pack_header(size >> 8, size & 0xFF, 0, 0, stream_id),
                    _pack_prefix(0, size - 5),
                    message,
                    _pack_header(0, len(frames.OK_TRAILERS), 1, _END_FLAGS, stream_id),
                    frames.OK_TRAILERS,
                )
            )
        )
        self._forget(call)
        if not self._in_read:
            self._flush_soon()

    def write_message(self, call: Call, message: bytes) -> None:
        """Send one message as far as the client's windows allow, and the rest later."""
        if call.done:
            return
        stream_id = call.stream_id
        if call.headers_due():
            self._out.append(frame(frames.HEADERS, _ANSWER_FLAGS, stream_id, frames.ANSWER_HEADERS))
        data = _pack_prefix(0, len(message)) + message
        size = len(data)
        if (
            not call.pending
            and size <= self._window
            and size <= call.window + self._peer_stream_window
            and size <= self._peer_frame_bytes
        ):
            self._window -= size
            call.window -= size
            self._out.append(_pack_header(size >> 8, size & 0xFF, 0, 0, stream_id) + data)
        else:
            call.pending.append(data)
            call.pending_bytes += size
            self._pending_bytes += size
            self._send_pending(call)
            if self._pending_bytes > self._limits.unsent_bytes:
                logger.warning("client does not read, closing peer=%s", self.remote_text)
                self.abort()
                return
        if not self._in_read:
            self._flush_soon()

    def finish(self, call: Call, status: int, message: str) -> None:
        """Send the trailers after any pending data."""
        if call.done or call.trailers is not None:
            return
        block = frames.trailers(status, message)
        if call.headers_due():
            block = frames.ANSWER_HEADERS + block
        call.trailers = block
        if not call.pending:
            self._send_trailers(call)
        if not self._in_read:
            self._flush_soon()

    def _send_trailers(self, call: Call) -> None:
        assert call.trailers is not None
        self._out.append(frame(frames.HEADERS, _END_FLAGS, call.stream_id, call.trailers))
        if not call.remote_done:
            self._out.append(frame(frames.RST_STREAM, 0, call.stream_id, H2Error.NO_ERROR.to_bytes(4, "big")))
        self._forget(call)
        call.wake()

    def _send_blocked(self) -> None:
        self._unblock = False
        for call in list(self._blocked.values()):
            if self._window <= 0:
                return
            self._send_pending(call)

    def _send_pending(self, call: Call) -> None:
        pending = call.pending
        while pending:
            data = pending[0]
            room = min(self._window, call.window + self._peer_stream_window, self._peer_frame_bytes)
            if room <= 0:
                self._blocked[call.stream_id] = call
                return
            part = data if len(data) <= room else data[:room]
            if len(part) == len(data):
                pending.popleft()
            else:
                # Not copied, because a client may open its window byte by byte.
                pending[0] = memoryview(data)[room:]
            size = len(part)
            self._window -= size
            call.window -= size
            call.pending_bytes -= size
            self._pending_bytes -= size
            self._out.append(b"".join((_pack_header(size >> 8, size & 0xFF, 0, 0, call.stream_id), part)))
        self._blocked.pop(call.stream_id, None)
        if call.trailers is not None:
            self._send_trailers(call)
        elif call.drained is not None and not call.drained.done():
            call.drained.set_result(None)

    def _flush_soon(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush_planned_now)

    def _flush_planned_now(self) -> None:
        self._flush_planned = False
        self._flush()

    def _flush(self) -> None:
        out = self._out
        if not out:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.last_active = self.now()
        self._held.moved(len(data))
        transport.write(data if self._tls is None else self._tls.encrypt(data))
        if transport.get_write_buffer_size() > self._limits.unsent_bytes:
            logger.warning("client does not read, closing peer=%s", self.remote_text)
            self.abort()

    def abort(self) -> None:
        """Close the connection immediately."""
        self.closed = True
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()

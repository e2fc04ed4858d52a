"""The server side of one HTTP/2 connection with a gRPC client.

Invariants
1. All work requested in a socket read is started before the first byte of an answer is sent, and the answers ready by
   then go out in one write, as far as the turn's time allows (``Turns``). The rest is served in a later turn, and
   reading from the peer pauses meanwhile.
2. Memory is bounded: ``held_bytes`` counts everything a peer makes us keep, that is headers and messages of open
   calls until they end, messages waiting for a handler, unread answers and unserved bytes. ``HeldMemory`` sums it
   over all connections and closes those that hold most. One call holds at most ``message_bytes`` and
   ``header_bytes``, one connection at most ``calls``, ``open_header_bytes`` and ``unsent_bytes``. Reading pauses
   while a peer does not read.
3. A peer that violates the protocol gets GOAWAY with the code, and one log line.
4. Each call ends once: by its handler, by the client (its task is cancelled), or with the connection.
5. A dead peer is detected: a silent one is sent a PING and must answer (``sweep``). A request that stays incomplete
   is ended.
6. A SETTINGS frame costs the same however many calls are open: ``Call.window`` is relative to the initial window.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from orbitmq.proxy.http2 import frames
from orbitmq.proxy.http2.call import Call, GrpcError, GrpcStatus, Kind, Method
from orbitmq.proxy.http2.frames import H2Error, frame
from orbitmq.proxy.http2.hpack import HeaderDecoder, HpackError, text
from orbitmq.proxy.http2.inflate import INFLATE_BYTES, inflate, inflate_slowly
from orbitmq.proxy.http2.limits import CALL_BYTES, Http2Limits, Turns
from orbitmq.proxy.http2.opening import Opening
from orbitmq.proxy.http2.proxy_protocol import Balancers
from orbitmq.proxy.http2.writer import Writer
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.transport.held_memory import HeldMemory
from orbitmq.transport.tls import ServerTls

__all__ = ["Http2Connection", "Port"]

logger = logging.getLogger(__name__)

_STREAM_WINDOW: Final = 1024 * 1024
_CONNECTION_WINDOW: Final = 16 * 1024 * 1024
_FRAME_BYTES: Final = 256 * 1024
"""The largest frame that we accept. A body of a megabyte arrives in four frames."""
_INBOX_MESSAGES: Final = 256
_CONTINUATIONS_MAX: Final = 64
_ENDED_AT_ONCE: Final = 256
"""How many calls of a lost connection are ended in one turn of the loop."""
_PATH_BYTES_MAX: Final = 256
"""Limit of a path's length. Longer paths match no method."""
_PING_PAYLOAD: Final = b"orbitmq?"

_SETTING_FRAME_BYTES: Final = 5
_SETTING_WINDOW: Final = 4
_SETTING_CALLS: Final = 3
_SETTING_HEADER_BYTES: Final = 6


@dataclass(slots=True)
class Port:
    """State shared by all connections of a server."""

    methods: Mapping[str, Method]
    tasks: TaskOwner
    tls: ServerTls
    """May be replaced while the server runs; new connections use the new certificate."""
    limits: Http2Limits
    balancers: Balancers
    held: HeldMemory
    turns: Turns
    on_open: Callable[[Http2Connection], None]
    on_close: Callable[[Http2Connection], None]


class Http2Connection(Writer):
    """One HTTP/2 connection with a client. Created by ``GrpcServer``."""

    def __init__(self, port: Port) -> None:
        super().__init__(port.limits, port.held)
        self._port = port
        self._methods = port.methods
        self._tasks = port.tasks
        self._turns = port.turns
        self._rest = b""
        self._decrypter = Opening(port.tls, port.balancers, self._write_raw)
        self._opening: Opening | None = self._decrypter
        """The setup of the connection, until the preface is complete."""
        self._decoder = HeaderDecoder()
        self._block: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of a header block awaiting CONTINUATION frames."""
        self._continuations = 0
        self.calls: dict[int, Call] = {}
        self._last_stream = 0
        self._unacknowledged_bytes = 0
        self._kept_bytes = 0
        """Bytes of headers, messages and overhead that all open calls hold."""
        self._header_bytes = 0
        self._opened_bytes = 0
        """Bytes added by calls opened in this turn."""
        self._waits = False
        """Whether received data is left for a later turn."""
        self._queued = False
        """Whether ``Turns`` will call ``serve``."""
        self._write_paused = False
        self._resets = 0
        self._going_away = False
        self.remote = ("", 0)
        self._last_heard = self._opened = self.now()
        self._pinged: float | None = None

    # -- asyncio.Protocol ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            self._set_remote(f"{peer[0]}:{peer[1]}")
        transport.set_write_buffer_limits(high=self._limits.write_pause_bytes)
        self._port.on_open(self)

    def _set_remote(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.remote_text = address
        self.remote = (host, int(port))

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self.last_active = self._last_heard = self.now()
        self._held.moved(len(data))
        if self._tls is not None:
            try:
                data = self._decrypter.decrypt(data)
            except H2Error as error:
                self._tls = None
                self._break(error.code, str(error))
                return
        self._rest = self._rest + data if self._rest else data
        if not self._waits and self.serve(self._turns.until()):
            self._wait()

    def _wait(self) -> None:
        assert self._transport is not None
        self._waits = True
        self._transport.pause_reading()
        if not self._write_paused:
            self._queue()

    def _queue(self) -> None:
        if not self._queued:
            self._queued = True
            self._turns.wait(self)

    def serve(self, until: float) -> bool:
        """Serve received data until the time ``until``. Returns whether data is left for a later turn."""
        if self.closed or self._write_paused:
            self._queued = False
            self._waits = True  # ``resume_writing`` continues
            return False
        left = self._serve(until)
        goes_on = self._goes_on(left)
        self._queued = self._queued and goes_on
        return goes_on

    def _serve(self, until: float) -> bool:
        self._in_read = True
        data, self._rest = self._rest, b""
        left = False
        try:
            if self._opening is not None:
                data = self._open(self._opening, data)
            if self._opening is None and data:
                position, left = self._read_frames(data, until)
                self._rest = data[position:] if position else data
        except H2Error as error:
            self._break(error.code, str(error))
        except HpackError as error:
            self._break(H2Error.COMPRESSION, str(error))
        finally:
            self._in_read = False
            if self._unblock:
                self._send_blocked()
            self._flush()
            if self._opened_bytes:
                self._held.moved(self._opened_bytes)
                self._opened_bytes = 0
        return left

    def _goes_on(self, left: bool) -> bool:
        if self.closed or self._transport is None:
            return False
        if self._waits and not left:
            self._waits = False
            if not self._write_paused and not self._transport.is_closing():
                self._transport.resume_reading()
        if left and self._write_paused:
            self._waits = True
            return False
        return left

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._transport is None or self._transport.is_closing():
            return
        if self._waits:
            self._queue()
        else:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._rest = b""
        self._out.clear()
        self._end_calls()
        self._port.on_close(self)

    def _end_calls(self) -> None:
        """End the calls of a lost connection, a batch in each turn of the loop."""
        for call in list(itertools.islice(self.calls.values(), _ENDED_AT_ONCE)):
            self._end_early(call)
        if self.calls:
            self._loop.call_soon(self._end_calls)

    # -- memory held for the peer, see HeldMemory ------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes that we hold because of this peer."""
        if self.closed:
            return 0
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._kept_bytes + self._pending_bytes + len(self._rest) + unsent

    def press(self, unsent_bytes: int) -> None:
        """Set how many unread bytes stop reading from the peer; 0 restores the usual limit."""
        if self._transport is not None and not self.closed:
            self._transport.set_write_buffer_limits(high=unsent_bytes or self._limits.write_pause_bytes)

    def drop(self, reason: str) -> None:
        """Close the connection immediately."""
        logger.warning("closing connection peer=%s reason=%s", self.remote_text, reason)
        if self._opening is None:
            self._out.append(self._goaway(H2Error.ENHANCE_YOUR_CALM, reason))
            self._flush()
        self.abort()

    def keep(self, call: Call, count: int) -> None:
        """Count bytes held by a call until they are released or the call ends."""
        call.kept_bytes += count
        self._kept_bytes += count

    def release(self, call: Call, count: int) -> None:
        call.kept_bytes -= count
        self._kept_bytes -= count

    # -- connection setup ------------------------------------------------------------------------------

    def _open(self, opening: Opening, data: bytes) -> bytes:
        """Set up the connection. Returns the bytes after the preface, which are empty until the preface is
        complete.
        """
        try:
            found = opening.read(data, self.remote[0])
        finally:
            self._tls = opening.tls
        if opening.address:
            self._set_remote(opening.address)
            opening.address = ""
        if found is None:
            return b""
        self._opening = None
        limits = self._limits
        self._out.append(
            frames.settings_frame(
                {
                    _SETTING_CALLS: limits.calls,
                    _SETTING_WINDOW: _STREAM_WINDOW,
                    _SETTING_FRAME_BYTES: _FRAME_BYTES,
                    _SETTING_HEADER_BYTES: limits.header_bytes,
                }
            )
            + frames.window_update(0, _CONNECTION_WINDOW - frames.WINDOW_DEFAULT)
        )
        return found

    def _write_raw(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    # -- frames ----------------------------------------------------------------------------------------

    def _read_frames(self, data: bytes, until: float) -> tuple[int, bool]:
        """Serve whole frames until the time ``until``. Returns the position reached, and whether whole frames
        remain.
        """
        position = 0
        end = len(data)
        unpack = frames.HEADER.unpack_from
        now = self.now
        while end - position >= 9:
            high, low, kind, flags, stream_id = unpack(data, position)
            size = high << 8 | low
            if size > _FRAME_BYTES:
                raise H2Error(H2Error.FRAME_SIZE, f"a frame of {size} bytes")
            start = position + 9
            if start + size > end:
                break
            if position and now() >= until:
                return position, True
            position = start + size
            stream_id &= 0x7FFFFFFF
            if self._block is not None and kind != frames.CONTINUATION:
                raise H2Error(H2Error.PROTOCOL, "expected a CONTINUATION frame")
            if kind == frames.DATA:
                self._data(stream_id, flags, data[start:position])
            elif kind == frames.HEADERS:
                self._headers(stream_id, flags, data[start:position])
            elif kind == frames.WINDOW_UPDATE:
                self._window_update(stream_id, data[start:position])
            else:
                self._other_frame(kind, flags, stream_id, data[start:position])
            if self.closed:
                break
        return position, False

    def _other_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.PING:
            if len(payload) != 8 or stream_id:
                raise H2Error(H2Error.FRAME_SIZE, "malformed PING")
            if not flags & frames.ACK:
                self._out.append(frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == frames.RST_STREAM:
            if len(payload) != 4 or not stream_id:
                raise H2Error(H2Error.FRAME_SIZE, "malformed RST_STREAM")
            self._count_reset()
            call = self.calls.get(stream_id)
            if call is not None:
                self._end_early(call)
        elif kind == frames.CONTINUATION:
            if self._block is None or self._block[0] != stream_id:
                raise H2Error(H2Error.PROTOCOL, "unexpected CONTINUATION")
            self._add_to_block(flags, payload)
        elif kind == 5:
            raise H2Error(H2Error.PROTOCOL, "clients must not push")
        # PRIORITY, GOAWAY and unknown kinds are ignored.

    def _count_reset(self) -> None:
        self._resets += 1
        if self._resets > self._limits.resets:
            raise H2Error(H2Error.ENHANCE_YOUR_CALM, "too many cancelled calls")

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) % 6 or (flags & frames.ACK and payload):
            raise H2Error(H2Error.FRAME_SIZE, "malformed SETTINGS")
        if flags & frames.ACK:
            return
        if len(payload) > 6 * self._limits.settings:
            raise H2Error(H2Error.ENHANCE_YOUR_CALM, "too many settings")
        for name, value in frames.SETTING.iter_unpack(payload):
            if name == _SETTING_WINDOW:
                if value > frames.WINDOW_MAX:
                    raise H2Error(H2Error.FLOW_CONTROL, "initial window size out of range")
                self._unblock |= value > self._peer_stream_window
                self._peer_stream_window = value
            elif name == _SETTING_FRAME_BYTES:
                if not frames.FRAME_BYTES_DEFAULT <= value < 2**24:
                    raise H2Error(H2Error.PROTOCOL, "maximum frame size out of range")
                self._peer_frame_bytes = value
        self._out.append(frame(frames.SETTINGS, frames.ACK, 0))

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise H2Error(H2Error.FRAME_SIZE, "malformed WINDOW_UPDATE")
        count = int.from_bytes(payload, "big") & 0x7FFFFFFF
        if not stream_id:
            self._window += count
            if not count or self._window > frames.WINDOW_MAX:
                raise H2Error(H2Error.FLOW_CONTROL, "flow-control window out of range")
            self._unblock = True
            return
        call = self.calls.get(stream_id)
        if call is not None:
            call.window += count
            if not count or call.window + self._peer_stream_window > frames.WINDOW_MAX:
                self._count_reset()
                self._reset(call, H2Error.FLOW_CONTROL)
            elif stream_id in self._blocked:
                self._send_pending(call)

    def _headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if flags & frames.PADDED:
            padding = payload[0] + 1 if payload else 1
            if padding > len(payload):
                raise H2Error(H2Error.PROTOCOL, "padding longer than its frame")
            payload = payload[1 : len(payload) - padding + 1]
        if flags & frames.PRIORITY_FLAG:
            payload = payload[5:]
        if not stream_id & 1:
            raise H2Error(H2Error.PROTOCOL, "invalid stream id")
        if flags & frames.END_HEADERS:
            self._open_stream(stream_id, flags, payload)
        else:
            self._block = stream_id, flags, bytearray()
            self._continuations = 0
            self._add_to_block(0, payload)

    def _add_to_block(self, flags: int, payload: bytes) -> None:
        assert self._block is not None
        stream_id, first_flags, block = self._block
        block += payload
        self._continuations += 1
        if len(block) > self._limits.header_bytes or self._continuations > _CONTINUATIONS_MAX:
            raise H2Error(H2Error.ENHANCE_YOUR_CALM, "header block too large")
        if flags & frames.END_HEADERS:
            self._block = None
            self._open_stream(stream_id, first_flags, bytes(block))

    def _open_stream(self, stream_id: int, flags: int, block: bytes) -> None:
        if len(block) > self._limits.header_bytes:
            raise H2Error(H2Error.ENHANCE_YOUR_CALM, "header block too large")
        decoder = self._decoder
        fields = decoder.decode(block)
        known = self.calls.get(stream_id)
        if known is not None:  # client trailers; gRPC clients send none
            self._remote_done(known)
            return
        if stream_id <= self._last_stream:
            return  # of a call that has already ended
        self._last_stream = stream_id
        size = decoder.kept_bytes
        if (
            len(self.calls) >= self._limits.calls
            or self._header_bytes + size > self._limits.open_header_bytes
            or self._going_away
        ):
            self._out.append(
                frame(frames.RST_STREAM, 0, stream_id, H2Error.REFUSED_STREAM.to_bytes(4, "big"))
            )
            return
        path = fields.get(":path")
        method = None if path is None or len(path[1]) > _PATH_BYTES_MAX else self._methods.get(text(path))
        call = Call(self, stream_id, method, fields)
        call.opened = self.last_active
        call.header_bytes = size
        call.kept_bytes = size + CALL_BYTES
        self._header_bytes += size
        self._kept_bytes += size + CALL_BYTES
        self._opened_bytes += size + CALL_BYTES
        self.calls[stream_id] = call
        if "grpc-timeout" in fields and method is not None and method.kind is Kind.SERVER_STREAM:
            call.time_left_s()  # starts the clock
        if method is None:
            name = "of that name"
            if path is not None and len(path[1]) <= _PATH_BYTES_MAX:
                name = text(path).removeprefix("/")
            call.remote_done = bool(flags & frames.END_STREAM)
            self.finish(call, GrpcStatus.UNIMPLEMENTED, f"Method {name} is unimplemented")
        elif method.kind is Kind.BOTH_STREAM:
            call.inbox = deque()
            self._start(call, b"")
            if flags & frames.END_STREAM:
                self._remote_done(call)
        elif flags & frames.END_STREAM:
            call.remote_done = True
            self.finish(call, GrpcStatus.INTERNAL, "the call has no message")

    def _data(self, stream_id: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        self._unacknowledged_bytes += size
        if self._unacknowledged_bytes >= _CONNECTION_WINDOW // 4:
            self._out.append(frames.window_update(0, self._unacknowledged_bytes))
            self._unacknowledged_bytes = 0
        call = self.calls.get(stream_id)
        if call is None or call.remote_done:
            if stream_id > self._last_stream or not stream_id:
                raise H2Error(H2Error.PROTOCOL, "DATA on a stream that is not open")
            return  # of a call that has already ended
        if flags & frames.PADDED:
            padding = payload[0] + 1 if payload else 1
            if padding > len(payload):
                raise H2Error(H2Error.PROTOCOL, "padding longer than its frame")
            payload = payload[1 : len(payload) - padding + 1]
        received = call.received
        ended = flags & frames.END_STREAM
        if ended and not received and call.inbox is None:
            # Fast path: the whole request in one frame.
            call.remote_done = True
            if len(payload) < 5 or payload[0] or int.from_bytes(payload[1:5], "big") != len(payload) - 5:
                self.keep(call, len(payload))
                received += payload
                self._take_messages(call)
            else:
                call.kept_bytes += size
                self._kept_bytes += size
                self._start(call, payload[5:])
            return
        self.keep(call, len(payload))
        received += payload
        if not ended:
            call.unacknowledged_bytes += size
            if call.unacknowledged_bytes >= _STREAM_WINDOW // 4:
                self._out.append(frames.window_update(stream_id, call.unacknowledged_bytes))
                call.unacknowledged_bytes = 0
            if call.inbox is not None:
                self._take_messages(call)
            elif len(received) > 5 + self._limits.message_bytes:
                self._too_large(call)
            return
        self._remote_done(call)

    def _remote_done(self, call: Call) -> None:
        if call.remote_done:
            return
        call.remote_done = True
        self._take_messages(call)
        call.wake()

    def _take_messages(self, call: Call) -> None:
        """Split a call's received data into messages: the one that starts the call, or those of a stream."""
        received = call.received
        while len(received) >= 5:
            size = int.from_bytes(received[1:5], "big")
            if size > self._limits.message_bytes:
                self._too_large(call)
                return
            if len(received) < 5 + size:
                break
            message = bytes(received[5 : 5 + size])
            compressed = received[0]
            del received[: 5 + size]
            if call.inbox is None:
                if received:
                    break
                start = self._start_inflated if compressed else self._start
                start(call, message)
                return
            if len(call.inbox) >= _INBOX_MESSAGES:
                self.finish(call, GrpcStatus.RESOURCE_EXHAUSTED, "too many messages wait")
                return
            if compressed:
                try:
                    message = inflate(call, message, min(INFLATE_BYTES, self._limits.message_bytes))
                except GrpcError as error:
                    self.finish(call, error.status, error.message)
                    return
            self.keep(call, len(message))
            self.release(call, 5 + size)
            call.has_message = True
            call.inbox.append(message)
            call.wake()
        if call.remote_done and (call.inbox is None or received):
            self.finish(call, GrpcStatus.INTERNAL, "the request is not one whole message")

    def _too_large(self, call: Call) -> None:
        limit = self._limits.message_bytes
        self.finish(call, GrpcStatus.RESOURCE_EXHAUSTED, f"gRPC message exceeds maximum size {limit}")

    def _start_inflated(self, call: Call, message: bytes) -> None:
        """Inflate a large message in pieces, concurrently with other calls."""

        async def run() -> None:
            plain = await inflate_slowly(call, message, self._limits.message_bytes)
            if not call.done:
                self._start(call, plain)

        assert call.method is not None
        call.work = work = run()
        call.task = self._tasks.start(self._run(call, work, finishes=False), call.method.path)

    # -- running calls ---------------------------------------------------------------------------------

    def _start(self, call: Call, message: bytes) -> None:
        assert call.method is not None
        try:
            work = call.method.start(call, message)
        except GrpcError as error:
            self.finish(call, error.status, error.message)
            return
        except Exception:  # the only place where a handler's bug becomes an answer
            logger.exception("call failed path=%s peer=%s", call.method.path, self.remote_text)
            self.finish(call, GrpcStatus.INTERNAL, "internal error")
            return
        if work is not None:
            call.work = work
            call.task = self._tasks.start(self._run(call, work), call.method.path)

    async def _run(self, call: Call, work: Coroutine[Any, Any, None], *, finishes: bool = True) -> None:
        assert call.method is not None
        call.work = None
        try:
            await work
            if finishes:
                self.finish(call, 0, "")
        except GrpcError as error:
            self.finish(call, error.status, error.message)
        except asyncio.CancelledError:
            if not call.done:
                self.finish(call, GrpcStatus.UNAVAILABLE, "the server stops")
            raise
        except Exception as error:
            if not call.done:
                logger.exception("call failed path=%s peer=%s", call.method.path, self.remote_text)
                self.finish(call, GrpcStatus.INTERNAL, f"internal error: {type(error).__name__}")

    def _end_early(self, call: Call) -> None:
        """End a call that the client cancelled or whose connection was lost."""
        self._forget(call)
        if call.on_end is not None:
            call.on_end()
        if call.task is not None:
            call.task.cancel()
            call.task = None
        if call.work is not None:
            call.work.close()
            call.work = None
        call.wake()

    def _forget(self, call: Call) -> None:
        call.done = True
        self.calls.pop(call.stream_id, None)
        self._blocked.pop(call.stream_id, None)
        self._pending_bytes -= call.pending_bytes
        call.pending.clear()
        call.pending_bytes = 0
        if call.received:
            call.received = bytearray()
        self._header_bytes -= call.header_bytes
        self._kept_bytes -= call.kept_bytes
        call.header_bytes = call.kept_bytes = 0
        if self._going_away and not self.calls:
            self._close_soon()

    def _reset(self, call: Call, code: int) -> None:
        self._out.append(frame(frames.RST_STREAM, 0, call.stream_id, code.to_bytes(4, "big")))
        self._end_early(call)

    # -- closing ---------------------------------------------------------------------------------------

    def sweep(self, idle_before: float) -> int:
        """Close a dead connection and end overdue requests. Returns the number of calls checked.

        Called periodically. Closes a connection that sends no preface, and a silent one without calls. Pings a silent
        connection that has calls. Ends requests that stay incomplete.
        """
        self._resets = 0
        if self.closed:
            return 0
        if self._opening is not None and self.now() - self._opened > self._limits.opening_s:
            logger.info("no request in time, closing peer=%s", self.remote_text)
            self.abort()
            return 0
        if not self.calls:
            if self.last_active < idle_before:
                self.go_away()
            return 0
        now, limits = self.now(), self._limits
        if self._pinged is not None and self._pinged < self._last_heard:
            self._pinged = None
        if self._pinged is not None:
            if now - self._pinged > limits.ping_s:
                logger.info("client did not answer a ping, closing peer=%s", self.remote_text)
                self.abort()
                return 0
        elif now - self._last_heard > limits.silent_s:
            self._pinged = now
            self._out.append(frame(frames.PING, 0, 0, _PING_PAYLOAD))
        seen = len(self.calls)
        for call in list(self.calls.values()):
            if not call.remote_done and not call.has_message and not call.done:
                allowed_s = limits.request_s + len(call.received) / limits.request_bytes_s
                if now - call.opened > allowed_s:
                    self.finish(call, GrpcStatus.DEADLINE_EXCEEDED, "the request did not become complete")
        self._flush()
        return seen

    def go_away(self) -> None:
        """Accept no new calls, let the running ones end, then close."""
        if self._going_away or self.closed:
            return
        self._going_away = True
        if self._opening is None:
            self._out.append(self._goaway(H2Error.NO_ERROR, ""))
        self._flush()
        if not self.calls:
            self._close_soon()

    def _close_soon(self) -> None:
        if self._transport is not None:
            self._loop.call_soon(self._close_now)

    def _close_now(self) -> None:
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _goaway(self, code: int, reason: str) -> bytes:
        payload = self._last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + reason.encode()
        return frame(frames.GOAWAY, 0, 0, payload)

    def _break(self, code: int, reason: str) -> None:
        if self.closed:
            return
        logger.info("closing connection peer=%s reason=%s", self.remote_text, reason)
        if self._opening is None:
            self._out.append(self._goaway(code, reason))
        self._flush()
        self.closed = True
        if self._transport is not None:
            self._transport.close()

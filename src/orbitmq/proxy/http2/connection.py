"""One HTTP/2 connection of a gRPC client, the server's end of it.

Invariants
1. Everything one socket read asks for is started before the first byte of an answer leaves; what was answered by then
   leaves in one write.
2. Memory is bounded: request bytes by ``message_bytes`` per call and by ``Buffered`` over all connections,
   unsent answers by ``unsent_bytes`` per connection, calls by ``calls``, headers by ``header_bytes``. A peer that
   does not read is not read from.
3. A peer that breaks the protocol gets GOAWAY with the code, and one log line.
4. Each call ends once: by its handler, by the client (its task is cancelled), or with the connection.

TLS, plain text and the PROXY protocol of load balancers share the port: the first bytes tell.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from orbitmq.proxy.http2 import frames
from orbitmq.proxy.http2.call import Call, GrpcError, GrpcStatus, Kind, Method
from orbitmq.proxy.http2.frames import H2Error, frame
from orbitmq.proxy.http2.hpack import HeaderDecoder, HpackError, text
from orbitmq.proxy.http2.proxy_protocol import ProxyHeader, read_proxy_header
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.transport.tls import TLS_RECORD_START, ServerTls, TlsFilter, TlsMode

__all__ = ["Buffered", "Http2Connection", "Http2Limits"]

logger = logging.getLogger(__name__)

_STREAM_WINDOW: Final = 1024 * 1024
_CONNECTION_WINDOW: Final = 16 * 1024 * 1024
_FRAME_BYTES: Final = 256 * 1024
"""Largest frame we take: a body of a megabyte comes in four."""
_INBOX_MESSAGES: Final = 256
_RESETS_MAX: Final = 20_000
"""Calls a client may cancel between two idle sweeps."""

_SETTING_FRAME_BYTES: Final = 5
_SETTING_WINDOW: Final = 4
_GREETING: Final = frames.settings_frame(
    {3: 4096, _SETTING_WINDOW: _STREAM_WINDOW, _SETTING_FRAME_BYTES: _FRAME_BYTES, 6: 65_536}
) + frames.window_update(0, _CONNECTION_WINDOW - frames.WINDOW_DEFAULT)
_ANSWER_FLAGS: Final = frames.END_HEADERS
_END_FLAGS: Final = frames.END_HEADERS | frames.END_STREAM
_pack_header: Final = frames.HEADER.pack
_pack_prefix: Final = frames.MESSAGE_PREFIX.pack


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Bounds of one connection."""

    calls: int = 4096
    message_bytes: int = 136_314_880
    header_bytes: int = 65_536
    unsent_bytes: int = 64 * 1024 * 1024
    write_pause_bytes: int = 1024 * 1024


class Buffered:
    """Request bytes all connections of a server hold together."""

    __slots__ = ("count", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0


class Http2Connection(asyncio.Protocol):
    """See the module. Made by ``GrpcServer``."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        tasks: TaskOwner,
        tls: ServerTls,
        limits: Http2Limits,
        buffered: Buffered,
        on_open: Callable[[Http2Connection], None],
        on_close: Callable[[Http2Connection], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._methods = methods
        self._tasks = tasks
        self._server_tls = tls
        self._limits = limits
        self._buffered = buffered
        self._on_open = on_open
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._tls: TlsFilter | None = None
        self._rest = b""
        self._opening = True
        """The preface is not complete yet."""
        self._proxy_read = False
        self._decoder = HeaderDecoder()
        self._block: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of a header block that CONTINUATION frames go on with."""
        self.calls: dict[int, Call] = {}
        self._last_stream = 0
        self._window = frames.WINDOW_DEFAULT
        """How many bytes the client takes over all streams."""
        self._peer_stream_window = frames.WINDOW_DEFAULT
        self._peer_frame_bytes = frames.FRAME_BYTES_DEFAULT
        self._unacknowledged_bytes = 0
        self._blocked: dict[int, Call] = {}
        self._pending_bytes = 0
        self._out: list[bytes] = []
        self._in_read = False
        self._flush_planned = False
        self._resets = 0
        self._going_away = False
        self.closed = False
        self.remote_text = ""
        self.last_active = self.now()

    # -- asyncio.Protocol ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            self.remote_text = f"{peer[0]}:{peer[1]}"
        transport.set_write_buffer_limits(high=self._limits.write_pause_bytes)
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self.now()
        self._in_read = True
        try:
            if self._tls is not None:
                data = self._decrypt(data)
            if self._rest:
                data = self._rest + data
                self._rest = b""
            if self._opening:
                data = self._open(data)
            if not self._opening and data:
                self._rest = self._read_frames(data)
        except H2Error as error:
            self._break(error.code, str(error))
        except HpackError as error:
            self._break(H2Error.COMPRESSION, str(error))
        finally:
            self._in_read = False
            self._flush()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        for call in list(self.calls.values()):
            self._end_early(call)
        self._out.clear()
        self._on_close(self)

    # -- the beginning of a connection -----------------------------------------------------------------

    def _open(self, data: bytes) -> bytes:
        """Find out what the peer speaks; returns the bytes after the preface, or keeps what is too short."""
        if not self._proxy_read and self._tls is None:
            found = read_proxy_header(data)
            if found is ProxyHeader.INCOMPLETE:
                self._rest = data
                return b""
            self._proxy_read = True
            if isinstance(found, tuple):
                used, address = found
                self.remote_text = address or self.remote_text
                data = data[used:]
                if not data:
                    return b""
        if self._tls is None and data[0] == TLS_RECORD_START:
            if self._server_tls.context is None or self._server_tls.mode is TlsMode.DISABLED:
                raise H2Error(H2Error.PROTOCOL, "TLS is not enabled on this port")
            self._tls = TlsFilter(self._server_tls.context, server_side=True)
            data = self._decrypt(data)
        elif self._tls is None and self._server_tls.mode is TlsMode.ENFORCING:
            raise H2Error(H2Error.PROTOCOL, "only TLS is accepted on this port")
        preface = frames.PREFACE
        if len(data) < len(preface):
            if not preface.startswith(data):
                raise H2Error(H2Error.PROTOCOL, "not HTTP/2")
            self._rest = data
            return b""
        if not data.startswith(preface):
            raise H2Error(H2Error.PROTOCOL, "not HTTP/2")
        self._opening = False
        self._out.append(_GREETING)
        return data[len(preface) :]

    def _decrypt(self, data: bytes) -> bytes:
        assert self._tls is not None
        assert self._transport is not None
        try:
            plain, answer = self._tls.receive(data)
        except ssl.SSLError as error:
            self._transport.write(self._tls.pending())
            self._tls = None
            raise H2Error(H2Error.PROTOCOL, f"TLS failed: {error.reason}") from None
        if answer:
            self._transport.write(answer)
        return plain

    # -- frames ----------------------------------------------------------------------------------------

    def _read_frames(self, data: bytes) -> bytes:
        """Serve the whole frames; returns what is left."""
        position = 0
        end = len(data)
        unpack = frames.HEADER.unpack_from
        while end - position >= 9:
            high, low, kind, flags, stream_id = unpack(data, position)
            size = high << 8 | low
            if size > _FRAME_BYTES:
                raise H2Error(H2Error.FRAME_SIZE, f"a frame of {size} bytes")
            start = position + 9
            if start + size > end:
                break
            position = start + size
            stream_id &= 0x7FFFFFFF
            if self._block is not None and kind != frames.CONTINUATION:
                raise H2Error(H2Error.PROTOCOL, "a header block is not continued")
            if kind == frames.DATA:
                self._data(stream_id, flags, data[start:position])
            elif kind == frames.HEADERS:
                self._headers(stream_id, flags, data[start:position])
            elif kind == frames.WINDOW_UPDATE:
                self._window_update(stream_id, data[start:position])
            else:
                self._other_frame(kind, flags, stream_id, data[start:position])
            if self.closed:
                return b""
        return data[position:]

    def _other_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.PING:
            if len(payload) != 8 or stream_id:
                raise H2Error(H2Error.FRAME_SIZE, "a PING that is none")
            if not flags & frames.ACK:
                self._out.append(frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == frames.RST_STREAM:
            if len(payload) != 4 or not stream_id:
                raise H2Error(H2Error.FRAME_SIZE, "a RST_STREAM that is none")
            self._resets += 1
            if self._resets > _RESETS_MAX:
                raise H2Error(H2Error.ENHANCE_YOUR_CALM, "too many cancelled calls")
            call = self.calls.get(stream_id)
            if call is not None:
                self._end_early(call)
        elif kind == frames.CONTINUATION:
            if self._block is None or self._block[0] != stream_id:
                raise H2Error(H2Error.PROTOCOL, "a CONTINUATION of nothing")
            self._add_to_block(flags, payload)
        elif kind == 5:
            raise H2Error(H2Error.PROTOCOL, "clients do not push")
        # PRIORITY, GOAWAY and unknown kinds are ignored.

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) % 6 or (flags & frames.ACK and payload):
            raise H2Error(H2Error.FRAME_SIZE, "SETTINGS that are none")
        if flags & frames.ACK:
            return
        for at in range(0, len(payload), 6):
            name = int.from_bytes(payload[at : at + 2], "big")
            value = int.from_bytes(payload[at + 2 : at + 6], "big")
            if name == _SETTING_WINDOW:
                if value > frames.WINDOW_MAX:
                    raise H2Error(H2Error.FLOW_CONTROL, "an initial window over the limit")
                change = value - self._peer_stream_window
                self._peer_stream_window = value
                for call in self.calls.values():
                    call.window += change
            elif name == _SETTING_FRAME_BYTES:
                if not frames.FRAME_BYTES_DEFAULT <= value < 2**24:
                    raise H2Error(H2Error.PROTOCOL, "a maximum frame size out of range")
                self._peer_frame_bytes = value
        self._out.append(frame(frames.SETTINGS, frames.ACK, 0))
        self._send_blocked()

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise H2Error(H2Error.FRAME_SIZE, "a WINDOW_UPDATE that is none")
        count = int.from_bytes(payload, "big") & 0x7FFFFFFF
        if not stream_id:
            self._window += count
            if not count or self._window > frames.WINDOW_MAX:
                raise H2Error(H2Error.FLOW_CONTROL, "a window out of range")
            if self._blocked:
                self._send_blocked()
            return
        call = self.calls.get(stream_id)
        if call is not None:
            call.window += count
            if not count or call.window > frames.WINDOW_MAX:
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
            raise H2Error(H2Error.PROTOCOL, "a stream number clients may not use")
        if flags & frames.END_HEADERS:
            self._open_stream(stream_id, flags, payload)
        else:
            self._block = stream_id, flags, bytearray()
            self._add_to_block(0, payload)

    def _add_to_block(self, flags: int, payload: bytes) -> None:
        assert self._block is not None
        stream_id, first_flags, block = self._block
        block += payload
        if len(block) > self._limits.header_bytes:
            raise H2Error(H2Error.ENHANCE_YOUR_CALM, "a header block over the limit")
        if flags & frames.END_HEADERS:
            self._block = None
            self._open_stream(stream_id, first_flags, bytes(block))

    def _open_stream(self, stream_id: int, flags: int, block: bytes) -> None:
        fields = self._decoder.decode(block)
        known = self.calls.get(stream_id)
        if known is not None:  # trailers of the client; gRPC clients send none
            self._remote_done(known)
            return
        if stream_id <= self._last_stream:
            return  # of a call that ended already
        self._last_stream = stream_id
        if len(self.calls) >= self._limits.calls or self._going_away:
            self._out.append(
                frame(frames.RST_STREAM, 0, stream_id, H2Error.REFUSED_STREAM.to_bytes(4, "big"))
            )
            return
        path = fields.get(":path")
        method = None
        if path is not None:
            method = self._methods.get(text(path))
        call = Call(self, stream_id, method, fields, self._peer_stream_window)
        self.calls[stream_id] = call
        if "grpc-timeout" in fields and method is not None and method.kind is Kind.SERVER_STREAM:
            call.time_left_s()  # starts the clock
        if method is None:
            name = call.header(":path").removeprefix("/")
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
                raise H2Error(H2Error.PROTOCOL, "data of a stream that was not opened")
            return  # of a call that ended already
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
                self._buffered.count += len(payload)
                received += payload
                self._take_messages(call)
            else:
                self._start(call, payload[5:])
            return
        self._buffered.count += len(payload)
        received += payload
        if self._buffered.count > self._buffered.limit:
            self.finish(call, GrpcStatus.RESOURCE_EXHAUSTED, "the server holds too many request bytes")
            return
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
        """Cut what was received into messages: one to start a call with, or those of a stream."""
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
            self._release(call, 5 + size)
            if compressed:
                try:
                    message = self._inflate(call, message)
                except GrpcError as error:
                    self.finish(call, error.status, error.message)
                    return
            if call.inbox is None:
                if received:
                    break
                self._start(call, message)
                return
            if len(call.inbox) >= _INBOX_MESSAGES:
                self.finish(call, GrpcStatus.RESOURCE_EXHAUSTED, "too many messages wait")
                return
            call.inbox.append(message)
            call.wake()
        if call.remote_done and (call.inbox is None or received):
            self.finish(call, GrpcStatus.INTERNAL, "the request is not one whole message")

    def _too_large(self, call: Call) -> None:
        limit = self._limits.message_bytes
        self.finish(call, GrpcStatus.RESOURCE_EXHAUSTED, f"gRPC message exceeds maximum size {limit}")

    def _inflate(self, call: Call, message: bytes) -> bytes:
        if call.header("grpc-encoding") != "gzip":
            raise GrpcError(GrpcStatus.UNIMPLEMENTED, "compression other than gzip is not supported")
        inflater = zlib.decompressobj(wbits=31)
        try:
            plain = inflater.decompress(message, self._limits.message_bytes)
        except zlib.error as error:
            raise GrpcError(GrpcStatus.INTERNAL, f"the message cannot be decompressed: {error}") from None
        if inflater.unconsumed_tail or not inflater.eof:
            raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, "the decompressed message is too large or cut")
        return plain

    def _release(self, call: Call, count: int) -> None:
        self._buffered.count -= count
        del call.received[:count]

    # -- running calls ---------------------------------------------------------------------------------

    def _start(self, call: Call, message: bytes) -> None:
        assert call.method is not None
        try:
            work = call.method.start(call, message)
        except GrpcError as error:
            self.finish(call, error.status, error.message)
            return
        except Exception:  # the one place where a bug in a handler becomes an answer
            logger.exception("call failed path=%s peer=%s", call.method.path, self.remote_text)
            self.finish(call, GrpcStatus.INTERNAL, "internal error")
            return
        if work is not None:
            call.task = self._tasks.start(self._run(call, work), call.method.path)

    async def _run(self, call: Call, work: object) -> None:
        assert call.method is not None
        try:
            await work  # type: ignore[misc]  # any coroutine
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
        """The client cancelled, or its connection is lost."""
        self._forget(call)
        if call.on_end is not None:
            call.on_end()
        if call.task is not None:
            call.task.cancel()
        call.wake()

    def _forget(self, call: Call) -> None:
        call.done = True
        self.calls.pop(call.stream_id, None)
        self._blocked.pop(call.stream_id, None)
        self._pending_bytes -= call.pending_bytes
        call.pending.clear()
        call.pending_bytes = 0
        if call.received:
            self._release(call, len(call.received))
        if self._going_away and not self.calls:
            self._close_soon()

    def _reset(self, call: Call, code: int) -> None:
        self._out.append(frame(frames.RST_STREAM, 0, call.stream_id, code.to_bytes(4, "big")))
        self._end_early(call)

    # -- writing ---------------------------------------------------------------------------------------

    def answer(self, call: Call, message: bytes) -> None:
        """A unary answer: headers, message, trailers."""
        if call.done:
            return
        size = 5 + len(message)
        stream_id = call.stream_id
        if (
            call.pending
            or size > self._window
            or size > call.window
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
        """One message of an answer, as far as the client's windows allow; the rest later."""
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
            and size <= call.window
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
        """Trailers, after what is still pending."""
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
        for call in list(self._blocked.values()):
            if self._window <= 0:
                return
            self._send_pending(call)

    def _send_pending(self, call: Call) -> None:
        pending = call.pending
        while pending:
            data = pending[0]
            room = min(self._window, call.window, self._peer_frame_bytes)
            if room <= 0:
                self._blocked[call.stream_id] = call
                return
            part = data if len(data) <= room else data[:room]
            if len(part) == len(data):
                pending.popleft()
            else:
                pending[0] = data[room:]
            size = len(part)
            self._window -= size
            call.window -= size
            call.pending_bytes -= size
            self._pending_bytes -= size
            self._out.append(_pack_header(size >> 8, size & 0xFF, 0, 0, call.stream_id) + part)
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
        transport.write(data if self._tls is None else self._tls.encrypt(data))
        if transport.get_write_buffer_size() > self._limits.unsent_bytes:
            logger.warning("client does not read, closing peer=%s", self.remote_text)
            self.abort()

    # -- the end ---------------------------------------------------------------------------------------

    def sweep(self, idle_before: float) -> None:
        """Called now and then: closes a connection without calls that was silent since."""
        self._resets = 0
        if not self.calls and self.last_active < idle_before:
            self.go_away()

    def go_away(self) -> None:
        """Take no new calls, let the running ones end, then close."""
        if self._going_away or self.closed:
            return
        self._going_away = True
        if not self._opening:
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
        if not self._opening:
            self._out.append(self._goaway(code, reason))
        self._flush()
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.closed = True
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()

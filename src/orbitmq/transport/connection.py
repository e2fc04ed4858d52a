"""One end of a connection, client or server: receives frames, sends responses and requests.

Invariants
1. The requests of one socket read are dispatched, then ``Router.after_read`` runs, then all their answers are sent in
   one write. Work that ``after_read`` schedules for the end of the event loop turn is answered then, or on a graceful
   close.
   A connection is served ``turn_bytes`` or ``turn_requests`` at a time. The rest of a read is kept in order and
   served in later turns of the loop, one piece per turn, so every connection with pending requests is served once
   before any is served again. ``waited_s`` is how long the requests being served have waited. A single late turn does
   not count, because it means that the process was stopped (garbage collection, a paused machine) and not that it is
   overloaded; refusing a lone sender would help nobody.
2. A peer that does not read stops being served. Above ``write_pause_bytes`` unsent bytes its requests are also kept
   in order, above ``backlog_bytes`` of kept requests the connection stops reading, and above ``write_limit_bytes``
   unsent bytes it is closed. So memory per connection is bounded by the write limit plus one answer, plus the backlog
   and one read of requests. On connections that batch writes (``gathered_bytes``) that size is the first of these
   limits. Answers to our own calls are read even then, because two ends that each stop reading until the other reads
   would deadlock.
3. A malformed frame closes the connection after the whole frames before it were served, with one log line.
4. Every outstanding call ends exactly once: with an answer, a time-out, or ``ConnectionLostError``.
5. ``close`` waits up to ``close_wait_s`` for running ``async`` handlers and unsent bytes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from operator import attrgetter, length_hint
from typing import Any, Final, cast

from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.errors import ConnectionLostError, RequestTimeoutError
from orbitmq.kernel import Sends
from orbitmq.runtime.stalls import HOLD_S, STALLS, monotonic
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.transport.busy_wait import BusyWait
from orbitmq.transport.held_memory import PRESSED_BYTES, HeldMemory
from orbitmq.transport.router import Answer, Router, finish_slow_request, refuse
from orbitmq.transport.tls import TLS_RECORD_START, ServerTls, TlsFilter, TlsMode
from orbitmq.wire.frame import (
    FRAME_BYTES_MAX,
    Frame,
    FrameDecoder,
    Request,
    encode_binary_request,
    encode_oneway,
    encode_request,
)
from orbitmq.wire.header import Header, encode_ext

__all__ = ["Connection", "ConnectionLimits", "request_fields"]

logger = logging.getLogger(__name__)

_RESPONSE: Final = 1
_NO_ROUTES: Final = Router(())
_FRAME_OVERHEAD_BYTES: Final = 256
_PROGRESS_BYTES: Final = 16 * 1024
"""A connection that receives this much of a frame is active."""
"""Rough memory cost of a decoded frame, excluding its bytes."""
_count = attrgetter("request_count")
_SENDS_MAX: Final = 64
"""Plain sends that are taken together: enough to share their cost, few enough to cut a read into turns."""
_STOP_S: Final = 0.1
"""A turn this late means that the process was stopped, unless the previous turn was late too."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection."""

    frame_bytes: int = FRAME_BYTES_MAX
    write_pause_bytes: int = 1024 * 1024
    write_limit_bytes: int = 64 * 1024 * 1024
    backlog_bytes: int = 256 * 1024
    """Size of requests kept for a later turn or until the peer reads its answers."""
    turn_bytes: int = 512 * 1024
    """Size of one connection's requests served in one turn of the loop; two reads of the socket, whatever they
    bring."""
    turn_requests: int = 256
    """Number of the requests of a read that are served in one turn: about 1 ms of sends."""
    calls: int = 65_535
    """Maximum number of our calls awaiting an answer."""
    slow_requests: int = 1_000
    """Maximum number of the peer's requests in ``async`` handlers at the same time."""
    close_wait_s: float = 10.0
    """How long a closing connection waits for handlers and for the peer to read the last bytes."""
    idle_s: float = 120.0
    """How long a client keeps a connection that it does not use."""


class Connection(asyncio.Protocol):
    """A remoting connection, created by ``Server`` or ``RpcClient``."""

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_backlog_planned",
        "_calls",
        "_close_reason",
        "_close_timer",
        "_collecting",
        "_decoder",
        "_flush_planned",
        "_kept_at",
        "_late_turn",
        "_limits",
        "_loop",
        "_on_close",
        "_on_open",
        "_opaque",
        "_out",
        "_out_bytes",
        "_partial_bytes",
        "_planned_at",
        "_received_at",
        "_router",
        "_sends_max",
        "_server_tls",
        "_silent_since",
        "_slow_count",
        "_sniffed",
        "_tasks",
        "_tls",
        "_transport",
        "_turn_left",
        "_write_paused",
        "attachment",
        "busy_wait",
        "closed",
        "gathered_bytes",
        "held",
        "last_active",
        "remote",
        "remote_text",
        "serialize_type",
        "silence_s",
        "waited_s",
    )

    def __init__(
        self,
        *,
        tasks: TaskOwner,
        router: Router = _NO_ROUTES,
        limits: ConnectionLimits = ConnectionLimits(),
        server_tls: ServerTls | None = None,
        client_tls: TlsFilter | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._router = router
        self._limits = limits
        self._server_tls = server_tls
        self._sniffed = server_tls is None
        self._tls = client_tls
        self._on_open = on_open
        self._on_close = on_close
        self._decoder = FrameDecoder(limits.frame_bytes)
        self._sends_max = 0 if router.sends is None else min(_SENDS_MAX, limits.turn_requests)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._collecting = False
        self._flush_planned = False
        self._write_paused = False
        self._backlog: deque[Request] = deque()
        self._backlog_bytes = 0
        self._backlog_planned = False
        self._kept_at: deque[tuple[float, int]] = deque()
        """Arrival times of backlog requests, with the number of requests at each."""
        self._planned_at = 0.0
        self._late_turn = False
        """The previous turn was late."""
        self._turn_left = limits.turn_bytes
        """Bytes of requests still served immediately before the rest must wait for a turn of the loop."""
        self._close_timer: asyncio.TimerHandle | None = None
        self._close_reason = ""
        self._calls: dict[int, tuple[asyncio.Future[Frame], asyncio.TimerHandle]] = {}
        self._opaque = 0
        self._slow_count = 0
        self.closed = False
        """Closed by either side, or closing; new calls fail."""
        self.remote: tuple[str, int] = ("0.0.0.0", 0)
        self.remote_text = ""
        self.last_active = self._received_at = self._loop.time()
        self._silent_since = 0.0
        """When the first call was sent that timed out without any data from the peer."""
        self._partial_bytes = 0
        """How much of an incomplete frame had arrived at the last progress."""
        self.silence_s = math.inf
        """The connection is dropped if the peer leaves our calls unanswered and sends nothing else for this long. A
        path that silently drops packets (a firewall that lost its state) reports no error, and our own requests keep
        the connection from becoming idle. For clients, which can reconnect."""
        self.serialize_type: int = SerializeType.JSON
        """Header serialization of the calls we make over this connection."""
        self.gathered_bytes = 0
        """Requests made in one turn of the loop are sent together, in writes of about this size. For clients, where
        the system call of a write costs more than the rest of a small request. The limit lets the peer receive the
        first requests while we make the next. Set it before the connection is made."""
        self.waited_s = 0.0
        """How long the requests being served waited for their turn."""
        self.busy_wait: BusyWait | None = None
        """Notified of each read; used by servers."""
        self.held: HeldMemory | None = None
        """The memory limit shared by all connections of a server."""
        self.attachment: Any = None
        """Data that the router's owner keeps about this peer."""

    # -- asyncio.Protocol ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No isinstance check, because uvloop's transports are not subclasses of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            self.remote = (str(peer[0]), int(peer[1]))
        self.remote_text = f"{self.remote[0]}:{self.remote[1]}"
        # Above this limit uvloop writes immediately, otherwise at the end of the loop turn.
        high = self.gathered_bytes - 1 if self.gathered_bytes else self._limits.write_pause_bytes
        if self.held is not None and self.held.pressed:
            high = min(high, PRESSED_BYTES)
        transport.set_write_buffer_limits(high=high)
        if self._tls is not None:
            transport.write(self._tls.start())
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        if not self._sniffed and not self._sniff(data):
            return
        if self._tls is not None:
            data = self._decrypt(data)
        frames = self._decoder.requests(data, self._sends_max)
        if frames:
            self.last_active = self._received_at
            only = frames[0] if len(frames) == 1 else None
            self._turn_left -= len(data)
            if self._write_paused or self._backlog:
                self._keep(frames, len(data))
            elif self._turn_left > 0 and (
                only is not None or sum(map(_count, frames)) <= self._limits.turn_requests
            ):
                self._serve(frames)
            else:
                self._keep(frames, len(data))
                self._plan_turn()
            if self.busy_wait is not None:
                self.busy_wait.served(self, only)
        else:
            self._note_progress()
        if self.held is not None:
            self.held.moved(len(data))
        if self._decoder.error is not None and not self._backlog:
            self._break(str(self._decoder.error))

    def _note_progress(self) -> None:
        """Record that the peer was active, unless it sent only a few bytes of a frame. A peer that sends a frame byte
        by byte counts as idle, so that it cannot keep a connection indefinitely."""
        received = self._decoder.buffered_bytes
        if not self._partial_bytes <= received < self._partial_bytes + _PROGRESS_BYTES:
            self._partial_bytes = received
            self.last_active = self._received_at

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._backlog:
            # Until now the peer's own failure to read caused the wait.
            self._kept_at.clear()
            self._kept_at.append((self._loop.time(), sum(map(_count, self._backlog))))
        # Not from within the transport's write, because serving the backlog writes again.
        self._plan_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._backlog and not self.closed and not self._write_paused:
            # A peer may send oneway requests and disconnect, so everything already read is served.
            self._serve(list(self._backlog))
        self.closed = True
        self._backlog.clear()
        self._out.clear()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._fail_calls()
        if self._on_close is not None:
            self._on_close(self)

    # -- the peer's requests ---------------------------------------------------------------------------

    def _serve(self, frames: list[Request]) -> None:
        router = self._router
        dispatch = router.dispatch
        began = monotonic()
        self._collecting = True
        pause_bytes = self._limits.write_pause_bytes
        # A lone request costs less on its own.
        if len(frames) > 1 and frames[0].code in router.runs:
            frames = self._serve_runs(frames)
        requests = iter(frames)
        for frame in requests:
            if isinstance(frame, Sends):
                if router.sends is None or not router.sends(frame, self):
                    at = len(frames) - length_hint(requests)
                    frames[at:at] = frame.frames()  # they are next
                continue
            if frame.flag & _RESPONSE:
                self._complete(frame)
                continue
            answer = dispatch(frame, self)
            if answer is not None:
                self._out.append(answer)
                self._out_bytes += len(answer)
                if self._out_bytes >= pause_bytes:
                    self._flush()
                    if self._write_paused:
                        self._keep_first(list(requests))
                        break
        after_read = router.after_read
        if after_read is not None:
            try:
                after_read()
            except Exception:  # a bug here must not interrupt the processing of a read
                logger.exception("callback after a read failed peer=%s", self.remote_text)
        self._collecting = False
        self._flush()
        held_s = monotonic() - began
        if held_s > HOLD_S:
            self._note_stall(frames, held_s)

    def _serve_runs(self, frames: list[Request]) -> list[Request]:
        """Serve the runs of requests at the start of a read. Returns the other frames, or none if the peer stopped
        reading."""
        runs = self._router.runs
        single = cast("list[Frame]", frames)  # a run server stops at plain sends, which have another code
        at, count = 0, len(frames)
        while at < count:
            frame = single[at]
            serve = runs.get(frame.code)
            if serve is None or frame.flag & _RESPONSE:
                break
            try:
                answer, end = serve(single, at, self)
            except Exception:  # a bug here must not leave a read half served
                logger.exception("requests not served together code=%d peer=%s", frame.code, self.remote_text)
                end = at
            if end == at:
                answer = self._router.dispatch(frame, self)
                end += 1
            at = end
            if answer is not None:
                self._out.append(answer)
                self._out_bytes += len(answer)
                if self._out_bytes >= self._limits.write_pause_bytes:
                    self._flush()
                    if self._write_paused:
                        self._keep_first(frames[at:])
                        return []
        return frames[at:]

    def _note_stall(self, frames: list[Request], held_s: float) -> None:
        codes = Counter(frame.code for frame in frames if not frame.flag & _RESPONSE).most_common(1)
        # A read may contain only answers to our own calls.
        name = f"request-{codes[0][0]}" if codes else "answers"
        STALLS.note(name, held_s, f"frames={len(frames)} peer={self.remote_text}")

    def _keep(self, frames: list[Request], size_bytes: int) -> None:
        """Keep requests for a later turn, or until the peer reads its responses. Responses to our calls are never
        kept."""
        kept = 0
        for frame in frames:
            if frame.flag & _RESPONSE:
                self._complete(cast(Frame, frame))
            else:
                self._backlog.append(frame)
                kept += _count(frame)
        if not kept:
            return
        self._kept_at.append((self._loop.time(), kept))
        self._backlog_bytes += size_bytes + kept * _FRAME_OVERHEAD_BYTES
        if self._backlog_bytes >= self._limits.backlog_bytes and self._transport is not None:
            self._transport.pause_reading()

    def _keep_first(self, frames: list[Request]) -> None:
        """Return the requests being served to the front of the queue, because the peer stopped reading."""
        waiting = list(self._backlog)
        self._backlog.clear()
        self._kept_at.clear()
        self._backlog_bytes = 0
        both = frames + waiting
        self._keep(both, sum(map(_size, both)))

    def _plan_turn(self) -> None:
        if not self._backlog_planned:
            self._backlog_planned = True
            self._planned_at = self._loop.time()
            self._loop.call_soon(self._serve_backlog)

    def _serve_backlog(self) -> None:
        """Serve the requests of one turn from the backlog, and leave the rest to the next turn."""
        self._backlog_planned = False
        self._turn_left = self._limits.turn_bytes
        if self.closed or self._is_write_paused() or self._transport is None:
            return
        if self._backlog:
            frames = self._next_piece()
            self._serve(frames)
            self.waited_s = 0.0
        if not self._backlog:
            self._late_turn = False
        if self._is_write_paused():
            return  # resume_writing continues here
        if self._backlog:
            self._plan_turn()
        elif self._decoder.error is not None:
            self._break(str(self._decoder.error))
        else:
            self._transport.resume_reading()

    def _next_piece(self) -> list[Request]:
        """Returns the requests of one turn, oldest first, and records how long the oldest one has waited."""
        backlog, kept_at = self._backlog, self._kept_at
        now = self._loop.time()
        late_s = now - self._planned_at
        if late_s > _STOP_S and not self._late_turn:
            kept_at = self._kept_at = deque((at + late_s, kept) for at, kept in kept_at)
        self._late_turn = late_s > _STOP_S
        self.waited_s = max(0.0, now - kept_at[0][0])
        # Estimated from their mean size, because the cost of a turn need not be exact.
        total = sum(kept for _, kept in kept_at)
        fitting = total * self._limits.turn_bytes // max(1, self._backlog_bytes)
        most = min(self._limits.turn_requests, fitting)
        piece = [backlog.popleft()]
        count = _count(piece[0])
        while backlog and count + _count(backlog[0]) <= most:
            count += _count(backlog[0])
            piece.append(backlog.popleft())
        self._backlog_bytes -= self._backlog_bytes * count // total
        left = count
        while left:
            at, kept = kept_at.popleft()
            if kept > left:
                kept_at.appendleft((at, kept - left))
                break
            left -= kept
        return piece

    def start_slow_request(self, frame: Frame, answer: Awaitable[Answer]) -> bytes | None:
        """Run an ``async`` handler, or refuse the request if too many are running for this peer."""
        if self._slow_count >= self._limits.slow_requests:
            if isinstance(answer, asyncio.Future):
                answer.cancel()
            else:
                close = getattr(answer, "close", None)
                if close is not None:
                    close()
            remark = f"[OVERLOAD]{self._slow_count} requests of this connection are already running"
            return refuse(frame, ResponseCode.SYSTEM_BUSY, remark)
        task = self._tasks.start(finish_slow_request(frame, self, answer), f"request-{frame.code}")
        self._slow_count += 1
        task.add_done_callback(self._slow_request_ended)
        return None

    def _slow_request_ended(self, _task: asyncio.Task[Any]) -> None:
        self._slow_count -= 1
        if self.closed and self._slow_count == 0 and self._transport is not None:
            self._transport.close()

    # -- writing ---------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send encoded frames. They are dropped if the connection is closed."""
        self._out.append(data)
        self._out_bytes += len(data)
        if self._collecting:
            return
        # With a single call in flight there is nothing to batch, and waiting for the end of the turn would only add
        # latency.
        if len(self._calls) < 2 or self._out_bytes >= self.gathered_bytes:
            self._flush()
        elif not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush_gathered)

    def _flush_gathered(self) -> None:
        self._flush_planned = False
        self._flush()

    def _flush(self) -> None:
        out = self._out
        if not out:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._out_bytes = 0
        transport = self._transport
        # A closing transport may still accept bytes, but asyncio warns about some writes and uvloop raises.
        if transport is None or transport.is_closing():
            return
        if self._tls is not None:
            data = self._tls.encrypt(data)
            if self._tls.held_bytes:
                self._check_unsent()
                return
        self.last_active = self._loop.time()
        transport.write(data)
        if self._write_paused:
            self._check_unsent()
        if self.held is not None:
            self.held.moved(len(data))

    def _check_unsent(self) -> None:
        unsent = self.unsent_bytes
        if unsent > self._limits.write_limit_bytes:
            logger.warning("peer does not read, closing peer=%s unsent_bytes=%d", self.remote_text, unsent)
            self.abort()

    def _is_write_paused(self) -> bool:
        return self._write_paused

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that wait for the peer to read."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return 0
        held = 0 if self._tls is None else self._tls.held_bytes
        return transport.get_write_buffer_size() + held

    # -- memory shared by all connections --------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """The number of bytes held in a partial frame, kept requests and unread responses."""
        return self._decoder.buffered_bytes + self._backlog_bytes + self._out_bytes + self.unsent_bytes

    def press(self, unsent_bytes: int) -> None:
        """Serve the peer only while fewer than this many bytes are unread; 0 restores the usual limit."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.set_write_buffer_limits(high=unsent_bytes or self._limits.write_pause_bytes)

    def drop(self, reason: str) -> None:
        """Close immediately, because all connections together hold too much memory or the peer is silent."""
        if not self.closed:
            logger.warning("closing connection peer=%s reason=%s", self.remote_text, reason)
            self._close_reason = reason
            self.abort()

    # -- our calls -------------------------------------------------------------------------------------

    def call(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
        ext: dict[str, str] | None = None,
    ) -> asyncio.Future[Frame]:
        """Send a request. The returned future resolves to the response frame, or raises ``RequestTimeoutError`` or
        ``ConnectionLostError``."""
        future: asyncio.Future[Frame] = self._loop.create_future()
        if self.closed:
            future.set_exception(self._lost("is closed"))
            return future
        if len(self._calls) >= self._limits.calls:
            future.set_exception(RequestTimeoutError(f"{len(self._calls)} calls wait for {self.remote_text}"))
            return future
        opaque = self._next_opaque()
        request = encode_request(code, opaque, request_fields(header, ext), body, self.serialize_type)
        timer = self._loop.call_later(timeout_s, self._time_out, opaque, timeout_s)
        self._calls[opaque] = (future, timer)
        self.send(request)
        return future

    def call_binary(
        self, code: int, ext_raw: bytes, body: bytes, *, timeout_s: float
    ) -> asyncio.Future[Frame]:
        """Like ``call``, but with extension fields already encoded in binary form. For frequent requests."""
        future: asyncio.Future[Frame] = self._loop.create_future()
        if self.closed or len(self._calls) >= self._limits.calls:
            return self.call(code, None, body, timeout_s=timeout_s)
        opaque = self._next_opaque()
        timer = self._loop.call_later(timeout_s, self._time_out, opaque, timeout_s)
        self._calls[opaque] = (future, timer)
        self.send(encode_binary_request(code, opaque, ext_raw, body))
        return future

    def notify(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        ext: dict[str, str] | None = None,
    ) -> None:
        """Send a oneway request."""
        self.send(
            encode_oneway(code, self._next_opaque(), request_fields(header, ext), body, self.serialize_type)
        )

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        while self._opaque in self._calls:
            self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        return self._opaque

    def _complete(self, frame: Frame) -> None:
        waiting = self._calls.pop(frame.opaque, None)
        if waiting is None:
            logger.debug("answer without a pending request peer=%s opaque=%d", self.remote_text, frame.opaque)
            return
        future, timer = waiting
        timer.cancel()
        if not future.done():
            future.set_result(frame)

    def _time_out(self, opaque: int, timeout_s: float) -> None:
        waiting = self._calls.pop(opaque, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_exception(
                RequestTimeoutError(f"no answer from {self.remote_text} within {timeout_s:g} s")
            )
            self._look_for_silence(timeout_s)

    def _look_for_silence(self, timeout_s: float) -> None:
        """Check whether the peer is silent, after a call timed out."""
        now = self._loop.time()
        if self._received_at > now - timeout_s:
            return
        if self._silent_since < self._received_at:
            self._silent_since = now - timeout_s
        if now - self._silent_since >= self.silence_s:
            self.drop(f"no answer to any call for {now - self._silent_since:.0f} s")

    def _fail_calls(self) -> None:
        calls, self._calls = self._calls, {}
        for future, timer in calls.values():
            timer.cancel()
            if not future.done():
                future.set_exception(self._lost("closed"))

    # -- closing ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Serve no more requests, wait for running handlers and queued bytes, then close."""
        self._close(wait_for_handlers=True)

    def _close(self, *, wait_for_handlers: bool) -> None:
        transport = self._transport
        if transport is None or self.closed:
            return
        if self._router.before_close is not None:
            try:
                self._router.before_close()
            except Exception:  # a bug here must not keep the connection open
                logger.exception("callback before a close failed peer=%s", self.remote_text)
        self._flush()
        self.closed = True
        self._fail_calls()
        wait = wait_for_handlers and self._slow_count > 0
        if wait or transport.get_write_buffer_size():
            self._close_timer = self._loop.call_later(self._limits.close_wait_s, self.abort)
        if wait:
            transport.pause_reading()
        else:
            transport.close()

    def abort(self) -> None:
        """Close immediately; queued bytes are lost."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _lost(self, what: str) -> ConnectionLostError:
        reason = f": {self._close_reason}" if self._close_reason else ""
        return ConnectionLostError(f"connection to {self.remote_text} {what}{reason}")

    def _break(self, reason: str, *, wait_for_handlers: bool = True) -> None:
        if not self.closed:
            logger.warning("closing connection peer=%s reason=%s", self.remote_text, reason)
            self._close_reason = reason
            self._close(wait_for_handlers=wait_for_handlers)

    # -- TLS -------------------------------------------------------------------------------------------

    def _sniff(self, data: bytes) -> bool:
        """Detect TLS or plain text by the first byte. Returns False if the connection was closed."""
        self._sniffed = True
        server_tls = self._server_tls
        assert server_tls is not None
        wants_tls = data[0] == TLS_RECORD_START
        context = server_tls.context if wants_tls else None
        if context is not None and server_tls.mode is not TlsMode.DISABLED:
            self._tls = TlsFilter(context, server_side=True)
        elif wants_tls and server_tls.can_make and self._transport is not None:
            # For the first TLS client the certificate is generated in a thread, and reading pauses meanwhile.
            self._sniffed = False
            self._transport.pause_reading()
            server_tls.when_made(lambda: self._sniff_again(data))
            return False
        elif wants_tls:
            self._break("TLS is not enabled on this port")
            return False
        elif server_tls.mode is TlsMode.ENFORCING:
            self._break("only TLS is accepted on this port")
            return False
        return True

    def _sniff_again(self, data: bytes) -> None:
        if self._transport is not None and not self.closed:
            self._transport.resume_reading()
            self.data_received(data)

    def _decrypt(self, data: bytes) -> bytes:
        assert self._tls is not None
        assert self._transport is not None
        try:
            plain, answer = self._tls.receive(data)
        except ssl.SSLError as error:
            self._transport.write(self._tls.pending())  # the alert tells the peer the reason
            # The reason is only "certificate verify failed"; the detail says what is wrong with the certificate.
            detail = getattr(error, "verify_message", "")
            reason = f"{error.reason}: {detail}" if detail else error.reason
            self._break(f"TLS failed: {reason}", wait_for_handlers=False)
            return b""
        if answer:
            self._transport.write(answer)
            if self._write_paused:
                self._check_unsent()
        return plain


def _size(request: Request) -> int:
    if isinstance(request, Sends):
        return request.size_bytes
    return len(request.body) + len(request.ext_raw)


def request_fields(header: Header | None, ext: dict[str, str] | None) -> dict[str, str] | None:
    """Returns the extension fields of a request: its header's fields and ``ext``."""
    if header is None:
        return ext
    fields = encode_ext(header)
    return fields | ext if ext else fields

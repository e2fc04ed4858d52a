"""One connection, either end of it: frames in, answers and calls out.

Invariants
1. The requests of one socket read are dispatched, then ``Router.after_read`` runs, then everything they
   answered leaves in one write. What ``after_read`` plans for the end of the turn of the loop is answered then, or
   when the connection is closed in order.
   A connection is served ``turn_bytes`` or ``turn_requests`` at a time: what a read brings beyond is kept in order
   and served in later turns of the loop, one piece a turn, so every connection that has something to say is served
   once before any of them is served again. How long a kept request waited is ``waited_s`` while it is served. A
   single turn that came late does not count: the process was stopped (garbage collection, a paused machine), which
   says nothing of load, and refusing a lone sender for it helps nobody.
2. A peer that does not read stops being served: above ``write_pause_bytes`` unsent bytes its requests are kept
   in order as well; above ``backlog_bytes`` of kept requests the connection stops reading, and above
   ``write_limit_bytes`` unsent bytes it is closed. So memory per connection is bounded by the write limit
   plus one answer, plus the backlog and one read of requests. On connections that gather (``gathered_bytes``) the
   first of these limits is that size. Answers to our own calls are read even
   then: two ends that both stop reading because the other one does would wait for each other forever.
3. A broken frame closes the connection after the whole frames before it were served, with one log line.
4. Every outstanding call ends exactly once: answer, time-out, or ``ConnectionLostError``.
5. ``close`` lets running ``async`` handlers and unsent bytes finish, for ``close_wait_s`` at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.errors import ConnectionLostError, RequestTimeoutError
from orbitmq.runtime.stalls import HOLD_S, STALLS, monotonic
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.transport.busy_wait import BusyWait
from orbitmq.transport.held_memory import PRESSED_BYTES, HeldMemory
from orbitmq.transport.router import Answer, PullServer, Router, finish_slow_request, refuse
from orbitmq.transport.tls import TLS_RECORD_START, ServerTls, TlsFilter, TlsMode
from orbitmq.wire.frame import (
    FRAME_BYTES_MAX,
    Frame,
    FrameDecoder,
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
"""Rough cost of a decoded frame beside its bytes."""
_STOP_S: Final = 0.1
"""A turn that comes this late is a stop of the process, unless the turn before it was late as well."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection."""

    frame_bytes: int = FRAME_BYTES_MAX
    write_pause_bytes: int = 1024 * 1024
    write_limit_bytes: int = 64 * 1024 * 1024
    backlog_bytes: int = 256 * 1024
    """Requests kept for a later turn, or until the peer reads its answers."""
    turn_bytes: int = 128 * 1024
    """Requests of one connection served in one turn of the loop: some 200 sends of 128 bytes, 2 ms."""
    turn_requests: int = 256
    calls: int = 65_535
    """Calls of ours that may wait for an answer."""
    slow_requests: int = 1_000
    """Requests of the peer that may be in ``async`` handlers at once."""
    close_wait_s: float = 10.0
    """How long a closing connection waits for handlers and for the peer to take the last bytes."""


class Connection(asyncio.Protocol):
    """A remoting connection. Made by ``Server`` and ``RpcClient``."""

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
        "_planned_at",
        "_received_at",
        "_router",
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
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._collecting = False
        self._flush_planned = False
        self._write_paused = False
        self._backlog: deque[Frame] = deque()
        self._backlog_bytes = 0
        self._backlog_planned = False
        self._kept_at: deque[tuple[float, int]] = deque()
        """When requests of the backlog came, and how many of them."""
        self._planned_at = 0.0
        self._late_turn = False
        """The last turn came late."""
        self._turn_left = limits.turn_bytes
        """Bytes this connection may still send before it waits for a turn of the loop."""
        self._close_timer: asyncio.TimerHandle | None = None
        self._close_reason = ""
        self._calls: dict[int, tuple[asyncio.Future[Frame], asyncio.TimerHandle]] = {}
        self._opaque = 0
        self._slow_count = 0
        self.closed = False
        """No new calls: closed by either side, or about to be."""
        self.remote: tuple[str, int] = ("0.0.0.0", 0)
        self.remote_text = ""
        self.last_active = self._received_at = self._loop.time()
        self._silent_since = 0.0
        """When the first call was sent that timed out without a byte from the peer."""
        self.silence_s = math.inf
        """The peer is given up when it leaves our calls unanswered, and sends nothing else, for this long. A path
        that swallows packets (a firewall that lost its state) says nothing, and our own requests keep the idle time
        from passing. For clients, who can connect anew."""
        self.serialize_type: int = SerializeType.JSON
        """Header form of the calls we make over this connection."""
        self.gathered_bytes = 0
        """Requests made in one turn of the loop leave together, in writes of about this size. For clients: a write
        costs a system call, which is more than the rest of a small request; but the peer should have the first of
        them while we make the next. Set before the connection is made."""
        self.waited_s = 0.0
        """How long the requests that are being served waited for their turn."""
        self.busy_wait: BusyWait | None = None
        """Told of each read, by servers."""
        self.held: HeldMemory | None = None
        """The bound for all connections of a server."""
        self.attachment: Any = None
        """What the owner of the router keeps about this peer."""

    # -- asyncio.Protocol ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked with isinstance: uvloop's transports are no subclass of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            self.remote = (str(peer[0]), int(peer[1]))
        self.remote_text = f"{self.remote[0]}:{self.remote[1]}"
        # Beyond this limit uvloop writes at once, and else when the turn of the loop ends.
        high = self.gathered_bytes - 1 if self.gathered_bytes else self._limits.write_pause_bytes
        if self.held is not None and self.held.pressed:
            high = min(high, PRESSED_BYTES)
        transport.set_write_buffer_limits(high=high)
        if self._tls is not None:
            transport.write(self._tls.start())
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self._received_at = self._loop.time()
        if not self._sniffed and not self._sniff(data):
            return
        if self._tls is not None:
            data = self._decrypt(data)
        frames = self._decoder.feed(data)
        if frames:
            self._turn_left -= len(data)
            if self._write_paused or self._backlog:
                self._keep(frames, len(data))
            elif self._turn_left > 0 and len(frames) <= self._limits.turn_requests:
                self._serve(frames)
            else:
                self._keep(frames, len(data))
                self._plan_turn()
            if self.busy_wait is not None:
                self.busy_wait.served(self, frames)
        if self.held is not None:
            self.held.moved(len(data))
        if self._decoder.error is not None and not self._backlog:
            self._break(str(self._decoder.error))

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._backlog:
            # The peer waited for itself until now.
            self._kept_at.clear()
            self._kept_at.append((self._loop.time(), len(self._backlog)))
        # Not from inside the transport's own write: serving the backlog writes again.
        self._plan_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._backlog and not self.closed and not self._write_paused:
            # A peer may send oneway requests and leave: what was read is served.
            self._serve(list(self._backlog))
        self.closed = True
        self._backlog.clear()
        self._out.clear()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._fail_calls()
        if self._on_close is not None:
            self._on_close(self)

    # -- requests of the peer --------------------------------------------------------------------------

    def _serve(self, frames: list[Frame]) -> None:
        dispatch = self._router.dispatch
        began = monotonic()
        self._collecting = True
        pause_bytes = self._limits.write_pause_bytes
        # A lone pull costs less on its own.
        if len(frames) > 1 and frames[0].pull is not None and self._router.pulls is not None:
            frames = self._serve_pulls(self._router.pulls, frames)
        for index, frame in enumerate(frames):
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
                        self._keep_first(frames[index + 1 :])
                        break
        after_read = self._router.after_read
        if after_read is not None:
            after_read()
        self._collecting = False
        self._flush()
        held_s = monotonic() - began
        if held_s > HOLD_S:
            self._note_stall(frames, held_s)

    def _serve_pulls(self, serve: PullServer, frames: list[Frame]) -> list[Frame]:
        """Serve the pulls that a read begins with; returns the other frames, none when the peer stopped reading."""
        at, count = 0, len(frames)
        while at < count and frames[at].pull is not None:
            answer, at = serve(frames, at, self)
            if answer is None:
                answer = self._router.dispatch(frames[at], self)
                at += 1
            if answer is not None:
                self._out.append(answer)
                self._out_bytes += len(answer)
                if self._out_bytes >= self._limits.write_pause_bytes:
                    self._flush()
                    if self._write_paused:
                        self._keep_first(frames[at:])
                        return []
        return frames[at:]

    def _note_stall(self, frames: list[Frame], held_s: float) -> None:
        codes = Counter(frame.code for frame in frames if not frame.flag & _RESPONSE).most_common(1)
        # A read may hold nothing but answers to our own calls.
        name = f"request-{codes[0][0]}" if codes else "answers"
        STALLS.note(name, held_s, f"frames={len(frames)} peer={self.remote_text}")

    def _keep(self, frames: list[Frame], size_bytes: int) -> None:
        """Hold requests back for a later turn, or until the peer reads its answers. Answers to our calls are never
        held."""
        before = len(self._backlog)
        for frame in frames:
            if frame.flag & _RESPONSE:
                self._complete(frame)
            else:
                self._backlog.append(frame)
        kept = len(self._backlog) - before
        if not kept:
            return
        self._kept_at.append((self._loop.time(), kept))
        self._backlog_bytes += size_bytes + kept * _FRAME_OVERHEAD_BYTES
        if self._backlog_bytes >= self._limits.backlog_bytes and self._transport is not None:
            self._transport.pause_reading()

    def _keep_first(self, frames: list[Frame]) -> None:
        """Put back what was being served when the peer stopped reading."""
        waiting = list(self._backlog)
        self._backlog.clear()
        self._kept_at.clear()
        self._backlog_bytes = 0
        both = frames + waiting
        self._keep(both, sum(len(frame.body) + len(frame.ext_raw) for frame in both))

    def _plan_turn(self) -> None:
        if not self._backlog_planned:
            self._backlog_planned = True
            self._planned_at = self._loop.time()
            self._loop.call_soon(self._serve_backlog)

    def _serve_backlog(self) -> None:
        """One turn: serve a piece of what was kept, and leave the rest to the next turn."""
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
            return  # resume_writing comes back here.
        if self._backlog:
            self._plan_turn()
        elif self._decoder.error is not None:
            self._break(str(self._decoder.error))
        else:
            self._transport.resume_reading()

    def _next_piece(self) -> list[Frame]:
        """The requests of one turn, oldest first; notes how long the oldest has waited."""
        backlog, kept_at = self._backlog, self._kept_at
        now = self._loop.time()
        late_s = now - self._planned_at
        if late_s > _STOP_S and not self._late_turn:
            kept_at = self._kept_at = deque((at + late_s, kept) for at, kept in kept_at)
        self._late_turn = late_s > _STOP_S
        self.waited_s = max(0.0, now - kept_at[0][0])
        # By their mean size: what a turn costs need not be exact.
        fitting = len(backlog) * self._limits.turn_bytes // max(1, self._backlog_bytes)
        count = min(len(backlog), self._limits.turn_requests, max(1, fitting))
        self._backlog_bytes -= self._backlog_bytes * count // len(backlog)
        left = count
        while left:
            at, kept = kept_at.popleft()
            if kept > left:
                kept_at.appendleft((at, kept - left))
                break
            left -= kept
        return [backlog.popleft() for _ in range(count)]

    def start_slow_request(self, frame: Frame, answer: Awaitable[Answer]) -> bytes | None:
        """Run an ``async`` handler; refuses when too many are running for this peer."""
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
        """Send encoded frames. Dropped when the connection is closed."""
        self._out.append(data)
        self._out_bytes += len(data)
        if self._collecting:
            return
        # With one call on the way there is nothing to gather, and waiting a turn would only cost time.
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
        # A closing transport may still take bytes, but asyncio complains of some and uvloop raises.
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
        """Bytes that wait for the peer to read."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return 0
        held = 0 if self._tls is None else self._tls.held_bytes
        return transport.get_write_buffer_size() + held

    # -- the bound for all connections -----------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """A half frame, requests kept for later, and what the peer has not read."""
        return self._decoder.buffered_bytes + self._backlog_bytes + self._out_bytes + self.unsent_bytes

    def press(self, unsent_bytes: int) -> None:
        """Serve the peer only while less than this is unread; 0: as usual."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.set_write_buffer_limits(high=unsent_bytes or self._limits.write_pause_bytes)

    def drop(self, reason: str) -> None:
        """Close at once: all connections together hold too much, or the peer is silent."""
        if not self.closed:
            logger.warning("closing connection peer=%s reason=%s", self.remote_text, reason)
            self._close_reason = reason
            self.abort()

    # -- calls of ours ---------------------------------------------------------------------------------

    def call(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
        ext: dict[str, str] | None = None,
    ) -> asyncio.Future[Frame]:
        """Ask the peer. The future resolves to the answer's frame, ``RequestTimeoutError`` or
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
        """``call`` with extension fields already in the binary form, for those who make many."""
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
        """Tell the peer something that has no answer."""
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
        """After a call that was not answered."""
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

    # -- ending ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Serve no more, let running handlers answer and queued bytes leave, then close."""
        self._close(wait_for_handlers=True)

    def _close(self, *, wait_for_handlers: bool) -> None:
        transport = self._transport
        if transport is None or self.closed:
            return
        if self._router.before_close is not None:
            self._router.before_close()
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
        """Close at once; queued bytes are lost."""
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
        """Decide by the first byte between TLS and plain; False when the connection was closed."""
        self._sniffed = True
        server_tls = self._server_tls
        assert server_tls is not None
        wants_tls = data[0] == TLS_RECORD_START
        context = server_tls.context if wants_tls else None
        if context is not None and server_tls.mode is not TlsMode.DISABLED:
            self._tls = TlsFilter(context, server_side=True)
        elif wants_tls and server_tls.can_make and self._transport is not None:
            # The first client that asks for TLS: the certificate is made on a thread, and nothing read meanwhile.
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
            self._transport.write(self._tls.pending())  # The alert tells the peer what is wrong.
            # The reason alone is "certificate verify failed"; this says what is wrong with the certificate.
            detail = getattr(error, "verify_message", "")
            reason = f"{error.reason}: {detail}" if detail else error.reason
            self._break(f"TLS failed: {reason}", wait_for_handlers=False)
            return b""
        if answer:
            self._transport.write(answer)
            if self._write_paused:
                self._check_unsent()
        return plain


def request_fields(header: Header | None, ext: dict[str, str] | None) -> dict[str, str] | None:
    """The extension fields of a request: those of its header, and others."""
    if header is None:
        return ext
    fields = encode_ext(header)
    return fields | ext if ext else fields

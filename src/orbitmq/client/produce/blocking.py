"""Sends on the caller's own thread and connection, for the blocking producer.

A send that goes through the loop's thread wakes two threads, which costs more than the rest of the send. So the
blocking producer makes the first attempt on the caller's thread: one write, one read. Measured in one run against our
broker on two cores: 9,600 sends/s and 45 us of CPU each with ``await`` on uvloop, 12,300/s and 31 us here.

Threads that send at the same time share one connection (``shared_connection.py``), so their requests leave together.

Putting a thread to sleep and waking it takes longer than a nearby broker takes to answer. So a thread that sends
alone busy-waits for its answer first (``BusyWait``), as locks do. It stops busy-waiting where answers take longer, or
where other processes need the CPU, because a busy-wait would take it from the broker that has to answer.

Only the simple case is handled here. Missing routes, TLS, signatures, hooks, and everything after a failed first
attempt are left to the loop, which has the rules for them (``Sender.send``).

Invariants
1. A connection belongs to one thread from ``_take`` to ``_give_back``; one with an outstanding answer is closed.
2. There are never more connections than threads that send at once, plus a shared one. Idle ones are closed after a
   while.
3. While several threads send, none busy-waits, because it would take the interpreter lock from the others.
4. These connections never carry a heartbeat, so brokers do not call us on them. Late answers are ignored.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Protocol, TypeVar

from orbitmq.client.message import Message, SendResult
from orbitmq.client.produce.producer import (
    Producer,
    QueueSelector,
    check_send,
    check_time_left,
    per_message,
    selector_of,
)
from orbitmq.client.produce.queue_picker import select_by_hash
from orbitmq.client.produce.sender import Attempted, Outgoing, Selector
from orbitmq.client.produce.shared_connection import SharedConnection
from orbitmq.client.produce.sockets import connect_blocking, is_open, limit_waits
from orbitmq.codes import FrameFlag
from orbitmq.errors import BrokerError, ConnectionLostError, RequestTimeoutError
from orbitmq.model.route import MessageQueue
from orbitmq.runtime.clock import Clock
from orbitmq.wire.frame import Frame, FrameDecoder, encode_binary_request, whole_frame

__all__ = ["BlockingConnection", "BlockingSends", "BusyWait"]

T = TypeVar("T")
_RESPONSE: Final = int(FrameFlag.RESPONSE)
_READ_BYTES: Final = 65_536
_FIRST_READ_BYTES: Final = 4096
_READS_MAX: Final = 200
_BUSY_WAIT_S: Final = 200e-6
"""A read that finds nothing takes 1 to 2 us. With other busy threads, each read also waits for the interpreter
lock."""
_PREEMPTED_S: Final = 50e-6
"""A single read that takes longer was preempted by another process."""
_MISSES_MAX: Final = 8
_CROWDED_S: Final = 0.1
"""How long a thread does not count as alone after two threads have sent in turn."""
_PROBE_AFTER_S: Final = 0.5
"""A connection unused for longer is probed before a send, because brokers close idle connections."""
_SHARED_BODY_BYTES_MAX: Final = 65_536
"""Larger bodies use a connection of their own, so that small sends do not wait for them to be written."""
IDLE_S: Final = 60.0
"""Unused connections are closed after this time; brokers close them after 120 s."""


class BusyWait:
    """Decides whether to busy-wait for a response. Shared by the threads of a producer."""

    __slots__ = ("_crowded_until", "_misses", "_skip", "_thread")

    def __init__(self) -> None:
        self._thread = 0
        self._crowded_until = 0.0
        self._misses = self._skip = 0

    def is_alone(self, now: float) -> bool:
        """Whether no other thread has sent for a while."""
        # No lock: a lost update costs one busy-wait too many or too few.
        thread = threading.get_ident()
        if thread != self._thread:
            if self._thread:
                self._crowded_until = now + _CROWDED_S
            self._thread = thread
        return now >= self._crowded_until

    def pays(self, now: float) -> bool:
        """Whether a busy-wait is worthwhile now."""
        if self._skip:
            self._skip -= 1
            return False
        return self.is_alone(now)

    def note(self, found: bool) -> None:
        """Record whether a busy-wait found the response in time.

        After each failure busy-waits become rarer, down to one in 256 calls; after each success they become more
        frequent.
        """
        self._misses = max(0, self._misses - 1) if found else min(self._misses + 1, _MISSES_MAX)
        self._skip = 1 << self._misses if self._misses else 0


class BlockingConnection:
    """A connection that carries one call at a time. No wait exceeds the deadline of its call."""

    __slots__ = ("_busy_wait", "_clock", "_decoder", "_opaque", "_remote", "_socket", "_waits_s", "used_at")

    def __init__(self, address: str, connect_timeout_s: float, clock: Clock, busy_wait: BusyWait) -> None:
        """Connect to ``address``. Raises ``ConnectFailedError``."""
        self._busy_wait = busy_wait
        self._clock = clock
        self._remote = address
        self._decoder = FrameDecoder()
        self._opaque = 0
        self._waits_s = -1.0
        self.used_at = clock.monotonic()
        self._socket = connect_blocking(address, connect_timeout_s)

    def close(self) -> None:
        self._socket.close()

    def is_alive(self) -> bool:
        """Whether the connection is open, as far as this end knows."""
        return is_open(self._socket)

    def call(self, code: int, ext_raw: bytes, body: bytes, timeout_s: float, started: float) -> Frame:
        """Send a request and wait for its response. ``started`` is the current time of the clock, which callers
        already know.

        Raises ``RequestTimeoutError`` or ``ConnectionLostError``; after that the connection must not be used.
        """
        self._opaque = opaque = (self._opaque + 1) & 0x7FFFFFFF
        self.used_at = started
        deadline = started + timeout_s
        try:
            self._limit_waits(timeout_s)
            self._write(encode_binary_request(code, opaque, ext_raw, body), deadline)
            while True:
                data = self._read_busily() or self._socket.recv(_READ_BYTES)
                if not data:
                    raise ConnectionLostError(f"connection to {self._remote} closed")
                whole = None if self._decoder.buffered_bytes else whole_frame(data)
                for frame in self._decoder.feed(data) if whole is None else (whole,):
                    if frame.opaque == opaque and frame.flag & _RESPONSE:
                        return frame
                if self._decoder.error is not None:
                    raise ConnectionLostError(f"{self._remote} sent a malformed frame: {self._decoder.error}")
                self._check(deadline)
        except ConnectionLostError:
            raise
        except BlockingIOError:
            raise RequestTimeoutError(f"no answer from {self._remote} within {timeout_s:g} s") from None
        except OSError as error:
            raise ConnectionLostError(f"connection to {self._remote} lost: {error}") from None

    def _read_busily(self) -> bytes | None:
        """Returns the bytes that arrive during a busy-wait; None if none did, or if a busy-wait is not worthwhile."""
        monotonic, receive = self._clock.monotonic, self._socket.recv
        now = monotonic()
        if not self._busy_wait.pays(now):
            return None
        data = None
        until = now + _BUSY_WAIT_S
        for _ in range(_READS_MAX):
            try:
                data = receive(_FIRST_READ_BYTES, socket.MSG_DONTWAIT)
                break
            except BlockingIOError:
                before, now = now, monotonic()
                if now >= until or now - before > _PREEMPTED_S:
                    break
        self._busy_wait.note(data is not None)
        return data

    def _write(self, data: bytes, deadline: float) -> None:
        sent = self._socket.send(data)
        while sent < len(data):
            self._check(deadline)
            sent += self._socket.send(memoryview(data)[sent:])

    def _check(self, deadline: float) -> None:
        if self._clock.monotonic() >= deadline:
            raise BlockingIOError  # as the kernel says it

    def _limit_waits(self, timeout_s: float) -> None:
        """Set the socket's timeout. It is set only if it changes, because setting it is a system call."""
        if timeout_s != self._waits_s:
            limit_waits(self._socket, timeout_s)
            self._waits_s = timeout_s


class Run(Protocol):
    """Runs a coroutine on the loop and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Block until the coroutine ends, and return its result. An exception of the coroutine is raised here."""


class BlockingSends:
    """Sends for one producer from any thread.

    Apart from ``Producer``, this is the only class that uses the producer's private parts.
    """

    def __init__(self, producer: Producer, run: Run) -> None:
        self._producer = producer
        self._run = run
        self._instance = producer._instance
        self._sender = producer._sender
        options = producer.options
        needs_loop = options.tls is not None or options.retry_when_not_safe or options.idempotent
        self._possible = self._sender.binary and not needs_loop
        self._avoids_slow = options.avoid_slow_brokers
        self._idle: dict[str, deque[BlockingConnection]] = {}
        self._shared: dict[str, SharedConnection] = {}
        self._making = threading.Lock()
        self._busy_wait = BusyWait()
        self._closed = False

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        select: QueueSelector | None = None,
        argument: Any = None,
        timeout_s: float | None = None,
        message_id: str = "",
    ) -> SendResult:
        """Send one message; see ``Producer.send``."""
        check_send(message, timeout_s)
        producer = self._producer
        if not self._possible or message_id or producer._hooks or producer._accumulator is not None:
            return self._run(
                producer.send(
                    message,
                    queue=queue,
                    select=select,
                    argument=argument,
                    timeout_s=timeout_s,
                    message_id=message_id,
                )
            )
        chosen = None if select is None else selector_of(select, message, argument)
        outgoing = self._sender.prepare(message)
        return self._send(outgoing, queue, message.shard_key, chosen, timeout_s)

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Send several messages; see ``Producer.send_batch``."""
        check_time_left(timeout_s)
        producer = self._producer
        results: list[SendResult] = []
        if not self._possible or producer._hooks:
            return self._run(producer.send_batch(list(messages), queue=queue, timeout_s=timeout_s))
        for _, keys, outgoing in producer._batches(list(messages)):
            results += per_message(self._send(outgoing, queue, "", None, timeout_s), keys)
        return results

    def _send(
        self,
        outgoing: Outgoing,
        queue: MessageQueue | None,
        shard_key: str,
        select: Selector | None,
        timeout_s: float | None,
    ) -> SendResult:
        instance, sender = self._instance, self._sender
        instance.check_running()
        wait_s = self._producer.options.send_timeout_s if timeout_s is None else timeout_s
        queues = instance.book.publish.get(outgoing.topic)
        after: Attempted | None = None
        if queues:
            if queue is None and shard_key:
                queue = select_by_hash(queues, shard_key)
            elif queue is None and select is not None:
                queue = select(queues)
            outcome = self._attempt(outgoing, queue or sender.picker.pick(queues, None), wait_s)
            if isinstance(outcome, SendResult):
                return outcome
            after, select, wait_s = outcome, None, outcome.left_s
        return self._run(
            sender.send(
                outgoing, queue=queue, shard_key=shard_key, select=select, timeout_s=wait_s, after=after
            )
        )

    def _attempt(self, outgoing: Outgoing, queue: MessageQueue, timeout_s: float) -> SendResult | Attempted:
        instance = self._instance
        started = instance.clock.monotonic()
        try:
            address = instance.master(queue.broker_name)
            raw = self._sender.binary_fields(outgoing, queue)
            if self._busy_wait.is_alone(started) or len(outgoing.body) > _SHARED_BODY_BYTES_MAX:
                frame = self._call_alone(address, outgoing, raw, timeout_s, started)
            else:
                shared = self._shared_connection(address, timeout_s, started)
                frame = shared.call(outgoing.code, raw, outgoing.body, timeout_s, started)
            result = self._sender.result(outgoing, queue, frame)
        except (BrokerError, ConnectionLostError, RequestTimeoutError) as error:
            spent_s = instance.clock.monotonic() - started
            return Attempted(queue, error, timeout_s - spent_s, spent_s)
        if self._avoids_slow:
            self._sender.picker.report(queue.broker_name, (instance.clock.monotonic() - started) * 1000)
        return result

    def _call_alone(
        self, address: str, outgoing: Outgoing, raw: bytes, timeout_s: float, started: float
    ) -> Frame:
        """Call a server over a connection that only this thread uses meanwhile."""
        connection = self._take(address, timeout_s, started)
        try:
            frame = connection.call(outgoing.code, raw, outgoing.body, timeout_s, started)
        except BaseException:  # a signal handler may raise here, too: the answer is still out
            connection.close()
            raise
        self._give_back(address, connection)
        return frame

    def _shared_connection(self, address: str, timeout_s: float, now: float) -> SharedConnection:
        """Returns the connection that is shared by all threads that send at the same time."""
        shared = self._shared.get(address)
        if shared is not None and shared.is_usable(now - _PROBE_AFTER_S):
            return shared
        with self._making:
            shared = self._shared.get(address)
            if shared is None or not shared.is_usable(now - _PROBE_AFTER_S):
                if shared is not None:
                    shared.close()
                wait_s = min(timeout_s, self._instance.options.connect_timeout_s)
                shared = self._shared[address] = SharedConnection(address, wait_s, self._instance.clock)
                if self._closed:
                    shared.close()
            return shared

    def _take(self, address: str, timeout_s: float, now: float) -> BlockingConnection:
        idle = self._idle.get(address)
        while idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was faster
                break
            if now - connection.used_at < _PROBE_AFTER_S or connection.is_alive():
                return connection
            connection.close()
        wait_s = min(timeout_s, self._instance.options.connect_timeout_s)
        return BlockingConnection(address, wait_s, self._instance.clock, self._busy_wait)

    def _give_back(self, address: str, connection: BlockingConnection) -> None:
        idle = self._idle.get(address)
        if idle is None:
            with self._making:
                idle = self._idle.setdefault(address, deque())
        idle.append(connection)
        if self._closed:
            self.close()

    def close_idle(self) -> None:
        """Close connections that were unused for a while. The oldest are on the left, because threads take
        connections from the right."""
        horizon = self._instance.clock.monotonic() - IDLE_S
        for idle in list(self._idle.values()):
            while idle:
                try:
                    connection = idle.popleft()
                except IndexError:
                    break
                if connection.used_at > horizon:
                    idle.appendleft(connection)
                    break
                connection.close()
        for address, shared in list(self._shared.items()):
            if shared.used_at < horizon and not shared.waiting:
                self._shared.pop(address, None)
                shared.close()

    def close(self) -> None:
        """Close all connections. A connection that a thread is using alone is closed when its call ends."""
        self._closed = True
        for shared in list(self._shared.values()):
            shared.close()
        for idle in list(self._idle.values()):
            while idle:
                try:
                    idle.pop().close()
                except IndexError:
                    break

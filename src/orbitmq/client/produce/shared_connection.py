"""One connection for the blocking calls of many threads.

With a connection per thread, every call makes two system calls that release the interpreter lock, and each return
from them waits to get it back. Here the threads share them: a thread that finds nobody writing writes what all have
queued (one system call for several requests), and one of the waiting threads reads the answers for all (leader and
followers). No extra thread is needed, and a call costs at most one sleep. The broker benefits too: it finds several
requests in one read and answers them with one write.

Invariants
1. At most one thread writes and at most one reads, decided under ``_lock``; neither holds it during a system call.
2. Every call in ``_calls`` has a thread that waits for it. A thread that leaves, for any reason, removes its call; a
   reader that leaves makes another waiting thread the reader.
3. A request is in the stream as a whole or not at all: a writer that is interrupted ends the connection.
4. When the connection ends, every call in ``_calls`` fails.
"""

from __future__ import annotations

import itertools
import socket
import threading
from typing import Final

from orbitmq.client.produce.sockets import connect_blocking, is_open, limit_waits
from orbitmq.codes import FrameFlag
from orbitmq.errors import ConnectionLostError, RequestTimeoutError
from orbitmq.runtime.clock import Clock
from orbitmq.wire.frame import Frame, FrameDecoder, encode_binary_request

__all__ = ["SharedConnection"]

_RESPONSE: Final = int(FrameFlag.RESPONSE)
_READ_BYTES: Final = 262_144
_TICK_S: Final = 0.05
"""The reader checks its own deadline this often; the other threads wait for theirs on a lock."""


class _Call:
    """An outstanding request. ``woken`` is released when the response arrives, the connection ends, or the thread
    becomes the reader."""

    __slots__ = ("answer", "is_reader", "woken")

    def __init__(self) -> None:
        self.answer: Frame | ConnectionLostError | None = None
        self.is_reader = False
        self.woken = threading.Lock()
        self.woken.acquire()

    def wake(self) -> None:
        """Wake the thread that waits for this call. Called under the connection's lock. Does nothing if the thread
        was already woken."""
        if self.woken.locked():
            self.woken.release()


class SharedConnection:
    """A connection for concurrent calls from any thread. No wait exceeds the deadline of its call."""

    def __init__(self, address: str, connect_timeout_s: float, clock: Clock) -> None:
        """Connect to ``address``. Raises ``ConnectFailedError``."""
        self._clock = clock
        self._remote = address
        self._lock = threading.Lock()
        self._decoder = FrameDecoder()
        self._calls: dict[int, _Call] = {}
        self._outbox: list[bytes] = []
        self._opaques = itertools.count(1)
        self._has_reader = self._has_writer = False
        self._end: ConnectionLostError | None = None
        self.used_at = clock.monotonic()
        self._socket = connect_blocking(address, connect_timeout_s)
        limit_waits(self._socket, _TICK_S)

    def is_usable(self, since: float) -> bool:
        """Whether a request can be sent. If nothing was sent after the time ``since``, the socket is probed."""
        if self._end is not None:
            return False
        return self.used_at >= since or bool(self._calls) or is_open(self._socket)

    @property
    def waiting(self) -> int:
        """The number of outstanding calls."""
        return len(self._calls)

    def close(self) -> None:
        """Close the connection. Waiting calls raise ``ConnectionLostError``."""
        self._finish(ConnectionLostError(f"the connection to {self._remote} was closed"))

    def call(self, code: int, ext_raw: bytes, body: bytes, timeout_s: float, started: float) -> Frame:
        """Send a request and wait for its response. ``started`` is the current time of the clock.

        Raises ``RequestTimeoutError`` or ``ConnectionLostError``. After a timeout the connection can still be used.
        """
        deadline = started + timeout_s
        self.used_at = started
        opaque = next(self._opaques) & 0x7FFFFFFF
        data = encode_binary_request(code, opaque, ext_raw, body)
        call = _Call()
        try:
            with self._lock:
                if self._end is not None:
                    raise ConnectionLostError(f"connection to {self._remote} lost")
                self._calls[opaque] = call
                self._outbox.append(data)
                writes, self._has_writer = not self._has_writer, True
                if not self._has_reader:
                    self._has_reader = call.is_reader = True
            if writes:
                self._write(deadline)
            self._wait(call, deadline)
            self._leave(opaque, call)
        except ConnectionLostError:
            raise
        except BaseException:  # a signal handler raised, wherever this thread was
            self._finish(ConnectionLostError(f"a send to {self._remote} was interrupted"))
            raise
        if isinstance(call.answer, Frame):
            return call.answer
        if call.answer is not None:
            raise ConnectionLostError(str(call.answer))
        raise RequestTimeoutError(f"no answer from {self._remote} within {timeout_s:g} s")

    def _wait(self, call: _Call, deadline: float) -> None:
        """Wait until the response arrives or the deadline passes."""
        while call.answer is None:
            if call.is_reader:
                if not self._read(call, deadline):
                    return
            elif not call.woken.acquire(timeout=max(0.0, deadline - self._clock.monotonic())):
                return

    def _leave(self, opaque: int, call: _Call) -> None:
        with self._lock:
            self._calls.pop(opaque, None)
            if call.is_reader:
                following = next(iter(self._calls.values()), None)
                self._has_reader = following is not None
                if following is not None:
                    following.is_reader = True
                    following.wake()

    def _write(self, deadline: float) -> None:
        """Write until nothing is queued, including requests that other threads queue meanwhile."""
        while True:
            with self._lock:
                pending, self._outbox = self._outbox, []
                if not pending or self._end is not None:
                    self._has_writer = False
                    return
            try:
                self._send_all(pending[0] if len(pending) == 1 else b"".join(pending), deadline)
            except OSError as error:
                self._finish(ConnectionLostError(f"connection to {self._remote} lost: {error}"))
                return

    def _send_all(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:  # the kernel's tick
                if self._clock.monotonic() >= deadline:
                    raise TimeoutError("the peer reads nothing") from None

    def _read(self, own: _Call, deadline: float) -> bool:
        """Read for all threads until our own response arrives. Returns False if the deadline passes first."""
        receive = self._socket.recv
        while own.answer is None:
            try:
                data = receive(_READ_BYTES)
            except BlockingIOError:  # the kernel's tick
                if self._clock.monotonic() >= deadline:
                    return False
                continue
            except OSError as error:
                self._finish(ConnectionLostError(f"connection to {self._remote} lost: {error}"))
                return True
            if not data:
                self._finish(ConnectionLostError(f"connection to {self._remote} closed"))
                return True
            frames = self._decoder.feed(data)
            with self._lock:
                for frame in frames:
                    call = self._calls.pop(frame.opaque, None) if frame.flag & _RESPONSE else None
                    if call is not None:
                        call.answer = frame
                        if call is not own:
                            call.wake()
            if self._decoder.error is not None:
                self._finish(
                    ConnectionLostError(f"{self._remote} sent a malformed frame: {self._decoder.error}")
                )
            elif self._clock.monotonic() >= deadline and own.answer is None:
                return False
        return True

    def _finish(self, reason: ConnectionLostError) -> None:
        with self._lock:
            if self._end is not None:
                return
            self._end = reason
            calls = list(self._calls.values())
            self._calls.clear()
            self._outbox.clear()
            for call in calls:
                call.answer = reason
                call.wake()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # a reader asleep in the kernel wakes up
        except OSError:
            pass
        self._socket.close()

"""One connection over a scripted transport: when it writes, and what it buffers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from tests.sim.loop import SimLoop
from tests.unit.transport.loops import on_both_loops

from orbitmq.codes import ResponseCode
from orbitmq.errors import ConnectionLostError, RequestTimeoutError
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.transport.connection import Connection, ConnectionLimits
from orbitmq.transport.router import Call, RawRoute, Reply, Route, Router
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request, encode_response


class ScriptedTransport:
    """Takes writes; the test decides when the peer reads them."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.protocol: Connection | None = None
        self.high = 1 << 30
        self.unread_bytes = 0
        self.reading = True
        self.closing = False
        self.peer_reads = True

    def get_extra_info(self, name: str) -> Any:
        return ("10.0.0.1", 4000) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def write(self, data: bytes) -> None:
        assert not self.closing, "uvloop raises here"
        self.writes.append(data)
        if not self.peer_reads:
            paused = self.unread_bytes > self.high
            self.unread_bytes += len(data)
            if not paused and self.unread_bytes > self.high and self.protocol is not None:
                self.protocol.pause_writing()

    def peer_reads_everything(self) -> None:
        self.unread_bytes = 0
        assert self.protocol is not None
        self.protocol.resume_writing()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_reading(self) -> bool:
        return self.reading

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            if not self.unread_bytes:
                self._report_end()

    def abort(self) -> None:
        self.closing = True
        self._report_end()

    def _report_end(self) -> None:
        if self.protocol is not None:
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
            self.protocol = None


NO_ROUTES = Router(())


def connected(
    router: Router = NO_ROUTES, limits: ConnectionLimits = ConnectionLimits()
) -> tuple[Connection, ScriptedTransport]:
    connection = Connection(tasks=TaskOwner("test"), router=router, limits=limits)
    transport = ScriptedTransport()
    transport.protocol = connection
    connection.connection_made(cast(asyncio.Transport, transport))
    return connection, transport


def frames_of(writes: list[bytes]) -> list[Frame]:
    return FrameDecoder().feed(b"".join(writes))


def requests(count: int, code: int = 10) -> bytes:
    return b"".join(encode_request(code, opaque) for opaque in range(1, count + 1))


def answering(size_bytes: int) -> RawRoute:
    return RawRoute(10, lambda frame, peer: encode_response(0, frame.opaque, None, b"x" * size_bytes))


async def turn() -> None:
    """Runs the ready callbacks of the loop."""
    for _ in range(3):
        await asyncio.sleep(0)


@on_both_loops
async def test_all_answers_of_one_read_leave_in_one_write() -> None:
    connection, transport = connected(Router([answering(10)]))
    connection.data_received(requests(20))
    assert len(transport.writes) == 1
    assert [frame.opaque for frame in frames_of(transport.writes)] == list(range(1, 21))


@on_both_loops
async def test_calls_of_one_turn_leave_together_in_pieces_of_the_gathered_size() -> None:
    connection = Connection(tasks=TaskOwner("test"))
    connection.gathered_bytes = 1_000
    transport = ScriptedTransport()
    connection.connection_made(cast(asyncio.Transport, transport))
    assert transport.high < 1_000, "uvloop keeps what does not exceed its limit until the turn ends"
    calls = [connection.call_binary(310, b"", b"alone", timeout_s=5.0)]
    assert len(transport.writes) == 1, "a single call does not wait"
    calls += [connection.call_binary(310, b"", b"x" * 400, timeout_s=5.0) for _ in range(6)]
    assert [len(frames_of([write])) for write in transport.writes] == [1, 3, 3]
    calls.append(connection.call_binary(310, b"", b"the rest", timeout_s=5.0))
    assert len(transport.writes) == 3
    await turn()
    assert [len(frames_of([write])) for write in transport.writes] == [1, 3, 3, 1]
    connection.data_received(
        b"".join(encode_response(0, frame.opaque) for frame in frames_of(transport.writes))
    )
    assert [call.result().code for call in calls] == [0] * 8


@on_both_loops
async def test_after_read_runs_once_per_read_before_the_write() -> None:
    waiting: list[Frame] = []
    peers: list[Connection] = []

    def handler(frame: Frame, peer: Connection) -> bytes | None:
        waiting.append(frame)
        peers.append(peer)
        return None

    def finish() -> None:
        for frame in waiting:
            peers[0].send(encode_response(0, frame.opaque))
        waiting.clear()

    connection, transport = connected(Router([RawRoute(10, handler)], after_read=finish))
    connection.data_received(requests(5))
    assert len(transport.writes) == 1
    assert len(frames_of(transport.writes)) == 5


@on_both_loops
async def test_after_read_that_fails_leaves_the_connection_working(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise ValueError("bug")

    connection, transport = connected(Router([answering(1)], after_read=fails))
    connection.data_received(requests(1))
    connection.data_received(requests(1))
    assert len(frames_of(transport.writes)) == 2
    # On a busy machine there is another warning, about the time the loop was blocked.
    levels = [record.levelno for record in caplog.records if "callback after a read" in record.message]
    assert levels == [logging.ERROR, logging.ERROR]


@on_both_loops
async def test_requests_of_a_peer_that_does_not_read_wait_in_order_and_then_reading_stops() -> None:
    served: list[int] = []

    def handler(frame: Frame, peer: Connection) -> bytes:
        served.append(frame.opaque)
        return encode_response(0, frame.opaque, None, b"x" * 1000)

    limits = ConnectionLimits(write_pause_bytes=5_000, backlog_bytes=10_000)
    connection, transport = connected(Router([RawRoute(10, handler)]), limits)
    transport.peer_reads = False
    connection.data_received(requests(30))
    served_before_pause = len(served)
    assert served_before_pause < 12
    assert transport.is_reading(), "18 small requests are within the backlog"
    connection.data_received(requests(60)[len(requests(30)) :])
    assert not transport.is_reading()
    assert len(served) == served_before_pause
    assert connection.unsent_bytes < 2 * 5_000 + 1_100

    transport.peer_reads = True
    transport.peer_reads_everything()
    await turn()
    assert served == list(range(1, 61))
    assert [frame.opaque for frame in frames_of(transport.writes)] == served
    assert transport.is_reading()


def pulls_of_a_read(count: int) -> bytes:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
    return b"".join(encode_request(11, opaque, fields | {"sysFlag": "0"}) for opaque in range(1, count + 1))


def pull_router(served: list[list[int]], together: int) -> Router:
    """Returns a router that answers that many pulls together, and a pull divisible by seven on its own."""

    def serve(frames: list[Frame], at: int, peer: Connection) -> tuple[bytes | None, int]:
        row = itertools.takewhile(lambda frame: frame.pull is not None, frames[at : at + together])
        opaques = [frame.opaque for frame in row]
        if opaques[0] % 7 == 0:
            return None, at
        opaques = opaques[: 7 - opaques[0] % 7]
        served.append(opaques)
        answers = [encode_response(0, opaque, None, b"x" * 1000) for opaque in opaques]
        return b"".join(answers), at + len(opaques)

    def alone(frame: Frame, peer: Connection) -> bytes:
        served.append([frame.opaque])
        return encode_response(0, frame.opaque)

    return Router([RawRoute(11, alone), RawRoute(10, alone)], runs={11: serve})


@on_both_loops
async def test_pulls_of_a_read_are_served_together_and_others_on_their_own() -> None:
    served: list[list[int]] = []
    connection, transport = connected(pull_router(served, 4))
    connection.data_received(pulls_of_a_read(9) + encode_request(10, 10) + pulls_of_a_read(1))
    assert served == [[1, 2, 3, 4], [5, 6], [7], [8, 9], [10], [1]]
    assert [frame.opaque for frame in frames_of(transport.writes)] == [*range(1, 11), 1]
    connection.data_received(pulls_of_a_read(1))
    assert served[-1] == [1]
    assert len(transport.writes) == 2


@on_both_loops
async def test_pulls_of_a_peer_that_does_not_read_wait_in_order() -> None:
    served: list[list[int]] = []
    limits = ConnectionLimits(write_pause_bytes=5_000)
    connection, transport = connected(pull_router(served, 4), limits)
    transport.peer_reads = False
    connection.data_received(pulls_of_a_read(40))
    assert sum(map(len, served)) < 20
    transport.peer_reads = True
    transport.peer_reads_everything()
    await turn()
    assert [frame.opaque for frame in frames_of(transport.writes)] == list(range(1, 41))


@on_both_loops
async def test_answers_to_our_calls_are_read_while_the_peer_does_not_read() -> None:
    connection, transport = connected(limits=ConnectionLimits(write_pause_bytes=1_000))
    transport.peer_reads = False
    futures = [connection.call(10, None, b"x" * 2_000, timeout_s=5) for _ in range(3)]
    assert transport.is_reading()
    connection.data_received(b"".join(encode_response(0, opaque) for opaque in (1, 2, 3)))
    assert [future.result().opaque for future in futures] == [1, 2, 3]


@on_both_loops
async def test_unsent_bytes_over_the_limit_cut_the_connection_with_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = ConnectionLimits(write_pause_bytes=1_000, write_limit_bytes=10_000)
    connection, transport = connected(limits=limits)
    transport.peer_reads = False
    for _ in range(20):
        connection.notify(40, body=b"x" * 1_000)
    assert connection.closed
    assert transport.unread_bytes < 10_000 + 2_000
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "peer does not read" in record.getMessage()


@on_both_loops
async def test_broken_frame_closes_after_the_whole_frames_before_it_were_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection, transport = connected(Router([answering(1)]))
    connection.data_received(requests(3) + b"\xff\xff\xff\xff" + requests(3))
    connection.data_received(b"more")
    assert len(frames_of(transport.writes)) == 3
    assert transport.is_closing()
    assert len(caplog.records) == 1


@on_both_loops
async def test_broken_frame_behind_kept_requests_closes_when_they_were_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection, transport = connected(Router([answering(1_000)]), ConnectionLimits(write_pause_bytes=2_000))
    transport.peer_reads = False
    connection.data_received(requests(20) + b"\xff\xff\xff\xff")
    assert not transport.is_closing()
    transport.peer_reads = True
    transport.peer_reads_everything()
    await turn()
    assert len(frames_of(transport.writes)) == 20
    assert transport.is_closing()
    assert len(caplog.records) == 1


@on_both_loops
async def test_more_slow_requests_than_allowed_are_refused_as_busy() -> None:
    gate = asyncio.Event()

    async def handler(call: Call[Any]) -> Reply:
        await gate.wait()
        return Reply()

    connection, transport = connected(Router([Route(10, handler)]), ConnectionLimits(slow_requests=2))
    connection.data_received(requests(3))
    (refused,) = frames_of(transport.writes)
    assert (refused.opaque, refused.code) == (3, ResponseCode.SYSTEM_BUSY)
    gate.set()
    await turn()
    assert sorted(frame.opaque for frame in frames_of(transport.writes)) == [1, 2, 3]
    transport.writes.clear()
    connection.data_received(requests(2))
    await turn()
    assert [frame.code for frame in frames_of(transport.writes)] == [0, 0]


@on_both_loops
async def test_slow_request_that_waits_for_something_cancelled_is_answered() -> None:
    inner: list[asyncio.Future[None]] = []

    async def handler(call: Call[Any]) -> Reply:
        inner.append(asyncio.get_running_loop().create_future())
        await inner[0]
        return Reply()

    connection, transport = connected(Router([Route(10, handler)]))
    connection.data_received(requests(1))
    await turn()
    inner[0].cancel()
    await turn()
    (answer,) = frames_of(transport.writes)
    assert answer.code == ResponseCode.SYSTEM_ERROR


@on_both_loops
async def test_close_waits_for_running_handlers_and_then_closes() -> None:
    gate = asyncio.Event()

    async def handler(call: Call[Any]) -> Reply:
        await gate.wait()
        return Reply(remark="in time")

    connection, transport = connected(Router([Route(10, handler)]))
    connection.data_received(requests(1))
    connection.close()
    await turn()
    assert not transport.is_closing()
    assert not transport.is_reading()
    gate.set()
    await turn()
    assert [frame.remark for frame in frames_of(transport.writes)] == ["in time"]
    assert transport.is_closing()


@on_both_loops
async def test_close_that_takes_too_long_is_cut() -> None:
    connection, transport = connected(limits=ConnectionLimits(close_wait_s=0.01))
    transport.peer_reads = False
    connection.notify(40, body=b"x")
    ended = asyncio.Event()
    connection._on_close = lambda _: ended.set()
    connection.close()
    assert transport.protocol is not None
    await ended.wait()
    assert transport.protocol is None


@on_both_loops
async def test_send_after_close_is_dropped_without_noise(caplog: pytest.LogCaptureFixture) -> None:
    connection, transport = connected()
    connection.close()
    for _ in range(10):
        connection.notify(40)
    await turn()
    connection.notify(40)
    assert transport.writes == []
    assert caplog.records == []


async def ends_as_lost(call: Coroutine[Any, Any, Frame] | asyncio.Future[Frame]) -> None:
    with pytest.raises(ConnectionLostError):
        await call


@on_both_loops
async def test_calls_end_at_once_when_the_connection_closes_or_is_lost() -> None:
    for end in cast(list[Callable[[Connection], None]], [Connection.close, Connection.abort]):
        connection, _ = connected()
        waiting = [connection.call(10, timeout_s=60) for _ in range(3)]
        end(connection)
        await turn()
        assert all(future.done() for future in waiting)
        for future in waiting:
            await ends_as_lost(future)
        await ends_as_lost(connection.call(10, timeout_s=60))


@on_both_loops
async def test_calls_over_the_limit_are_refused() -> None:
    connection, _ = connected(limits=ConnectionLimits(calls=2))
    waiting = [connection.call(10, timeout_s=60) for _ in range(2)]
    with pytest.raises(RequestTimeoutError, match="2 calls wait"):
        await connection.call(10, timeout_s=60)
    connection.abort()
    await turn()
    for future in waiting:
        await ends_as_lost(future)


@on_both_loops
async def test_opaque_numbers_wrap_and_step_over_those_in_use() -> None:
    connection, transport = connected()
    first = connection.call(10, timeout_s=60)
    connection._opaque = 0x7FFFFFFF
    second, third = connection.call(10, timeout_s=60), connection.call(10, timeout_s=60)
    assert [frame.opaque for frame in frames_of(transport.writes)] == [1, 0, 2]
    connection.data_received(b"".join(encode_response(0, opaque) for opaque in (2, 0, 1)))
    assert [future.result().opaque for future in (first, second, third)] == [1, 0, 2]


def test_a_peer_that_answers_no_call_for_long_is_given_up_and_one_that_says_anything_is_not() -> None:
    async def unanswered(connection: Connection, count: int) -> None:
        for _ in range(count):
            with pytest.raises(RequestTimeoutError):
                await connection.call(10, timeout_s=3)
            await asyncio.sleep(2)

    async def test() -> None:
        connection, transport = connected()
        await unanswered(connection, 5)
        assert not transport.is_closing(), "a server does not give its clients up for that"
        connection.silence_s = 10.0
        for _ in range(4):
            connection.data_received(encode_response(0, 77))
            await unanswered(connection, 2)
        connection.data_received(encode_response(0, 77))
        assert not transport.is_closing()
        waiting = connection.call(10, timeout_s=60)
        await unanswered(connection, 3)
        assert transport.is_closing()
        await ends_as_lost(waiting)

    with asyncio.Runner(loop_factory=lambda: SimLoop(0)) as runner:
        runner.run(test())


@on_both_loops
async def test_call_that_cannot_be_encoded_leaves_nothing_waiting() -> None:
    connection, transport = connected()
    with pytest.raises(UnicodeEncodeError):
        connection.call(10, ext={"topic": "\udcff"}, timeout_s=60)
    assert transport.writes == []
    assert connection._calls == {}


@on_both_loops
async def test_answer_nobody_waits_for_is_ignored() -> None:
    connection, transport = connected()
    connection.data_received(encode_response(0, 77))
    assert not transport.is_closing()


def noting(served: list[int]) -> Callable[[Frame, Connection], bytes | None]:
    def handler(frame: Frame, peer: Connection) -> bytes | None:
        served.append(frame.opaque)
        return encode_response(0, frame.opaque)

    return handler


@on_both_loops
async def test_connections_with_many_requests_are_served_in_turn() -> None:
    served: list[tuple[str, int]] = []

    def route(name: str) -> Router:
        def handler(frame: Frame, peer: Connection) -> bytes | None:
            served.append((name, frame.opaque))
            return encode_response(0, frame.opaque)

        return Router([RawRoute(10, handler)])

    limits = ConnectionLimits(turn_requests=20)
    greedy = [connected(route(name), limits) for name in ("a", "b")]
    for connection, _ in greedy:
        connection.data_received(requests(100))
    polite, transport = connected(route("polite"), limits)
    polite.data_received(requests(1))
    assert len(frames_of(transport.writes)) == 1, "one request is served at once"
    for _ in range(20):
        await asyncio.sleep(0)
    order = "".join(name[0] for name, _ in served)
    assert order == "p" + ("a" * 20 + "b" * 20) * 5, "neither is served twice before the other"
    for _, greedy_transport in greedy:
        assert [frame.opaque for frame in frames_of(greedy_transport.writes)] == list(range(1, 101))
        assert greedy_transport.is_reading()


@on_both_loops
async def test_a_peer_that_sends_read_after_read_waits_for_a_turn_and_stops_being_read() -> None:
    served: list[int] = []
    limits = ConnectionLimits(turn_bytes=2_000, backlog_bytes=4_000)
    connection, transport = connected(Router([RawRoute(10, noting(served))]), limits)
    reads = 0
    while transport.is_reading():
        connection.data_received(requests(5))
        reads += 1
        assert reads < 100
    assert 0 < len(served) < reads * 5, "its budget was served at once, the rest waits"
    while len(served) < reads * 5:
        before = len(served)
        await asyncio.sleep(0)
        assert len(served) - before <= 10, "a piece a turn"
    await turn()
    assert transport.is_reading()
    assert len(frames_of(transport.writes)) == reads * 5


@on_both_loops
async def test_oneway_requests_of_a_peer_that_left_are_served() -> None:
    served: list[int] = []
    connection, _ = connected(Router([RawRoute(10, noting(served))]), ConnectionLimits(turn_requests=5))
    connection.data_received(requests(50))
    connection.connection_lost(None)
    await turn()
    assert served == list(range(1, 51))


@on_both_loops
async def test_a_kept_request_tells_how_long_it_waited() -> None:
    waits: list[float] = []

    def handler(frame: Frame, peer: Connection) -> bytes | None:
        waits.append(peer.waited_s)
        return encode_response(0, frame.opaque, None, b"x" * 100)

    limits = ConnectionLimits(turn_requests=2, write_pause_bytes=150)
    connection, transport = connected(Router([RawRoute(10, handler)]), limits)
    loop = ShiftedLoop(connection._loop)
    connection._loop = cast(Any, loop)
    connection.data_received(requests(2))
    connection.data_received(requests(8))
    for _ in range(4):
        loop.shift_s += 0.5
        await asyncio.sleep(0)
    assert waits[:2] == [0.0, 0.0]
    assert max(waits[2:4]) < 0.1, "one late turn is a stop of the process"
    assert all(0.5 <= waited < 60 for waited in waits[4:6]), "two of them are load"
    assert all(1.5 <= waited < 60 for waited in waits[8:10])
    await turn()
    assert len(waits) == 10
    assert connection.waited_s == 0.0
    # Served again without a wait, so that the next late turn counts as a stall again.
    connection.data_received(requests(8))
    loop.shift_s += 0.5
    await turn()
    await turn()
    assert max(waits[10:]) < 0.1
    waits[:] = waits[:6]
    # A peer that does not read its responses delays only itself.
    transport.peer_reads = False
    transport.unread_bytes = 0
    connection.data_received(requests(2))
    connection.data_received(requests(2))
    cast(Any, connection._loop).shift_s = 5.0
    transport.peer_reads = True
    transport.peer_reads_everything()
    await turn()
    assert len(waits) == 10
    assert max(waits[8:]) < 1.0


class ShiftedLoop:
    """The running loop with a shifted clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.shift_s = 0.0

    def time(self) -> float:
        return self._loop.time() + self.shift_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

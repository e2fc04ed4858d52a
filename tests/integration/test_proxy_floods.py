"""Frames that are cheap for a peer and expensive for a careless server: what an unknown peer can make the gRPC port
do and retain.

Costs are CPU seconds of the thread that runs the event loop, so a busy machine changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.apache.process import wait_until
from tests.proxy.golden import SERVICE, metadata
from tests.proxy.local import local_stack

from orbitmq.client.sync import LoopThread
from orbitmq.model.topic import TopicConfig
from orbitmq.proxy.http2.call import Call, Kind, Method
from orbitmq.proxy.http2.connection import Http2Connection
from orbitmq.proxy.http2.frames import PREFACE, frame, settings_frame, window_update
from orbitmq.proxy.http2.hpack import literal
from orbitmq.proxy.http2.limits import Http2Limits
from orbitmq.proxy.http2.proxy_protocol import Balancers
from orbitmq.proxy.http2.server import GrpcServer
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.transport.tls import ServerTls, TlsMode

logger = logging.getLogger(__name__)

TURN_S = 0.1
"""A turn has 4 ms; the rest is for the collector and a core shared with other work, where 45 ms were seen. The
defects that these tests are for took seconds."""
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7


@dataclass
class Flooded:
    server: GrpcServer
    loop: LoopThread
    turn: Turn = field(default_factory=lambda: Turn())
    waiting: list[Call] = field(default_factory=list)

    @contextlib.contextmanager
    def connection(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.server.port), 10) as opened:
            opened.sendall(PREFACE + settings_frame({}))
            yield opened

    def cpu_s(self) -> float:
        async def seconds() -> float:
            return time.thread_time()

        return self.loop.run(seconds())

    def held(self) -> int:
        async def size() -> int:
            return self.server.buffered_bytes

        return self.loop.run(size())

    def call_count(self) -> int:
        async def count() -> int:
            return sum(len(connection.calls) for connection in self.server.connections)

        return self.loop.run(count())

    def connections(self) -> list[Http2Connection]:
        async def found() -> list[Http2Connection]:
            return list(self.server.connections)

        return self.loop.run(found())


@contextlib.contextmanager
def flooded(
    limits: Http2Limits | None = None, *, idle_s: float = 120.0, balancers: str = ""
) -> Iterator[Flooded]:
    loop = LoopThread()

    def echo(call: Call, message: bytes) -> None:
        call.answer(message)

    async def hold(call: Call, _: bytes) -> None:
        state.waiting.append(call)
        while await call.receive() is not None:
            pass

    async def later(call: Call, message: bytes) -> None:
        await asyncio.get_running_loop().create_future()
        call.answer(message)

    methods = [
        Method("/echo", Kind.UNARY, echo),
        Method("/hold", Kind.BOTH_STREAM, hold),
        Method("/later", Kind.UNARY, later),
    ]
    server = GrpcServer(
        methods,
        host="127.0.0.1",
        port=0,
        tls=ServerTls(TlsMode.DISABLED),
        limits=limits or Http2Limits(),
        idle_s=idle_s,
        balancers=Balancers(balancers),
    )
    state = Flooded(server, loop)
    loop.run(server.start())
    try:
        with longest_turn(loop) as turn:
            state.turn = turn
            yield state
    finally:
        loop.run(server.stop(wait_s=0.1))
        loop.close()


@dataclass
class Turn:
    worst_s: float = 0.0


@contextlib.contextmanager
def longest_turn(loop: LoopThread) -> Iterator[Turn]:
    """Yields the longest turn of the loop meanwhile, in CPU time. The garbage collector ignores earlier objects, as
    in a server.
    """
    gc.collect()
    gc.freeze()
    turn = Turn()
    probing = True

    async def probe() -> None:
        last = time.thread_time()
        while probing:
            await asyncio.sleep(0)
            now = time.thread_time()
            turn.worst_s = max(turn.worst_s, now - last)
            last = now

    async def start() -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(probe())

    async def stop() -> None:
        await task

    task = loop.run(start())
    try:
        yield turn
    finally:
        probing = False
        loop.run(stop())
        gc.unfreeze()


def block(path: str, *more: tuple[str, str]) -> bytes:
    return b"\x83\x86" + literal(":path", path) + b"".join(literal(*pair) for pair in more)


def opened(stream_ids: range, path: str, *more: tuple[str, str], flags: int = 4) -> bytes:
    header = block(path, *more)
    return b"".join(frame(HEADERS, flags, stream_id, header) for stream_id in stream_ids)


def message(data: bytes) -> bytes:
    return struct.pack(">BI", 0, len(data)) + data


def read_frames(connection: socket.socket, until: Callable[[int, int, bytes], bool]) -> None:
    """Reads frames until the expected one. Raises ``EOFError`` at the end of the connection."""
    rest = b""
    while True:
        while len(rest) >= 9:
            size = int.from_bytes(rest[:3], "big")
            if len(rest) < 9 + size:
                break
            kind, stream_id = rest[3], int.from_bytes(rest[5:9], "big")
            payload, rest = rest[9 : 9 + size], rest[9 + size :]
            if until(kind, stream_id, payload):
                return
        data = connection.recv(262_144)
        if not data:
            raise EOFError
        rest += data


def ping(connection: socket.socket, token: bytes = b"12345678") -> None:
    """Returns when everything sent before has been served."""
    connection.sendall(frame(PING, 0, 0, token))
    read_frames(connection, lambda kind, _, payload: kind == PING and payload == token)


def goaway_code(connection: socket.socket) -> int:
    """Returns the code of the server's GOAWAY."""
    codes: list[int] = []

    def is_end(kind: int, _: int, payload: bytes) -> bool:
        if kind == GOAWAY:
            codes.append(int.from_bytes(payload[4:8], "big"))
        return kind == GOAWAY

    read_frames(connection, is_end)
    return codes[0]


def test_one_frame_with_very_many_settings_is_refused_at_once() -> None:
    with flooded() as state, state.connection() as connection:
        connection.sendall(opened(range(1, 8192, 2), "/hold"))
        ping(connection)
        assert state.call_count() == 4096
        before_s, state.turn.worst_s = state.cpu_s(), 0.0
        entries = b"".join(struct.pack(">HI", 4, 65_535 + number % 2) for number in range(43_690))
        connection.sendall(frame(SETTINGS, 0, 0, entries))
        assert goaway_code(connection) == 11
        wait_until(lambda: not state.call_count(), timeout_s=30, what="the calls ending")
        assert state.cpu_s() - before_s < 1.5
        assert state.turn.worst_s < TURN_S


def test_many_settings_frames_cost_the_same_whatever_is_open() -> None:
    """Each makes the window of every stream larger or smaller."""
    with flooded() as state, state.connection() as connection:
        connection.sendall(opened(range(1, 8192, 2), "/hold"))
        ping(connection)
        before_s, state.turn.worst_s = state.cpu_s(), 0.0
        connection.sendall(b"".join(settings_frame({4: number % 2}) for number in range(5000)))
        ping(connection)
        assert state.cpu_s() - before_s < 1.0
        assert state.turn.worst_s < TURN_S


def test_window_after_settings_is_the_last_one_named() -> None:
    """4 bytes fit, then 2 more, then all: the changes add up for a stream that was opened before."""
    with flooded() as state, state.connection() as connection:
        connection.sendall(settings_frame({4: 4}) + opened(range(1, 2, 2), "/echo"))
        connection.sendall(frame(DATA, 1, 1, message(b"0123456789")))
        got = bytearray()

        def complete(size: int) -> Callable[[int, int, bytes], bool]:
            def add(kind: int, stream_id: int, payload: bytes) -> bool:
                if kind == DATA:
                    got.extend(payload)
                return len(got) >= size

            return add

        read_frames(connection, complete(4))
        connection.sendall(settings_frame({4: 100}) + settings_frame({4: 6}) + frame(PING, 0, 0, b"87654321"))
        read_frames(connection, complete(6))
        ping(connection)
        assert len(got) == 6, "the window that counts is the last one"
        connection.sendall(window_update(1, 9))
        read_frames(connection, complete(15))
        assert bytes(got) == message(b"0123456789")


@pytest.mark.parametrize("coded", [False, True])
def test_long_path_in_the_table_is_cheap_to_name_again(coded: bool) -> None:
    with flooded() as state, state.connection() as connection:
        # "0" has the code 00000, so five bytes of zeros are eight of them.
        raw = bytes(2400) if coded else b"/" + b"\xc3" * 3899
        size = len(raw) - 0x7F
        length = bytes(((0xFF if coded else 0x7F), size & 0x7F | 0x80, size >> 7))
        first = b"\x83\x86\x44" + length + raw
        count = 4000
        connection.sendall(frame(HEADERS, 5, 1, first))
        ping(connection)
        before_s, state.turn.worst_s = state.cpu_s(), 0.0
        again = b"".join(frame(HEADERS, 5, 3 + 2 * number, b"\x83\x86\xbe") for number in range(count))
        connection.sendall(again)
        size_seen = 0

        def last(kind: int, stream_id: int, payload: bytes) -> bool:
            nonlocal size_seen
            size_seen += 9 + len(payload)
            return kind == HEADERS and stream_id == 3 + 2 * (count - 1)

        read_frames(connection, last)
        assert state.cpu_s() - before_s < 0.5
        assert state.turn.worst_s < TURN_S
        assert size_seen < count * 300


def test_huffman_coded_headers_of_the_largest_size_stay_within_a_turn() -> None:
    raw = bytes(16_000)
    size = len(raw) - 0x7F
    length = bytes((0xFF, size & 0x7F | 0x80, size >> 7))
    path = b"\x83\x86\x04" + length + raw  # not kept in the table
    with flooded() as state, state.connection() as connection:
        state.turn.worst_s = 0.0
        connection.sendall(b"".join(frame(HEADERS, 5, 1 + 2 * number, path) for number in range(50)))
        ping(connection)
        assert state.turn.worst_s < TURN_S


def test_header_block_over_the_limit_ends_the_connection() -> None:
    with flooded() as state, state.connection() as connection:
        connection.sendall(opened(range(1, 2, 2), "/hold", ("x", "y" * 200_000)))
        assert goaway_code(connection) == 11


def test_empty_continuations_do_not_go_on_for_ever() -> None:
    with flooded() as state, state.connection() as connection:
        connection.sendall(frame(HEADERS, 0, 1, block("/hold")) + frame(9, 0, 1, b"") * 200)
        assert goaway_code(connection) == 11


@pytest.mark.parametrize("indexed", [False, True])
def test_headers_of_open_calls_are_bounded(indexed: bool) -> None:
    """Also where twelve bytes refer to them, and the table has dropped them meanwhile."""
    with flooded() as state, state.connection() as connection:
        for number in range(2000):
            if indexed:
                value = f"{number:05d}" * 780
                # Kept in the table by a call that ends, referred to by one that stays open.
                once = block("/none") + b"\x40\x01x" + b"\x7f\xbd\x1d" + value.encode()
                stays = block("/hold") + b"\xbe"
                connection.sendall(
                    frame(HEADERS, 5, 1 + 4 * number, once) + frame(HEADERS, 4, 3 + 4 * number, stays)
                )
            else:
                connection.sendall(
                    opened(range(1 + 4 * number, 2 + 4 * number), "/hold", ("x", "y" * 16_000))
                )
            if not number % 100:
                ping(connection)
        ping(connection)
        assert state.call_count() < 2000 if not indexed else state.call_count() <= 2000
        assert state.held() < 8 * 1024 * 1024 + 4096 * 4096
        assert indexed or state.held() > 4 * 1024 * 1024
        if indexed:
            assert state.held() > state.call_count() * 3900, "what the calls keep is counted"


def test_who_holds_most_is_closed_and_others_are_served() -> None:
    """Unfinished bodies fill the whole budget; an unknown peer's request of several frames is still served."""
    limit = 8 * 1024 * 1024
    with flooded(Http2Limits(held_bytes=limit)) as state, contextlib.ExitStack() as stack:
        hostages = [stack.enter_context(state.connection()) for _ in range(12)]
        part = frame(DATA, 0, 1, struct.pack(">BI", 0, 900_000) + bytes(200_000))
        for hostage in hostages:
            hostage.sendall(opened(range(1, 2, 2), "/echo") + part + frame(DATA, 0, 1, bytes(200_000)) * 3)
            with contextlib.suppress(OSError, EOFError):
                ping(hostage)
        wait_until(lambda: state.held() <= limit, timeout_s=30, what="memory being free again")
        assert len(state.connections()) < 12
        with state.connection() as victim:
            body = message(bytes(100_000))
            victim.sendall(opened(range(1, 2, 2), "/echo") + frame(DATA, 0, 1, body[:50_000]))
            ping(victim)
            victim.sendall(frame(DATA, 1, 1, body[50_000:]))
            got = 0

            def whole(kind: int, _: int, payload: bytes) -> bool:
                nonlocal got
                got += len(payload) if kind == DATA else 0
                if got >= 60_000:
                    victim.sendall(window_update(0, 60_000) + window_update(1, 60_000))
                return got == len(body)

            read_frames(victim, whole)


def test_request_that_does_not_become_complete_is_ended() -> None:
    with flooded(Http2Limits(request_s=0.2), idle_s=0.4) as state, state.connection() as connection:
        connection.sendall(opened(range(1, 2, 2), "/echo") + frame(DATA, 0, 1, message(b"whole")[:7]))
        connection.sendall(opened(range(3, 4, 2), "/hold"))
        connection.sendall(opened(range(5, 6, 2), "/hold") + frame(DATA, 0, 5, message(b"heard")))
        ended: set[int] = set()

        def both(kind: int, stream_id: int, payload: bytes) -> bool:
            if kind == HEADERS and b"grpc-status\x014" in payload:
                ended.add(stream_id)
            return len(ended) == 2

        read_frames(connection, both)
        assert ended == {1, 3}
        ping(connection)
        assert state.call_count() == 1


def test_peer_that_is_gone_is_noticed_by_a_ping() -> None:
    limits = Http2Limits(silent_s=0.2, ping_s=0.3)
    with flooded(limits, idle_s=0.4) as state, state.connection() as gone, state.connection() as lives:
        for connection in (gone, lives):
            connection.sendall(opened(range(1, 2, 2), "/hold") + frame(DATA, 0, 1, message(b"here")))
        lives.settimeout(0.05)
        pings = 0
        while len(state.connections()) == 2 or pings < 4:
            try:
                data = lives.recv(65_536)
            except TimeoutError:
                continue
            assert data, "closed although it answers"
            if b"orbitmq?" in data:
                pings += 1
                lives.sendall(frame(PING, 1, 0, b"orbitmq?"))
        assert state.call_count() == 1


def test_answers_that_are_not_read_stop_the_requests() -> None:
    """A peer that requests much and reads nothing is served no further: the responses do not pile up."""
    with flooded() as state, state.connection() as connection:
        connection.sendall(window_update(0, 2**30) + settings_frame({4: 2**30}))
        body = message(bytes(16_000))
        call = [opened(range(n, n + 1), "/echo") + frame(DATA, 1, n, body) for n in range(1, 8000, 2)]
        connection.settimeout(2)
        with pytest.raises(TimeoutError):
            connection.sendall(b"".join(call))
        assert state.held() < 4 * 1024 * 1024


def test_window_that_opens_byte_by_byte_does_not_copy_the_answer_each_time() -> None:
    with flooded() as state, state.connection() as connection:
        connection.sendall(window_update(0, 2**24) + settings_frame({4: 0}) + opened(range(1, 2, 2), "/echo"))
        body = message(bytes(8_000_000))
        pieces = range(0, len(body), 16_000)
        for start in pieces:
            last = start == pieces[-1]
            connection.sendall(frame(DATA, int(last), 1, body[start : start + 16_000]))
        ping(connection)
        before_s = state.cpu_s()
        count = 4000
        connection.sendall(window_update(1, 1) * count)
        got = 0

        def opened_all(kind: int, _: int, payload: bytes) -> bool:
            nonlocal got
            got += len(payload) if kind == DATA else 0
            return got == count

        read_frames(connection, opened_all)
        assert state.cpu_s() - before_s < 1.0


def test_request_of_very_many_fields_is_refused_within_a_turn(tmp_path: Path) -> None:
    """The request is unsigned: 8 MiB of empty entries would be four million objects."""
    with (
        local_stack(tmp_path, brokerFastFailureEnable=False) as stack,
        grpc.insecure_channel(stack.endpoint) as channel,
        longest_turn(stack.loop) as turn,
    ):
        call = channel.unary_unary(SERVICE + "AckMessage", response_deserializer=bytes)
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\x1a\x00" * (4 << 20), metadata=metadata("many"), timeout=30)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        logger.info("longest turn: %.3f s", turn.worst_s)
        assert turn.worst_s < TURN_S


@pytest.mark.parametrize("header", ["line", "binary"])
def test_proxy_protocol_is_taken_from_configured_balancers_only(header: str) -> None:
    said = b"PROXY TCP4 10.1.2.3 10.0.0.1 4711 8081\r\n"
    if header == "binary":
        addresses = bytes((10, 1, 2, 3, 10, 0, 0, 1)) + struct.pack(">HH", 4711, 8081)
        said = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11" + struct.pack(">H", len(addresses)) + addresses
    for balancers, is_taken in (("", False), ("192.0.2.0/24", False), ("192.0.2.7, 127.0.0.0/8", True)):
        with (
            flooded(balancers=balancers) as state,
            socket.create_connection(("127.0.0.1", state.server.port), 10) as connection,
        ):
            connection.sendall(said + PREFACE + settings_frame({}))
            if is_taken:
                ping(connection)
                assert [found.remote_text for found in state.connections()] == ["10.1.2.3:4711"]
            else:
                assert connection.recv(100) == b""


def _resident_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


@pytest.mark.parametrize("path", ["/hold", "/later"])
def test_rapid_reset_leaves_nothing_behind(path: str) -> None:
    """Configures the garbage collector like a server: objects it would have to find stay for minutes."""
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        with flooded() as state:
            _reset_calls(state, path, 4000)
            before_kib = _resident_kib()
            state.turn.worst_s = 0.0
            for _ in range(10):
                _reset_calls(state, path, 4000)
            wait_until(lambda: not state.call_count(), timeout_s=30, what="the calls ending")
            state.waiting.clear()
            grown_kib = _resident_kib() - before_kib
            logger.info(
                "rapid reset path=%s memory grew by %d KiB, worst %.3f", path, grown_kib, state.turn.worst_s
            )
            assert grown_kib < 8 * 1024
            assert state.turn.worst_s < TURN_S
    finally:
        gc.set_threshold(*thresholds)


def _reset_calls(state: Flooded, path: str, count: int) -> None:
    with state.connection() as connection:
        parts = []
        for number in range(count):
            stream_id = 1 + 2 * number
            parts.append(opened(range(stream_id, stream_id + 1), path))
            if path == "/later":
                parts.append(frame(DATA, 1, stream_id, message(b"x" * 100)))
            parts.append(frame(RESET, 0, stream_id, bytes(3) + b"\x08"))
        connection.sendall(b"".join(parts))
        ping(connection)


def test_too_many_resets_end_the_connection() -> None:
    with flooded() as state, state.connection() as connection:
        with contextlib.suppress(ConnectionError):
            for start in range(1, 20_000, 2000):
                connection.sendall(
                    b"".join(
                        opened(range(n, n + 1), "/hold") + frame(RESET, 0, n, bytes(4))
                        for n in range(start, start + 2000, 2)
                    )
                )
        assert goaway_code(connection) == 11


def test_call_with_very_many_entries_is_worked_on_in_turns(tmp_path: Path) -> None:
    """Acknowledgements, messages and topics: each call has the maximum number, of the smallest kind."""
    ack = pb.AckMessageRequest(group=pb.Resource(name="G"), topic=pb.Resource(name="Many"))
    now_ms = int(time.time() * 1000)
    for number in range(2048):
        ack.entries.add(receipt_handle=f"0 {now_ms} 600000 0 0 broker-a 0 {number} 0")
    messages = [pb.Message(topic=pb.Resource(name="Many"), body=b"x") for _ in range(1024)]
    for number, one in enumerate(messages):
        one.system_properties.message_id = f"01{number}"
    with local_stack(tmp_path, brokerFastFailureEnable=False) as stack:

        async def prepare() -> None:
            stack.inside.topics.update(TopicConfig(topic_name="Many"))

        stack.loop.run(prepare())
        with grpc.insecure_channel(stack.endpoint) as channel, longest_turn(stack.loop) as turn:

            def call(name: str, request: Any) -> Any:
                made = channel.unary_unary(
                    SERVICE + name, type(request).SerializeToString, getattr(pb, f"{name}Response").FromString
                )
                return made(request, metadata=metadata("many"), timeout=60)

            assert call("SendMessage", pb.SendMessageRequest(messages=messages[:2])).status.code == pb.OK
            turn.worst_s = 0.0
            assert len(call("AckMessage", ack).entries) == 2048
            acks_s, turn.worst_s = turn.worst_s, 0.0
            assert call("SendMessage", pb.SendMessageRequest(messages=messages)).status.code == pb.OK
            sends_s = turn.worst_s
            more = [*messages, messages[0]]
            assert call("SendMessage", pb.SendMessageRequest(messages=more)).status.code == pb.BAD_REQUEST
        logger.info("longest turn: acks %.3f s, sends %.3f s", acks_s, sends_s)
        assert acks_s < TURN_S
        assert sends_s < TURN_S

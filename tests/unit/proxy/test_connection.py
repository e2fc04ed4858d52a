"""One HTTP/2 connection without a socket: frames in, frames out."""

from __future__ import annotations

import asyncio
import gzip
import math
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, cast

import pytest

from orbitmq.proxy.http2.call import Call, CallEnded, GrpcError, GrpcStatus, Kind, Method
from orbitmq.proxy.http2.connection import Http2Connection, Port
from orbitmq.proxy.http2.frames import PREFACE, H2Error, frame, settings_frame, trailers, window_update
from orbitmq.proxy.http2.hpack import HeaderDecoder, literal, text
from orbitmq.proxy.http2.limits import Http2Limits, Turns
from orbitmq.proxy.http2.proxy_protocol import Balancers
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.transport.held_memory import HeldMemory
from orbitmq.transport.tls import ServerTls, TlsMode

DATA: Final = 0
HEADERS: Final = 1
RESET: Final = 3
SETTINGS: Final = 4
PING: Final = 6
GOAWAY: Final = 7


class Got(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


class Transport:
    """Records writes."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False
        self.reads = True

    def get_extra_info(self, name: str) -> object:
        return ("192.0.2.9", 4711) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Endless(Turns):
    """A turn ends when everything is served, even on a machine that stalls."""

    def until(self) -> float:
        return math.inf


class Hasty(Turns):
    """The first turn ends immediately."""

    def until(self) -> float:
        return 0.0


class Peer:
    """A client's end of one connection."""

    def __init__(
        self,
        *,
        limits: Http2Limits | None = None,
        tls: TlsMode = TlsMode.DISABLED,
        turns: type[Turns] = Endless,
    ) -> None:
        self.transport = Transport()
        self.tasks = TaskOwner("test")
        self.ended: list[str] = []
        self.calls: list[Call] = []
        connections: set[Http2Connection] = set()
        methods = [
            Method("/echo", Kind.UNARY, self._echo),
            Method("/later", Kind.UNARY, self._later),
            Method("/stream", Kind.BOTH_STREAM, self._stream),
            Method("/refuses", Kind.UNARY, self._refuses),
            Method("/breaks", Kind.UNARY, self._breaks),
        ]
        self.connection = Http2Connection(
            Port(
                methods={method.path: method for method in methods},
                tasks=self.tasks,
                tls=ServerTls(tls),
                limits=limits or Http2Limits(),
                balancers=Balancers(),
                held=HeldMemory(connections),
                turns=turns(),
                on_open=connections.add,
                on_close=connections.discard,
            )
        )
        self.connection.connection_made(cast(Any, self.transport))

    def _echo(self, call: Call, message: bytes) -> None:
        self.calls.append(call)
        call.answer(message)

    async def _later(self, call: Call, message: bytes) -> None:
        self.calls.append(call)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise

    async def _stream(self, call: Call, _: bytes) -> None:
        self.calls.append(call)
        try:
            while (message := await call.receive()) is not None:
                call.write(message[::-1])
        except (CallEnded, asyncio.CancelledError):
            self.ended.append("left")
            raise

    def _refuses(self, call: Call, _: bytes) -> Coroutine[Any, Any, None] | None:
        raise GrpcError(GrpcStatus.INVALID_ARGUMENT, "100 % no")

    def _breaks(self, call: Call, _: bytes) -> Coroutine[Any, Any, None] | None:
        raise ValueError

    def send(self, *frames: bytes) -> None:
        self.connection.data_received(b"".join(frames))

    def got(self) -> list[Got]:
        """Returns the frames written since the last call."""
        data, found = bytes(self.transport.written), []
        self.transport.written.clear()
        while data:
            size = int.from_bytes(data[:3], "big")
            stream_id = int.from_bytes(data[5:9], "big")
            found.append(Got(data[3], data[4], stream_id, data[9 : 9 + size]))
            data = data[9 + size :]
        return found


def run(test: Callable[[Peer], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        peer = Peer(**settings)
        try:
            await test(peer)
        finally:
            await turns()
            await peer.tasks.close()

    asyncio.run(main())


def is_read(peer: Peer) -> bool:
    return peer.transport.reads


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def opened(peer: Peer) -> None:
    peer.send(PREFACE, settings_frame({}))
    peer.got()


def request(stream_id: int, path: str, message: bytes = b"hello", *more: tuple[str, str]) -> bytes:
    return headers(stream_id, path, *more) + frame(DATA, 1, stream_id, prefixed(message))


def headers(stream_id: int, path: str, *more: tuple[str, str], flags: int = 4) -> bytes:
    block = b"\x83\x86" + literal(":path", path) + b"".join(literal(*pair) for pair in more)
    return frame(HEADERS, flags, stream_id, block)


def prefixed(message: bytes, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(message)) + message


def status_of(got: list[Got], stream_id: int = 1) -> tuple[str, str]:
    """Returns code and text at the end of a call."""
    end = [one for one in got if one.kind == HEADERS and one.stream_id == stream_id and one.flags & 1]
    fields = HeaderDecoder().decode(end[0].payload)
    message = fields.get("grpc-message")
    return text(fields["grpc-status"]), "" if message is None else text(message)


def test_server_greets_with_its_limits_and_acknowledges_settings() -> None:
    async def test(peer: Peer) -> None:
        peer.send(PREFACE + settings_frame({}))
        greeting, window, acknowledged = peer.got()
        values = dict(struct.iter_unpack(">HI", greeting.payload))
        assert values == {3: 4096, 4: 1024 * 1024, 5: 256 * 1024, 6: 16_384}
        assert (window.kind, acknowledged.kind, acknowledged.flags) == (8, SETTINGS, 1)

    run(test)


def test_call_in_any_chunks_is_answered() -> None:
    data = PREFACE + settings_frame({}) + request(1, "/echo")

    async def test(peer: Peer) -> None:
        for at in range(len(data)):
            peer.send(data[at : at + 1])
        await turns()
        got = peer.got()
        assert [one.payload for one in got if one.kind == DATA] == [prefixed(b"hello")]
        assert status_of(got) == ("0", "")
        assert peer.connection.held_bytes == 0

    run(test)


def test_body_of_several_frames_and_padding_are_one_message() -> None:
    body = prefixed(b"0123456789")

    async def test(peer: Peer) -> None:
        opened(peer)
        peer.send(
            headers(1, "/echo"), frame(DATA, 0, 1, body[:3]), frame(DATA, 8, 1, b"\x02" + body[3:9] + b"\0\0")
        )
        assert not peer.got()
        assert peer.connection.held_bytes > 9
        peer.send(frame(DATA, 1, 1, body[9:]))
        assert [one.payload for one in peer.got() if one.kind == DATA] == [body]

    run(test)


@pytest.mark.parametrize(
    ("path", "data", "status"),
    [
        ("/none", prefixed(b""), ("12", "Method none is unimplemented")),
        ("/refuses", prefixed(b""), ("3", "100 %25 no")),
        ("/breaks", prefixed(b""), ("13", "internal error")),
        ("/echo", b"\0\0\0", ("13", "the request is not one whole message")),
        ("/echo", prefixed(b"a") + b"more", ("13", "the request is not one whole message")),
        ("/echo", b"\0\xff\xff\xff\xff", ("8", "gRPC message exceeds maximum size 136314880")),
    ],
)
def test_call_that_cannot_be_served_ends_with_a_status(
    path: str, data: bytes, status: tuple[str, str]
) -> None:
    async def test(peer: Peer) -> None:
        opened(peer)
        peer.send(headers(1, path), frame(DATA, 1, 1, data))
        await turns()
        assert status_of(peer.got()) == status
        assert not peer.connection.calls
        peer.send(request(3, "/echo"))
        assert status_of(peer.got(), 3) == ("0", ""), "the connection goes on"

    run(test)


def test_compressed_message_is_inflated_and_a_bomb_is_not() -> None:
    async def test(peer: Peer) -> None:
        opened(peer)
        for stream_id, plain in ((1, b"x" * 3_000_000), (3, b"x" * 5_000_000)):
            data = prefixed(gzip.compress(plain), 1)
            peer.send(headers(stream_id, "/echo", ("grpc-encoding", "gzip")), frame(DATA, 1, stream_id, data))
        peer.send(window_update(0, 2**30), settings_frame({4: 2**30}))
        await turns(20)
        got = peer.got()
        assert (
            b"".join(one.payload for one in got if one.kind == DATA and one.stream_id == 1)[5:]
            == b"x" * 3_000_000
        )
        assert status_of(got, 1) == ("0", "")
        assert status_of(got, 3) == ("8", "the decompressed message is too large or cut")
        peer.send(headers(5, "/echo"), frame(DATA, 1, 5, prefixed(b"x", 1)))
        await turns()
        assert status_of(peer.got(), 5)[0] == "12"

    run(test, limits=Http2Limits(message_bytes=4_000_000))


def test_client_that_resets_a_call_cancels_its_handler() -> None:
    async def test(peer: Peer) -> None:
        opened(peer)
        peer.send(request(1, "/later"))
        await turns()
        peer.send(frame(RESET, 0, 1, bytes(4)))
        await turns()
        assert peer.ended == ["cancelled"]
        assert not peer.connection.calls
        assert peer.connection.held_bytes == 0
        # A call reset before its handler began never begins.
        peer.send(request(3, "/later"), frame(RESET, 0, 3, bytes(4)))
        await turns()
        assert len(peer.calls) == 1

    run(test)


def test_stream_takes_messages_until_the_client_ends_it() -> None:
    async def test(peer: Peer) -> None:
        opened(peer)
        peer.send(headers(1, "/stream"), frame(DATA, 0, 1, prefixed(b"abc") + prefixed(b"de")))
        await turns()
        assert [one.payload[5:] for one in peer.got() if one.kind == DATA] == [b"cba", b"ed"]
        held = peer.connection.held_bytes
        peer.send(frame(DATA, 0, 1, prefixed(b"x" * 1000)))
        assert peer.connection.held_bytes == held + 1000
        await turns()
        assert peer.connection.held_bytes == held, "taken by the handler"
        peer.send(frame(DATA, 1, 1, b""))
        await turns()
        assert status_of(peer.got()) == ("0", "")

    run(test)


def test_lost_connection_ends_every_call() -> None:
    async def test(peer: Peer) -> None:
        opened(peer)
        peer.send(*(headers(1 + 2 * number, "/stream") for number in range(600)))
        while len(peer.calls) < 600:
            await turns()
        peer.connection.connection_lost(None)
        await turns()
        assert not peer.connection.calls
        assert len(peer.ended) == 600

    run(test)


def test_answer_waits_for_the_windows_of_the_client() -> None:
    async def test(peer: Peer) -> None:
        opened(peer)
        peer.send(settings_frame({4: 10}), request(1, "/echo", b"x" * 100))
        first = [one for one in peer.got() if one.kind == DATA]
        assert [len(one.payload) for one in first] == [10]
        peer.send(window_update(1, 50))
        assert sum(len(one.payload) for one in peer.got() if one.kind == DATA) == 50
        peer.send(settings_frame({4: 20}))
        assert sum(len(one.payload) for one in peer.got() if one.kind == DATA) == 10
        peer.send(window_update(1, 1000))
        got = peer.got()
        assert sum(len(one.payload) for one in got if one.kind == DATA) == 35
        assert status_of(got) == ("0", "")

    run(test)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(PING, 0, 0, b"short"), H2Error.FRAME_SIZE),
        (frame(SETTINGS, 0, 1, b""), H2Error.FRAME_SIZE),
        (settings_frame({4: 2**31}), H2Error.FLOW_CONTROL),
        (settings_frame({5: 100}), H2Error.PROTOCOL),
        (window_update(0, 0), H2Error.FLOW_CONTROL),
        (window_update(0, 2**31 - 1), H2Error.FLOW_CONTROL),
        (frame(DATA, 0, 1, b"x"), H2Error.PROTOCOL),
        (frame(HEADERS, 4, 2, b""), H2Error.PROTOCOL),
        (frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, bytes(8)), H2Error.PROTOCOL),
        (frame(HEADERS, 12, 1, b"\x09"), H2Error.PROTOCOL),
        (frame(HEADERS, 4, 1, b"\x80"), H2Error.COMPRESSION),
        (frame(9, 4, 1, b""), H2Error.PROTOCOL),
        (frame(5, 0, 1, b""), H2Error.PROTOCOL),
        (frame(RESET, 0, 1, b""), H2Error.FRAME_SIZE),
        (b"\x04\x00\x01" + bytes(6), H2Error.FRAME_SIZE),
        (frame(HEADERS, 4, 1, bytes(16_385)), H2Error.ENHANCE_YOUR_CALM),
        (frame(SETTINGS, 0, 0, bytes(6 * 65)), H2Error.ENHANCE_YOUR_CALM),
    ],
)
def test_broken_frame_ends_the_connection_with_its_code(sent: bytes, code: int) -> None:
    async def test(peer: Peer) -> None:
        opened(peer)
        peer.send(sent)
        (goaway,) = [one for one in peer.got() if one.kind == GOAWAY]
        assert int.from_bytes(goaway.payload[4:8], "big") == code
        assert peer.transport.closed
        peer.send(frame(PING, 0, 0, bytes(8)))
        assert not peer.got()

    run(test)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"PROXY TCP4 x"])
def test_what_is_no_http2_is_closed_without_an_answer(sent: bytes) -> None:
    async def test(peer: Peer) -> None:
        peer.send(sent)
        if sent.startswith(b"PROXY"):
            assert not peer.transport.closed
            peer.send(b"\r\n")
        assert peer.transport.closed
        assert not peer.transport.written

    run(test)


def test_plain_text_is_refused_where_tls_is_enforced() -> None:
    async def test(peer: Peer) -> None:
        peer.send(PREFACE)
        assert peer.transport.closed

    run(test, tls=TlsMode.ENFORCING)


def test_calls_beyond_the_limit_are_refused_and_the_others_go_on() -> None:
    async def test(peer: Peer) -> None:
        opened(peer)
        peer.send(*(headers(stream_id, "/stream") for stream_id in (1, 3, 5)))
        (reset,) = [one for one in peer.got() if one.kind == RESET]
        assert (reset.stream_id, int.from_bytes(reset.payload, "big")) == (5, H2Error.REFUSED_STREAM)
        assert list(peer.connection.calls) == [1, 3]

    run(test, limits=Http2Limits(calls=2))


def test_stop_lets_running_calls_end() -> None:
    async def test(peer: Peer) -> None:
        opened(peer)
        peer.send(headers(1, "/stream"))
        await turns()
        peer.connection.go_away()
        assert [one.kind for one in peer.got()] == [GOAWAY]
        peer.send(headers(3, "/stream"))
        assert [one.kind for one in peer.got()] == [RESET]
        peer.send(frame(DATA, 1, 1, b""))
        await turns()
        assert status_of(peer.got()) == ("0", "")
        assert peer.transport.closed

    run(test)


def test_peer_that_does_not_read_is_not_served() -> None:
    async def test(peer: Peer) -> None:
        opened(peer)
        peer.connection.pause_writing()
        assert not peer.transport.reads
        peer.send(request(1, "/echo"))
        await turns()
        assert not peer.calls
        peer.connection.resume_writing()
        await turns()
        assert len(peer.calls) == 1
        assert peer.transport.reads

    run(test)


def test_what_exceeds_a_turn_is_served_in_the_next_ones_and_nothing_is_read_meanwhile() -> None:
    async def test(peer: Peer) -> None:
        peer.send(PREFACE, settings_frame({}), *(request(1 + 2 * number, "/echo") for number in range(50)))
        assert not peer.calls
        assert is_read(peer) is False
        assert peer.connection.held_bytes > 0
        while len(peer.calls) < 50:
            await turns()
        assert [call.stream_id for call in peer.calls] == list(range(1, 100, 2))
        assert is_read(peer) is True
        assert peer.connection.held_bytes == 0

    run(test, turns=Hasty)


def test_deadline_counts_from_the_beginning_of_a_call() -> None:
    async def test(peer: Peer) -> None:
        opened(peer)
        for stream_id, (given, expected) in enumerate(
            [("5S", 5.0), ("100m", 0.1), ("1H", 3600.0), ("", None), ("x", None), ("123456789S", None)]
        ):
            peer.send(request(1 + 2 * stream_id, "/echo", b"", ("grpc-timeout", given)))
            left = peer.calls[-1].time_left_s()
            assert left is None if expected is None else left == pytest.approx(expected, abs=1)

    run(test)


def test_trailers_escape_and_shorten_the_message() -> None:
    fields = HeaderDecoder().decode(trailers(13, "ü % \n" + "x" * 5000))
    message = text(fields["grpc-message"])
    assert message.startswith("%C3%BC %25 %0Ax")
    assert len(message) < 1100
    assert trailers(0, "") == literal("grpc-status", "0")


@pytest.mark.parametrize("begins", [False, True])
def test_connection_that_does_not_begin_is_closed_however_often_it_sends(begins: bool) -> None:
    async def test(peer: Peer) -> None:
        peer.send(PREFACE[:10])
        if begins:
            peer.send(PREFACE[10:] + settings_frame({}))
        peer.connection.sweep(peer.connection.last_active - 1)
        assert not peer.transport.closed
        peer.connection._opened -= 21
        peer.connection.sweep(peer.connection.last_active - 1)
        assert peer.transport.closed is not begins

    run(test)

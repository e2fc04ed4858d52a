"""Servers and clients over real sockets, on plain asyncio and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.ports import free_ports
from tests.support.waiting import until_async
from tests.unit.transport.certificates import Certificates, make_certificates
from tests.unit.transport.loops import on_both_loops
from tests.unit.transport.peers import HOST, RawPeer, address_of, closing, serving

from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.errors import ConnectFailedError, ConnectionLostError, RequestTimeoutError
from orbitmq.transport.client import RpcClient, split_address
from orbitmq.transport.connection import Connection, ConnectionLimits
from orbitmq.transport.ports import bind_port, bind_port_and_fast_port
from orbitmq.transport.router import PARKED, Call, Parked, RawRoute, Reply, Route, Router
from orbitmq.transport.server import Listener, Server, ServerLimits
from orbitmq.transport.tls import ServerTls, TlsFilter, TlsMode, client_context, server_context
from orbitmq.wire.frame import Frame, encode_oneway, encode_request, encode_response
from orbitmq.wire.header import Header

ECHO, FAIL, SLOW, CALL_BACK, BIG, TYPED, FOREVER = 1, 2, 3, 4, 5, 6, 7
BIG_BYTES = 16 * 1024


class NameRequest(Header):
    name: str


def echo(frame: Frame, peer: Connection) -> bytes:
    return encode_response(0, frame.opaque, None, frame.body, None, frame.serialize_type)


def fail(call: Call[Header]) -> Reply:
    raise ValueError("a bug\nof two lines")


async def slow(call: Call[Header]) -> Reply:
    await asyncio.sleep(0.01)
    return Reply(body=call.body[::-1])


async def call_back(call: Call[Header]) -> Reply:
    """Calls the client on the connection its request came from."""
    answer = await call.peer.call(ECHO, None, b"from the server " + call.body, timeout_s=5)
    return Reply(body=answer.body)


def big(call: Call[Header]) -> Reply:
    return Reply(body=b"x" * BIG_BYTES)


def forever(call: Call[Header]) -> Parked:
    return PARKED


ROUTES = (
    RawRoute(ECHO, echo),
    Route(FAIL, fail),
    Route(SLOW, slow),
    Route(CALL_BACK, call_back),
    Route(BIG, big),
    Route(TYPED, lambda call: Reply(remark=call.header.name), NameRequest),
    Route(FOREVER, forever),
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the server's warnings, except that these tests' clients have no CA, and that the machine was briefly
    busy.
    """
    records = [
        record
        for record in caplog.records
        if record.name != "orbitmq.transport.tls" and not record.getMessage().startswith("event loop held")
    ]
    return [record.getMessage() for record in records if record.levelno >= logging.WARNING]


# -- calls -----------------------------------------------------------------------------------------------


@on_both_loops
async def test_call_with_both_header_forms_gets_its_answer() -> None:
    async with serving(ROUTES) as server:
        for form in SerializeType:
            async with closing(RpcClient(serialize_type=form)) as client:
                answer = await client.call(address_of(server), TYPED, NameRequest(name="Grüße"))
                assert (answer.code, answer.remark, answer.serialize_type) == (0, "Grüße", form)


@on_both_loops
async def test_many_calls_at_once_share_one_connection_and_each_gets_its_own_answer() -> None:
    async with serving(ROUTES) as server, closing(RpcClient()) as client:
        bodies = [b"%d" % number for number in range(500)]
        answers = await asyncio.gather(*(client.call(address_of(server), ECHO, body=body) for body in bodies))
        assert [answer.body for answer in answers] == bodies
        assert len(server.connections) == 1


@on_both_loops
async def test_async_handlers_answer_when_they_are_done() -> None:
    async with serving(ROUTES) as server, closing(RpcClient()) as client:
        calls = [client.call(address_of(server), SLOW, body=b"%d!" % number) for number in range(50)]
        answers = await asyncio.gather(*calls)
        assert [answer.body for answer in answers] == [(b"%d!" % number)[::-1] for number in range(50)]


@on_both_loops
async def test_server_calls_the_client_on_the_same_connection() -> None:
    client = RpcClient(router=Router([RawRoute(ECHO, echo)]))
    async with serving(ROUTES) as server, closing(client):
        answer = await client.call(address_of(server), CALL_BACK, body=b"hello")
        assert answer.body == b"from the server hello"
        assert len(server.connections) == 1


@pytest.mark.slow
@on_both_loops
async def test_body_of_nearly_the_frame_limit_crosses_both_ways() -> None:
    async with serving(ROUTES) as server, closing(RpcClient()) as client:
        body = os.urandom(1024) * (16 * 1024 - 1)
        assert (await client.call(address_of(server), ECHO, body=body, timeout_s=10)).body == body


@on_both_loops
async def test_call_without_an_answer_times_out_and_the_late_answer_harms_nobody() -> None:
    parked: list[Call[Header]] = []

    def park(call: Call[Header]) -> Parked:
        parked.append(call)
        return PARKED

    async with (
        serving([Route(FOREVER, park), RawRoute(ECHO, echo)]) as server,
        closing(RpcClient()) as client,
    ):
        connection = await client.connection(address_of(server))
        with pytest.raises(RequestTimeoutError, match=r"within 0\.02 s"):
            await connection.call(FOREVER, timeout_s=0.02)
        await until_async(lambda: parked)
        parked[0].reply(Reply(remark="late"))
        assert (await client.call(address_of(server), ECHO, body=b"x")).body == b"x"


@on_both_loops
async def test_notify_reaches_the_handler_and_is_never_answered() -> None:
    seen: list[bytes] = []

    def handler(call: Call[Header]) -> Reply:
        seen.append(call.body)
        return Reply()

    async with serving([Route(9, handler)]) as server, await RawPeer.connect(server) as peer:
        await peer.send(encode_oneway(9, 1, None, b"first") + encode_request(9, 2, None, b"second"))
        assert (await peer.frame()).opaque == 2
        assert seen == [b"first", b"second"]


# -- errors in whole frames ------------------------------------------------------------------------------


@on_both_loops
async def test_bad_requests_are_answered_and_the_connection_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ROUTES) as server, closing(RpcClient()) as client:
        address = address_of(server)
        missing = await client.call(address, TYPED)
        assert missing.code == ResponseCode.SYSTEM_ERROR
        assert "name" in (missing.remark or "")
        assert (await client.call(address, 4242)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert warnings_of(caplog) == []

        internal = await client.call(address, FAIL)
        assert (internal.code, internal.remark) == (ResponseCode.SYSTEM_ERROR, "internal error: ValueError")
        assert len(warnings_of(caplog)) == 1
        assert (await client.call(address, ECHO, body=b"x")).body == b"x"
        assert len(server.connections) == 1


@on_both_loops
async def test_extension_fields_that_are_no_utf8_are_answered() -> None:
    header = b'{"code":6,"opaque":5,"extFields":{"name":"\xff\xfe"}}'
    async with serving(ROUTES) as server, await RawPeer.connect(server) as peer:
        await peer.send(struct.pack(">ii", 4 + len(header), len(header)) + header)
        answer = await peer.frame()
        assert (answer.opaque, answer.code) == (5, ResponseCode.SYSTEM_ERROR)


# -- broken frames ---------------------------------------------------------------------------------------


def framed(header: bytes, *, word: int | None = None) -> bytes:
    return struct.pack(">iI", 4 + len(header), len(header) if word is None else word) + header


GARBAGE = {
    "negative length": struct.pack(">i", -5),
    "length of zero": struct.pack(">i", 0),
    "length over the limit": struct.pack(">i", 16 * 1024 * 1024),
    "header longer than the frame": struct.pack(">ii", 8, 5) + b"{}{}",
    "unknown serialization": framed(b"{}", word=7 << 24 | 2),
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "no JSON": framed(b"not json"),
    "JSON of another shape": framed(b'{"code":"ten"}'),
    "remark that is not UTF-8": framed(b'{"code":1,"remark":"\xff"}'),
    "deep JSON": framed(b'{"code":1,"extFields":' + b'{"a":' * 100_000),
    "binary header cut short": framed(b"\0" * 20, word=1 << 24 | 20),
    "binary remark over the end": framed(
        struct.pack(">hBhiii", 1, 0, 0, 1, 0, 99) + b"\0" * 4, word=1 << 24 | 21
    ),
    "binary region over the end": framed(struct.pack(">hBhiiii", 1, 0, 0, 1, 0, 0, 99), word=1 << 24 | 21),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
@on_both_loops
async def test_garbage_closes_its_connection_with_one_log_line(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(ROUTES) as server,
        await RawPeer.connect(server) as peer,
        await RawPeer.connect(server) as other,
    ):
        await peer.send(encode_request(ECHO, 1, None, b"before") + garbage)
        assert (await peer.frame()).body == b"before"
        assert await peer.closed_by_server() == b""
        (line,) = warnings_of(caplog)
        assert line.startswith("closing connection peer=127.0.0.1:")
        assert "\n" not in line
        await other.send(encode_request(ECHO, 2, None, b"still here"))
        assert (await other.frame()).body == b"still here"


@on_both_loops
async def test_frame_over_the_limit_is_refused_by_its_length_alone() -> None:
    limits = ServerLimits(connection=ConnectionLimits(frame_bytes=1_000))
    async with serving(ROUTES, limits=limits) as server, await RawPeer.connect(server) as peer:
        await peer.send(struct.pack(">i", 997))
        assert await peer.closed_by_server() == b""


@on_both_loops
async def test_garbage_after_slow_requests_still_lets_them_answer() -> None:
    async with serving(ROUTES) as server, await RawPeer.connect(server) as peer:
        await peer.send(encode_request(SLOW, 1, None, b"abc") + b"\xff\xff\xff\xff")
        assert (await peer.frame()).body == b"cba"
        assert await peer.closed_by_server() == b""


# -- ends ------------------------------------------------------------------------------------------------


@on_both_loops
async def test_loss_of_the_connection_ends_calls_at_once() -> None:
    async with serving(ROUTES) as server, closing(RpcClient()) as client:
        calls = [
            asyncio.ensure_future(client.call(address_of(server), FOREVER, timeout_s=60)) for _ in range(5)
        ]
        await until_async(lambda: server.connections)
        await asyncio.sleep(0.01)
        next(iter(server.connections)).abort()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLostError] * 5


@on_both_loops
async def test_client_connects_anew_after_a_loss() -> None:
    async with serving(ROUTES) as server, closing(RpcClient()) as client:
        address = address_of(server)
        first = await client.connection(address)
        next(iter(server.connections)).abort()
        await until_async(lambda: first.closed)
        assert (await client.call(address, ECHO, body=b"again")).body == b"again"
        assert await client.connection(address) is not first


@on_both_loops
async def test_a_loss_is_told_under_the_address_the_connection_was_opened_by() -> None:
    """A client registers again with the broker it lost, which it knows by name, or by IPv6 in brackets."""
    lost: list[str] = []
    async with (
        serving(ROUTES) as server,
        closing(RpcClient(on_close=lambda gone: lost.append(gone.remote_text))) as client,
    ):
        address = f"localhost:{address_of(server).rpartition(':')[2]}"
        await client.connection(address)
        await until_async(lambda: server.connections)
        next(iter(server.connections)).abort()
        await until_async(lambda: lost)
        assert lost == [address]


@on_both_loops
async def test_nobody_at_the_address_is_a_lost_connection_without_noise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_ports()[0]
    async with closing(RpcClient()) as client:
        for address in (
            f"{HOST}:{port}",
            "no port",
            f"{HOST}:70000",
            "a" * 80 + ".test:1",
            "[::1:1",
            "x\0y:1",
        ):
            with pytest.raises(ConnectionLostError):
                await client.call(address, ECHO, timeout_s=5)
    assert warnings_of(caplog) == []


@on_both_loops
async def test_server_that_does_not_answer_the_connect_times_out() -> None:
    """A full accept queue drops the handshake, like a dead host."""
    listening = bind_port(HOST, 0)
    listening.listen(0)
    address = f"{HOST}:{listening.getsockname()[1]}"
    fillers = [socket.socket() for _ in range(4)]
    try:
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
        await asyncio.sleep(0.01)
        async with closing(RpcClient(connect_timeout_s=0.1)) as client:
            with pytest.raises(ConnectionLostError, match="timed out"):
                await client.call(address, ECHO, timeout_s=5)
        async with closing(RpcClient()) as client:
            with pytest.raises(ConnectFailedError, match="no connection"):
                await client.call(address, ECHO, timeout_s=0.1)
    finally:
        for sock in (*fillers, listening):
            sock.close()


@on_both_loops
async def test_client_that_closes_ends_what_waits_as_lost() -> None:
    async with serving(ROUTES) as server:
        client = RpcClient()
        waiting = asyncio.ensure_future(client.call(address_of(server), FOREVER, timeout_s=60))
        await until_async(lambda: server.connections)
        opening = asyncio.ensure_future(client.call(f"{HOST}:{server.ports[0]} ", FOREVER, timeout_s=60))
        await asyncio.sleep(0)
        await client.close()
        for call in (waiting, opening):
            with pytest.raises(ConnectionLostError):
                await call
        with pytest.raises(ConnectionLostError, match="the client is closed"):
            await client.call(address_of(server), ECHO)
        await until_async(lambda: not server.connections)


@on_both_loops
async def test_caller_that_gives_up_does_not_end_the_connecting_of_others() -> None:
    async with serving(ROUTES) as server, closing(RpcClient()) as client:
        gives_up = asyncio.ensure_future(client.connection(address_of(server)))
        stays = asyncio.ensure_future(client.call(address_of(server), ECHO, body=b"x"))
        await asyncio.sleep(0)
        gives_up.cancel()
        assert (await stays).body == b"x"
        with pytest.raises(asyncio.CancelledError):
            await gives_up


@pytest.mark.slow
@on_both_loops
async def test_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    async with (
        serving(ROUTES, limits=ServerLimits(idle_s=0.2)) as server,
        closing(RpcClient()) as client,
        await RawPeer.connect(server) as idle,
    ):
        closed = asyncio.ensure_future(idle.closed_by_server())
        while not closed.done():
            assert (await client.call(address_of(server), ECHO, body=b"x")).body == b"x"
            await asyncio.sleep(0.02)
        assert await closed == b""
        assert len(server.connections) == 1


@pytest.mark.slow
@on_both_loops
async def test_connection_that_sends_a_frame_byte_by_byte_is_idle() -> None:
    async with (
        serving(ROUTES, limits=ServerLimits(idle_s=0.2)) as server,
        await RawPeer.connect(server) as drips,
    ):
        await until_async(lambda: server.connections, what="the connection")
        (connection,) = server.connections
        closed = asyncio.ensure_future(drips.closed_by_server())
        frame = encode_request(ECHO, 1, None, bytes(100_000))
        for position in range(16_000):
            with contextlib.suppress(ConnectionError):
                await drips.send(frame[position : position + 1])
            await until_async(lambda: closed.done() or connection._decoder.buffered_bytes > position)  # noqa: B023 - awaited at once
            if closed.done():
                break
        assert closed.done()
        assert await closed == b""


@on_both_loops
async def test_connection_that_receives_a_large_frame_slowly_is_active() -> None:
    async with serving(ROUTES) as server, await RawPeer.connect(server) as peer:
        await peer.send(encode_request(ECHO, 1, None, bytes(100_000))[:50_000])
        await until_async(lambda: server.connections, what="the connection")
        (connection,) = server.connections
        await until_async(lambda: connection._decoder.buffered_bytes == 50_000, what="half of the frame")
        noted = []
        for received in (50_001, 70_000, 70_001, 86_384, 5, 6):
            connection._decoder = cast(Any, SimpleNamespace(buffered_bytes=received))
            connection._received_at = float(received)
            connection._note_progress()
            noted.append(connection.last_active == received)
        assert noted[1:] == [True, False, True, True, False]


@on_both_loops
async def test_client_closes_a_connection_that_is_idle() -> None:
    async with serving(ROUTES) as server, closing(RpcClient(limits=ConnectionLimits(idle_s=0.1))) as client:
        await client.call(address_of(server), ECHO)
        assert len(server.connections) == 1
        await until_async(lambda: not server.connections)


@on_both_loops
async def test_connections_over_the_limit_are_refused_and_room_is_used_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(ROUTES, limits=ServerLimits(connections=2)) as server:
        peers = [await RawPeer.connect(server) for _ in range(2)]
        await until_async(lambda: len(server.connections) == 2)
        async with await RawPeer.connect(server) as refused:
            assert await refused.closed_by_server() == b""
        assert len(warnings_of(caplog)) == 1
        peers[0].close()
        await until_async(lambda: len(server.connections) == 1)
        async with await RawPeer.connect(server) as admitted:
            await admitted.send(encode_request(ECHO, 1, None, b"room"))
            assert (await admitted.frame()).body == b"room"
        peers[1].close()


@on_both_loops
async def test_stop_lets_running_requests_answer_and_queued_bytes_leave() -> None:
    gate = asyncio.Event()
    running: list[bytes] = []

    async def held(call: Call[Header]) -> Reply:
        running.append(call.body)
        await gate.wait()
        return Reply(body=call.body)

    server = Server([Listener(HOST, 0, Router([*ROUTES, Route(9, held)]))])
    await server.start()
    async with (
        closing(RpcClient()) as client,
        await RawPeer.connect(server, receive_buffer_bytes=4096) as reader,
    ):
        calls = [asyncio.ensure_future(client.call(address_of(server), 9, body=b"%d" % n)) for n in range(10)]
        # The loop that reads the requests also serves them, so one response means all were served.
        await reader.send(b"".join(encode_request(BIG, number) for number in range(50)))
        await reader.frame()
        await until_async(lambda: len(running) == 10)
        stopping = asyncio.ensure_future(server.stop(5.0))
        rest = await reader.closed_by_server()
        assert len(rest) > 48 * BIG_BYTES
        assert not any(call.done() for call in calls)
        gate.set()
        await stopping
        assert [answer.body for answer in await asyncio.gather(*calls)] == [b"%d" % n for n in range(10)]
        assert not server.connections
        with pytest.raises(ConnectionLostError):
            await client.call(address_of(server), ECHO)


@on_both_loops
async def test_stop_cuts_what_does_not_end_in_time() -> None:
    running: list[Call[Header]] = []

    async def never(call: Call[Header]) -> Reply:
        running.append(call)
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    server = Server([Listener(HOST, 0, Router([Route(9, never)]))])
    await server.start()
    async with await RawPeer.connect(server) as peer:
        await peer.send(encode_request(9, 1))
        await until_async(lambda: running)
        await server.stop(0.05)
        assert await peer.closed_by_server() == b""


@on_both_loops
async def test_start_on_a_taken_port_raises_and_leaves_nothing_open() -> None:
    async with serving(ROUTES) as running:
        router = Router(())
        other = bind_port(HOST, 0)
        server = Server(
            [
                Listener(HOST, 0, router),
                Listener(HOST, running.ports[0], router),
                Listener(HOST, 0, router, bound=other),
            ]
        )
        with pytest.raises(OSError):
            await server.start()
        assert other.fileno() == -1
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, server.ports[0]), timeout=1).close()


def test_port_and_fast_port_are_two_apart() -> None:
    main, fast = bind_port_and_fast_port(HOST, 0)
    with main, fast:
        assert main.getsockname()[1] - fast.getsockname()[1] == 2


@pytest.mark.parametrize(
    ("address", "parts"),
    [("host:1", ("host", 1)), (" 10.0.0.1:65535 ", ("10.0.0.1", 65535)), ("[::1]:9876", ("::1", 9876))],
)
def test_address_is_split_in_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


# -- back pressure ---------------------------------------------------------------------------------------


@pytest.mark.slow
@on_both_loops
async def test_peer_that_never_reads_is_held_within_the_bounds_and_then_served_in_order() -> None:
    limits = ConnectionLimits(write_pause_bytes=64 * 1024, backlog_bytes=32 * 1024, write_limit_bytes=1 << 20)
    served: list[int] = []

    def handler(frame: Frame, peer: Connection) -> bytes:
        served.append(frame.opaque)
        return encode_response(0, frame.opaque, None, b"x" * BIG_BYTES)

    async with (
        serving([RawRoute(BIG, handler)], limits=ServerLimits(connection=limits)) as server,
        await RawPeer.connect(server, receive_buffer_bytes=4096) as peer,
    ):
        count = 700
        sending = asyncio.ensure_future(
            peer.send(b"".join(encode_request(BIG, number, None, b"y" * 1000) for number in range(count)))
        )
        settled = 0
        while settled < 10:
            before = len(served)
            await asyncio.sleep(0.005)
            settled = settled + 1 if len(served) == before > 0 else 0
        (connection,) = server.connections
        assert len(served) < count
        assert connection.unsent_bytes <= limits.write_pause_bytes + 2 * (BIG_BYTES + 100)
        # The bound may be exceeded by one read of requests (256 KiB), with the cost of its frames.
        assert connection._backlog_bytes <= limits.backlog_bytes + 2 * 256 * 1024

        received = [(await peer.frame()).opaque for _ in range(count)]
        assert received == list(range(count))
        await sending
        assert not connection.closed


@on_both_loops
async def test_pushing_to_a_peer_that_never_reads_ends_at_the_hard_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = ConnectionLimits(write_pause_bytes=64 * 1024, write_limit_bytes=512 * 1024)
    async with (
        serving(ROUTES, limits=ServerLimits(connection=limits)) as server,
        await RawPeer.connect(server, receive_buffer_bytes=4096),
    ):
        await until_async(lambda: server.connections)
        (connection,) = server.connections
        most = 0
        while not connection.closed:
            connection.notify(40, body=b"x" * BIG_BYTES)
            most = max(most, connection.unsent_bytes)
            await asyncio.sleep(0)
        assert most <= limits.write_limit_bytes + BIG_BYTES + 200
        await until_async(lambda: not server.connections)
        (line,) = warnings_of(caplog)
        assert "peer does not read" in line


@pytest.mark.slow
@on_both_loops
async def test_two_ends_that_both_send_more_than_they_may_do_not_wait_for_each_other() -> None:
    limits = ConnectionLimits(write_pause_bytes=64 * 1024)
    async with (
        serving(ROUTES, limits=ServerLimits(connection=limits)) as server,
        closing(RpcClient(limits=limits)) as client,
    ):
        body = b"x" * 32 * 1024
        calls = [client.call(address_of(server), ECHO, body=body, timeout_s=10) for _ in range(600)]
        assert all(answer.body == body for answer in await asyncio.gather(*calls))


@on_both_loops
async def test_server_that_never_speaks_tls_back_cannot_fill_the_memory_of_a_client(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    listening = bind_port(HOST, 0)
    listening.listen(1)
    limits = ConnectionLimits(write_limit_bytes=64 * 1024)
    client = RpcClient(tls=client_context(trusted=certificates.authority), limits=limits)
    with listening:
        async with closing(client):
            connection = await client.connection(f"{HOST}:{listening.getsockname()[1]}")
            for _ in range(100):
                connection.notify(40, body=b"x" * 1024)
            assert connection.closed
            assert len(warnings_of(caplog)) == 1


# -- TLS -------------------------------------------------------------------------------------------------


def tls_of(certificates: Certificates, mode: TlsMode, *, ask_client: bool = False) -> ServerTls:
    trusted = certificates.authority if ask_client else None
    return ServerTls(mode, server_context(certificates.server, certificates.server_key, trusted=trusted))


@on_both_loops
async def test_permissive_port_serves_plain_and_tls_side_by_side(certificates: Certificates) -> None:
    async with (
        serving(ROUTES, tls=tls_of(certificates, TlsMode.PERMISSIVE)) as server,
        closing(RpcClient()) as plain,
        closing(RpcClient(tls=client_context(trusted=certificates.authority))) as secret,
    ):
        for client in (plain, secret, plain, secret):
            bodies = [os.urandom(5_000) for _ in range(20)]
            calls = [client.call(address_of(server), ECHO, body=body) for body in bodies]
            assert [answer.body for answer in await asyncio.gather(*calls)] == bodies
        assert len(server.connections) == 2


@pytest.mark.slow
@on_both_loops
async def test_tls_carries_a_large_body_and_calls_of_the_server(certificates: Certificates) -> None:
    client = RpcClient(
        router=Router([RawRoute(ECHO, echo)]), tls=client_context(trusted=certificates.authority)
    )
    async with serving(ROUTES, tls=tls_of(certificates, TlsMode.ENFORCING)) as server, closing(client):
        body = os.urandom(1024) * 8 * 1024
        assert (await client.call(address_of(server), ECHO, body=body, timeout_s=10)).body == body
        assert (await client.call(address_of(server), CALL_BACK, body=b"x")).body == b"from the server x"


@on_both_loops
async def test_tls_bytes_in_single_steps_are_understood(certificates: Certificates) -> None:
    """The first byte alone decides, even when it arrives alone."""
    async with (
        serving(ROUTES, tls=tls_of(certificates, TlsMode.PERMISSIVE)) as server,
        await RawPeer.connect(server) as peer,
    ):
        client = TlsFilter(client_context(), server_side=False)
        hello = client.start()
        await peer.send(hello[:1])
        await until_async(lambda: server.connections)
        await asyncio.sleep(0.005)
        to_server = hello[1:]
        client.encrypt(encode_request(ECHO, 1, None, b"secret"))
        plain = b""
        while not plain.endswith(b"secret"):
            await peer.send(to_server)
            more, to_server = client.receive(await peer.receive())
            plain += more


@on_both_loops
async def test_enforcing_port_refuses_plain_with_one_log_line(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ROUTES, tls=tls_of(certificates, TlsMode.ENFORCING)) as server:
        async with closing(RpcClient()) as plain:
            with pytest.raises(ConnectionLostError):
                await plain.call(address_of(server), ECHO)
        (line,) = warnings_of(caplog)
        assert "only TLS is accepted" in line
        async with closing(RpcClient(tls=client_context())) as secret:
            assert (await secret.call(address_of(server), ECHO, body=b"x")).body == b"x"


@pytest.mark.parametrize("with_certificate", [True, False])
@on_both_loops
async def test_port_without_tls_refuses_it_with_one_log_line_and_serves_plain(
    with_certificate: bool, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    tls = tls_of(certificates, TlsMode.DISABLED) if with_certificate else None
    async with serving(ROUTES, tls=tls) as server:
        async with closing(RpcClient(tls=client_context())) as secret:
            with pytest.raises(ConnectionLostError):
                await secret.call(address_of(server), ECHO)
        (line,) = warnings_of(caplog)
        assert "TLS is not enabled" in line
        async with closing(RpcClient()) as plain:
            assert (await plain.call(address_of(server), ECHO, body=b"x")).body == b"x"


@on_both_loops
async def test_server_that_asks_for_a_client_certificate_serves_only_those_who_have_one(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    with_certificate = client_context(
        trusted=certificates.authority, certificate=certificates.client, key=certificates.client_key
    )
    tls = tls_of(certificates, TlsMode.ENFORCING, ask_client=True)
    async with serving(ROUTES, tls=tls) as server:
        async with closing(RpcClient(tls=with_certificate)) as known:
            assert (await known.call(address_of(server), ECHO, body=b"x")).body == b"x"
        assert warnings_of(caplog) == []
        async with closing(RpcClient(tls=client_context(trusted=certificates.authority))) as unknown:
            with pytest.raises(ConnectionLostError):
                await unknown.call(address_of(server), ECHO)
        of_server, of_client = sorted(warnings_of(caplog), key=lambda line: "ALERT" in line)
        assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in of_server
        assert "CERTIFICATE_REQUIRED" in of_client, "the alert reached the client before the end"


@on_both_loops
async def test_client_refuses_a_server_it_does_not_trust(certificates: Certificates) -> None:
    async with (
        serving(ROUTES, tls=tls_of(certificates, TlsMode.ENFORCING)) as server,
        closing(RpcClient(tls=client_context(trusted=certificates.stranger))) as client,
    ):
        with pytest.raises(ConnectionLostError):
            await client.call(address_of(server), ECHO)


@on_both_loops
async def test_garbage_inside_and_instead_of_tls_closes_with_one_log_line(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ROUTES, tls=tls_of(certificates, TlsMode.PERMISSIVE)) as server:
        async with await RawPeer.connect(server) as peer:
            await peer.send(b"\x16\x03\x01" + b"\xff" * 200)
            await peer.closed_by_server()
        assert len(warnings_of(caplog)) == 1
        caplog.clear()
        async with closing(RpcClient(tls=client_context())) as client:
            connection = await client.connection(address_of(server))
            connection.send(b"\xff\xff\xff\xff garbage in a good record")
            await until_async(lambda: connection.closed)
        assert len(warnings_of(caplog)) == 1


def test_call_without_time_left_does_not_blame_the_network() -> None:
    async def run() -> None:
        async with serving(ROUTES) as server, closing(RpcClient()) as client:
            with pytest.raises(ConnectFailedError, match="the time limit ended before connecting to"):
                await client.call(address_of(server), 1, timeout_s=-0.128127)

    asyncio.run(run())

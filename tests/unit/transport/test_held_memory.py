"""The bound on everything the connections of one server hold, with test holders and with real sockets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tests.support.waiting import until_async
from tests.unit.transport.loops import on_both_loops

from orbitmq.transport.client import RpcClient
from orbitmq.transport.connection import ConnectionLimits
from orbitmq.transport.held_memory import PRESSED_BYTES, HeldMemory
from orbitmq.transport.router import RawRoute, Router
from orbitmq.transport.server import Listener, Server, ServerLimits
from orbitmq.wire.frame import encode_request, encode_response

HOST = "127.0.0.1"
ECHO = 10
LARGE = 11
MIB = 1 << 20


@dataclass(eq=False)
class Holding:
    """A connection that holds a given number of bytes."""

    remote: tuple[str, int]
    held_bytes: int
    pressed_to: int = 0
    dropped: str = ""

    def press(self, unsent_bytes: int) -> None:
        self.pressed_to = unsent_bytes

    def drop(self, reason: str) -> None:
        self.dropped = reason
        self.held_bytes = 0


@on_both_loops
async def test_host_that_holds_most_is_cut_and_not_the_largest_connection() -> None:
    flood = [Holding(("10.0.0.1", port), 100) for port in range(50)]
    honest = Holding(("10.0.0.2", 1), 2_000)
    held = HeldMemory([*flood, honest], 6_000)
    held.look()
    assert not any(one.dropped for one in flood), "what is above the limit for one turn costs nobody"
    await asyncio.sleep(0)
    assert not honest.dropped
    assert sum(1 for one in flood if one.dropped) == 25, "until a quarter of the limit is free"
    assert held.held_bytes == 4_500
    assert held.dropped_count == 25
    held.close()


@on_both_loops
async def test_above_half_of_the_limit_slow_readers_wait_and_below_it_no_more() -> None:
    holder = Holding(("10.0.0.1", 1), 400)
    held = HeldMemory([holder], 1_000)
    held.look()
    assert holder.pressed_to == 0
    holder.held_bytes = 600
    held.moved(62)
    assert held.pressed, "the sum was not taken although a sixteenth of the limit moved"
    assert holder.pressed_to == PRESSED_BYTES
    holder.held_bytes = 100
    held.look()
    assert (held.pressed, holder.pressed_to) == (False, 0)
    held.close()


def server(limit_bytes: int) -> Server:
    router = Router(
        [
            RawRoute(ECHO, lambda frame, peer: encode_response(0, frame.opaque)),
            RawRoute(LARGE, lambda frame, peer: encode_response(0, frame.opaque, None, bytes(MIB // 4))),
        ]
    )
    limits = ServerLimits(held_bytes=limit_bytes, connection=ConnectionLimits(close_wait_s=0.1))
    return Server([Listener(HOST, 0, router)], limits=limits)


@on_both_loops
async def test_half_frames_of_many_peers_stay_below_the_limit_and_others_are_served() -> None:
    served = server(8 * MIB)
    await served.start()
    polite = RpcClient()
    address = f"{HOST}:{served.ports[0]}"
    highest = 0
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(20):
            _, writer = await asyncio.open_connection(HOST, served.ports[0])
            writers.append(writer)
            writer.write((15 * MIB).to_bytes(4, "big") + bytes(MIB))
            highest = max(highest, served.held.held_bytes)
            assert (await polite.call(address, ECHO, timeout_s=5.0)).code == 0
        await until_async(lambda: served.held.dropped_count > 0)
        assert highest < 9.5 * MIB, "the limit, a sixteenth of it, and one read"
        assert served.held.held_bytes <= 8 * MIB
        assert (await polite.call(address, ECHO, timeout_s=5.0)).code == 0
    finally:
        for writer in writers:
            writer.transport.abort()
        await polite.close()
        await served.stop(0.1)


@on_both_loops
async def test_unread_answers_of_many_peers_stay_below_the_limit_and_others_are_served() -> None:
    served = server(8 * MIB)
    await served.start()
    polite = RpcClient()
    address = f"{HOST}:{served.ports[0]}"
    highest = 0
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(40):
            _, writer = await asyncio.open_connection(HOST, served.ports[0], limit=1024)
            writers.append(writer)
            writer.write(b"".join(encode_request(LARGE, number) for number in range(1, 40)))
            await writer.drain()
            assert (await polite.call(address, ECHO, timeout_s=5.0)).code == 0
            highest = max(highest, served.held.held_bytes)
        assert served.held.pressed
        assert highest < 10 * MIB
        assert (await polite.call(address, LARGE, timeout_s=5.0)).code == 0
    finally:
        for writer in writers:
            writer.transport.abort()
        await polite.close()
        await served.stop(0.1)

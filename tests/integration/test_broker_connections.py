"""A broker process with many connections, and with peers that do not read the responses they requested."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import pytest
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.integration.bad_requests import PULL, SEND_V2
from tests.support.waiting import until_async
from tests.unit.transport.loops import run

from orbitmq.codes import SerializeType
from orbitmq.requests import RequestCode
from orbitmq.runtime.machine import open_all_files_allowed
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request

pytestmark = pytest.mark.slow

IDLE_COUNT: Final = 2_000
ACTIVE_COUNT: Final = 200
TOPIC: Final = "connections"
MIB: Final = 1024 * 1024
WRITE_LIMIT_BYTES: Final = 64 * MIB
"""What may wait for one peer (ConnectionLimits.write_limit_bytes)."""


@contextmanager
def broker_process() -> Iterator[OrbitBroker]:
    with OrbitNamesrv() as namesrv, OrbitBroker(namesrv) as broker:
        yield broker
        broker.check_log()


class Peer:
    """One connection that reads only on demand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []

    async def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Frame:
        self.writer.write(encode_request(code, 1, fields, body, SerializeType.JSON))
        return await self.answer()

    async def answer(self) -> Frame:
        while not self._frames:
            data = await self._reader.read(MIB)
            assert data, "the broker closed the connection"
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    async def closed(self) -> bool:
        """Returns whether the broker has closed the connection, after everything it sent before."""
        try:
            while data := await self._reader.read(MIB):
                self._decoder.feed(data)
        except ConnectionError:
            pass
        return True


@asynccontextmanager
async def connected(broker: OrbitBroker, count: int, limit: int = 2**16) -> AsyncIterator[list[Peer]]:
    peers: list[Peer] = []
    try:
        for _ in range(count):
            peers.append(Peer(*await asyncio.open_connection("127.0.0.1", broker.port, limit=limit)))
        yield peers
    finally:
        for peer in peers:
            peer.writer.transport.abort()
        await asyncio.sleep(0)


def send_fields(queue_id: int, number: int) -> dict[str, str]:
    return {
        **SEND_V2,
        "b": TOPIC,
        "e": str(queue_id),
        "i": f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02",
    }


def pull_fields(queue_id: int, offset: int, *, wait_ms: int = 0) -> dict[str, str]:
    return {
        **PULL,
        "topic": TOPIC,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "sysFlag": "6" if wait_ms else "4",
        "suspendTimeoutMillis": str(wait_ms),
    }


async def settled_private_bytes(broker: OrbitBroker) -> int:
    """Returns the broker's private memory once it has stopped growing."""
    last, since = 0, time.monotonic()
    while time.monotonic() - since < 1.0:
        await asyncio.sleep(0.1)
        now = broker.private_bytes()
        if now > last + MIB // 4:
            last, since = now, time.monotonic()
    return broker.private_bytes()


def test_2000_idle_and_200_active_connections_are_held() -> None:
    open_all_files_allowed()

    async def everything(broker: OrbitBroker) -> None:
        async with connected(broker, 1) as [first]:
            answer = await first.ask(RequestCode.SEND_MESSAGE_V2, send_fields(0, 0), b"x" * 100)
            assert answer.code == 0, answer.remark
        before = await settled_private_bytes(broker)
        async with connected(broker, IDLE_COUNT) as idle, connected(broker, ACTIVE_COUNT) as active:
            each = (await settled_private_bytes(broker) - before) / (IDLE_COUNT + ACTIVE_COUNT)
            assert each < 32 * 1024, f"{each:.0f} bytes a connection"

            async def work(number: int, peer: Peer) -> None:
                queue_id = number % 4
                for turn in range(20):
                    fields = send_fields(queue_id, number * 1_000 + turn)
                    sent = await peer.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x" * 100)
                    assert sent.code == 0, sent.remark
                    place = int(sent.ext_fields["queueOffset"])
                    found = await peer.ask(RequestCode.PULL_MESSAGE, pull_fields(queue_id, place))
                    assert found.code == 0, found.remark

            await asyncio.gather(*(work(number, peer) for number, peer in enumerate(active)))
            fields = {"topic": TOPIC, "queueId": "0"}
            for peer in idle:
                answer = await peer.ask(RequestCode.GET_MAX_OFFSET, fields)
                assert answer.code == 0
            assert broker.open_files() > IDLE_COUNT + ACTIVE_COUNT
        # All of them left simultaneously: nothing of them remains.
        await until_async(lambda: broker.open_files() <= 200, "the files of closed connections")

    with broker_process() as broker:
        run("uvloop", lambda: everything(broker))


async def fill(peer: Peer, count: int, body: bytes) -> None:
    for number in range(count):
        answer = await peer.ask(RequestCode.SEND_MESSAGE_V2, send_fields(0, number), body)
        assert answer.code == 0, answer.remark


def test_peer_that_asks_for_everything_and_reads_nothing_costs_a_bounded_amount() -> None:
    """2,000 pulls of 256 KiB, half a gigabyte of responses: the broker stops serving it long before."""

    async def everything(broker: OrbitBroker) -> None:
        async with connected(broker, 1) as [producer], connected(broker, 1, limit=1024) as [deaf]:
            await fill(producer, 10, b"x" * 30_000)
            before = await settled_private_bytes(broker)
            request = encode_request(RequestCode.PULL_MESSAGE, 7, pull_fields(0, 0), b"", SerializeType.JSON)
            for _ in range(2_000):
                deaf.writer.write(request)
            grown = await settled_private_bytes(broker) - before
            assert grown < 16 * MIB, f"{grown / MIB:.1f} MiB"
            # Others are served as before.
            assert (await producer.ask(RequestCode.PULL_MESSAGE, pull_fields(0, 0))).code == 0
            # Once it reads, it gets every response it requested.
            for _ in range(2_000):
                answer = await deaf.answer()
                assert (answer.code, answer.opaque) == (0, 7)
            assert await settled_private_bytes(broker) - before < 16 * MIB

    with broker_process() as broker:
        run("uvloop", lambda: everything(broker))


def test_deaf_peer_with_many_waiting_pulls_is_cut_off_at_the_limit() -> None:
    """The arrival of a message answers waiting pulls, whether or not the peer reads; the limit on unsent bytes ends
    the connection.
    """

    async def everything(broker: OrbitBroker) -> None:
        async with connected(broker, 1) as [producer], connected(broker, 1, limit=1024) as [deaf]:
            await fill(producer, 1, b"x")
            before = await settled_private_bytes(broker)
            for _ in range(2_000):
                fields = pull_fields(0, 1, wait_ms=15_000)
                deaf.writer.write(
                    encode_request(RequestCode.PULL_MESSAGE, 7, fields, b"", SerializeType.JSON)
                )
            await asyncio.sleep(0.5)
            await fill(producer, 1, b"x" * 1_000_000)  # times 2,000 pulls that wait for it
            grown = await settled_private_bytes(broker) - before
            assert grown < WRITE_LIMIT_BYTES + 32 * MIB, f"{grown / MIB:.1f} MiB"
            assert (await producer.ask(RequestCode.PULL_MESSAGE, pull_fields(0, 1))).code == 0
            assert await deaf.closed()
            assert await settled_private_bytes(broker) - before < 32 * MIB, "the memory came back"

    with broker_process() as broker:
        run("uvloop", lambda: everything(broker))

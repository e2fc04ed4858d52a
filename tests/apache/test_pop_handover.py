"""A store with messages handed out by POP is handed over between the brokers: acknowledged messages are not
redelivered, the others are when their invisible time is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.apache.artifacts import LATEST
from tests.apache.ours import OrbitBroker
from tests.apache.servers import ApacheBroker, ApacheNamesrv, create_topic

from orbitmq.client import Message, Producer, SimpleConsumer

pytestmark = [pytest.mark.apache, pytest.mark.slow, pytest.mark.soak]

TOPIC = "handed"
GROUP = "hands"
COUNT = 24
INVISIBLE_S = 20.0

Make = Callable[[ApacheNamesrv, Path], "ApacheBroker | OrbitBroker"]


def _apache(namesrv: ApacheNamesrv, store: Path) -> ApacheBroker:
    return ApacheBroker(LATEST, namesrv, store_dir=store)


def _ours(namesrv: ApacheNamesrv, store: Path) -> OrbitBroker:
    return OrbitBroker(namesrv, store)


async def _receive(namesrv: str, count: int, *, ack: Callable[[int], bool], timeout_s: float) -> list[str]:
    """Returns bodies in the order of their delivery, until ``count`` arrived or the time is over."""
    consumer = SimpleConsumer(GROUP, namesrv, invisible_s=INVISIBLE_S, await_s=1.0)
    consumer.subscribe(TOPIC)
    found: list[str] = []
    deadline = time.monotonic() + timeout_s
    async with consumer:
        while len(found) < count and time.monotonic() < deadline:
            for message in await consumer.receive(8):
                if ack(len(found)):
                    await consumer.ack(message)
                found.append(message.text())
    return found


async def _send(namesrv: str) -> None:
    async with Producer("handing", namesrv) as producer:
        for number in range(COUNT):
            await producer.send(Message(TOPIC, f"m{number}"))


@pytest.mark.parametrize(
    ("first", "second"), [(_apache, _ours), (_ours, _apache)], ids=["to-ours", "to-apache"]
)
def test_messages_in_flight_are_taken_over(
    apache_tools: None, tmp_path: Path, first: Make, second: Make
) -> None:
    with ExitStack() as stack:
        namesrv = stack.enter_context(ApacheNamesrv(LATEST))
        store = tmp_path / "store"
        broker = first(namesrv, store)
        with broker:
            create_topic(namesrv, broker, TOPIC, queue_count=2)
            asyncio.run(_send(namesrv.address))
            got = asyncio.run(
                _receive(namesrv.address, COUNT, ack=lambda number: number % 2 == 0, timeout_s=30)
            )
            assert sorted(got) == sorted(f"m{number}" for number in range(COUNT))
            broker.stop()
        acknowledged, open_ones = got[::2], got[1::2]
        with second(namesrv, store) as other:
            create_topic(namesrv, other, TOPIC, queue_count=2)
            again = asyncio.run(
                _receive(namesrv.address, COUNT, ack=lambda _: True, timeout_s=INVISIBLE_S + 25)
            )
    assert sorted(again) == sorted(open_ones), (sorted(set(again) & set(acknowledged)), len(again))

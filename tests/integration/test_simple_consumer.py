"""SimpleConsumer, and push consumers that pop, against our broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial

import pytest
from tests.integration.ha_kit import until
from tests.unit.transport.loops import run

from orbitmq.client import (
    ClientStateError,
    ConsumeFromWhere,
    Message,
    PoppedMessage,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from orbitmq.client import sync as plain
from orbitmq.client.message import ReceivedMessage
from orbitmq.errors import RequestTimeoutError
from orbitmq.requests import RequestCode
from orbitmq.testing import run_broker
from orbitmq.testing.run_broker import RunningBroker
from orbitmq.transport.client import RpcClient

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker(enablePropertyFilter=True) as running:
        yield running


async def send(broker: RunningBroker, topic: str, bodies: list[str], tags: str = "") -> None:
    async with Producer("senders", broker.name_server) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, tags=tags))


async def switch(broker: RunningBroker, topic: str, group: str, mode: str) -> None:
    """Does the same as ``setConsumeMode``."""
    rpc = RpcClient()
    try:
        body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": 0}
        answer = await rpc.call(
            broker.address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, json.dumps(body).encode()
        )
        assert answer.code == 0, answer.remark
    finally:
        await rpc.close()


def test_message_whose_tag_has_the_same_hash_is_not_delivered_now_nor_later(broker: RunningBroker) -> None:
    topic = broker.create_topic("collision", queue_count=1)

    async def scenario() -> None:
        await send(broker, topic, ["other"], tags="BB")  # the hash of "Aa", and the broker compares hashes
        await send(broker, topic, ["mine"], tags="Aa")
        consumer = SimpleConsumer(
            "g-collision",
            broker.name_server,
            invisible_s=0.3,
            await_s=2.0,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        consumer.subscribe(topic, "Aa")
        async with consumer:
            messages = await consumer.receive()
            for message in messages:
                await consumer.ack(message)
            assert [message.text() for message in messages] == ["mine"]
            assert not await consumer.receive(), "the other one came from the retry topic"

    run("uvloop", scenario)


def test_simple_consumer_is_ready_when_its_topics_are_found(broker: RunningBroker) -> None:
    topic = broker.create_topic("ready", queue_count=1)

    async def scenario() -> None:
        consumer = SimpleConsumer("g-ready", broker.name_server)
        consumer.subscribe(topic)
        async with consumer:
            await consumer.wait_ready()
            consumer.subscribe("ready-missing")
            with pytest.raises(RequestTimeoutError, match="no route to ready-missing"):
                await consumer.wait_ready(0.3)

    run("uvloop", scenario)


def test_simple_consumer_receives_acknowledges_and_gets_the_rest_again(broker: RunningBroker) -> None:
    topic = broker.create_topic("simple", queue_count=2)

    async def scenario() -> None:
        await send(broker, topic, ["a", "b", "c"])
        consumer = SimpleConsumer("g-simple", broker.name_server, invisible_s=0.5)
        consumer.subscribe(topic)
        async with consumer:
            found: dict[str, int] = {}
            while len(found) < 3:
                for message in await consumer.receive():
                    found[message.text()] = message.attempt
                    assert message.topic == topic
                    if message.text() != "b":
                        await consumer.ack(message)
            assert set(found.values()) == {1}
            (again,) = await consumer.receive(wait_s=5)
            assert (again.text(), again.attempt, again.topic) == ("b", 2, topic)
            await consumer.change_invisible(again, 30)
            assert await consumer.receive(wait_s=0.8) == []
            await consumer.change_invisible(again, 0)
            (again,) = await consumer.receive(wait_s=5)
            assert again.attempt == 3
            await consumer.ack_all([again])
            assert await consumer.receive(wait_s=0.8) == []

    run("uvloop", scenario)


def test_message_of_a_simple_consumer_is_acknowledged_and_given_back_by_itself(broker: RunningBroker) -> None:
    topic = broker.create_topic("by-itself", queue_count=1)

    async def scenario() -> None:
        await send(broker, topic, ["a", "b"])
        async with SimpleConsumer("g-by-itself", broker.name_server, invisible_s=60) as consumer:
            with pytest.raises(ClientStateError, match="subscribe"):
                await consumer.receive()
            consumer.subscribe(topic)
            received: list[PoppedMessage] = []
            while len(received) < 2:
                received += await consumer.receive(wait_s=5)
            first, second = sorted(received, key=lambda message: message.text())
            await first.ack()
            with pytest.raises(ClientStateError, match="once"):
                await first.ack()
            with pytest.raises(ClientStateError, match="dead letters"):
                await second.dead_letter("no")
            await second.retry()
            (again,) = await consumer.receive(wait_s=5)
            assert (again.text(), again.attempt) == ("b", 2)
            await again.ack()
            assert await consumer.receive(wait_s=0.3) == []

    run("uvloop", scenario)


def test_simple_consumer_of_two_topics_waits_for_either_with_filters(broker: RunningBroker) -> None:
    first = broker.create_topic("either-1", queue_count=1)
    second = broker.create_topic("either-2", queue_count=1)

    async def scenario() -> None:
        consumer = SimpleConsumer("g-either", broker.name_server, await_s=10)
        consumer.subscribe(first, "wanted")
        consumer.subscribe(second, "TAGS = 'x'", sql=True)
        async with consumer:
            for topic, tags in ((second, "x"), (first, "wanted")):
                waiting = asyncio.ensure_future(consumer.receive())
                await send(broker, topic, ["no"], tags="other")
                await send(broker, topic, ["yes"], tags=tags)
                (message,) = await waiting
                assert (message.text(), message.topic) == ("yes", topic)
                await consumer.ack(message)

    run("uvloop", scenario)


def test_plain_simple_consumer_blocks_and_acknowledges(broker: RunningBroker) -> None:
    topic = broker.create_topic("plain-simple", queue_count=1)
    run("uvloop", lambda: send(broker, topic, ["a"]))
    consumer = plain.SimpleConsumer("g-plain", broker.name_server)
    consumer.subscribe(topic)
    with consumer:
        (message,) = consumer.receive(wait_s=5)
        consumer.ack(message)
        assert consumer.receive(wait_s=0.2) == []


def _pops(consumer: PushConsumer, mode: str) -> bool:
    return bool(consumer._pops.held) == (mode == "POP")


def _has(handled: dict[str, int], count: int) -> bool:
    return len(handled) == count


def test_push_consumer_switches_from_pull_to_pop_and_back_with_nothing_lost(broker: RunningBroker) -> None:
    topic, group = broker.create_topic("switched", queue_count=2), "g-switched"
    handled: dict[str, int] = {}

    async def handle(message: ReceivedMessage) -> None:
        handled[message.text()] = handled.get(message.text(), 0) + 1
        await asyncio.sleep(0.002)

    async def scenario() -> None:
        consumer = PushConsumer(
            group,
            broker.name_server,
            server_rebalance=True,
            rebalance_s=0.2,
            rebalance_spacing_s=0.05,
            suspend_s=0.3,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
            pop_invisible_s=2.0,
        )
        consumer.subscribe(topic, "*", handle)
        async with consumer:
            for part, mode in enumerate(("PULL", "POP", "PULL", "POP")):
                sending = asyncio.ensure_future(
                    send(broker, topic, [f"{part}-{number}" for number in range(200)])
                )
                await switch(broker, topic, group, mode)
                await until(partial(_pops, consumer, mode), "the switch")
                await sending
                await until(partial(_has, handled, 200 * (part + 1)), "all messages", 15.0)
        repeated = sum(count - 1 for count in handled.values())
        assert repeated <= 300, repeated  # messages held at a switch may be redelivered

    run("uvloop", scenario)


def test_push_consumer_that_pops_retries_and_gives_up_to_the_dead_letters(broker: RunningBroker) -> None:
    topic, group = broker.create_topic("popped-failing", queue_count=1), "g-failing"
    attempts: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        attempts.append(message.reconsume_times)
        raise ValueError(message.text())

    async def scenario() -> None:
        await switch(broker, topic, group, "POP")
        dead = SimpleConsumer("g-undertaker", broker.name_server)
        consumer = PushConsumer(
            group,
            broker.name_server,
            server_rebalance=True,
            reconsume_max=0,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        consumer.subscribe(topic, "*", handle)
        async with consumer:
            await send(broker, topic, ["bad"])
            await until(lambda: bool(attempts), "the delivery")
            dead.subscribe(f"%DLQ%{group}")
            async with dead:
                (letter,) = await dead.receive(wait_s=10)
                assert letter.text() == "bad"
                await dead.ack(letter)
        assert attempts == [0]

    run("uvloop", scenario)

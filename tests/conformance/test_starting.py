"""The offset at which a new group starts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from tests.apache.servers import create_topic
from tests.conformance.conftest import Target
from tests.conformance.test_consuming import fill
from tests.conformance.waiting import Collector, until

from orbitmq.client import Message, MessageQueue, Producer, PushConsumer
from orbitmq.client.options import Start


async def test_new_group_starts_where_it_was_told(target: Target) -> None:
    """Also where the broker still has the first message: by default it would return 0 there."""
    topic = target.topic(queue_count=2)
    old_brokers = target.name.endswith("4.9.7")  # they return it for any request
    await fill(target, topic, 4)
    await asyncio.sleep(0.02)  # times are in milliseconds
    cut = datetime.now(UTC)
    async with Producer("pg-start", target.address) as producer:
        await producer.send(Message(topic, "later"))
        expected: list[tuple[Start, set[str]]] = [
            ("first", {"m0", "m1", "m2", "m3", "later"}),
            (cut, {"later"}),
            ("last", set()),
        ]
        for start, texts in expected:
            got = Collector()
            consumer = PushConsumer(target.group(), target.address, start=start)
            got.on(consumer, topic)
            async with consumer:
                await consumer.wait_ready()
                if start == "last":
                    await producer.send(Message(topic, "after"))
                await got.wait(5 if old_brokers else len(texts) or 1)
            if not old_brokers:
                assert set(got.bodies) == (texts or {"after"}), start


async def test_start_at_the_end_misses_nothing_of_new_topics_and_new_queues(target: Target) -> None:
    topic = f"unborn-{target.group()}"
    group, got = target.group(), Collector()
    consumer = PushConsumer(group, target.address, start="last")
    got.on(consumer, topic)
    async with consumer, Producer("pg-unborn", target.address) as producer:
        create_topic(target.namesrv, target.broker, topic, queue_count=1)
        sent = await producer.send(Message(topic, "the first ever"))
        assert sent.queue_offset == 0
        await got.wait(1)
    create_topic(target.namesrv, target.broker, topic, queue_count=2)
    async with Producer("pg-unborn-2", target.address) as producer:
        await producer.send(
            Message(topic, "new queue"),
            queue=MessageQueue(topic=topic, broker_name=sent.queue.broker_name, queue_id=1),
        )
        again = PushConsumer(group, target.address, start="last")
        got.on(again, topic)
        async with again:
            await got.wait(2)
    assert got.bodies == ["the first ever", "new queue"]


def send_between(consumer: PushConsumer, producer: Producer) -> None:
    """Makes a queue's first message arrive after the broker was queried for the group's offset, and before its end
    is.
    """
    end = consumer._offsets.end

    async def end_after_a_message(queue: MessageQueue) -> int:
        if await end(queue) == 0:
            await producer.send(Message(queue.topic, "in between"), queue=queue)
        return await end(queue)

    consumer._offsets.end = end_after_a_message  # type: ignore[method-assign]  # asks the same question


async def test_first_message_that_arrives_during_the_start_at_the_end_is_not_missed(target: Target) -> None:
    topic, got = f"unborn-{target.group()}", Collector()
    consumer = PushConsumer(target.group(), target.address, start="last")
    got.on(consumer, topic)
    async with Producer("pg-between", target.address) as producer:
        send_between(consumer, producer)
        async with consumer:
            create_topic(target.namesrv, target.broker, topic, queue_count=1)
            await until(lambda: any(queue.topic == topic for queue in consumer.queues), "the queue")
            if not got.messages:
                await producer.send(Message(topic, "after"))
            await got.wait(1)
    assert got.bodies[0] != "after"

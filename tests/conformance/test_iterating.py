"""``async for message in consumer``: when messages are acknowledged, and that none is lost, starved or left
waiting.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conformance.conftest import Target
from tests.conformance.test_consuming import fill
from tests.conformance.waiting import until

from orbitmq.client import (
    ClientStateError,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    sync,
)
from orbitmq.errors import BrokerError
from orbitmq.model.names import dlq_topic

FIRST = ConsumeFromWhere.FIRST_OFFSET


async def test_lite_pull_break_loses_nothing(target: Target) -> None:
    topic, group = target.topic(), target.group()
    await fill(target, topic, 40)
    seen: list[str] = []
    while len(seen) < 40:
        async with LitePullConsumer(group, target.address, from_where=FIRST) as consumer:
            consumer.subscribe(topic)
            for _ in range(4):
                async for message in consumer:
                    seen.append(message.text())
                    if len(seen) % 3 == 0 or len(seen) >= 40:
                        break
                if len(seen) >= 40:
                    break
            await consumer.commit()
    assert sorted(seen) == sorted(f"m{i}" for i in range(40)), "each once, in the quiet case"


async def test_break_acknowledges_at_the_end_of_the_block_unless_it_fails(target: Target) -> None:
    topic, group = target.topic(queue_count=1), target.group()
    await fill(target, topic, 6)
    seen: list[str] = []

    async def take_one(*, fail: bool = False) -> None:
        consumer = PushConsumer(group, target.address, from_where=FIRST)
        consumer.subscribe(topic)
        async with consumer:
            async for message in consumer:
                seen.append(message.text())
                if fail:
                    raise LookupError("not handled")
                break

    await take_one()
    await take_one()
    with pytest.raises(LookupError):
        await take_one(fail=True)
    await take_one()
    assert len(set(seen[:3])) == 3
    assert seen[3] == seen[2], "the failed message is redelivered"


async def test_breaks_in_a_row_go_on_with_the_next_message(target: Target) -> None:
    topic = target.topic(queue_count=1)
    await fill(target, topic, 50)
    consumer = PushConsumer(target.group(), target.address, from_where=FIRST)
    consumer.subscribe(topic)
    seen: list[int] = []
    async with consumer:
        for _ in range(50):
            async with asyncio.timeout(10):
                async for message in consumer:
                    seen.append(message.queue_offset)
                    break
        [queue] = [q for q in consumer.queues if q.topic == topic]
    assert seen == list(range(50))
    async with PullConsumer(consumer.group, target.address) as reader:
        await reader.fetch_queues(topic)
        assert await reader.committed(queue) == 50


async def test_queues_take_turns(target: Target) -> None:
    topic = target.topic(queue_count=4)
    async with Producer("pg-turns", target.address) as producer:
        queues = await producer.queues(topic)
        sizes = {queues[0]: 300, queues[1]: 20, queues[2]: 20, queues[3]: 20}
        for queue, count in sizes.items():
            await producer.send_batch([Message(topic, "x")] * count, queue=queue)
    consumer = PushConsumer(target.group(), target.address, from_where=FIRST)
    consumer.subscribe(topic)
    last_of_small = total = 0
    async with consumer:
        # All queues have messages here before the first is requested.
        await until(
            lambda: all(held.count for q, held in consumer._assignment.held.items() if q.topic == topic),
            "pulled",
        )
        async for message in consumer:
            total += 1
            if message.queue_id != queues[0].queue_id:
                last_of_small = total
            if total == 360:
                break
    assert last_of_small <= 100, "a queue with much does not hold up those with little"


async def test_stop_ends_an_iteration_at_once(target: Target) -> None:
    topic = target.topic()
    for kind in (PushConsumer, LitePullConsumer):
        consumer = kind(target.group(), target.address, from_where=FIRST)
        consumer.subscribe(topic)
        await consumer.start()

        async def read(consumer: PushConsumer | LitePullConsumer = consumer) -> str:
            async for _ in consumer:
                pass
            return "ended"

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        started = asyncio.get_running_loop().time()
        async with asyncio.timeout(5):
            await consumer.stop()
            assert await reading == "ended"
        assert asyncio.get_running_loop().time() - started < 3


async def test_ack_retry_and_dead_letter_by_hand(target: Target) -> None:
    topic, group = target.topic(queue_count=1), target.group()
    await fill(target, topic, 3)
    consumer = PushConsumer(group, target.address, from_where=FIRST)
    consumer.subscribe(topic)
    attempts: list[tuple[str, int]] = []
    async with consumer:
        async for message in consumer.messages(auto_ack=False):
            attempts.append((message.text(), message.attempt))
            if message.queue_offset == 0 and message.attempt == 1:
                await message.retry(delay=1)
            elif message.queue_offset == 1 and message.attempt == 1:
                wrong: Any = 404
                with pytest.raises(TypeError, match="reason is 404"):
                    await message.dead_letter(wrong)  # and the message is still to be finished
                await message.dead_letter("no such customer")
            else:
                await message.ack()
            with pytest.raises(ClientStateError):
                await message.ack()
            if len(attempts) == 4:
                break
    assert [attempt for _, attempt in attempts] == [1, 1, 1, 2]
    assert attempts[3][0] == attempts[0][0]
    async with PullConsumer(target.group(), target.address) as reader:
        found: list[ReceivedMessage] = []

        async def look() -> bool:
            try:
                [queue] = await reader.fetch_queues(dlq_topic(group))
            except BrokerError:
                return False
            found[:] = (await reader.pull(queue, 0)).messages
            return bool(found)

        await until(look, "a dead letter")
    assert found[0].get("RETRY_REASON") == "no such customer"
    assert found[0].get("RETRY_TOPIC") == topic


async def test_orderly_iteration_keeps_the_order_through_a_retry(target: Target) -> None:
    topic = target.topic(queue_count=1)
    async with Producer("pg-orderly-iteration", target.address) as producer:
        for number in range(5):
            await producer.send(Message(topic, str(number)))
    consumer = PushConsumer(
        target.group(), target.address, from_where=FIRST, orderly=True, suspend_queue_s=0.05
    )
    consumer.subscribe(topic)
    seen: list[str] = []
    async with consumer:
        async for message in consumer:
            seen.append(message.text())
            if seen == ["0", "1"]:
                await message.retry()
            if len(seen) == 6:
                break
    assert seen == ["0", "1", "1", "2", "3", "4"]


async def test_plain_iteration_ends_with_a_stop_and_a_second_stop_does_nothing(target: Target) -> None:
    topic = target.topic(queue_count=1)
    await fill(target, topic, 3)

    def read() -> list[str]:
        consumer = sync.PushConsumer(target.group(), target.address, start="first")
        consumer.subscribe(topic)
        consumer.start()
        seen = []
        for message in consumer:
            seen.append(message.text())
            if len(seen) == 3:
                consumer.ack(message)
                consumer.stop()
        consumer.stop()
        return seen

    assert len(await asyncio.to_thread(read)) == 3

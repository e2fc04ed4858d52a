"""Rows of what clients do that no other module has: D12, L02, L11, M07, M09, M12, M20."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from tests.conformance.stub import stub_cluster
from tests.conformance.waiting import until

from orbitmq.client import Message, MessageQueue, Producer, PullConsumer, PushConsumer, ReceivedMessage
from orbitmq.codes import RequestCode
from orbitmq.testing import RunningBroker, run_broker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


async def test_failed_attempt_is_logged_with_id_time_and_broker(caplog: pytest.LogCaptureFixture) -> None:
    """Row D12."""
    caplog.set_level(logging.INFO, "orbitmq.client")
    async with stub_cluster(brokers=2) as stub:
        stub.addresses["broker-b"] = "127.0.0.1:1"
        async with Producer("d12", stub.name_server) as producer:
            results = [await producer.send(Message("T", "x")) for _ in range(4)]
    assert {result.queue.broker_name for result in results} == {"broker-a"}
    [line, *_] = [record.getMessage() for record in caplog.records if "send failed" in record.getMessage()]
    assert "topic=T" in line
    assert "broker=broker-b attempt=1 ms=" in line
    assert any(f"id={result.message_id}" in line for result in results)


async def test_unsubscribed_topic_is_pulled_no_more(broker: RunningBroker) -> None:
    """Row L02."""
    kept, left = broker.create_topic("l02-kept"), broker.create_topic("l02-left")
    seen: list[str] = []
    consumer = PushConsumer("l02", broker.name_server, start="first")

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.text())

    consumer.subscribe(kept, handler=handle)
    consumer.subscribe(left, handler=handle)
    async with consumer, Producer("l02-writer", broker.name_server) as producer:
        await producer.send(Message(left, "before"))
        await until(lambda: seen == ["before"])
        consumer.unsubscribe(left)
        await until(lambda: not any(queue.topic == left for queue in consumer.queues))
        for _ in range(8):
            await producer.send(Message(left, "after"))
        await producer.send(Message(kept, "kept"))
        await until(lambda: "kept" in seen)
        assert seen == ["before", "kept"]


async def test_changed_assignment_is_logged_and_told(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Row L11."""
    caplog.set_level(logging.INFO, "orbitmq.client")
    topic = broker.create_topic("l11")
    assigned: list[MessageQueue] = []
    consumer = PushConsumer("l11", broker.name_server, on_assigned=assigned.extend)
    consumer.subscribe(topic, handler=lambda message: None)
    async with consumer:
        await until(lambda: sum(queue.topic == topic for queue in assigned) == 4)
    lines = [record.getMessage() for record in caplog.records if "topic=l11" in record.getMessage()]
    [line] = [line for line in lines if "assignment changed" in line]
    assert f"group=l11 topic=l11 client={consumer.client_id} queues=4 of 4 mine=['broker-a:0'," in line


async def test_failure_of_a_broadcast_is_logged_and_not_repeated(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Row M07."""
    topic = broker.create_topic("m07", queue_count=1)
    seen: list[str] = []
    consumer = PushConsumer("m07", broker.name_server, broadcast=True, start="first", instance_name="m07")

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.text())
        raise ValueError("broken")

    consumer.subscribe(topic, handler=handle)
    async with consumer, Producer("m07-writer", broker.name_server) as producer:
        for number in range(3):
            await producer.send(Message(topic, f"{number}"))
        await until(lambda: len(seen) >= 3)
        assert sorted(seen) == ["0", "1", "2"]
        assert "broken" in caplog.text
    assert not (broker.data / "store" / "consumequeue" / "%RETRY%m07").exists(), "nothing was sent back"


async def test_members_with_different_topics_leave_queues_unread(broker: RunningBroker) -> None:
    """Row M09."""
    one, two = broker.create_topic("m09-one"), broker.create_topic("m09-two")
    consumers = [PushConsumer("m09", broker.name_server, instance_name=f"m09-{n}") for n in range(2)]
    for consumer, topic in zip(consumers, (one, two), strict=True):
        consumer.subscribe(topic, handler=lambda message: None)

    def held(consumer: PushConsumer, topic: str) -> int:
        return sum(queue.topic == topic for queue in consumer.queues)

    async with consumers[0], consumers[1]:
        await until(lambda: held(consumers[0], one) == 2 and held(consumers[1], two) == 2)


async def test_pull_consumer_stores_offsets_only_when_asked() -> None:
    """Row M12."""
    async with stub_cluster() as stub:
        async with PullConsumer("m12", stub.name_server) as consumer:
            [queue, *_] = await consumer.fetch_queues("T")
            await consumer.max_offset(queue)
        assert stub.count(RequestCode.UPDATE_CONSUMER_OFFSET) == 0
        async with PullConsumer("m12", stub.name_server) as consumer:
            await consumer.update_offset(queue, 5)
        assert stub.count(RequestCode.UPDATE_CONSUMER_OFFSET) == 1


async def test_full_cache_pauses_pulling_and_says_so_rarely(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Row M20."""
    caplog.set_level(logging.INFO, "orbitmq.client")
    topic = broker.create_topic("m20", queue_count=1)
    release = asyncio.Event()
    seen: list[str] = []
    consumer = PushConsumer(
        "m20", broker.name_server, start="first", cached_count_max=10, pull_batch_size=4, workers=1
    )

    async def handle(message: ReceivedMessage) -> None:
        await release.wait()
        seen.append(message.text())

    consumer.subscribe(topic, handler=handle)
    async with Producer("m20-writer", broker.name_server) as producer:
        for number in range(60):
            await producer.send(Message(topic, f"{number}"))
        async with consumer:
            await until(lambda: "cache full" in caplog.text)
            assert consumer.held_messages["received"] <= 10 + 4
            release.set()
            await until(lambda: len(seen) == 60)
    lines = [record.getMessage() for record in caplog.records if "cache full" in record.getMessage()]
    assert len(lines) == 1, "one line, however often it was full"
    assert "count=" in lines[0]
    assert "first=" in lines[0]

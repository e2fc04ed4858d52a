"""Rows of the client's behaviour that no other module covers: D09, D12, D15, H06, L06, L02, L11, M07, M09, M12, M18
to M20.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.conformance.stub import sent, stub_cluster
from tests.conformance.waiting import until

from orbitmq.client import (
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendConnectionError,
    SendTimeoutError,
    sync,
)
from orbitmq.codes import ResponseCode
from orbitmq.testing import RunningBroker, run_broker
from orbitmq.transport.router import PARKED, Answer, Call, Reply
from orbitmq.wire.header import Header

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


async def test_pull_consumer_stores_offsets_only_when_asked(broker: RunningBroker) -> None:
    """Row M12."""
    topic = broker.create_topic("m12", queue_count=1)
    async with Producer("m12-writer", broker.name_server) as producer:
        for number in range(3):
            await producer.send(Message(topic, f"{number}"))
    async with PullConsumer("m12", broker.name_server) as consumer:
        [queue] = await consumer.fetch_queues(topic)
        first = await consumer.pull(queue, 0, 2)
        second = await consumer.pull(queue, first.next_offset, 2)
        assert [message.text() for message in first.messages + second.messages] == ["0", "1", "2"]
    async with PullConsumer("m12", broker.name_server) as consumer:
        assert await consumer.committed(queue) == -1, "neither the pulls nor the stop stored an offset"
        await consumer.update_offset(queue, 2)
        assert await consumer.committed(queue) == 2


@pytest.mark.parametrize(
    ("name", "size", "limits", "received_max"),
    [("m18", 50_000, {"cached_bytes_max": 400_000}, 12), ("m19", 10, {"span_max": 20}, 26)],
)
async def test_bytes_and_span_of_the_cache_are_limited(
    broker: RunningBroker,
    caplog: pytest.LogCaptureFixture,
    name: str,
    size: int,
    limits: dict[str, Any],
    received_max: int,
) -> None:
    """Rows M18 and M19: pulling stops at the limit of the options, and resumes when messages are finished."""
    caplog.set_level(logging.INFO, "orbitmq.client")
    topic = broker.create_topic(name, queue_count=1)
    release = asyncio.Event()
    done: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.queue_offset == 0 or name == "m18":
            await release.wait()
        done.append(message.queue_offset)

    async with Producer(f"{name}-writer", broker.name_server, compress_over_bytes=10**6) as producer:
        for _ in range(40):
            await producer.send(Message(topic, b"x" * size))
    consumer = PushConsumer(name, broker.name_server, start="first", pull_batch_size=4, workers=64, **limits)
    consumer.subscribe(topic, handler=handle)

    def received() -> int:
        return consumer.held_messages["received"] + len(done)

    async with consumer:
        await until(lambda: "cache full" in caplog.text or received() == 40)
        assert "cache full" in caplog.text
        assert received() <= received_max, "the limit and one pull more"
        release.set()
        await until(lambda: len(done) == 40)


def _nothing(suggested: int) -> Reply:
    """Returns the response to a pull at the end of a queue."""
    fields = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
    return Reply(ResponseCode.PULL_NOT_FOUND, ext={**fields, "suggestWhichBrokerId": str(suggested)})


@pytest.mark.parametrize("reason", ["suggested", "failed"])
async def test_pull_goes_to_the_replica_suggested_or_to_another_one_after_a_failure(reason: str) -> None:
    """Row H06: the master suggests its slave, or does not answer."""

    pulled: dict[tuple[str, str], list[str]] = {}

    def answer(server: str, call: Call[Header]) -> Answer:
        queue = call.frame.ext_fields["topic"], call.frame.ext_fields["queueId"]
        servers = pulled.setdefault(queue, [])
        servers.append(server)
        if server == "broker-a" and reason == "failed":
            call.peer.abort()
        first = server == "broker-a" and len(servers) == 1
        return _nothing(suggested=1) if first and reason == "suggested" else PARKED

    async with stub_cluster(brokers=2) as stub:
        # One broker with two replicas: the second server is the slave of the first.
        stub.replicas = {"broker-a": {0: stub.addresses["broker-a"], 1: stub.addresses["broker-b"]}}
        stub.on_pull = answer
        consumer = PushConsumer("h06", stub.name_server, pull_error_pause_s=0.01)
        consumer.subscribe("T", handler=lambda message: None)
        stub.members = [consumer.client_id]
        async with consumer:
            await until(lambda: any(len(servers) > 1 for servers in pulled.values()), "a second pull")
            if reason == "failed":  # a broken connection is shared: some pulls never reached the master
                await until(lambda: any("broker-b" in servers for servers in pulled.values()), "a slave")
    if reason == "suggested":
        assert ["broker-a", "broker-b"] in [servers[:2] for servers in pulled.values()]
        assert ["broker-a", "broker-a"] not in [servers[:2] for servers in pulled.values()]


@pytest.mark.parametrize("fault", ["fails", "slow", "slow after a send", "slow after a retry"])
@pytest.mark.parametrize("plain", [False, True])
async def test_slow_and_failing_brokers_are_avoided(fault: str, plain: bool) -> None:
    """Row D09: with ``avoid_slow_brokers`` every attempt is reported, first or not, asyncio or synchronous."""

    def respond(broker: str, number: int) -> Answer:
        if fault == "slow after a retry" and number == 0:
            return Reply(ResponseCode.SYSTEM_BUSY, "busy")
        # A plain producer makes its first send on the asyncio side, and the next ones itself.
        if fault.startswith("slow after") and number == 1:
            stub.slow = {broker: 0.6}
        if fault == "fails" and broker == "broker-b":
            return Reply(ResponseCode.SYSTEM_BUSY, "busy")
        return sent()

    async with stub_cluster(respond, brokers=3) as stub:
        if fault == "slow":
            stub.slow = {"broker-b": 0.6}
        if fault != "slow after a retry":
            del stub.addresses["broker-c"]
        async with AsyncExitStack() as stack:
            if plain:
                blocking = sync.Producer("d09", stub.name_server, avoid_slow_brokers=True)
                await asyncio.to_thread(blocking.start)
                stack.push_async_callback(asyncio.to_thread, blocking.stop)
            else:
                producer = Producer("d09", stub.name_server, avoid_slow_brokers=True)
                await stack.enter_async_context(producer)
            for _ in range(12):
                message = Message("T", "x")
                if plain:
                    await asyncio.to_thread(blocking.send, message)
                else:
                    await producer.send(message)
    asked = Counter(broker for broker, _ in stub.sends)
    if fault == "slow after a send":
        [slow] = stub.slow
        assert slow not in [broker for broker, _ in stub.sends[2:]], "left alone after it was slow"
    elif fault == "slow after a retry":
        # One is busy, the next is slow; the sends after that go to the third.
        assert sorted(asked.values()) == [1, 1, 11], asked
    else:
        assert asked["broker-b"] == 1, "asked once, then left alone"


@pytest.mark.parametrize("plain", [False, True])
async def test_failed_send_reports_its_attempts_time_and_code(plain: bool) -> None:
    """Row D15: 10002 after a timeout, 10003 when no master of the broker is known."""
    async with (
        stub_cluster(lambda broker, number: PARKED if number else sent()) as stub,
        AsyncExitStack() as stack,
    ):
        producer = Producer("d15", stub.name_server, send_timeout_s=0.3)
        blocking = sync.Producer("d15", stub.name_server, send_timeout_s=0.3)
        await stack.enter_async_context(producer)
        await asyncio.to_thread(blocking.start)
        stack.push_async_callback(asyncio.to_thread, blocking.stop)

        async def send(queue: MessageQueue | None = None) -> None:
            if plain:
                await asyncio.to_thread(blocking.send, Message("T", "x"), queue=queue)
            else:
                await producer.send(Message("T", "x"), queue=queue)

        await send()
        with pytest.raises(SendTimeoutError) as caught:
            await send()
        found = re.search(r": 1 attempt at broker-a in (\d+) ms, ", str(caught.value))
        assert found is not None, caught.value
        assert 290 <= int(found[1]) < 10_000, "the time since the send was called"
        assert (caught.value.code, caught.value.attempts) == (10002, 1)
        assert "The message may be stored" in str(caught.value)
        with pytest.raises(SendConnectionError, match="no master of broker nobody is known") as unknown:
            await send(MessageQueue(topic="T", broker_name="nobody", queue_id=0))
        assert unknown.value.code == 10003
        assert "Check the broker name" in str(unknown.value)


@pytest.mark.parametrize("refused", [False, True])
async def test_unknown_members_are_a_warning_and_not_one_per_rebalance(
    caplog: pytest.LogCaptureFixture, refused: bool
) -> None:
    """Row L06."""
    async with stub_cluster() as stub:
        stub.refuses_members = refused
        consumer = PushConsumer("l06", stub.name_server)
        consumer.subscribe("T", handler=lambda message: None)
        async with consumer:
            for _ in range(3):
                assert not await consumer._assignment.rebalance()
            assert not consumer.queues
    [line] = [record for record in caplog.records if "members unknown" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert "group=l06" in line.getMessage()
    assert ("no consumer of this group" if refused else "empty list") in line.getMessage()


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

"""Messages sent in every way arrive with equal content."""

from __future__ import annotations

import asyncio

import pytest
from tests.conformance.conftest import Target
from tests.conformance.waiting import Collector, until

from orbitmq.client import (
    Compression,
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    SendStatus,
    TransactionState,
    sync,
)
from orbitmq.errors import MessageIllegal, NoPermission
from orbitmq.runtime.clock import SYSTEM_CLOCK

FIRST = ConsumeFromWhere.FIRST_OFFSET


async def received(target: Target, topic: str, count: int) -> Collector:
    """Returns everything in a topic, once ``count`` messages arrived."""
    collector = Collector()
    consumer = PushConsumer(target.group(), target.address, from_where=FIRST)
    collector.on(consumer, topic)
    async with consumer:
        await collector.wait(count)
    return collector


async def test_message_with_everything_arrives_equal(target: Target) -> None:
    topic = target.topic()
    message = Message(
        topic,
        "körper 中文 😀",
        tags="tág",
        keys=["k1", "k2"],
        properties={"größe": "ж", "empty-not": " "},
        flag=7,
    )
    async with Producer("pg-everything", target.address) as producer:
        result = await producer.send(message)
    [got] = (await received(target, topic, 1)).messages
    assert result.status is SendStatus.OK
    assert (got.text(), got.tags, got.keys, got.flag) == ("körper 中文 😀", "tág", ["k1", "k2"], 7)
    assert (got.get("größe"), got.get("empty-not")) == ("ж", " ")
    assert (got.message_id, got.queue, got.queue_offset) == (
        result.message_id,
        result.queue,
        result.queue_offset,
    )
    assert got.offset_message_id == result.offset_message_id
    assert got.reconsume_times == 0


@pytest.mark.parametrize("compression", list(Compression))
async def test_large_body_is_compressed_on_the_wire_and_equal_at_the_end(
    target: Target, compression: Compression
) -> None:
    topic = target.topic()
    body = bytes(range(256)) * 400
    async with Producer("pg-large", target.address, compression=compression) as producer:
        await producer.send(Message(topic, body))
    [got] = (await received(target, topic, 1)).messages
    assert got.body == body
    assert got.record.size < len(body)


async def test_hundred_in_flight_are_all_stored_once(target: Target) -> None:
    topic = target.topic()
    async with Producer("pg-flight", target.address) as producer:
        results = await asyncio.gather(*(producer.send(Message(topic, f"m{i}")) for i in range(100)))
    assert len({(r.queue, r.queue_offset) for r in results}) == 100
    assert len({r.queue for r in results}) == 4, "round robin uses every queue"
    assert sorted((await received(target, topic, 100)).bodies) == sorted(f"m{i}" for i in range(100))


async def test_batch_is_split_by_size_and_results_belong_to_messages(target: Target) -> None:
    topic = target.topic()
    messages = [Message(topic, f"{i:04}" * 64, keys=f"key{i}") for i in range(40)]
    async with Producer("pg-batch", target.address, message_bytes_max=4096) as producer:
        results = await producer.send_batch(messages)
    assert len(results) == 40
    got = {m.message_id: m for m in (await received(target, topic, 40)).messages}
    for message, result in zip(messages, results, strict=True):
        twin = got[result.message_id]
        assert twin.body == message.body_bytes()
        assert (twin.queue, twin.queue_offset) == (result.queue, result.queue_offset)
        assert twin.offset_message_id == result.offset_message_id


async def test_plain_clients_send_and_read_without_asyncio(target: Target) -> None:
    topic, group = target.topic(), target.group()

    def run() -> tuple[list[SendResult], dict[str, ReceivedMessage]]:
        with sync.Producer("pg-plain", target.address) as producer:
            results = [producer.send(Message(topic, f"größe {i}", keys=f"k{i}")) for i in range(20)]
            assert producer._sends._idle, "the caller's thread has sent"
            results.append(producer.send(Message(topic, "z" * 9_000), select=lambda queues: queues[1]))
            results += producer.send_batch([Message(topic, f"b{i}") for i in range(5)])
            results.append(producer.send_async(Message(topic, "later")).result(10))
            producer.send_oneway(Message(topic, "oneway"))
        found: dict[str, ReceivedMessage] = {}
        with sync.LitePullConsumer(group, target.address, from_where=FIRST) as consumer:
            consumer.subscribe(topic)
            for message in consumer:
                found[message.message_id] = message
                if len(found) == 28:
                    break
        return results, found

    results, found = await asyncio.to_thread(run)
    assert len(results) == 27
    for result in results:
        twin = found[result.message_id]
        assert (twin.queue, twin.queue_offset) == (result.queue, result.queue_offset)
        assert twin.offset_message_id == result.offset_message_id
    assert found[results[3].message_id].text() == "größe 3"
    assert found[results[20].message_id].body == b"z" * 9_000
    assert results[20].queue.queue_id == 1


async def test_oneway_arrives(target: Target) -> None:
    topic = target.topic()
    async with Producer("pg-oneway", target.address) as producer:
        await producer.send_oneway(Message(topic, "gone"))
        collector = await received(target, topic, 1)
    assert collector.bodies == ["gone"]


async def test_shard_key_and_selector_choose_the_queue(target: Target) -> None:
    topic = target.topic()
    async with Producer("pg-shard", target.address) as producer:
        keyed = [await producer.send(Message(topic, "x", shard_key="order-7")) for _ in range(3)]
        queues = await producer.queues(topic)
        chosen = await producer.send(Message(topic, "y"), select=lambda all_queues: all_queues[2])
        fixed = await producer.send(Message(topic, "z"), queue=queues[1])
    assert len({r.queue for r in keyed}) == 1
    assert (chosen.queue, fixed.queue) == (queues[2], queues[1])


async def test_accumulated_sends_share_requests(target: Target) -> None:
    topic = target.topic()
    async with Producer("pg-linger", target.address, batch_linger_s=0.02) as producer:
        results = await asyncio.gather(*(producer.send(Message(topic, f"m{i}")) for i in range(50)))
    assert len({r.queue for r in results}) == 1, "one linger, one request, one queue"
    assert sorted((await received(target, topic, 50)).bodies) == sorted(f"m{i}" for i in range(50))


async def test_delay_level_holds_the_message_back(target: Target) -> None:
    topic = target.topic()
    collector = Collector()
    consumer = PushConsumer(target.group(), target.address, from_where=FIRST)
    collector.on(consumer, topic)
    async with consumer, Producer("pg-delay", target.address) as producer:
        await producer.send(Message(topic, "later", delay_level=1))
        [got] = await collector.wait(1)
    assert got.store_timestamp_ms - got.born_timestamp_ms >= 900
    assert got.topic == topic


async def test_bad_messages_are_refused_with_a_reason(target: Target) -> None:
    async with Producer("pg-bad", target.address, message_bytes_max=100) as producer:
        with pytest.raises(MessageIllegal, match="101 bytes"):
            await producer.send(Message("any", b"x" * 101))
        with pytest.raises(MessageIllegal, match="0 bytes"):
            await producer.send(Message("any", b""))
        with pytest.raises(NoPermission, match="SCHEDULE_TOPIC_XXXX"):
            await producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))


async def test_delays_hold_and_a_recalled_message_never_comes(target: Target) -> None:
    topic = target.topic()
    collector = Collector()
    arrived_ms: dict[str, int] = {}
    consumer = PushConsumer(target.group(), target.address, from_where=FIRST)

    @consumer.listen(topic)
    async def note(message: ReceivedMessage) -> None:
        arrived_ms[message.text()] = SYSTEM_CLOCK.now_ms()
        await collector(message)

    async with consumer, Producer("pg-delay", target.address) as producer:
        started_ms = SYSTEM_CLOCK.now_ms()
        sent = {
            "level": Message(topic, "level", delay_level=1),
            "ms": Message(topic, "ms", delay_ms=1_500),
            "at": Message(topic, "at", deliver_at_ms=started_ms + 1_200),
            "gone": Message(topic, "gone", delay_ms=3_000),
            "fence": Message(topic, "fence", delay_ms=4_000),
        }
        results = {name: await producer.send(message) for name, message in sent.items()}
        if target.name == "apache-4.9.7":  # knows levels only: it delivers other delays immediately
            await collector.wait(5)
            assert all(result.recall_handle is None for result in results.values())
        else:
            handle = results["gone"].recall_handle
            assert handle is not None
            assert results["level"].recall_handle is None
            assert await producer.recall(topic, handle) == results["gone"].message_id
            await collector.wait(4)
            assert sorted(collector.bodies) == ["at", "fence", "level", "ms"]
            assert arrived_ms["ms"] - started_ms >= 1_500
            assert arrived_ms["at"] - started_ms >= 1_200
            assert [m.message_id for m in collector.messages if m.text() == "ms"] == [
                results["ms"].message_id
            ]
        assert arrived_ms["level"] - started_ms >= 900


async def test_transaction_commits_rolls_back_and_is_asked_about(target: Target) -> None:
    topic = target.topic()
    asked: list[str] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.text())
        return TransactionState.COMMIT

    states = {
        "yes": TransactionState.COMMIT,
        "no": TransactionState.ROLLBACK,
        "perhaps": TransactionState.UNKNOWN,
    }
    collector = Collector()
    consumer = PushConsumer(target.group(), target.address, from_where=FIRST)
    collector.on(consumer, topic)
    async with consumer, Producer("pg-tx", target.address, check=check) as producer:
        for body, state in states.items():
            outcome = state

            def local(message: Message, transaction_id: str) -> TransactionState:
                return outcome  # noqa: B023 - called before the next round

            result = await producer.send_in_transaction(Message(topic, body), local)
            assert result.transaction_state is state
        await collector.wait(2)
    assert sorted(collector.bodies) == ["perhaps", "yes"]
    assert set(asked) == {"perhaps"}


async def test_request_gets_its_reply(target: Target) -> None:
    topic = target.topic()
    async with Producer("pg-reply", target.address) as answering:
        consumer = PushConsumer(target.group(), target.address, from_where=FIRST)

        @consumer.listen(topic)
        async def answer(message: ReceivedMessage) -> None:
            await answering.send(message.reply(f"re: {message.text()}"))

        async with consumer, Producer("pg-request", target.address) as producer:
            replies = await asyncio.gather(
                *(producer.request(Message(topic, f"q{i}"), timeout_s=20.0) for i in range(3))
            )
    assert [reply.text() for reply in replies] == ["re: q0", "re: q1", "re: q2"]


async def test_trace_tells_of_sending_and_consuming(target: Target) -> None:
    topic = target.topic()
    async with Producer("pg-traced", target.address, trace=True) as producer:
        result = await producer.send(Message(topic, "traced", keys="the-key"))
    collector = Collector()
    consumer = PushConsumer(target.group(), target.address, from_where=FIRST, trace=True)
    collector.on(consumer, topic)
    async with consumer:
        await collector.wait(1)
    lines: list[str] = []
    traces = PushConsumer(target.group(), target.address, from_where=FIRST)

    @traces.listen("RMQ_SYS_TRACE_TOPIC")
    async def read(message: ReceivedMessage) -> None:
        lines.extend(line for line in message.text().split("\x02") if result.message_id in line)

    async with traces:
        await until(lambda: len(lines) >= 3, "three trace records")
    assert sorted(line.split("\x01")[0] for line in lines) == ["Pub", "SubAfter", "SubBefore"]

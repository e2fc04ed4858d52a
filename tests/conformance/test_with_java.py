"""Our client and the official Java client: messages both ways, shared queues, tools that query our consumer."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any

import pytest
from tests.apache.clients import JavaClients, Script
from tests.apache.values import Message as JavaMessage
from tests.apache.values import Queue, Received
from tests.conformance.conftest import ROOM, Target
from tests.conformance.waiting import Collector, until

from orbitmq.client import (
    Compression,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TransactionState,
    allocate_averagely,
    allocate_by_config,
    allocate_by_machine_room,
    allocate_nearby,
)
from orbitmq.model.rebalance import STRATEGIES, Strategy, sorted_clients

pytestmark = pytest.mark.apache
FIRST = ConsumeFromWhere.FIRST_OFFSET
Place = tuple[int, int]
"""Queue id and offset."""
TEXT = "größe 中文 😀 \x7f"


async def blocking(function: Any, *arguments: Any, **settings: Any) -> Any:
    """Runs a call of the driver off the loop."""
    return await asyncio.to_thread(partial(function, *arguments, **settings))


def same(ours: ReceivedMessage, java: Received) -> None:
    """Checks that both clients read one stored message alike."""
    assert ours.topic == java.topic
    assert ours.body == java.body
    assert ours.tags == (java.tags or "")
    assert " ".join(ours.keys) == (java.keys or "")
    assert ours.flag == java.flag
    assert ours.queue_offset == java.queue_offset
    assert ours.log_offset == java.log_offset
    assert ours.message_id == java.msg_id
    assert ours.born_timestamp_ms == java.born_at_ms
    assert ours.store_timestamp_ms == java.stored_at_ms
    added_by_readers = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}
    assert {k: v for k, v in ours.properties.items() if k not in added_by_readers} == {
        k: v for k, v in java.properties.items() if k not in added_by_readers
    }


async def both_receive(
    target: Target, java: JavaClients, topic: str, count: int
) -> tuple[dict[Place, ReceivedMessage], dict[Place, Received]]:
    """Returns what each client reads from the topic, by position: a 4.9 broker gives all messages of a Java batch one
    id.
    """
    collector = Collector()
    consumer = PushConsumer(target.group(), target.address, from_where=FIRST)
    collector.on(consumer, topic)
    reader = await blocking(java.push_consumer, target.group(), target.address, {topic: "*"}, from_first=True)
    async with consumer:
        await collector.wait(count)
        # By content: a member rebalanced meanwhile may get a message twice.
        deliveries = await blocking(reader.wait_bodies, {m.body for m in collector.messages})
    await blocking(reader.stop)
    return (
        {(m.queue_id, m.queue_offset): m for m in collector.messages},
        {(d.message.queue.queue_id, d.message.queue_offset): d.message for d in deliveries},
    )


async def test_messages_of_the_java_client_read_alike(target: Target, java_latest: JavaClients) -> None:
    topic = target.topic()
    producer = await blocking(java_latest.producer, f"jp-{topic}", target.address)
    sent = [
        JavaMessage(
            topic=topic, body=TEXT.encode(), tags="tág", keys="k1 k2", flag=3, properties={"größe": TEXT}
        ),
        JavaMessage(topic=topic, body=b"z" * 10_000),
        JavaMessage(topic=topic, body=b"later", delay_level=1),
    ]
    for single in sent:
        await blocking(producer.send, single)
    await blocking(producer.send_batch, [JavaMessage(topic=topic, body=b"b%d" % i) for i in range(3)])
    await blocking(producer.send_oneway, JavaMessage(topic=topic, body=b"oneway"))
    transactional = await blocking(java_latest.producer, f"jt-{topic}", target.address, transactional=True)
    await blocking(transactional.send_in_transaction, JavaMessage(topic=topic, body=b"committed"))
    ours, java = await both_receive(target, java_latest, topic, 8)
    assert len(ours) == len(java) == 8
    assert {m.body for m in ours.values()} >= {TEXT.encode(), b"z" * 10_000, b"later", b"committed", b"b2"}
    for place, message in ours.items():
        same(message, java[place])


async def test_our_messages_read_alike(target: Target, java_latest: JavaClients) -> None:
    topic = target.topic()
    async with (
        Producer("op", target.address, check=lambda message: TransactionState.COMMIT, trace=True) as producer,
        Producer("oz", target.address, compression=Compression.ZSTD) as squeezing,
        Producer("ol", target.address, compression=Compression.LZ4) as quick,
    ):
        await producer.send(
            Message(topic, TEXT, tags="tág", keys=["k1", "k2"], flag=3, properties={"größe": TEXT})
        )
        await producer.send(Message(topic, b"z" * 10_000))
        await squeezing.send(Message(topic, b"y" * 10_000))
        await quick.send(Message(topic, b"x" * 10_000))
        await producer.send(Message(topic, b"later", delay_level=1))
        await producer.send_batch([Message(topic, f"b{i}") for i in range(3)])
        await producer.send_oneway(Message(topic, b"oneway"))
        await producer.send_in_transaction(Message(topic, b"committed"), lambda m, i: TransactionState.COMMIT)
        ours, java = await both_receive(target, java_latest, topic, 10)
    assert len(ours) == len(java) == 10
    for place, message in ours.items():
        same(message, java[place])


async def test_request_and_reply_cross_both_ways(target: Target, java_latest: JavaClients) -> None:
    asked_java, asked_us = target.topic(), target.topic()
    helper = await blocking(java_latest.producer, f"jr-{asked_java}", target.address)
    answering = await blocking(
        java_latest.push_consumer,
        target.group(),
        target.address,
        {asked_java: "*"},
        from_first=True,
        script=Script(reply_by=helper),
    )
    consumer = PushConsumer(target.group(), target.address, from_where=FIRST)
    async with Producer("or", target.address) as producer:

        @consumer.listen(asked_us)
        async def answer(message: ReceivedMessage) -> None:
            await producer.send(message.reply("from us"))

        async with consumer:
            reply = await producer.request(Message(asked_java, "question"), timeout_s=15.0)
            assert reply.body == b"reply to question"
            back = await blocking(
                helper.request, JavaMessage(topic=asked_us, body=b"question"), timeout_ms=15_000
            )
            assert back.body == b"from us"
    await blocking(answering.stop)


def room_of_client(client_id: str) -> str:
    """Works like the resolver of the Java driver."""
    found = re.search(r"room\d+", client_id)
    return found.group() if found else "room0"


def strategy_of(name: str, everything: set[MessageQueue]) -> tuple[Strategy, dict[str, Any]]:
    """Returns our strategy, and the option that makes the Java member use the same."""
    if name == "CONFIG":
        fixed = [queue for queue in everything if queue.queue_id < 3]
        rest = [
            Queue(queue.topic, queue.broker_name, queue.queue_id)
            for queue in everything
            if queue not in fixed
        ]
        return allocate_by_config(fixed), {"strategyQueues": rest}
    if name == "MACHINE_ROOM":
        return allocate_by_machine_room([ROOM]), {"rooms": [ROOM]}
    if name == "MACHINE_ROOM_NEARBY":
        # Rooms 0 and 1 have a member each, room 2 has none.
        nearby = allocate_nearby(
            allocate_averagely, lambda queue: f"room{queue.queue_id % 3}", room_of_client
        )
        return nearby, {"roomCount": 3}
    return STRATEGIES[name], {}


@pytest.mark.parametrize("name", [*STRATEGIES, "CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY"])
async def test_queues_are_shared_with_a_java_member(
    target: Target, java_latest: JavaClients, name: str
) -> None:
    topic, group = target.topic(queue_count=8), target.group()
    broker_name = target.broker.broker_name
    everything = {MessageQueue(topic=topic, broker_name=broker_name, queue_id=i) for i in range(8)}
    strategy, settings = strategy_of(name, everything)
    collector = Collector()
    ours = PushConsumer(
        group,
        target.address,
        from_where=FIRST,
        strategy=strategy,
        rebalance_s=1.0,
        instance_name=f"{topic}-room0",
    )
    collector.on(ours, topic)

    def mine() -> set[MessageQueue]:
        return {queue for queue in ours.queues if queue.topic == topic}

    async with ours:
        java = await blocking(
            java_latest.push_consumer,
            group,
            target.address,
            {topic: "*"},
            from_first=True,
            strategy=name,
            instanceName=f"{topic}-room1",
            **settings,
        )
        members = sorted_clients([ours.client_id, java.client_id])
        # The expected queues of each member by our own functions: the Java client has to arrive at the same.
        wanted = (
            set(strategy(sorted(everything), members, ours.client_id)),
            everything - set(strategy(sorted(everything), members, ours.client_id)),
        )
        if name != "CONFIG":
            assert wanted[1] == set(strategy(sorted(everything), members, java.client_id))

        async def shares() -> tuple[set[MessageQueue], set[MessageQueue]]:
            theirs = await blocking(java.queues)
            return mine(), {
                MessageQueue(topic=q.topic, broker_name=q.broker_name, queue_id=q.queue_id)
                for q in theirs
                if q.topic == topic
            }

        async def shared() -> bool:
            return await shares() == wanted

        await until(shared, f"shares of {wanted}")
        async with Producer("os", target.address) as producer:
            await asyncio.gather(*(producer.send(Message(topic, f"m{i}")) for i in range(40)))
        await until(lambda: len(collector.messages) + len(java.deliveries) >= 40, "all messages")
        # Before it leaves: messages it has not committed by then are redelivered to us.
        assert {message.queue for message in collector.messages} == wanted[0]
        await blocking(java.stop)
        if name != "CONFIG":
            await until(lambda: mine() == everything, "all queues after the Java member left")
    assert {d.message.queue.queue_id for d in java.deliveries} == {q.queue_id for q in wanted[1]}
    assert len({*collector.bodies, *(d.body.decode() for d in java.deliveries)}) == 40


def shape(field: str) -> str:
    """Returns the kind of value in a field of a trace record."""
    return "number" if field.isdigit() else "flag" if field in ("true", "false") else "text"


async def test_trace_records_have_the_same_fields(target: Target, java_latest: JavaClients) -> None:
    topic = target.topic(queue_count=1)
    ours_group, java_group = target.group(), target.group()
    local = TransactionState.COMMIT
    async with Producer(f"{topic}-ours", target.address, check=lambda m: local, trace=True) as producer:
        await producer.send(Message(topic, "ours", tags="t", keys="k"))
        await producer.send_in_transaction(
            Message(topic, "ours, sure", tags="t", keys="k"), lambda m, i: local
        )
    writer = await blocking(
        java_latest.producer, f"{topic}-java", target.address, transactional=True, enableTrace=True
    )
    await blocking(writer.send, JavaMessage(topic=topic, body=b"java", tags="t", keys="k"))
    await blocking(
        writer.send_in_transaction, JavaMessage(topic=topic, body=b"java, sure", tags="t", keys="k")
    )
    await blocking(writer.stop)  # its trace records are sent when it stops
    collector = Collector()
    consumer = PushConsumer(ours_group, target.address, from_where=FIRST, trace=True)
    collector.on(consumer, topic)
    reader = await blocking(
        java_latest.push_consumer, java_group, target.address, {topic: "*"}, from_first=True, trace=True
    )
    async with consumer:
        await collector.wait(4)
        await blocking(reader.wait_bodies, {m.body for m in collector.messages})
    await blocking(reader.stop)
    found: dict[tuple[str, bool], list[str]] = {}
    traces = PushConsumer(target.group(), target.address, from_where=FIRST)
    requests: dict[
        str, bool
    ] = {}  # consumers' records after the handler name no group before 5.x: joined by id

    @traces.listen("RMQ_SYS_TRACE_TOPIC")
    async def read(message: ReceivedMessage) -> None:
        for record in filter(None, message.text().split("\x02")):
            kind, *fields = record.split("\x01")
            if kind == "SubBefore" and fields[2] in (ours_group, java_group):
                requests[fields[3]] = fields[2] == ours_group
                found[kind, fields[2] == ours_group] = fields
            elif kind == "SubAfter" and fields[0] in requests:
                found[kind, requests[fields[0]]] = fields
            elif kind in ("Pub", "EndTransaction") and fields[2].startswith(f"{topic}-"):
                found[kind, fields[2] == f"{topic}-ours"] = fields

    async with traces:
        # A 4.9 broker does not record its region in messages, and the Java consumer then traces nothing.
        wanted = 6 if target.name == "apache-4.9.7" else 8
        try:
            await until(lambda: len(found) >= wanted)
        finally:
            assert len(found) == wanted, sorted(found)
    for (kind, is_ours), fields in found.items():
        if not is_ours:
            ours = found[kind, True]
            assert list(map(shape, ours)) == list(map(shape, fields)), (kind, ours, fields)


async def test_tools_ask_our_consumer(target: Target, java_latest: JavaClients) -> None:
    topic, group = target.topic(queue_count=1), target.group()
    collector = Collector()
    consumer = PushConsumer(group, target.address, from_where=FIRST)
    collector.on(consumer, topic)
    async with consumer, Producer("oa", target.address) as producer:
        result = await producer.send(Message(topic, "inspected"))
        await collector.wait(1)
        admin = await blocking(java_latest.admin, target.address)
        info = await blocking(admin.invoke, "getConsumerRunningInfo", group, consumer.client_id, False)
        assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert str(topic) in str(info["mqTable"])
        again = await blocking(
            admin.invoke, "consumeMessageDirectly", group, consumer.client_id, topic, result.offset_message_id
        )
        assert again["consumeResult"] == "CR_SUCCESS"
        assert collector.bodies == ["inspected", "inspected"]
        connections = await blocking(admin.invoke, "examineConsumerConnectionInfo", group)
        assert connections["connectionSet"][0]["language"] == "PYTHON"

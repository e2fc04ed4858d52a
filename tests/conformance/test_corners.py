"""Situations in which services get stuck: brokers that freeze, callbacks that never return, unreadable bodies, calls
at the wrong time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conformance.proxy import Proxy
from tests.conformance.stub import stub_cluster
from tests.conformance.waiting import Collector, until

from orbitmq.client import (
    BodyMismatch,
    ClientClosedError,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
    SendTimeoutError,
    SimpleConsumer,
    sync,
)
from orbitmq.client.consume.process_queue import LOCK_EXPIRY_MS
from orbitmq.codes import SysFlag
from orbitmq.errors import ConfigError, TopicNotFound
from orbitmq.model.route import MessageQueue
from orbitmq.requests import RequestCode
from orbitmq.testing import RunningBroker, run_broker
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.client import RpcClient
from orbitmq.wire.headers import DeleteTopicInBrokerRequest

NEAR, FAR = "127.0.0.1", "127.0.0.2"


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    """A broker that advertises another address than its own: the one a proxy listens on."""
    with run_broker(brokerIP1=FAR) as broker:
        yield broker


def proxy_for(broker: RunningBroker) -> Proxy:
    port = int(broker.address.rpartition(":")[2])
    return Proxy((FAR, port), (NEAR, port))


async def fill(broker: RunningBroker, topic: str, count: int, *, queue_count: int = 1) -> None:
    await asyncio.to_thread(broker.create_topic, topic, queue_count=queue_count)
    async with Producer("writers", broker.name_server) as producer:
        for number in range(count):
            await producer.send(Message(topic, f"{number}"))


@pytest.mark.parametrize("orderly", [False, True])
async def test_stop_beside_a_frozen_broker_takes_as_long_for_many_queues_as_for_one(
    broker: RunningBroker, orderly: bool
) -> None:
    topic = f"frozen-{orderly}"
    async with proxy_for(broker) as proxy:
        await fill(broker, topic, 32, queue_count=16)
        collector = Collector()
        consumer = PushConsumer(
            f"frozen-{orderly}", broker.name_server, start="first", orderly=orderly, call_timeout_s=0.5
        )
        collector.on(consumer, topic)
        async with consumer:
            await collector.wait(32)
            proxy.stall()
            began = asyncio.get_running_loop().time()
            await consumer.stop()
            # Store the offsets, release the locks, unregister: one timeout each, not one per queue.
            assert asyncio.get_running_loop().time() - began < 7.5
        proxy.flow()


async def test_commit_beside_a_frozen_broker_takes_one_timeout(broker: RunningBroker) -> None:
    async with proxy_for(broker) as proxy:
        await fill(broker, "frozen-commit", 32, queue_count=16)
        consumer = LitePullConsumer(
            "frozen-commit", broker.name_server, start="first", poll_batch_size=1, call_timeout_s=0.5
        )
        consumer.subscribe("frozen-commit")
        async with consumer:
            for _ in range(16):
                assert await consumer.poll(10.0)
            proxy.stall()
            began = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):
                await consumer.commit()
            assert asyncio.get_running_loop().time() - began < 7.5
            proxy.flow()
            await consumer.commit()


async def send_damaged(broker: RunningBroker, topic: str) -> None:
    """Sends a message that falsely claims to be compressed between two good ones, in one queue."""
    async with Producer("writers", broker.name_server, auto_create_queue_count=1) as producer:
        await producer.send(Message(topic, "one"))
        outgoing = producer._sender.prepare(Message(topic, "not compressed"))
        outgoing.sys_flag = int(SysFlag.COMPRESSED)
        await producer._sender.send(outgoing)
        await producer.send(Message(topic, "two"))


async def test_damaged_body_is_a_failed_message_and_its_queue_goes_on(broker: RunningBroker) -> None:
    async with proxy_for(broker):
        await send_damaged(broker, "damaged-push")
        good: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            good.append(message.text())

        dead: list[ReceivedMessage] = []

        async def bury(message: ReceivedMessage) -> None:
            dead.append(message)

        consumer = PushConsumer("damaged-push", broker.name_server, start="first", reconsume_max=0)
        consumer.subscribe("damaged-push", handler=handle)
        cemetery = PushConsumer("damaged-dead", broker.name_server, start="first", rebalance_s=0.5)
        cemetery.subscribe("%DLQ%damaged-push", handler=bury)
        async with consumer, cemetery:
            await until(lambda: sorted(good) == ["one", "two"] and dead, "both good ones, and a dead letter")
    assert dead[0].record.body == b"not compressed"
    assert "zlib" in (dead[0].get("RETRY_REASON") or "")
    with pytest.raises(BodyMismatch, match="zlib"):
        dead[0].text()


async def test_damaged_body_does_not_hold_up_those_who_ask_for_messages(broker: RunningBroker) -> None:
    async with proxy_for(broker):
        await send_damaged(broker, "damaged-pull")
        came: list[ReceivedMessage] = []
        async with LitePullConsumer("damaged-pull", broker.name_server, start="first") as reader:
            reader.subscribe("damaged-pull")
            while len(came) < 3:
                came += await reader.poll(10.0)
        async with SimpleConsumer("damaged-simple", broker.name_server) as simple:
            simple.subscribe("damaged-pull")
            while len(came) < 6:
                came += await simple.receive(wait_s=10.0)
    assert [m.record.body for m in came] == 2 * [b"one", b"not compressed", b"two"]
    with pytest.raises(BodyMismatch, match="zlib"):
        _ = came[1].body


async def test_receive_says_at_once_that_its_consumer_does_not_run(broker: RunningBroker) -> None:
    async with proxy_for(broker):
        await fill(broker, "receive-life", 1)
        consumer = SimpleConsumer("receive-life", broker.name_server)
        consumer.subscribe("receive-life")
        with pytest.raises(ClientClosedError, match="not started"):
            await consumer.receive(wait_s=20)
        await consumer.start()
        assert len(await consumer.receive(wait_s=10)) == 1
        loop = asyncio.get_running_loop()
        began = loop.time()
        for topics in (1, 2):  # with one topic the pop itself waits, with two the notifications do
            if topics == 2:
                consumer = SimpleConsumer("receive-life-2", broker.name_server)
                consumer.subscribe("receive-none")
                consumer.subscribe("receive-life", "other")
                await fill(broker, "receive-none", 0)
                await consumer.start()
            waiting = asyncio.ensure_future(consumer.receive(wait_s=30))
            await asyncio.sleep(0.3)
            await consumer.stop()
            with pytest.raises(ClientClosedError, match="stopped"):
                await waiting
            with pytest.raises(ClientClosedError, match="stopped"):
                await consumer.receive(wait_s=30)
        assert loop.time() - began < 25.0


async def test_receive_raises_when_no_topic_could_be_asked_for(broker: RunningBroker) -> None:
    consumer = SimpleConsumer("receive-ab", broker.name_server, call_timeout_s=0.5)
    consumer.subscribe("receive-a")
    consumer.subscribe("receive-b")
    async with proxy_for(broker):
        for topic in ("receive-a", "receive-b"):
            await fill(broker, topic, 0)
        await consumer.start()
        assert await consumer.receive(wait_s=0.2) == []
    with pytest.raises(ConnectionError):
        await consumer.receive(wait_s=0.2)
    await consumer.stop()


@pytest.mark.parametrize(
    "wrong", [{"invisible_s": -1}, {"invisible_s": float("nan")}, {"wait_s": float("inf")}]
)
async def test_receive_refuses_times_that_are_none(broker: RunningBroker, wrong: dict[str, Any]) -> None:
    async with proxy_for(broker), SimpleConsumer("receive-times", broker.name_server) as consumer:
        consumer.subscribe("receive-times")
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is .* accepted"):
            await consumer.receive(**wrong)


async def test_missing_topic_is_one_log_line_however_often_it_is_asked_for(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxy_for(broker):
        await fill(broker, "receive-here", 0)
        async with SimpleConsumer("receive-missing", broker.name_server) as consumer:
            consumer.subscribe("receive-here")
            consumer.subscribe("receive-not-here")
            for _ in range(20):
                await consumer.receive(wait_s=0)
    lines = [record for record in caplog.records if "does not exist yet" in record.getMessage()]
    assert len(lines) == 1


async def test_clock_that_is_set_takes_no_queue_away_and_sends_nothing_back() -> None:
    async with stub_cluster() as stub:
        clock = ManualClock()
        consumer = PushConsumer("set-clock", stub.name_server, clock=clock)
        consumer.subscribe("T", handler=lambda message: None)
        stub.members = [consumer.client_id]
        async with consumer:
            held = next(held for queue, held in consumer._assignment.held.items() if queue.topic == "T")
            await until(lambda: held.last_pull_ms, "a pull")
            clock.jump(clock.now_ms() + 24 * 3600 * 1000)
            await consumer._assignment.rebalance()
            assert consumer._assignment.held[held.queue] is held
            assert not held.ending
            before = consumer._subscriptions.wanted["T"].sub_version
            clock.jump(clock.now_ms() - 48 * 3600 * 1000)
            consumer.subscribe("T", "other", handler=lambda message: None)
            assert consumer._subscriptions.wanted["T"].sub_version >= before, (
                "brokers take the new expression"
            )
            held.locked, held.last_lock_ms = True, consumer._membership.steady.now_ms()
            clock.advance(LOCK_EXPIRY_MS + 1)
            assert not held.lock_valid(consumer._membership.steady.now_ms()), (
                "a lock ends although the clock was set back"
            )


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
async def test_stop_does_not_wait_for_ever_for_a_callback(
    broker: RunningBroker, kind: type[PushConsumer | LitePullConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    async def hang(queues: list[MessageQueue]) -> None:
        nonlocal calls
        calls += 1
        await asyncio.Event().wait()

    async with proxy_for(broker):
        topic = f"hang-{kind.__name__}"
        await fill(broker, topic, 1)
        consumer = kind(topic, broker.name_server, on_revoked=hang, close_wait_s=0.5)
        if isinstance(consumer, PushConsumer):
            consumer.subscribe(topic, handler=lambda message: None)
        else:
            consumer.subscribe(topic)
        await consumer.start()
        async with asyncio.timeout(20):
            await asyncio.gather(consumer.stop(), consumer.stop())
            await consumer.stop()
    assert calls == 1
    assert "callback did not return in time" in caplog.text


async def test_assignment_that_fails_at_the_start_leaves_nothing_behind(broker: RunningBroker) -> None:
    consumer = LitePullConsumer("bad-start", broker.name_server)
    await consumer.assign([MessageQueue(topic="nowhere", broker_name="nobody", queue_id=0)])
    with pytest.raises(TopicNotFound):
        async with consumer:
            pass
    assert not consumer._instance.running


async def test_queues_fetch_on_when_another_one_that_filled_the_cache_is_given_up(
    broker: RunningBroker,
) -> None:
    async with proxy_for(broker):
        await fill(broker, "room", 0, queue_count=2)
        async with Producer("writers", broker.name_server) as producer:
            full, empty = await producer.queues("room")
            for number in range(20):
                await producer.send(Message("room", f"{number}"), queue=full)
            reader = LitePullConsumer(
                "room", broker.name_server, start="first", cached_count_max_all=10, poll_batch_size=1
            )
            reader.subscribe("room")
            async with reader:
                await until(lambda: reader._assignment.held[full].count == 20, "a full cache")
                # Ends the pull of the other queue that waits at the broker. The next one waits for room.
                await producer.send(Message("room", "first"), queue=empty)
                await until(lambda: reader._assignment.held[empty].count, "its message")
                while (await reader.poll(10.0))[0].queue != empty:
                    pass
                await until(lambda: not reader._fetching._room.is_set(), "a queue that waits for room")
                await reader.seek_to_end(full)
                await producer.send(Message("room", "second"), queue=empty)
                assert [m.text() for m in await reader.poll(10.0)] == ["second"]


async def test_stop_of_a_producer_lets_the_sends_of_other_tasks_end(broker: RunningBroker) -> None:
    async with proxy_for(broker) as proxy:
        await fill(broker, "stop-sends", 1)
        async with Producer(
            "stop-sends", broker.name_server, max_in_flight=10, send_timeout_s=20.0
        ) as producer:
            await producer.send(Message("stop-sends", "first"))
            proxy.stall()
            sends = [asyncio.ensure_future(producer.send(Message("stop-sends", "x"))) for _ in range(30)]
            await until(
                lambda: producer.in_flight == 30, "sends on their way, and some that wait for a place"
            )
            asyncio.get_running_loop().call_later(0.5, proxy.flow)
            stopping = asyncio.ensure_future(producer.stop())
            await asyncio.sleep(0)
            with pytest.raises(ClientClosedError):
                await producer.send(Message("stop-sends", "too late"))
            await stopping
        assert {result.status for result in await asyncio.gather(*sends)} == {SendStatus.OK}


async def test_request_and_transaction_keep_their_time_beside_a_frozen_broker(broker: RunningBroker) -> None:
    loop = asyncio.get_running_loop()
    async with proxy_for(broker) as proxy:
        await fill(broker, "frozen-request", 1)
        proxy.stall()
        producer = Producer(
            "frozen-request", broker.name_server, check=lambda message: None, call_timeout_s=30.0
        )
        await producer.start()
        began = loop.time()
        with pytest.raises(SendTimeoutError, match=r"in [1-9]\d\d+ ms"):  # half of the time was used before
            await producer.request(Message("frozen-request", "x"), timeout_s=1.0)
        with pytest.raises(SendTimeoutError, match=r"in [1-9]\d\d+ ms"):  # known not to answer by now
            async with producer.transaction(Message("frozen-request", "x"), timeout_s=1.0):
                pass
        assert loop.time() - began < 25.0
        proxy.flow()
        await producer.stop()


async def test_outage_of_a_popping_consumer_is_a_handful_of_log_lines(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = group = "pop-outage"
    proxy = proxy_for(broker)
    async with proxy:
        await fill(broker, topic, 8, queue_count=8)
        client = RpcClient()
        mode = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
        body = json.dumps(mode).encode()
        await client.call(broker.address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, body, timeout_s=5.0)
        await client.close()
        going, done = asyncio.Event(), []

        async def handle(message: ReceivedMessage) -> None:
            await going.wait()
            done.append(message)

        consumer = PushConsumer(
            group,
            broker.name_server,
            start="first",
            server_rebalance=True,
            pull_error_pause_s=0.01,
            call_timeout_s=0.5,
        )
        consumer.subscribe(topic, handler=handle)
        await consumer.start()
        await until(lambda: sum(held.count for held in consumer._pops.held.values()) == 8, "popped messages")
    caplog.clear()
    going.set()
    failed = 0
    pop = consumer._pops.popper.pop

    async def counted(*arguments: Any, **settings: Any) -> Any:
        nonlocal failed
        failed += 1
        return await pop(*arguments, **settings)

    consumer._pops.popper.pop = counted  # type: ignore[method-assign]  # counts the calls of the real one
    try:
        await until(lambda: len(done) == 8 and failed > 50, "many failed pops")
    finally:
        await consumer.stop()
    lines = [r.getMessage() for r in caplog.records if "pop" in r.getMessage() or "ack" in r.getMessage()]
    assert len(lines) <= 6, lines


async def test_pulls_that_wait_are_refused_when_their_topic_is_deleted(broker: RunningBroker) -> None:
    async with proxy_for(broker):
        await fill(broker, "made-again", 3)
        collector = Collector()
        consumer = PushConsumer(
            "made-again", broker.name_server, start="first", suspend_s=60.0, pull_error_pause_s=0.1
        )
        collector.on(consumer, "made-again")
        client = RpcClient()
        async with consumer:
            await collector.wait(3)
            held = next(
                held for queue, held in consumer._assignment.held.items() if queue.topic == "made-again"
            )
            await until(lambda: held.next_offset == 3 and not held.count, "a pull that waits at the end")
            header = DeleteTopicInBrokerRequest(topic="made-again")
            await client.call(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, header, timeout_s=10.0)
            await client.close()
            await asyncio.to_thread(broker.create_topic, "made-again", queue_count=1)
            await until(
                lambda: any(
                    h.next_offset == 0 for q, h in consumer._assignment.held.items() if q == held.queue
                ),
                "the begin of the new queue",
            )
            await fill(broker, "made-again", 3)
            await collector.wait(6)


@pytest.mark.parametrize("plain", [False, True])
async def test_send_outlasts_queues_that_are_gone(broker: RunningBroker, plain: bool) -> None:
    topic = f"smaller-{plain}"
    async with proxy_for(broker):
        await fill(broker, topic, 1, queue_count=8)
        producer = Producer("smaller", broker.name_server)
        facade = await asyncio.to_thread(sync.Producer, "smaller", broker.name_server) if plain else None
        async with producer:
            for shrunk in (False, True):
                if shrunk:
                    await asyncio.to_thread(broker.create_topic, topic, queue_count=1)
                for _ in range(8):
                    if facade is None:
                        result = await producer.send(Message(topic, "x"))
                    else:
                        if not facade._client._instance.running:
                            await asyncio.to_thread(facade.start)
                        result = await asyncio.to_thread(facade.send, Message(topic, "x"))
                    assert result.status is SendStatus.OK
                    assert not shrunk or result.queue.queue_id == 0
        if facade is not None:
            await asyncio.to_thread(facade.stop)

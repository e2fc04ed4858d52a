"""Faulty handlers, queues that appear and disappear, brokers that die: what a consumer must survive."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.conformance.stub import stub_cluster
from tests.conformance.waiting import Collector, until

from orbitmq.client import (
    ConsumeFromWhere,
    HandlerContext,
    LitePullConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    allocate_averagely,
    sync,
)
from orbitmq.errors import OrbitError
from orbitmq.requests import RequestCode
from orbitmq.testing import RunningBroker, run_broker
from orbitmq.testing.manual_clock import ManualClock

FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


async def fill(broker: RunningBroker, topic: str, count: int, *, queue_count: int = 4) -> None:
    await asyncio.to_thread(broker.create_topic, topic, queue_count=queue_count)
    async with Producer("fill", broker.name_server) as producer:
        await producer.send_batch([Message(topic, str(i)) for i in range(count)])


# -- handlers -----------------------------------------------------------------------------------------


async def test_cancelled_error_of_a_handler_is_a_failure_and_workers_go_on(broker: RunningBroker) -> None:
    await fill(broker, "cancelling", 30)
    handled: set[str] = set()
    tried: list[str] = []
    consumer = PushConsumer("cancelling-readers", broker.name_server, from_where=FIRST, workers=2)

    @consumer.listen("cancelling")
    async def handle(message: ReceivedMessage) -> None:
        tried.append(message.text())
        if message.attempt == 1 and int(message.text()) % 10 == 0:
            if message.text() == "10":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(1)
            raise asyncio.CancelledError
        handled.add(message.text())

    async with consumer:
        await until(lambda: len(handled) >= 27, lambda: f"the others, had {len(handled)}")
    assert len(set(tried)) == 30


def test_handler_that_would_never_run_is_refused_at_registration() -> None:
    async def run() -> None:
        consumer = PushConsumer("g", "127.0.0.1:1")

        def generator(message: ReceivedMessage) -> Any:
            yield message

        async def async_generator(message: ReceivedMessage) -> Any:
            yield message

        for wrong in (generator, async_generator):
            with pytest.raises(TypeError, match="generator"):
                consumer.subscribe("T", handler=wrong)
        others: list[Any] = [lambda: None, lambda a, b, c: None, 7]
        for other in others:
            with pytest.raises(TypeError, match="handler"):
                consumer.listen("T")(other)
        assert not consumer._subscriptions.wanted, "nothing was subscribed"

    asyncio.run(run())


@pytest.mark.parametrize("orderly", [False, True])
async def test_stop_inside_a_handler_stops_and_leaks_nothing(broker: RunningBroker, orderly: bool) -> None:
    topic = f"stop-inside-{orderly}"
    await fill(broker, topic, 3, queue_count=1)
    consumer = PushConsumer(f"g-{topic}", broker.name_server, from_where=FIRST, orderly=orderly, workers=1)
    seen: list[int] = []

    @consumer.listen(topic)
    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        await consumer.stop()

    async with consumer:
        rpc = consumer._instance._rpc
        await until(lambda: not consumer._instance.running, "stopped")
    assert rpc is not None
    assert not rpc._open
    assert seen == [0]
    async with PullConsumer(consumer.group, broker.name_server) as reader:
        [queue] = await reader.fetch_queues(topic)
        assert await reader.committed(queue) == 1, "the message that stopped it is done"


async def test_stop_inside_a_plain_handler_ends_the_loop_of_a_plain_consumer(broker: RunningBroker) -> None:
    await fill(broker, "stop-plain", 1, queue_count=1)

    def run() -> list[str]:
        before = set(threading.enumerate())
        consumer = sync.PushConsumer("stop-plain-readers", broker.name_server, start="first")

        def handle(message: ReceivedMessage) -> None:
            consumer.stop()

        consumer.subscribe("stop-plain", handler=handle)
        consumer.start()
        # None is left if the handler finished before this check.
        loops = [t for t in threading.enumerate() if t not in before and t.name == "orbitmq-loop"]
        for loop in loops:
            loop.join(8)
        consumer.stop()
        return [loop.name for loop in loops if loop.is_alive()]

    assert await asyncio.to_thread(run) == []


async def test_context_says_how_much_of_a_batch_is_done_and_when_the_rest_comes(
    broker: RunningBroker,
) -> None:
    await fill(broker, "context", 6, queue_count=1)
    calls: list[tuple[int, list[str]]] = []
    consumer = PushConsumer("context-readers", broker.name_server, from_where=FIRST)

    @consumer.listen("context", batch_size=6)
    async def handle(messages: list[ReceivedMessage], context: HandlerContext) -> None:
        calls.append((context.attempt, [message.text() for message in messages]))
        if context.attempt == 1 and len(messages) == 6:
            context.acknowledge(4)
            context.retry_after(1)
            raise RuntimeError("the last two failed")

    async with consumer:
        await until(lambda: sum(len(batch) for _, batch in calls) >= 8, "the rest")
    assert calls[0] == (1, [str(i) for i in range(6)])
    assert sorted(text for _, batch in calls[1:] for text in batch) == ["4", "5"]


async def test_body_that_does_not_fit_is_a_line_without_traceback(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(broker, "misfit", 1, queue_count=1)
    consumer = PushConsumer("misfit-readers", broker.name_server, start="first", reconsume_max=0)

    @consumer.listen("misfit", type=dict[str, int])
    async def handle(value: dict[str, int]) -> None:
        raise AssertionError("never called")

    async with consumer:
        await until(lambda: "dead letter" in caplog.text, "dead-lettered")
    lines = [r for r in caplog.records if "handler failed" in r.getMessage()]
    assert len(lines) == 1
    assert "reason=the body is not a dict" in lines[0].getMessage()
    assert not lines[0].exc_info


# -- queues -------------------------------------------------------------------------------------------


async def test_full_cache_is_not_taken_for_a_stuck_queue(broker: RunningBroker) -> None:
    """A handler of 150 s with a full cache behind it: the queue is kept, and its work is committed."""
    await fill(broker, "full", 40, queue_count=1)
    clock = ManualClock()
    release = asyncio.Event()
    started: list[int] = []
    consumer = PushConsumer(
        "full-readers", broker.name_server, from_where=FIRST, clock=clock, workers=1, cached_count_max=5
    )

    @consumer.listen("full")
    async def handle(message: ReceivedMessage) -> None:
        started.append(message.queue_offset)
        if message.queue_offset == 0:
            await release.wait()

    async with consumer:
        [held] = [held for queue, held in consumer._assignment.held.items() if queue.topic == "full"]
        await until(lambda: held.full and started, "a full cache")
        for _ in range(4):
            clock.advance(60_000)
            await consumer._assignment.rebalance()
            assert consumer._assignment.held[held.queue] is held, "still ours"
        release.set()
        await until(lambda: len(started) == 40, "all")
    assert started == list(range(40)), "nothing was begun twice"
    async with PullConsumer(consumer.group, broker.name_server) as reader:
        await reader.fetch_queues("full")
        assert await reader.committed(held.queue) == 40


async def test_lite_pull_consumer_that_takes_its_time_keeps_its_queues(broker: RunningBroker) -> None:
    await fill(broker, "slow-poll", 40, queue_count=1)
    clock = ManualClock()
    async with LitePullConsumer(
        "slow-pollers", broker.name_server, from_where=FIRST, clock=clock, cached_count_max=5
    ) as consumer:
        consumer.subscribe("slow-poll")
        first = await consumer.poll(10)
        assert first
        held = consumer._assignment.held[first[0].queue]
        clock.advance(600_000)
        await consumer._assignment.rebalance()
        assert consumer._assignment.held[first[0].queue] is held
        seen = len(first)
        while seen < 40:
            batch = await consumer.poll(10)
            assert batch
            seen += len(batch)


async def test_queue_nobody_pulls_is_taken_anew_after_two_minutes_and_not_before() -> None:
    """Row L13 of the seeds, and the limit itself: while a pull waits at the broker, no queue is stuck."""
    async with stub_cluster() as stub:
        clock = ManualClock()
        consumer = PushConsumer("stuck", stub.name_server, clock=clock)
        consumer.subscribe("T", handler=lambda message: None)
        stub.members = [consumer.client_id]
        async with consumer:
            held = next(held for queue, held in consumer._assignment.held.items() if queue.topic == "T")
            await until(lambda: held.last_pull_ms, "a pull")
            clock.advance(100_000)
            await consumer._assignment.rebalance()
            assert consumer._assignment.held[held.queue] is held
            assert not held.dropped
            before = stub.count(RequestCode.QUERY_CONSUMER_OFFSET)
            clock.advance(30_000)
            await consumer._assignment.rebalance()
            assert consumer._assignment.held[held.queue].next_offset == 0
            assert consumer._assignment.held[held.queue] is not held
            assert stub.count(RequestCode.QUERY_CONSUMER_OFFSET) > before, "its start is asked for again"


async def test_offset_is_stored_before_a_queue_is_given_up(broker: RunningBroker) -> None:
    """Row L12 of the seeds."""
    await fill(broker, "given-up", 8, queue_count=1)
    collector = Collector()
    keep = [True]

    def strategy(queues: Sequence[MessageQueue], clients: Sequence[str], me: str) -> list[MessageQueue]:
        return list(queues) if keep[0] else []

    consumer = PushConsumer(
        "given-up-readers", broker.name_server, from_where=FIRST, strategy=strategy, offset_persist_s=3600
    )
    collector.on(consumer, "given-up")

    async with consumer, PullConsumer(consumer.group, broker.name_server) as reader:
        await collector.wait(8)
        await asyncio.sleep(0)
        [queue] = await reader.fetch_queues("given-up")
        keep[0] = False
        consumer.suspend()  # no pull carries the offset along
        await consumer._assignment.rebalance()
        assert queue not in consumer.queues

        async def stored() -> bool:
            return await reader.committed(queue) == 8

        await until(stored, "the stored offset")


async def test_ordered_queue_stays_until_its_handler_is_done(broker: RunningBroker) -> None:
    await fill(broker, "ordered", 4, queue_count=1)
    running: list[str] = []
    together: list[list[str]] = []
    done: list[tuple[str, int]] = []
    owner = ["one"]
    release = asyncio.Event()

    def member(name: str) -> PushConsumer:
        consumer = PushConsumer(
            "ordered-readers",
            broker.name_server,
            from_where=FIRST,
            orderly=True,
            instance_name=name,
            strategy=lambda queues, clients, me: list(queues) if me.endswith(f"@{owner[0]}") else [],
        )

        @consumer.listen("ordered")
        async def handle(message: ReceivedMessage) -> None:
            running.append(name)
            together.append(list(running))
            if name == "one":
                await release.wait()
            running.remove(name)
            done.append((name, message.queue_offset))

        return consumer

    one, two = member("one"), member("two")
    async with one, two:
        await until(lambda: running == ["one"], "the first handler")
        owner[0] = "two"
        two.rebalance_soon()
        for _ in range(3):
            assert not await one._assignment.rebalance(), "not balanced: the queue is still at work"
            await two._assignment.rebalance()
        assert running == ["one"]
        assert not [q for q in two.queues if q.topic == "ordered"]
        release.set()
        one.rebalance_soon()
        await until(lambda: len(done) >= 4, lambda: f"all four, had {done}")
    assert all(len(names) == 1 for names in together), "never two members at once"
    assert sorted(offset for _, offset in done) == [0, 1, 2, 3], "and nothing twice"
    assert {name for name, _ in done} == {"one", "two"}


async def test_ordered_consuming_needs_the_lock() -> None:
    """Row L14: another member has the lock, so no message is pulled or handled here."""
    async with stub_cluster() as stub:
        consumer = PushConsumer("locked", stub.name_server, orderly=True)
        consumer.subscribe("T", handler=lambda message: None)
        stub.members = [consumer.client_id]
        stub.locked_by = "somebody else"
        async with consumer:
            await consumer._assignment.rebalance()
            assert stub.count(RequestCode.LOCK_BATCH_MQ)
            assert not consumer.queues
            assert not stub.count(RequestCode.PULL_MESSAGE)
            stub.locked_by = ""
            await consumer._assignment.rebalance()
            assert consumer.queues


async def test_handler_waits_while_the_lock_is_lost(broker: RunningBroker) -> None:
    await fill(broker, "lock-lost", 2, queue_count=1)
    seen: list[int] = []
    consumer = PushConsumer("lock-lost-readers", broker.name_server, from_where=FIRST, orderly=True)
    gate = asyncio.Event()

    @consumer.listen("lock-lost")
    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.queue_offset)
        await gate.wait()

    async with consumer:
        await until(lambda: seen == [0], "the first")
        [held] = [held for queue, held in consumer._assignment.held.items() if queue.topic == "lock-lost"]
        relocks: list[bool] = []

        async def refuse(held: Any) -> bool:
            relocks.append(True)
            return False

        assert consumer._locks is not None
        consumer._locks.renew = refuse  # type: ignore[method-assign]  # a broker that refuses the lock
        held.locked = False
        gate.set()
        await until(lambda: len(relocks) >= 2, "tries to lock again")
        assert seen == [0], "nothing is handled without the lock"
        held.locked, held.last_lock_ms = True, consumer._membership.steady.now_ms()
        await until(lambda: seen == [0, 1], "the second")


async def test_strategy_that_fails_for_one_topic_leaves_the_others_alone(broker: RunningBroker) -> None:
    """Row L10: logged, assignments are kept, other topics continue, the start succeeds."""
    await fill(broker, "good", 4)
    await fill(broker, "bad", 4)
    failing = [True]

    def strategy(queues: Sequence[MessageQueue], clients: Sequence[str], me: str) -> list[MessageQueue]:
        if failing[0] and queues[0].topic == "bad":
            raise ZeroDivisionError
        return allocate_averagely(queues, clients, me)

    got = Collector()
    consumer = PushConsumer("strategy-readers", broker.name_server, from_where=FIRST, strategy=strategy)
    got.on(consumer, "bad")
    got.on(consumer, "good")
    async with consumer:
        await got.wait(4)
        assert not [queue for queue in consumer.queues if queue.topic == "bad"]
        failing[0] = False
        await got.wait(8)
        failing[0] = True
        held = set(consumer.queues)
        await consumer._assignment.rebalance()
        assert set(consumer.queues) == held


async def test_retry_message_of_an_unsubscribed_topic_does_not_end_the_retry_pull(
    broker: RunningBroker,
) -> None:
    await fill(broker, "left", 1, queue_count=1)
    tried: list[str] = []
    consumer = PushConsumer("left-readers", broker.name_server, from_where=FIRST, suspend_s=0.3)

    @consumer.listen("left")
    async def handle(message: ReceivedMessage) -> None:
        tried.append(message.topic)
        if len(tried) == 1:
            consumer.unsubscribe("left")
            raise RetryLater(delay_level=1)

    async with consumer:
        await until(lambda: tried, "the first try")
        retry = next(queue for queue in consumer.queues if queue.topic.startswith("%RETRY%"))
        held = consumer._assignment.held[retry]
        end = held.next_offset
        await until(lambda: held.next_offset > end, "the retry message was pulled")
        pulled = held.last_pull_ms
        await until(lambda: held.last_pull_ms > pulled, "and pulling goes on")
        await asyncio.to_thread(broker.create_topic, "other", queue_count=1)
        got = Collector()
        got.on(consumer, "other")
        async with Producer("left", broker.name_server) as producer:
            await producer.send(Message("other", "x"))
        await got.wait(1)


async def test_callbacks_of_queues_are_awaited(broker: RunningBroker) -> None:
    await fill(broker, "callbacks", 2, queue_count=2)
    events: list[tuple[str, int]] = []

    async def assigned(queues: list[MessageQueue]) -> None:
        await asyncio.sleep(0)
        events.append(("assigned", sum(1 for queue in queues if queue.topic == "callbacks")))

    async def revoked(queues: list[MessageQueue]) -> None:
        await asyncio.sleep(0)
        events.append(("revoked", sum(1 for queue in queues if queue.topic == "callbacks")))

    consumer = PushConsumer(
        "callback-readers", broker.name_server, start="first", on_assigned=assigned, on_revoked=revoked
    )
    consumer.subscribe("callbacks", handler=lambda message: None)
    async with consumer:
        await consumer.wait_ready()
        assert ("assigned", 2) in events
    assert ("revoked", 2) in events


async def test_queue_that_goes_to_another_member_is_told_and_its_offset_stored(broker: RunningBroker) -> None:
    await asyncio.to_thread(broker.create_topic, "revoking", queue_count=2)
    async with Producer("fill", broker.name_server) as producer:
        for number in range(8):  # in turn to both queues
            await producer.send(Message("revoking", str(number)))
    revoked: list[MessageQueue] = []
    changes: list[tuple[str, int, int]] = []
    handled = Collector()

    first = PushConsumer(
        "revoking-readers",
        broker.name_server,
        start="first",
        offset_persist_s=3600,
        on_revoked=revoked.extend,
        on_queues_changed=lambda topic, all_of_it, mine: changes.append((topic, len(all_of_it), len(mine))),
    )
    first.subscribe("revoking", handler=handled)
    second = PushConsumer("revoking-readers", broker.name_server, start="first")
    second.subscribe("revoking", handler=lambda message: None)
    async with first:
        await handled.wait(8)
        assert ("revoking", 2, 2) in changes
        async with second:
            await until(lambda: any(queue.topic == "revoking" for queue in second.queues), "a queue")
            [gone] = [queue for queue in second.queues if queue.topic == "revoking"]
            await until(lambda: revoked and gone not in first.queues, "it is released")
            assert revoked == [gone]

            async def stored() -> bool:  # by a oneway request
                return await first.committed(gone) >= 4

            await until(stored, "the stored offset")
            assert ("revoking", 2, 1) in changes


async def test_lag_counts_what_is_not_consumed(broker: RunningBroker) -> None:
    await fill(broker, "lagging", 10, queue_count=1)
    release = asyncio.Event()
    begun: list[int] = []
    consumer = PushConsumer("lagging-readers", broker.name_server, start="first", workers=1)

    @consumer.listen("lagging")
    async def handle(message: ReceivedMessage) -> None:
        begun.append(message.queue_offset)
        if message.queue_offset >= 4:
            await release.wait()

    def of_topic(lags: dict[MessageQueue, int]) -> list[int]:
        return [lag for queue, lag in lags.items() if queue.topic == "lagging"]

    async with consumer:
        await until(lambda: len(begun) == 5, "the fifth")
        assert of_topic(await consumer.lag()) == [6]
        release.set()
        await until(lambda: len(begun) == 10, "all")
    revoked: list[MessageQueue] = []
    reader = LitePullConsumer(
        "lagging-polls", broker.name_server, start="first", poll_batch_size=4, on_revoked=revoked.extend
    )
    reader.subscribe("lagging")
    async with reader:
        assert len(await reader.poll(10.0)) == 4
        assert of_topic(await reader.lag()) == [10], "given out, not gone beyond"
        assert len(await reader.poll(10.0)) == 4
        assert of_topic(await reader.lag()) == [6]
        [queue] = reader.queues
        await reader.seek_to_end(queue)
        assert of_topic(await reader.lag()) == [0]
    assert revoked == [queue]


# -- outages ------------------------------------------------------------------------------------------


async def test_killed_master_is_found_again_soon_and_few_lines_are_logged(caplog: Any) -> None:
    caplog.set_level(logging.INFO, logger="orbitmq.client")
    with OrbitNamesrv() as namesrv, OrbitBroker(namesrv) as first:
        got = Collector()
        consumer = PushConsumer("outage-readers", namesrv.address, from_where=FIRST)
        got.on(consumer, "outage")
        async with consumer, Producer("outage", namesrv.address) as producer:
            await producer.send(Message("outage", "1"))
            await got.wait(1)
            await asyncio.to_thread(first.kill)
            store = first.store_dir
            second = OrbitBroker(namesrv, store)  # another address, like a new master
            caplog.clear()
            try:
                await asyncio.to_thread(second.start)

                async def sent() -> bool:
                    try:
                        await producer.send(Message("outage", "2"))
                    except OrbitError:
                        return False
                    return True

                await until(sent, "the new master")
                await got.wait(2)
            finally:
                await asyncio.to_thread(second.close)
    lines = [r for r in caplog.records if r.name.startswith("orbitmq.client.consume")]
    assert len(lines) <= 20, [r.getMessage() for r in lines]


async def test_outage_is_a_handful_of_log_lines(caplog: Any) -> None:
    async with stub_cluster() as stub:
        consumer = PushConsumer("quiet", stub.name_server, pull_error_pause_s=0.01, call_timeout_s=0.2)
        consumer.subscribe("T", handler=lambda message: None)
        stub.members = [consumer.client_id]
        async with consumer:
            caplog.set_level(logging.INFO, logger="orbitmq.client")
            caplog.clear()
            stub.addresses = dict.fromkeys(stub.addresses, "127.0.0.1:1")  # no server listens there
            await consumer._instance.refresh_routes()
            for connection in list(consumer._instance.rpc._open.values()):
                connection.abort()
            await until(lambda: _limited(consumer) > 50, "many failed pulls")
        assert len(caplog.records) <= 20, [r.getMessage() for r in caplog.records]


def _limited(consumer: PushConsumer) -> int:
    return sum(count for _, count in consumer._instance.log_limits._seen.values())


async def test_new_queues_of_a_topic_are_found(broker: RunningBroker) -> None:
    """Row C05: by the route timer, long before the rebalance timer."""
    await fill(broker, "growing", 1, queue_count=1)
    consumer = PushConsumer("growing-readers", broker.name_server, route_refresh_s=0.1, rebalance_s=3600)
    consumer.subscribe("growing", handler=lambda message: None)
    async with consumer:
        await asyncio.to_thread(broker.create_topic, "growing", queue_count=3)
        await until(lambda: sum(q.topic == "growing" for q in consumer.queues) == 3, "three queues")


async def test_nobody_to_share_with_changes_nothing() -> None:
    """Row L06: without member ids the assignment is kept."""
    async with stub_cluster() as stub:
        consumer = PushConsumer("alone", stub.name_server)
        consumer.subscribe("T", handler=lambda message: None)
        stub.members = [consumer.client_id]
        async with consumer:
            held = set(consumer.queues)
            assert held
            stub.members = []
            assert not await consumer._assignment.rebalance()
            assert set(consumer.queues) == held


async def test_stop_says_goodbye_after_the_last_heartbeat_and_takes_no_queue_again() -> None:
    """Apache's broker handles heartbeats and unregistrations on different threads. A heartbeat that is in flight
    during the unregistration, or follows it, leaves a member behind that keeps queues for two minutes.
    """
    async with stub_cluster() as stub:
        consumer = PushConsumer("leaving", stub.name_server)
        consumer.subscribe("T")
        stub.members = [consumer.client_id]
        await consumer.start()
        await consumer.wait_ready()
        offsets_asked = stub.count(RequestCode.QUERY_CONSUMER_OFFSET)
        asked = len(stub.asked)
        beat = asyncio.ensure_future(consumer._instance.heartbeat())
        await asyncio.sleep(0)  # it is in flight
        consumer.rebalance_soon()
        await consumer.stop()
        await beat
        codes = [code for _, code, _ in stub.asked[asked:]]
        assert RequestCode.UNREGISTER_CLIENT in codes
        goodbye = codes.index(RequestCode.UNREGISTER_CLIENT)
        assert RequestCode.HEART_BEAT not in codes[goodbye:]
        assert codes.count(RequestCode.HEART_BEAT) <= 1, "a stopping consumer sends no further heartbeat"
        assert stub.count(RequestCode.QUERY_CONSUMER_OFFSET) == offsets_asked, "no queue is taken again"

"""Tests the FastStream broker against an orbitmq broker and, with ``make soak``, against Apache's."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

import pydantic
import pytest
from faststream import AckPolicy, BaseMiddleware, FastStream
from faststream.exceptions import (
    IncorrectState,
    NackMessage,
    RejectMessage,
    SetupError,
    SkipMessage,
    StopConsume,
)
from faststream.message import AckStatus
from faststream.response.publish_type import PublishType
from tests.apache.artifacts import LATEST, prepare, require
from tests.apache.servers import ApacheBroker, ApacheNamesrv, create_topic

from orbitmq import ConnectionLostError, ProducerOptions, PushOptions
from orbitmq.testing import run_broker
from orbitmq_faststream import (
    RocketBroker,
    RocketMessage,
    RocketPublisher,
    RocketResponse,
    RocketRoute,
    RocketRouter,
)

_serial = itertools.count(1)
SOURCE = Path(__file__).parents[1] / "src"


class Order(pydantic.BaseModel):
    id: int
    name: str = ""


@dataclasses.dataclass
class Line:
    number: int


class Server(Protocol):
    """The operations that the tests need from a broker."""

    @property
    def name_server(self) -> str: ...

    def create_topic(self, topic: str, *, queue_count: int = 4) -> str: ...

    def advance(self, by: float) -> None:
        """Lets time pass for delays and retries."""


class ApacheServer:
    """Apache's broker, whose clock cannot be advanced."""

    def __init__(self, namesrv: ApacheNamesrv, broker: ApacheBroker) -> None:
        self._namesrv, self._broker = namesrv, broker

    @property
    def name_server(self) -> str:
        return self._namesrv.address

    def create_topic(self, topic: str, *, queue_count: int = 4) -> str:
        create_topic(self._namesrv, self._broker, topic, queue_count=queue_count)
        return topic

    def advance(self, by: float) -> None:
        time.sleep(by)


@pytest.fixture(
    scope="module", params=["ours", pytest.param("apache", marks=[pytest.mark.apache, pytest.mark.soak])]
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "ours":
        with run_broker(enablePropertyFilter=True) as running:
            yield running
        return
    require()
    prepare()
    with (
        ApacheNamesrv(LATEST) as namesrv,
        ApacheBroker(LATEST, namesrv, enablePropertyFilter=True) as broker,
    ):
        yield ApacheServer(namesrv, broker)


@pytest.fixture
def topic(server: Server) -> str:
    return server.create_topic(f"stream-{next(_serial)}", queue_count=2)


def new_broker(server: Server, **settings: Any) -> RocketBroker:
    return RocketBroker(server.name_server, logger=None, **settings)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - conditions are about what FastStream did, which sets no event
        await asyncio.sleep(0.01)


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


def test_bodies_are_typed_and_settings_travel(server: Server, topic: str) -> None:
    broker = new_broker(server)
    orders: list[tuple[Order, str, list[str], str, str, int]] = []
    lines: list[Any] = []

    @broker.subscriber(topic, tags="order || rush")
    async def order(body: Order, message: RocketMessage) -> None:
        correlation_id = message.correlation_id
        found = (message.tags, message.keys, message.headers["from"], correlation_id, message.attempt)
        orders.append((body, *found))

    @broker.subscriber(topic, group=f"{topic}-lines", tags="line")
    def line(body: Line) -> None:
        lines.append(body)

    @broker.subscriber(topic, group=f"{topic}-sized", sql="size > 5")
    async def sized(body: dict[str, int]) -> None:
        lines.append(body)

    async def work() -> None:
        async with broker:
            await broker.start()
            sent = await broker.publish(
                Order(id=1, name="x"),
                topic,
                tags="rush",
                keys=["a", "b"],
                headers={"from": "shop"},
                correlation_id="c1",
            )
            assert sent.message_id
            await broker.publish(Line(number=2), topic, tags="line")
            await broker.publish({"size": 7}, topic, headers={"size": 7})
            await until(lambda: len(orders) + len(lines) >= 3)
        assert orders == [(Order(id=1, name="x"), "rush", ["a", "b"], "shop", "c1", 1)]
        assert sorted(lines, key=str) == sorted([Line(number=2), {"size": 7}], key=str)

    run(work())


def test_failing_handler_is_retried_then_acknowledged(server: Server, topic: str) -> None:
    attempts: list[int] = []
    after: list[str] = []

    def make(seen: list[Any], fails: bool) -> RocketBroker:
        broker = new_broker(server)

        @broker.subscriber(topic, retry_delay=1)
        async def handle(body: str, message: RocketMessage) -> None:
            seen.append(message.attempt if fails else body)
            if fails and message.attempt < 3:
                raise ValueError("not yet")

        return broker

    async def work() -> None:
        async with make(attempts, fails=True) as broker:
            await broker.start()
            await broker.publish("one", topic)
            while len(attempts) < 3:
                await asyncio.to_thread(server.advance, 1)
                await asyncio.sleep(0.02)
        async with make(after, fails=False) as broker:
            await broker.start()
            await broker.publish("two", topic)
            await until(lambda: "two" in after)
        assert attempts == [1, 2, 3]
        assert after == ["two"]

    run(work())


@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.ACK_FIRST, AckPolicy.REJECT_ON_ERROR])
def test_failed_message_is_not_delivered_again(server: Server, topic: str, policy: AckPolicy) -> None:
    seen: list[str] = []
    dead_letters = server.create_topic(f"%DLQ%faststream-{topic}", queue_count=1)

    def make() -> tuple[RocketBroker, Any]:
        broker = new_broker(server, ack_policy=policy)

        @broker.subscriber(topic, retry_delay=1)
        async def handle(body: str) -> None:
            seen.append(body)
            if body == "bad":
                raise ValueError("never")

        return broker, broker.subscriber(dead_letters, group=f"{topic}-dead")

    async def work() -> None:
        broker, dead = make()
        async with broker:
            await broker.start()
            await broker.publish("bad", topic)
            await until(lambda: seen == ["bad"])
            if policy is AckPolicy.REJECT_ON_ERROR:
                letter = await dead.get_one(timeout=20)
                assert await letter.decode() == "bad"
                assert letter.raw_message.get("RETRY_REASON") == "ValueError('never')"
                await letter.ack()
        broker, dead = make()
        async with broker:
            await broker.start()
            await asyncio.to_thread(server.advance, 2)
            await broker.publish("good", topic)
            await until(lambda: "good" in seen)
            assert await dead.get_one(timeout=0.2) is None
        assert seen == ["bad", "good"]

    run(work())


def test_message_is_finished_by_hand_or_by_exception(server: Server, topic: str) -> None:
    seen: list[tuple[str, int]] = []
    group = f"{topic}-by-hand"
    server.create_topic(f"%DLQ%{group}", queue_count=1)

    def make(policy: AckPolicy) -> tuple[RocketBroker, Any]:
        broker = new_broker(server)

        @broker.subscriber(topic, group=group, ack_policy=policy)
        async def handle(body: str, message: RocketMessage) -> None:
            seen.append((body, message.attempt))
            match body:
                case "acked":
                    await message.ack()
                case "nacked" if message.attempt == 1:
                    raise NackMessage(delay=1)
                case "nacked":
                    await message.ack()
                case "rejected":
                    raise RejectMessage(reason="no such order")
                case "skipped":
                    raise SkipMessage

        return broker, broker.subscriber(f"%DLQ%{group}", group=f"{group}-dead")

    async def work() -> None:
        broker, dead = make(AckPolicy.NACK_ON_ERROR)
        async with broker:
            await broker.start()
            for body in ("acked", "nacked", "rejected", "skipped"):
                await broker.publish(body, topic)
            await until(lambda: len(seen) >= 4)
            letter = await dead.get_one(timeout=20)
            assert letter.raw_message.get("RETRY_REASON") == "no such order"
            while ("nacked", 2) not in seen:
                await asyncio.to_thread(server.advance, 1)
                await asyncio.sleep(0.02)
        manual, _ = make(AckPolicy.MANUAL)
        async with manual:
            await manual.start()
            await manual.publish("left", topic)
            await until(lambda: ("left", 1) in seen)
        again, _ = make(AckPolicy.NACK_ON_ERROR)
        async with again:
            await again.start()
            await until(lambda: seen.count(("left", 1)) == 2)
        assert sorted(seen) == sorted(
            [(body, 1) for body in ("acked", "nacked", "rejected", "skipped", "left", "left")]
            + [("nacked", 2)]
        )

    run(work())


def test_router_prefixes_topics_and_results_are_published(server: Server, topic: str) -> None:
    results = server.create_topic(f"{topic}-results")
    server.create_topic(f"{topic}-more")
    broker = new_broker(server)
    seen: list[tuple[int, str, list[str], str]] = []

    async def double(number: int) -> RocketResponse:
        return RocketResponse(number * 2, keys=str(number), headers={"by": "double"})

    router = RocketRouter(
        f"{topic}-",
        handlers=[RocketRoute(double, "more", publishers=[RocketPublisher("results", tags="double")])],
    )

    @broker.subscriber(results)
    async def result(number: int, message: RocketMessage) -> None:
        seen.append((number, message.tags, message.keys, message.headers["by"]))

    publisher = router.publisher("results", headers={"by": "hand"})
    broker.include_router(router)

    async def work() -> None:
        async with broker:
            await broker.start()
            assert await broker.ping(5)
            await broker.publish(21, f"{topic}-more")
            await publisher.publish(5, tags="other", delay=0.01)
            await until(lambda: len(seen) >= 2)
        assert sorted(seen) == [(5, "other", [], "hand"), (42, "double", ["21"], "double")]

    run(work())


def test_requests_are_answered(server: Server, topic: str) -> None:
    answers = server.create_topic(f"{topic}-answers")
    broker = new_broker(server)
    answered: list[str] = []

    @broker.subscriber(topic)
    async def greet(name: str) -> str | None:
        return f"hello {name}" if name else None

    @broker.subscriber(answers)
    async def answer(text: str) -> None:
        answered.append(text)

    async def work() -> None:
        async with broker:
            await broker.start()
            response = await broker.request("you", topic, timeout=20, correlation_id="c7")
            assert await response.decode() == "hello you"
            assert response.correlation_id == "c7"
            assert (await broker.publisher(topic).request("me", timeout=20)).body == b"hello me"
            assert (await broker.request("", topic, timeout=20)).body == b""
            await broker.publish("all", topic, reply_to=answers)
            await until(lambda: answered == ["hello all"])
            with pytest.raises(TimeoutError):
                await broker.request("nobody", answers + "-none", timeout=0.2)

    run(work())


class NoReplies(BaseMiddleware):
    """Simulates that the requester is gone."""

    async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: Any) -> Any:
        if cmd.publish_type is PublishType.REPLY:
            raise ConnectionLostError("nobody there")
        return await call_next(cmd)


def test_handler_of_a_request_is_not_repeated_when_its_reply_cannot_be_sent(
    server: Server, topic: str
) -> None:
    answers = server.create_topic(f"{topic}-answers")
    broker, asker = new_broker(server, middlewares=[NoReplies]), new_broker(server)
    handled: dict[str, RocketMessage] = {}

    @broker.subscriber(topic)
    async def handle(body: str, message: RocketMessage) -> str:
        handled[body] = message
        return "answer"

    async def work() -> None:
        async with broker, asker:
            await broker.start()
            with pytest.raises(TimeoutError):
                await asker.request("asked", topic, timeout=0.5)
            await asker.publish(
                "published", topic, reply_to=answers
            )  # a message like any other: it must not be lost
            await until(lambda: len(handled) == 2)
            await until(lambda: all(message.committed is not None for message in handled.values()))
        committed = {body: message.committed for body, message in handled.items()}
        assert committed == {"asked": AckStatus.ACKED, "published": AckStatus.NACKED}

    run(work())


def test_order_delay_and_batches(server: Server, topic: str) -> None:
    broker = new_broker(server)
    seen: dict[str, list[int]] = {"a": [], "b": []}
    late: list[float] = []

    @broker.subscriber(topic, orderly=True, max_workers=4, tags="sequence")
    async def handle(number: int, message: RocketMessage) -> None:
        await asyncio.sleep(0.001 * (number % 3))
        seen[message.headers["key"]].append(number)

    @broker.subscriber(topic, group=f"{topic}-late", tags="late")
    async def delayed(body: str) -> None:
        late.append(time.monotonic())

    async def work() -> None:
        async with broker:
            await broker.start()
            started = time.monotonic()
            await broker.publish("late", topic, tags="late", delay=0.5)
            for number in range(10):
                for key in seen:
                    await broker.publish(number, topic, tags="sequence", headers={"key": key}, shard_key=key)
            await until(lambda: sum(map(len, seen.values())) >= 20)
            results = await broker.publish_batch(
                *range(10, 40), topic=topic, tags="sequence", headers={"key": "a"}
            )
            assert len({result.message_id for result in results}) == 30
            assert await broker.publish_batch(topic=topic) == []
            await until(lambda: len(seen["a"]) >= 40 and bool(late))
        assert seen["b"] == list(range(10))
        assert seen["a"][:10] == list(range(10))
        assert sorted(seen["a"]) == list(range(40))
        assert late[0] - started >= 0.5

    run(work())


def test_stop_lets_handlers_end_and_leaves_the_rest(server: Server, topic: str) -> None:
    entered, done = asyncio.Event(), asyncio.Event()
    ended: list[int] = []

    def make(name: str, graceful_s: float) -> RocketBroker:
        broker = new_broker(server, graceful_timeout=graceful_s)

        @broker.subscriber(topic)
        async def handle(number: int) -> None:
            if name == "graceful":
                entered.set()
                await done.wait()
            elif name == "cancelled":
                entered.set()
                await asyncio.Event().wait()
            ended.append(number)

        return broker

    async def work() -> None:
        broker = make("graceful", 30)
        async with broker:
            await broker.start()
            for number in range(3):
                await broker.publish(number, topic)
            await entered.wait()
            stopping = asyncio.ensure_future(broker.stop())
            await asyncio.sleep(0)
            done.set()
            await stopping
        assert len(ended) == 1
        entered.clear()
        async with make("cancelled", 0.1) as broker:
            await broker.start()
            await entered.wait()
        assert len(ended) == 1
        async with make("plain", 30) as broker:
            await broker.start()
            await until(lambda: len(ended) >= 3)
            await broker.stop()
            await broker.start()  # and once more
            await broker.publish(3, topic)
            await until(lambda: len(ended) >= 4)
        assert sorted(ended) == [0, 1, 2, 3]

    run(work())


def test_stop_takes_no_further_message(server: Server, topic: str) -> None:
    entered, done = asyncio.Event(), asyncio.Event()
    broker = new_broker(server)

    @broker.subscriber(topic, orderly=True, max_workers=3)
    async def handle(body: str) -> None:
        entered.set()
        await done.wait()

    def workers() -> int:
        return sum(task.get_name() == f"faststream-{topic}" for task in asyncio.all_tasks())

    async def work() -> None:
        async with broker:
            await broker.start()
            assert workers() == 3
            await broker.publish("x", topic)
            await entered.wait()
            stopping = asyncio.ensure_future(broker.stop())
            await until(lambda: workers() == 1)  # the one whose handler runs
            assert not stopping.done()
            done.set()
            await stopping
            assert workers() == 0

    run(work())


def test_handler_that_raises_cancelled_error_is_retried(server: Server, topic: str) -> None:
    broker = new_broker(server)
    attempts: list[int] = []

    @broker.subscriber(topic, retry_delay=1)
    async def handle(body: str, message: RocketMessage) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise asyncio.CancelledError

    async def work() -> None:
        async with broker:
            await broker.start()
            await broker.publish("x", topic)
            while len(attempts) < 2:
                await asyncio.to_thread(server.advance, 1)
                await asyncio.sleep(0.02)
        assert attempts == [1, 2]

    run(work())


def test_handler_may_stop_its_subscriber(server: Server, topic: str) -> None:
    broker = new_broker(server)
    seen: list[str] = []

    @broker.subscriber(topic, ack_policy=AckPolicy.ACK, max_workers=2)
    async def handle(body: str) -> None:
        seen.append(body)
        raise StopConsume

    async def work() -> None:
        async with broker:
            await broker.start()
            await broker.publish("last", topic)
            await until(lambda: not broker.subscribers[0].running)
            await broker.publish("more", topic)
        assert seen == ["last"]

    run(work())


def test_subscriber_is_read_by_hand(server: Server, topic: str) -> None:
    broker = new_broker(server)
    subscriber = broker.subscriber(topic, options=PushOptions(start="first", cached_count_max=10))

    async def work() -> None:
        async with broker:
            await broker.start()
            await broker.publish("one", topic)
            first = await subscriber.get_one(timeout=20)
            assert first is not None
            assert await first.decode() == "one"
            await first.ack()
            await broker.publish("two", topic)
            async for message in subscriber:
                assert await message.decode() == "two"
                await message.ack()
                break
            assert await subscriber.get_one(timeout=0.05) is None
        with pytest.raises(Exception, match="start the subscriber"):
            await subscriber.get_one()

    run(work())


def test_settings_of_a_subscriber_win_over_those_of_the_broker(server: Server) -> None:
    broker = new_broker(server, consumer=PushOptions(pull_batch_size=7))
    plain = broker.subscriber("t").subscription
    own = broker.subscriber("t", start="last", orderly=True, max_attempts=3).subscription
    other = broker.subscriber("t", options=PushOptions(start="last", workers=2)).subscription
    options = [one.options(broker.config.consumer_options) for one in (plain, own, other)]
    assert [(one.from_where.name, one.pull_batch_size) for one in options] == [
        ("FIRST_OFFSET", 7),
        ("LAST_OFFSET", 7),
        ("LAST_OFFSET", 32),
    ]
    assert [(one.orderly, one.reconsume_max) for one in options[:2]] == [(False, -1), (True, 2)]


def test_missing_topic_is_created(server: Server) -> None:
    name = f"stream-created-{next(_serial)}"
    broker = new_broker(
        server,
        create_topics=1,
        consumer=PushOptions(namespace="space"),
        producer=ProducerOptions(namespace="space"),
    )
    seen: list[str] = []

    @broker.subscriber(name)
    async def handle(body: str) -> None:
        seen.append(body)

    async def work() -> None:
        async with broker:
            await broker.start()
            await broker.publish("x", name)
            await until(lambda: seen == ["x"])

    run(work())


def test_what_cannot_work_is_refused(server: Server, topic: str) -> None:
    broker = new_broker(server)
    with pytest.raises(SetupError, match="not both"):
        broker.subscriber(topic, tags="A", sql="a > 1")
    with pytest.raises(SetupError, match="max_workers"):
        broker.subscriber(topic, max_workers=0)
    with pytest.raises(TypeError, match="no such setting: queue"):
        broker.subscriber(topic, queue="x")  # type: ignore[call-arg]  # what is refused
    with pytest.raises(TypeError, match="RocketRouter"):
        broker.include_router(cast(Any, object()))
    broker.subscriber(topic, group="one", tags="A")
    broker.subscriber(topic, group="one", tags="B")

    async def work() -> None:
        with pytest.raises(SetupError, match="give one of them another group"):
            await broker.start()
        with pytest.raises(IncorrectState, match="connect the broker"):
            await broker.publish("x", topic)
        assert not await broker.ping(1)
        await broker.stop()

    run(work())


MODULE = """
import asyncio, os
from faststream import FastStream
from orbitmq_faststream import RocketBroker

broker = RocketBroker(os.environ["NAMESRV"])

def note(text):
    with open(os.environ["OUT"], "a") as out:
        out.write(text + "\\n")

@broker.subscriber(os.environ["TOPIC"], group="killed", max_workers=2)
async def handle(number: int) -> None:
    note(f"begin {number}")
    if os.environ["HANG"] == "1" and number > 0:
        await asyncio.sleep(600)
    note(f"end {number}")

asyncio.run(FastStream(broker).run())
"""


@pytest.mark.slow
def test_application_killed_in_a_handler_loses_nothing(server: Server, tmp_path: Path) -> None:
    topic = server.create_topic(f"stream-{next(_serial)}", queue_count=1)
    out = tmp_path / "out"
    out.touch()
    paths = [str(SOURCE), *(path for path in sys.path if path)]
    settings = {"NAMESRV": server.name_server, "TOPIC": topic, "OUT": str(out)}

    def start(hang: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **settings, "HANG": hang, "PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.Popen([sys.executable, "-c", MODULE], cwd=tmp_path, env=environment)

    def until_written(condition: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition(out.read_text()):
            assert time.monotonic() < deadline, out.read_text()
            time.sleep(0.05)

    async def send() -> None:
        async with new_broker(server) as broker:
            for number in range(5):
                await broker.publish(number, topic)

    processes = [start("1")]
    try:
        run(send())
        until_written(lambda text: text.count("begin") == 3)
        processes[0].kill()
        processes[0].wait(30)
        processes.append(start("0"))
        until_written(lambda text: all(f"end {number}" in text for number in range(5)))
        processes[1].send_signal(signal.SIGTERM)
        assert processes[1].wait(30) == 0
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait(30)


def test_application_runs_until_it_is_told_to_exit(server: Server, topic: str) -> None:
    broker = new_broker(server)
    application = FastStream(broker)
    seen: list[int] = []

    @broker.subscriber(topic)
    async def handle(number: int) -> None:
        seen.append(number)
        application.exit()

    @application.after_startup
    async def publish() -> None:
        await broker.publish(1, topic)

    run(application.run())
    assert seen == [1]

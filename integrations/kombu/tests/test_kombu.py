"""Tests the kombu transport against an orbitmq broker: channels, and a Celery worker as a process."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub
from kombu.exceptions import OperationalError

import orbitmq_kombu
from orbitmq.admin import Admin
from orbitmq.admin.census import all_groups, all_topics
from orbitmq.testing import RunningBroker, run_broker
from orbitmq_kombu.transport import topic_of

_serial = itertools.count(1)
SOURCE = Path(__file__).parents[1] / "src"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


@pytest.fixture
def connection(server: RunningBroker) -> Iterator[Connection]:
    with connect(server) as made:
        yield made


def connect(server: RunningBroker, **options: Any) -> Connection:
    return Connection(f"rocketmq://{server.name_server}//", transport_options={"queue_count": 1, **options})


def name(kind: str = "queue") -> str:
    return f"kombu.{kind}@{next(_serial)}"


def drain(connection: Connection, condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        try:
            connection.drain_events(timeout=1.0)
        except TimeoutError:
            pass


def _more_than(seen: list[Any], count: int) -> bool:
    return len(seen) > count


def test_names_of_queues_become_names_of_topics() -> None:
    assert topic_of("celery@host.pidbox") == "celery%40host%2Epidbox"
    assert topic_of("plain_name-1") == "plain_name-1"
    assert orbitmq_kombu.Transport.implements.exchange_type == {"direct", "topic", "fanout"}


def test_published_messages_are_consumed_once_with_headers_and_types(connection: Connection) -> None:
    queue = Queue(name(), Exchange(name("exchange"), "direct"), routing_key="key")
    seen: list[Any] = []

    def take(body: Any, message: Any) -> None:
        seen.append((body, message.headers.get("number")))
        message.ack()

    with Producer(connection) as producer, Consumer(connection, queue, callbacks=[take]):
        for number in range(40):
            producer.publish(
                {"number": number},
                exchange=queue.exchange,
                routing_key="key",
                declare=[queue],
                headers={"number": number},
            )
        drain(connection, lambda: len(seen) == 40)
        assert sorted(seen, key=lambda pair: pair[1]) == [({"number": n}, n) for n in range(40)]
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.3)
        assert queue(connection).queue_declare(passive=True).message_count == 0


def test_reject_with_requeue_comes_again_and_without_does_not(connection: Connection) -> None:
    queue = Queue(name())
    channel = connection.default_channel
    bound = queue(channel)
    bound.declare()
    Producer(channel).publish("again", routing_key=queue.name)
    first = wait_get(bound)
    assert first.payload == "again"
    assert not first.delivery_info.get("redelivered")
    first.requeue()
    second = wait_get(bound)
    assert second.payload == "again"
    assert second.delivery_info["redelivered"]
    second.reject()
    assert bound.get() is None
    assert bound.queue_declare(passive=True).message_count == 0


def wait_get(queue: Queue, no_ack: bool = False) -> Any:
    deadline = time.monotonic() + 30
    while (message := queue.get(no_ack=no_ack)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return message


def test_unacknowledged_messages_of_a_closed_connection_go_to_another(server: RunningBroker) -> None:
    queue = Queue(name())
    with connect(server) as first:
        bound = queue(first.default_channel)
        bound.declare()
        for number in range(3):
            Producer(first.default_channel).publish(number, routing_key=queue.name)
        held = [wait_get(bound).payload for _ in range(3)]
        assert sorted(held) == [0, 1, 2]
        assert bound.get() is None
    with connect(server) as second:
        bound = queue(second.default_channel)
        again = [wait_get(bound) for _ in range(3)]
        assert sorted(message.payload for message in again) == [0, 1, 2]
        for message in again:
            message.ack()


@pytest.mark.slow
def test_lease_of_a_held_message_is_renewed(server: RunningBroker) -> None:
    queue = Queue(name())
    with connect(server, lease_s=1.0) as holder, connect(server, lease_s=1.0) as other:
        bound = queue(holder.default_channel)
        bound.declare()
        Producer(holder.default_channel).publish("long", routing_key=queue.name)
        message = wait_get(bound)
        deadline = time.monotonic() + 3.0
        while time.monotonic() < deadline:
            assert queue(other.default_channel).get() is None, "still held by the other connection"
            time.sleep(0.1)
        message.ack()
        assert bound.queue_declare(passive=True).message_count == 0


def test_queue_for_replies_leaves_no_topic_and_no_group(server: RunningBroker) -> None:
    queue = Queue(name("reply"), auto_delete=True)
    with connect(server) as connection, connection.channel() as channel:
        bound = queue(channel)
        bound.declare()
        Producer(channel).publish("pong", routing_key=queue.name)
        seen: list[Any] = []

        def take(body: Any, message: Any) -> None:
            seen.append(body)
            message.ack()

        with Consumer(channel, bound, callbacks=[take]):
            drain(connection, lambda: bool(seen))
        topics, groups = names_of(server)
        assert topic_of(queue.name) in topics
        assert f"kombu-{topic_of(queue.name)}" in groups
    topics, groups = names_of(server)
    assert [one for one in (*topics, *groups) if topic_of(queue.name) in one] == []


def names_of(server: RunningBroker) -> tuple[list[str], list[str]]:
    """Returns topics and groups of the broker."""

    async def ask() -> tuple[list[str], list[str]]:
        async with Admin(server.name_server) as admin:
            return list(await all_topics(admin, server.address)), list(
                await all_groups(admin, server.address)
            )

    return asyncio.run(ask())


def test_purge_no_ack_and_prefetch(connection: Connection) -> None:
    queue = Queue(name())
    channel = connection.default_channel
    bound = queue(channel)
    bound.declare()
    producer = Producer(channel)
    for number in range(10):
        producer.publish(number, routing_key=queue.name)
    assert bound.queue_declare(passive=True).message_count == 10
    assert wait_get(bound, no_ack=True).payload in range(10)
    assert bound.purge() == 9
    seen: list[Any] = []
    for number in range(6):
        producer.publish(number, routing_key=queue.name)
    with Consumer(channel, queue, callbacks=[lambda body, message: seen.append(message)], prefetch_count=2):
        drain(connection, lambda: len(seen) == 2)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.3)
        assert len(seen) == 2, "no more than the prefetch count"
        while len(seen) < 6 or any(not message.acknowledged for message in seen):
            for message in [message for message in seen if not message.acknowledged]:
                message.ack()
            if len(seen) < 6:
                before = len(seen)
                drain(connection, partial(_more_than, seen, before))


def test_fanout_reaches_every_reader(server: RunningBroker) -> None:
    exchange = Exchange(name("news"), "fanout")
    seen: dict[int, list[str]] = {0: [], 1: []}
    with connect(server) as first, connect(server) as second:
        consumers = []
        for index, connection in enumerate((first, second)):
            queue = Queue(name("reader"), exchange, no_ack=True)
            consumer = Consumer(
                connection,
                queue,
                callbacks=[lambda body, message, i=index: seen[i].append(body)],
                no_ack=True,
            )
            consumer.consume()
            consumers.append(consumer)
        with Producer(first) as producer:
            for text in ("one", "two"):
                producer.publish(text, exchange=exchange, declare=[exchange])
        for index, connection in enumerate((first, second)):
            drain(connection, partial(_more_than, seen[index], 1))
    assert sorted(seen[0]) == sorted(seen[1]) == ["one", "two"]


def test_nobody_listening_is_an_operational_error() -> None:
    with (
        Connection("rocketmq://127.0.0.1:1//", connect_timeout=0.3) as connection,
        pytest.raises(OperationalError),
    ):
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=1)


def test_hub_delivers_and_lets_go_when_the_connection_closes(server: RunningBroker) -> None:
    """Reads like a Celery worker: messages of a queue and broadcasts, without a call that waits."""
    hub, seen = Hub(), list[Any]()
    with connect(server) as made:
        queue = Queue(name(), routing_key="hub", exchange=Exchange(name("direct")))
        everybody = Queue(name(), exchange=Exchange(name("fanout"), type="fanout"))

        def on_message(body: Any, message: Any) -> None:
            seen.append(body)
            message.ack()

        with made.Consumer([queue, everybody], callbacks=[on_message]) as consumer:
            consumer.qos(prefetch_count=1)
            made.register_with_event_loop(hub)
            descriptor = made.transport._arrived.fileno()
            assert descriptor in hub.readers
            with connect(server) as other:
                producer = other.Producer()
                for number in range(100):
                    producer.publish(number, exchange=queue.exchange, routing_key="hub", declare=[queue])
                producer.publish("all", exchange=everybody.exchange, declare=[everybody.exchange])
            deadline = time.monotonic() + 30
            while len(seen) < 101:
                assert time.monotonic() < deadline, f"{len(seen)} of 101"
                hub.call_later(0.1, lambda: None)  # a turn ends, whatever comes
                hub.run_once()
    assert sorted(seen, key=str) == sorted([*range(100), "all"], key=str)
    assert not hub.readers
    assert not hub.on_tick
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    hub.close()


MODULE = """
import os, time
import orbitmq_kombu
from celery import Celery

app = Celery("app", broker=os.environ["BROKER_URL_"])
app.conf.broker_transport_options = {"queue_count": 1, "lease_s": 2.0}
app.conf.task_default_queue = os.environ["QUEUE"]
app.conf.task_acks_late = True
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_connection_retry_on_startup = True

@app.task(name="note")
def note(text):
    with open(os.environ["OUT"], "a") as out:
        out.write(f"begin {text}\\n")
    if text == "hang" and os.environ.get("HANG"):
        time.sleep(600)
    with open(os.environ["OUT"], "a") as out:
        out.write(f"end {text}\\n")
"""


@pytest.mark.slow
def test_celery_worker_runs_tasks_answers_control_and_loses_none_when_killed(
    server: RunningBroker, tmp_path: Path
) -> None:
    (tmp_path / "celery_module.py").write_text(MODULE)
    out = tmp_path / "out"
    out.touch()
    paths = [str(SOURCE), str(tmp_path), *(path for path in sys.path if path)]
    environment = {
        **os.environ,
        "BROKER_URL_": f"rocketmq://{server.name_server}//",
        "QUEUE": f"celery-{next(_serial)}",
        "OUT": str(out),
        "PYTHONPATH": os.pathsep.join(paths),
    }

    started: list[subprocess.Popen[str]] = []

    def celery(*arguments: str, **more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "celery", "-A", "celery_module", *arguments]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment | more,
            start_new_session=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    def until(text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in out.read_text():
            assert time.monotonic() < deadline, out.read_text()
            time.sleep(0.05)

    worker = ("worker", "--pool", "prefork", "--concurrency", "1", "--loglevel", "ERROR", "--without-gossip")
    first = celery(*worker, HANG="1")
    try:
        assert celery("call", "note", "--args", '["one"]').wait(60) == 0
        until("end one")
        ping = celery("inspect", "ping", "--timeout", "5")
        answer = ping.communicate(timeout=60)[0]
        assert "pong" in answer, answer
        topics = json.loads((server.data / "store" / "config" / "topics.json").read_text())[
            "topicConfigTable"
        ]
        replies = [topic for topic in topics if "reply" in topic and not topic.startswith("%RETRY%")]
        assert not replies, "the topic of the replies is gone"
        assert celery("call", "note", "--args", '["hang"]').wait(60) == 0
        until("begin hang")
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(30)
        celery(*worker)
        until("end hang")
        assert out.read_text().count("one") == 2, "begun and ended once"
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)
            assert process.stdout is not None
            process.stdout.close()

"""Messages that wait while their broker stops: a store handed over between ours and Apache's, and kill -9."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.apache.harness import ApacheBroker, JavaClients, Message
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.apache.servers import create_topic

Unique = Callable[[str], str]
WAIT_MS: Final = {"ours": 12_000, "apache": 14_000}
"""How long messages wait: usually longer than the first broker takes to stop and the other one to start. On a busy
machine they are overdue by then, and must still be delivered once."""
QUICK: Final[dict[str, Any]] = {
    "transactionTimeOut": 300,
    "transactionCheckInterval": 400,
    "transactionCheckMax": 1_000,
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("first", ["ours", "apache"])
def test_a_store_changes_hands_with_messages_waiting(
    first: str, java_latest: JavaClients, unique: Unique, tmp_path: Path, apache_tools: None
) -> None:
    """One broker stops while messages wait and transactions are open. The other one opens the store, delivers them
    once and not early, and finishes the transactions."""
    store, topic, wait_ms = tmp_path / "store", unique("T"), WAIT_MS[first]
    conf: dict[str, Any] = {
        "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeTimerLog": 1 << 20,
        "messageDelayLevel": f"1s {wait_ms // 1000}s",
    }

    def broker(kind: str, namesrv: OrbitNamesrv, **more: Any) -> OrbitBroker | ApacheBroker:
        if kind == "ours":
            return OrbitBroker(namesrv, store, transactionOpBatchInterval=100, **conf, **more)
        return ApacheBroker("5.5.0", namesrv, store_dir=store, **conf, **more)

    with OrbitNamesrv() as namesrv:
        with broker(first, namesrv) as before:
            create_topic(namesrv, before, topic, queue_count=2)
            producer = java_latest.producer(unique("PG"), namesrv, transactional=True)
            early = java_latest.push_consumer(unique("CG"), namesrv, {topic: "*"}, from_first=True)
            producer.send_in_transaction(Message(topic=topic, body=b"tx done"))
            undone = Message(topic=topic, body=b"tx undone")
            producer.send_in_transaction(undone, local="ROLLBACK_MESSAGE", checks=["COMMIT_MESSAGE"])
            for body in (b"tx open 1", b"tx open 2"):
                message = Message(topic=topic, body=body)
                producer.send_in_transaction(message, local="UNKNOW", checks=["COMMIT_MESSAGE"])
            sent_ms = now_ms()
            for message in (
                Message(topic=topic, body=b"level done", delay_level=1),
                Message(topic=topic, body=b"level waits", delay_level=2),
                Message(topic=topic, body=b"timer done", delay_ms=1_200),
                Message(topic=topic, body=b"timer waits", deliver_at_ms=sent_ms + wait_ms),
            ):
                producer.send(message)
            early.wait(3)
            assert {b"level done", b"timer done", b"tx done"} <= set(early.bodies)
            before.stop()
        with broker("apache" if first == "ours" else "ours", namesrv, **QUICK):
            consumer = java_latest.push_consumer(unique("CG"), namesrv, {topic: "*"}, from_first=True)
            waiting = {b"level waits", b"timer waits"}
            consumer.wait_bodies({*early.bodies, *waiting, b"tx open 1", b"tx open 2"})
            found = {delivery.body: delivery.message.stored_at_ms for delivery in consumer.deliveries}
            assert len(found) == len(consumer.deliveries) == 7
            for body in waiting:
                assert found[body] >= sent_ms + wait_ms
            assert {check.message.body for check in producer.checks()} == {b"tx open 1", b"tx open 2"}


@pytest.mark.parametrize(
    ("count", "half_count"), [(2_000, 200), pytest.param(10_000, 1_000, marks=pytest.mark.soak)]
)
def test_a_killed_broker_delivers_every_delayed_message_and_none_early(
    java_latest: JavaClients,
    unique: Unique,
    tmp_path: Path,
    apache_tools: None,
    count: int,
    half_count: int,
) -> None:
    """Delayed and half messages, kill -9 in the middle of their deliveries."""
    topic, half_topic = unique("T"), unique("Tx")
    conf = {**QUICK, "transactionOpBatchInterval": 100, "messageDelayLevel": "1s 4s"}
    with OrbitNamesrv() as namesrv:
        broker = OrbitBroker(namesrv, tmp_path / "store", **conf)
        with broker:
            for name in (topic, half_topic):
                create_topic(namesrv, broker, name, queue_count=4)
            producer = java_latest.producer(unique("PG"), namesrv)
            halves = java_latest.producer(unique("PG"), namesrv, transactional=True)
            delays: tuple[dict[str, Any], ...] = ({"delay_level": 2}, {"delay_ms": 4_000})
            bodies = [b"%d" % number for number in range(count)]
            half_bodies = [b"half %d" % number for number in range(half_count)]
            results = producer.send_many(
                [Message(topic=topic, body=body, **delays[at % 2]) for at, body in enumerate(bodies)]
            )
            assert {result.status for result in results} == {"SEND_OK"}
            for body in half_bodies:
                halves.send_in_transaction(
                    Message(topic=half_topic, body=body), local="UNKNOW", checks=["COMMIT_MESSAGE"]
                )
            consumer = java_latest.push_consumer(
                unique("CG"), namesrv, {topic: "*", half_topic: "*"}, from_first=True
            )
            consumer.wait(count // 5)
            broker.kill()
            broker.start()
            for delivery in consumer.wait_bodies({*bodies, *half_bodies}):
                message = delivery.message
                if message.topic == topic:
                    assert message.stored_at_ms - message.born_at_ms >= 3_990

"""Masters killed with -9 under the official producer and consumer, with failover and without."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.apache.etcd import Etcd, etcd
from tests.apache.harness import (
    ClientError,
    JavaClients,
    Message,
    Producer,
    PushConsumer,
    create_topic,
    remoting_call,
    wait_until,
)
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.support.waiting import LIMIT_S, until

from orbitmq.testing.chaos_proxy import ChaosProxy

__all__ = ["etcd"]

QUERY_CONSUMER_OFFSET = 14
GET_BROKER_RUNTIME_INFO = 28
GET_BROKER_HA_STATUS = 907
SEGMENT_BYTES = 1024 * 1024
NEW_MASTER_S = 15.0
Unique = Callable[[str], str]


@pytest.fixture
def namesrv(apache_tools: None) -> Iterator[OrbitNamesrv]:
    with OrbitNamesrv() as server:
        yield server


class Load:
    """A producer that sends continuously from its own thread, and the outcomes."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.safe: set[bytes] = set()
        """What was answered with SEND_OK."""
        self.unsure: list[bytes] = []
        """Stored, but the answer said that no slave has it, in the order they were sent."""
        self.last_safe = 0.0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)

    def _run(self) -> None:
        number = 0
        # Throttled: the harness checks all deliveries whenever one arrives.
        while not self._ended.wait(0.01):
            number += 1
            body = b"%s %d " % (self._topic.encode(), number) + b"x" * 1_000
            try:
                status = self._producer.send(Message(topic=self._topic, body=body)).status
            except ClientError:
                continue
            if status == "SEND_OK":
                self.safe.add(body)
                self.last_safe = time.monotonic()
            else:
                self.unsure.append(body)

    def wait_more(self, count: int, timeout_s: float) -> float:
        """Waits until that many more are safe; returns the seconds until the first of them."""
        began, before = time.monotonic(), len(self.safe)
        wait_until(lambda: len(self.safe) > before, timeout_s=timeout_s, what="a send that is safe")
        first_s = self.last_safe - began
        wait_until(lambda: len(self.safe) >= before + count, timeout_s=LIMIT_S, what=f"{count} safe sends")
        return first_s


class ProxyThread:
    """A `ChaosProxy` with its own loop, since these tests are synchronous."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._proxy = ChaosProxy("127.0.0.1", port, listen=("127.0.0.2", port))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> ProxyThread:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._proxy.__aenter__(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.__aexit__(None, None, None), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def do(self, *names: str) -> None:
        async def all_of_them() -> None:
            for name in names:
                getattr(self._proxy, name)()

        asyncio.run_coroutine_threadsafe(all_of_them(), self._loop).result(10)


def ha_status(broker: OrbitBroker) -> dict[str, Any]:
    try:
        code, _, body = remoting_call(broker.address, GET_BROKER_HA_STATUS, timeout_s=5)
    except OSError:
        return {}
    status: dict[str, Any] = json.loads(body) if code == 0 else {}
    return status


def log_end(broker: OrbitBroker) -> int:
    _, _, body = remoting_call(broker.address, GET_BROKER_RUNTIME_INFO, timeout_s=5)
    return int(json.loads(body)["table"]["commitLogMaxOffset"])


def log_of(broker: OrbitBroker) -> bytes:
    files = sorted((broker.store_dir / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)[: log_end(broker)]


def wait_whole(master: OrbitBroker, slave: OrbitBroker) -> None:
    """Waits until the slave is in sync and has everything."""
    wait_until(
        lambda: ha_status(master).get("inSyncSlaveNums") == 1 and log_end(master) == log_end(slave),
        timeout_s=30,
        what=f"the slave\n{slave.log_tail()}\nmaster\n{master.log_tail()}",
    )


@contextmanager
def running(*brokers: OrbitBroker) -> Iterator[None]:
    with ExitStack() as stack:
        for broker in brokers:
            stack.enter_context(broker)
        try:
            yield
        except BaseException as error:
            for broker in brokers:
                error.add_note(f"{broker.address}\n{broker.log_tail()}")
            raise


@pytest.mark.slow
def test_killed_master_is_replaced_and_what_nobody_else_had_goes_when_it_returns(
    etcd: Etcd, namesrv: OrbitNamesrv, java_latest: JavaClients, unique: Unique
) -> None:
    options: dict[str, Any] = {
        "enableFailover": True,
        "etcdEndpoints": etcd.url,
        "mappedFileSizeCommitLog": SEGMENT_BYTES,
        "brokerIP2": "127.0.0.2",
    }
    first, second = (OrbitBroker(namesrv, brokerId=number, **options) for number in (1, 2))
    with ExitStack() as stack:
        proxies = {broker: stack.enter_context(ProxyThread(broker.ha_port)) for broker in (first, second)}
        stack.enter_context(running(first, second))

        def is_master(broker: OrbitBroker) -> bool:
            return ha_status(broker).get("master") is True

        wait_until(lambda: is_master(first) or is_master(second), timeout_s=15, what="a master")
        old, new = (first, second) if is_master(first) else (second, first)
        wait_whole(old, new)
        topic = unique("topic")
        create_topic(namesrv, old, topic, queue_count=2)
        consumer = java_latest.push_consumer(unique("readers"), namesrv, {topic: "*"}, from_first=True)
        producer = java_latest.producer(unique("writers"), namesrv, sendMsgTimeout=6_000)
        with Load(producer, topic) as load:
            load.wait_more(100, 15)
            # Messages sent from here on reach no slave, and are lost with the master.
            proxies[old].do("stall")
            wait_until(lambda: len(load.unsure) > 1, timeout_s=30, what="two sends that are not safe")
            old.kill()
            proxies[old].do("cut", "heal")
            took_s = load.wait_more(100, NEW_MASTER_S)
            assert took_s < NEW_MASTER_S
            # The first message may have passed before the proxy stalled, with only its confirmation missing.
            unsure = load.unsure[1:]
            old.start()
            wait_whole(new, old)
            load.wait_more(100, 5)
        wait_whole(new, old)
        assert is_master(new)
        assert not is_master(old)
        assert "log cut back to what the group acknowledged" in (old.workdir / "stderr.log").read_text()
        log = log_of(new)
        assert log == log_of(old)
        assert not [body for body in unsure if body in log], "never acknowledged, and gone everywhere"
        consumer.wait_bodies(load.safe, timeout_s=30)
        # The returned one has everything, so it becomes master again. The other one hangs meanwhile and wakes up
        # believing that it is still master.
        new.pause()
        with Load(producer, topic) as more:
            more.wait_more(50, 2 * NEW_MASTER_S)
        reader = java_latest.push_consumer(unique("later"), namesrv, {topic: "*"}, from_first=True)
        reader.wait_bodies(load.safe | more.safe, timeout_s=30)
        new.resume()
        wait_whole(old, new)
        assert is_master(old)
        assert not is_master(new)
        log = log_of(old)
        assert log == log_of(new)
        assert not [body for body in load.safe | more.safe if body not in log]
        new.check_log()
        old.check_log()


@pytest.mark.slow
def test_killed_master_without_failover_is_read_from_its_slave_and_loses_nothing(
    namesrv: OrbitNamesrv, java_latest: JavaClients, unique: Unique
) -> None:
    common: dict[str, Any] = {"mappedFileSizeCommitLog": SEGMENT_BYTES}
    master = OrbitBroker(namesrv, brokerRole="SYNC_MASTER", **common)
    slave = OrbitBroker(namesrv, brokerRole="SLAVE", brokerId=1, slaveSyncInterval=1_000, **common)
    topic, readers = unique("topic"), unique("readers")
    with running(master, slave):
        wait_whole(master, slave)
        create_topic(namesrv, master, topic, queue_count=1)
        consumer = java_latest.push_consumer(readers, namesrv, {topic: "*"}, from_first=True)
        with Load(java_latest.producer(unique("writers"), namesrv), topic) as load:
            load.wait_more(100, LIMIT_S)
            consumer.wait(50)
            consumer.suspend()
            load.wait_more(100, LIMIT_S)
            master.kill()
            before = set(load.safe)
            consumer.resume()
            consumer.wait_bodies(before, timeout_s=LIMIT_S)
            wait_committed(consumer, slave, readers, topic, len(before))
            master.start()
            load.wait_more(100, LIMIT_S)
        consumer.wait_bodies(load.safe, timeout_s=LIMIT_S)
        wait_whole(master, slave)
        assert log_of(master) == log_of(slave)
        # Offsets committed to the slave meanwhile reach the master with the client's next commit.
        wait_committed(consumer, master, readers, topic, len(load.safe))
        master.check_log()
        slave.check_log()


def wait_committed(consumer: PushConsumer, broker: OrbitBroker, group: str, topic: str, least: int) -> None:
    """Waits until the broker has this offset. The consumer sends offsets oneway and only up to its oldest unfinished
    message, which may be behind the last delivery.
    """

    def done() -> bool:
        consumer.persist()
        return committed(broker, group, topic) >= least

    until(done, f"offset {least}", last=lambda: committed(broker, group, topic))


def committed(broker: OrbitBroker, group: str, topic: str) -> int:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    code, answer, _ = remoting_call(broker.address, QUERY_CONSUMER_OFFSET, fields)
    return int(answer["offset"]) if code == 0 else -1

"""Server processes that are killed, paused and restarted under load, and checks of a stream's output."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from tests.apache.etcd import Etcd
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.apache.process import wait_until
from tests.apache.servers import create_topic, remoting_call

from orbitmq.client import Message, SendStatus
from orbitmq.client.sync import Producer
from orbitmq.errors import OrbitError

__all__ = ["Load", "Reader", "failover", "outages", "processes"]

TOPIC = "T"
GET_BROKER_HA_STATUS = 907


class Reader(Protocol):
    """A running stream."""

    def rows(self) -> list[tuple[str, int, int, int]]:
        """Returns broker, queue, offset and number of every row so far."""


class Load:
    """Sends numbers continuously, each once: a failed send is not repeated, so no number can occur twice."""

    def __init__(self, name_server: str) -> None:
        self._name_server = name_server
        self._ended, self._renewed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.tried = 0
        self.acknowledged: set[int] = set()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._ended.set()
        self._thread.join(30)

    def renew(self) -> None:
        """Continues with a new producer, which queries the routes immediately."""
        self._renewed.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._renewed.clear()
            self._send()

    def _send(self) -> None:
        with Producer("outages", self._name_server, retries=0) as producer:
            while not self._ended.wait(0.01) and not self._renewed.is_set():
                number, self.tried = self.tried, self.tried + 1
                try:
                    result = producer.send(Message(TOPIC, b"%d" % number), timeout_s=0.5)
                except (OrbitError, TimeoutError):
                    continue
                if result.status is SendStatus.OK:
                    self.acknowledged.add(number)

    def wait_more(self, count: int, timeout_s: float = 60.0) -> None:
        """Waits until that many more are acknowledged."""
        wanted = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= wanted, timeout_s=timeout_s, what=f"{count} more sends")


def numbers(reader: Reader) -> list[int]:
    return [row[3] for row in reader.rows()]


def check(reader: Reader, load: Load, timeout_s: float = 120.0) -> None:
    """Checks that every acknowledged number is there, and none twice."""
    wait_until(
        lambda: load.acknowledged <= set(numbers(reader)),
        timeout_s=timeout_s,
        what="rows of every message that was acknowledged",
    )
    rows = reader.rows()
    found = [row[3] for row in rows]
    assert len(found) == len(set(found)), "a message came twice"
    assert len({row[:3] for row in rows}) == len(rows), "an offset came twice"
    assert set(found) <= set(range(load.tried))


def waiting(reader: Reader, seconds: float, growth: int, what: str) -> None:
    """Lets time pass, and checks that the stream returns at least that many rows meanwhile."""
    before, until = len(reader.rows()), time.monotonic() + seconds
    wait_until(
        lambda: time.monotonic() > until and len(reader.rows()) >= before + growth,
        timeout_s=seconds + 180,
        what=f"{growth} more rows while {what}",
    )


class Processes:
    """A name server, broker-a with a slave, and broker-b alone."""

    def __init__(self, stack: ExitStack) -> None:
        self.names = stack.enter_context(OrbitNamesrv())
        small: dict[str, Any] = {"mappedFileSizeCommitLog": 1024 * 1024}
        self.master = OrbitBroker(self.names, brokerRole="SYNC_MASTER", **small)
        self.slave = OrbitBroker(self.names, brokerRole="SLAVE", brokerId=1, slaveSyncInterval=500, **small)
        self.other = OrbitBroker(self.names, brokerName="broker-b", **small)
        self.all = (self.master, self.slave, self.other)
        for broker in self.all:
            stack.enter_context(broker)
        for broker in (self.master, self.other):
            create_topic(self.names, broker, TOPIC, queue_count=2)


@contextmanager
def processes() -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(stack)


def outages(servers: Processes, reader: Reader, load: Load, *, names_s: float, pause_s: float) -> None:
    """Runs one outage after the other under load; the stream continues with the remaining brokers through each."""
    load.wait_more(50)
    waiting(reader, 0, 50, "all is well")
    servers.names.kill()
    waiting(reader, names_s, 50, "the name server is down")
    servers.names.start()
    # A batch in progress then waits for this broker; if there is none, batches continue without its queues.
    servers.other.pause()
    waiting(reader, pause_s, 0, "broker-b hangs")
    servers.other.resume()
    waiting(reader, 0, 50, "broker-b answers again")
    servers.other.kill()
    waiting(reader, 2, 0, "broker-b, which has no slave, is dead")
    servers.other.start()
    waiting(reader, 0, 50, "broker-b is back")
    # The slave's messages are read before its master is back.
    servers.master.kill()
    before = set(load.acknowledged)
    wait_until(lambda: before <= set(numbers(reader)), timeout_s=90, what="rows of broker-a from its slave")
    servers.master.start()
    load.wait_more(50)
    for broker in (servers.master, servers.other):
        create_topic(servers.names, broker, TOPIC, queue_count=4)
    load.renew()
    wait_until(
        lambda: len({row[:2] for row in reader.rows()}) == 8, timeout_s=90, what="rows of the added queues"
    )
    load.end()
    check(reader, load)


def is_master(broker: OrbitBroker) -> bool:
    try:
        code, _, body = remoting_call(broker.address, GET_BROKER_HA_STATUS, timeout_s=5)
    except OSError:
        return False
    return code == 0 and json.loads(body).get("master") is True


def in_sync(broker: OrbitBroker) -> bool:
    code, _, body = remoting_call(broker.address, GET_BROKER_HA_STATUS, timeout_s=5)
    return code == 0 and json.loads(body).get("inSyncSlaveNums") == 1


def failover(etcd: Etcd, start: Callable[[str], Reader], *, kills: int) -> None:
    """Kills masters with -9 under load; each is replaced through etcd."""
    with ExitStack() as stack:
        names = stack.enter_context(OrbitNamesrv())
        options: dict[str, Any] = {"enableFailover": True, "etcdEndpoints": etcd.url}
        brokers = [OrbitBroker(names, brokerId=number, **options) for number in (1, 2)]
        for broker in brokers:
            stack.enter_context(broker)

        def master() -> OrbitBroker:
            wait_until(lambda: any(map(is_master, brokers)), timeout_s=30, what="a master")
            return next(broker for broker in brokers if is_master(broker))

        create_topic(names, master(), TOPIC, queue_count=2)
        reader = start(names.address)
        load = stack.enter_context(Load(names.address))
        for _ in range(kills):
            old = master()
            wait_until(lambda: in_sync(old), timeout_s=60, what="a slave in sync")  # noqa: B023  # called at once
            load.wait_more(50)
            old.kill()
            load.wait_more(50)
            waiting(reader, 0, 20, "the new master takes over")
            assert master() is not old
            old.start()
        load.end()
        check(reader, load)

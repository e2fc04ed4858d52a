"""Replication with the real broker: an Apache slave behind our master, our slave behind an Apache master, and two of
ours, under one name server and the official client. One test, in order, since an Apache slave copies its master's
tables only once a minute.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.apache.harness import (
    LATEST,
    Addressed,
    ApacheBroker,
    HarnessTimeout,
    JavaClients,
    Message,
    create_topic,
    remoting_call,
    wait_until,
)
from tests.apache.ours import OrbitBroker, OrbitNamesrv

from orbitmq.cli.store import store_commands
from orbitmq.wire import javajson

SEGMENT_BYTES = 1024 * 1024
GET_BROKER_RUNTIME_INFO = 28
GET_BROKER_HA_STATUS = 907
APACHE_SYNC_S = 100.0
OUR_SYNC_S = 25.0
Server = OrbitBroker | ApacheBroker
Unique = Callable[[str], str]


@dataclass
class Group:
    """A master and its slave."""

    name: str
    master: Server
    slave: Server
    topic: str = ""

    def log_end(self, broker: Server) -> int:
        """Returns where the log ends; -1 when the broker refuses, as an Apache one does under load."""
        code, _, body = remoting_call(broker.address, GET_BROKER_RUNTIME_INFO, timeout_s=10)
        return int(json.loads(body)["table"]["commitLogMaxOffset"]) if code == 0 else -1

    def is_followed(self) -> bool:
        code, _, body = remoting_call(self.master.address, GET_BROKER_HA_STATUS)
        return code == 0 and bool(json.loads(body)["haConnectionInfo"])

    def wait_caught_up(self) -> None:
        def equal() -> bool:
            return 0 < self.log_end(self.master) == self.log_end(self.slave)

        wait_until(equal, timeout_s=60, what=f"the slave of {self.name}\n{self.slave.log_tail()}")

    def assert_equal_logs(self) -> None:
        """Compares the logs file by file, up to the end of the log."""
        self.wait_caught_up()
        end = self.log_end(self.slave)
        assert end > 0
        names = sorted(path.name for path in (self.slave.store_dir / "commitlog").iterdir())
        names = [name for name in names if int(name) < end]
        assert names
        assert int(names[0]) == 0, "the slave was there before the first message"
        for name in names:
            size = min(SEGMENT_BYTES, end - int(name))
            pieces = [
                (broker.store_dir / "commitlog" / name).read_bytes()[:size]
                for broker in (self.master, self.slave)
            ]
            assert pieces[0] == pieces[1], (self.name, name)

    def table(self, broker: Server, name: str, member: str) -> Any:
        try:
            content = (broker.store_dir / "config" / name).read_bytes()
        except FileNotFoundError:
            return None  # not yet, or Apache is between removing the old file and renaming the new one
        return javajson.loads(content).get(member) if content else None

    def differing(self) -> list[tuple[str, Any, Any]]:
        """Returns the tables that differ between slave and master, or that neither has."""
        found = [
            (name, self.table(self.master, name, member), self.table(self.slave, name, member))
            for name, member in (
                ("topics.json", "topicConfigTable"),
                ("subscriptionGroup.json", "subscriptionGroupTable"),
                ("consumerOffset.json", "offsetTable"),
                ("delayOffset.json", "offsetTable"),
            )
        ]
        return [entry for entry in found if not entry[1] or entry[1] != entry[2]]

    def wait_same_tables(self, timeout_s: float) -> None:
        try:
            wait_until(lambda: not self.differing(), timeout_s=timeout_s, what=f"tables of {self.name}")
        except HarnessTimeout as error:
            for name, masters, slaves in self.differing():
                error.add_note(f"{name}\nmaster: {masters}\nslave: {slaves}")
            raise


@pytest.fixture
def namesrv(apache_tools: None) -> Iterator[OrbitNamesrv]:
    with OrbitNamesrv() as server:
        yield server


@pytest.fixture
def groups(namesrv: OrbitNamesrv) -> Iterator[list[Group]]:
    """Yields groups started one after the other: the machine may be small, and an Apache broker takes seconds."""
    common: dict[str, Any] = {"mappedFileSizeCommitLog": SEGMENT_BYTES, "flushDelayOffsetInterval": 1_000}
    slave = common | {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": True}

    def ours(name: str, **conf: Any) -> OrbitBroker:
        return stack.enter_context(OrbitBroker(namesrv, brokerName=name, **conf))

    def apache(name: str, **conf: Any) -> ApacheBroker:
        return stack.enter_context(ApacheBroker(LATEST, namesrv, brokerName=name, **conf))

    with ExitStack() as stack:
        yield [
            Group("apache-slave", ours("apache-slave", **common), apache("apache-slave", **slave)),
            Group("apache-master", apache("apache-master", **common), ours("apache-master", **slave)),
            Group("both-ours", ours("both-ours", **common), ours("both-ours", **slave)),
        ]


def send(java: JavaClients, namesrv: Addressed, group: Group, producers: str, count: int) -> set[bytes]:
    bodies = [b"%s %d " % (group.name.encode(), number) + b"x" * 4_000 for number in range(count)]
    with java.producer(producers, namesrv) as producer:
        results = producer.send_many(
            [Message(topic=group.topic, body=body, keys="key", tags="a") for body in bodies]
        )
        assert {result.status for result in results} == {"SEND_OK"}
        delayed = Message(topic=group.topic, body=b"delayed " + group.name.encode(), delay_level=1)
        assert producer.send(delayed).status == "SEND_OK"
    return {*bodies, delayed.body}


@pytest.mark.slow
def test_apache_and_our_brokers_replicate_each_other(
    groups: list[Group], namesrv: OrbitNamesrv, java_latest: JavaClients, unique: Unique, tmp_path: Path
) -> None:
    started = time.monotonic()
    sent: dict[str, set[bytes]] = {}
    for group in groups:
        group.topic = unique(group.name)
        create_topic(namesrv, group.master, group.topic, queue_count=2)
    consumer = java_latest.push_consumer(
        unique("readers"),
        namesrv,
        {group.topic: "*" for group in groups},
        from_first=True,
        pollNameServerInterval=1_000,
        heartbeatBrokerInterval=1_000,
    )
    for group in groups:
        # A slave that joins later begins with the last segment, so there must be only one segment before it joins.
        wait_until(group.is_followed, timeout_s=60, what=f"the slave of {group.name} follows")
        sent[group.name] = send(java_latest, namesrv, group, unique("producers"), 400)
    consumer.wait_bodies(set().union(*sent.values()), timeout_s=60)
    for group in groups:
        group.wait_caught_up()
        group.assert_equal_logs()
    check_status(groups)
    for group in groups:
        seen = java_latest.admin(namesrv).invoke("getBrokerHAStatus", group.master.address)
        assert seen["inSyncSlaveNums"] == 1, seen
    consumer.persist()
    # Tables. Ours need ten seconds; an Apache slave looks after a minute.
    for group in reversed(groups):
        limit_s = APACHE_SYNC_S if isinstance(group.slave, ApacheBroker) else OUR_SYNC_S
        left_s = max(OUR_SYNC_S, limit_s - (time.monotonic() - started))
        group.wait_same_tables(left_s)

    # Masters die; the slaves deliver the unread messages.
    consumer.suspend()
    for group in groups:
        sent[group.name] |= send(java_latest, namesrv, group, unique("more"), 50)
        group.wait_caught_up()
    for group in groups:
        group.master.kill()
    consumer.resume()
    consumer.wait_bodies(set().union(*sent.values()), timeout_s=60)
    # They return with everything, and are followed again.
    for group in groups:
        group.master.start()
    for group in groups:
        send(java_latest, namesrv, group, unique("again"), 20)
        group.wait_caught_up()
        group.assert_equal_logs()
    for group in groups:
        for broker in (group.master, group.slave):
            if isinstance(broker, OrbitBroker):
                broker.check_log()
    check_repair(groups[0].master, groups[0].slave, tmp_path / "from-slave")
    check_repair(groups[1].slave, groups[1].master, tmp_path / "from-master")


def check_repair(damaged: Server, other: Server, copy: Path) -> None:
    """Corrupts a copy of one broker's log and repairs it from the other broker, which is running."""
    shutil.copytree(damaged.store_dir, copy)
    segment = copy / "commitlog" / f"{0:020d}"
    whole = segment.read_bytes()
    segment.write_bytes(whole[:50_000] + bytes(byte ^ 0x5A for byte in whole[50_000:50_100]) + whole[50_100:])
    done = CliRunner().invoke(store_commands, ["repair", str(copy), "--from", other.ha_address])
    assert done.exit_code == 0, done.output
    assert "1 damaged ranges, 0 left" in done.output
    assert segment.read_bytes() == whole


def check_status(groups: list[Group]) -> None:
    for group in groups:
        _, _, body = remoting_call(group.master.address, GET_BROKER_HA_STATUS)
        status = json.loads(body)
        (link,) = status["haConnectionInfo"]
        assert status["master"] is True
        assert (link["inSync"], link["diff"]) == (True, 0), (group.name, status)
        _, _, body = remoting_call(group.slave.address, GET_BROKER_HA_STATUS)
        own = json.loads(body)
        assert own["master"] is False
        assert own["haClientRuntimeInfo"]["masterAddr"] == group.master.ha_address

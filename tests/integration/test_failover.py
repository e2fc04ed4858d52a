"""Failover with a real etcd: election, fencing, rejoining, faults of every network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.apache.etcd import Etcd, etcd, memory_path
from tests.integration.failover_kit import QUICK, TTL_S, Group, Node, group, on_uvloop
from tests.integration.ha_kit import BORN_HOST, assert_equal_logs, config_file, log_bytes, until

from orbitmq.admin import Admin
from orbitmq.admin.brokers import change_role
from orbitmq.codes import ResponseCode
from orbitmq.errors import ServerError
from orbitmq.model.topic import TopicConfig
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.store.types import NewMessage

__all__ = ["etcd", "memory_path"]
pytestmark = pytest.mark.slow

ROUNDS = 30


def test_cut_off_master_is_replaced_and_its_own_tail_is_cut(etcd: Etcd, memory_path: Path) -> None:
    async def scenario() -> None:
        async with group(memory_path, etcd) as brokers:
            first = await brokers.settled()
            second = next(node for node in brokers.nodes if node is not first)
            assert await brokers.send(first, 100) == ResponseCode.SUCCESS
            assert second.running.store.max_log_offset == first.running.store.max_log_offset
            agreed = log_bytes(first.running)
            # It is cut off, but its producers do not know.
            first.isolate()
            assert await brokers.send(first, 50, b"nobody else has this") == ResponseCode.FLUSH_SLAVE_TIMEOUT
            await until(lambda: not first.is_master, "the fence", TTL_S + 2)
            assert await brokers.send(first, 1) == ResponseCode.SYSTEM_BUSY
            await until(lambda: second.is_master, "the new master", 15)
            assert log_bytes(second.running) == agreed
            assert second.failover.epoch == 2
            assert await brokers.send(second, 70) == ResponseCode.SUCCESS
            first.heal()
            assert await brokers.settled() is second
            assert_equal_logs(second.running, first.running)
            assert b"nobody else has this" not in log_bytes(first.running)
            assert first.running.config.broker_id == first.number
            assert await brokers.send(second, 10) == ResponseCode.SUCCESS
            for body in brokers.acknowledged:
                assert body in log_bytes(first.running)

    on_uvloop(scenario)


def test_a_clean_stop_of_the_master_saves_its_cursors(etcd: Etcd, memory_path: Path) -> None:
    async def scenario() -> None:
        async with group(memory_path, etcd) as brokers:
            first = await brokers.settled()
            broker = first.running
            broker.puts.put(NewMessage("T", 0, b"later", b"DELAY\x011\x02", 1, BORN_HOST))
            await until(lambda: broker.store.max_offset("T", 0) == 1, "the delivery")
            assert config_file(broker, "delayOffset.json") is None
            await first.stop()
            assert config_file(broker, "delayOffset.json")["offsetTable"] == {"1": 1}

    on_uvloop(scenario)


def test_an_operator_elects_a_broker_that_lacks_messages_and_is_told_so(
    etcd: Etcd, memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The old master keeps the messages that only it has, until it is allowed to truncate them."""

    async def scenario() -> None:
        async with group(memory_path, etcd) as brokers:
            first = await brokers.settled()
            second = next(node for node in brokers.nodes if node is not first)
            assert await brokers.send(first, 10) == ResponseCode.SUCCESS
            first.replication.accepting = False
            first.replication.cut()
            await until(lambda: first.failover.in_sync.members == {first.number}, "the slave to leave", 15)
            assert await brokers.send(first, 10, b"only the first has this") == ResponseCode.SUCCESS
            await first.stop()
            await until(lambda: second.failover.ineligible, "no master", 15)
            async with Admin() as admin:
                with pytest.raises(ServerError, match="not in the in-sync set"):
                    await change_role(admin, second.running.address, "SYNC_MASTER")
                changed = await change_role(admin, second.running.address, "SYNC_MASTER", accept_loss=True)
            assert "would lose messages" in changed.changes[0].detail
            assert second.is_master
            assert await brokers.send(second, 5) == ResponseCode.SUCCESS
            first.heal()
            await first.start()
            await until(lambda: "elected a master without our log" in caplog.text, "the refusal to cut", 15)
            assert b"only the first has this" in log_bytes(first.running)
            object.__setattr__(first.running.config, "cut_differing_log", True)
            assert await brokers.settled() is second
            assert b"only the first has this" not in log_bytes(first.running)
            assert_equal_logs(second.running, first.running)

    on_uvloop(scenario)


LONG_TTL_S = 60
"""No lease ends by itself in a test."""


async def die(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends a broker like a killed process: its ports are closed, and its lease is not released."""

    async def keeps(lease: int) -> None:
        return

    monkeypatch.setattr(node.failover._etcd, "revoke", keeps)
    await node.stop()


def test_a_dead_master_is_replaced_before_its_lease_ends(
    etcd: Etcd, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with group(memory_path, etcd, count=3, lease_ttl_s=LONG_TTL_S) as brokers, watching(brokers):
            first = await brokers.settled()
            assert await brokers.send(first, 100) == ResponseCode.SUCCESS
            await first.replication.close_listener()
            await die(first, monkeypatch)
            second = await brokers.master()
            assert second.failover.epoch == 2
            others = {node.number for node in brokers.nodes if node is not first}
            await until(
                lambda: second.failover.in_sync.safe_end() == second.running.store.max_log_offset, "a copy"
            )
            assert second.failover.in_sync.members == others
            assert await brokers.send(second, 10) == ResponseCode.SUCCESS
            # Both others are gone too: a broker that returns alone ends the lease of its previous process.
            for node in brokers.nodes:
                if node.broker is not None and node is not second:
                    await node.stop()
            await die(second, monkeypatch)
            await second.start()
            await until(lambda: second.is_master, "the same one again", 10)
            for body in brokers.acknowledged:
                assert body in log_bytes(second.running)

    on_uvloop(scenario)


def test_a_topic_without_messages_is_known_to_the_next_master(etcd: Etcd, memory_path: Path) -> None:
    """Not with the next round of copies, which is a minute away."""

    async def scenario() -> None:
        async with group(memory_path, etcd, metadata_sync_interval_ms=60_000) as brokers:
            first = await brokers.settled()
            second = next(node for node in brokers.nodes if node is not first)
            # One of them may have arrived with the round after the start.
            for topic in ("A", "B", "C"):
                first.running.topics.update(TopicConfig(topic_name=topic, read_queue_nums=3))
                await until(partial(second.running.topics.configs.__contains__, topic), topic, 10)
            first.running.topics.delete("B")
            await until(lambda: "B" not in second.running.topics.configs, "the end of B", 10)
            await first.stop()
            await until(lambda: second.is_master, "the new master", 15)
            found = {"A", "B", "C"} & second.running.topics.configs.keys()
            assert found == {"A", "C"}
            assert second.running.topics.configs["C"].read_queue_nums == 3

    on_uvloop(scenario)


def test_a_master_that_only_its_slaves_cannot_reach_stays(etcd: Etcd, memory_path: Path) -> None:
    async def scenario() -> None:
        async with group(memory_path, etcd, lease_ttl_s=LONG_TTL_S) as brokers:
            first = await brokers.settled()
            await first.replication.close_listener()
            first.replication.cut()
            await until(lambda: first.failover.in_sync.members == {first.number}, "the slave to leave", 10)
            assert first.is_master
            assert first.failover.epoch == 1

    on_uvloop(scenario)


@pytest.mark.parametrize("seed", [3, 11])
def test_no_acknowledged_message_is_lost_in_a_bad_network(seed: int, etcd: Etcd, memory_path: Path) -> None:
    """Anyone can run a seed again; a failure names its faults."""
    on_uvloop(lambda: bad_network(seed, etcd, memory_path))


async def bad_network(seed: int, etcd: Etcd, root: Path) -> None:
    chance = random.Random(seed)
    history: list[str] = []
    async with group(root, etcd, count=3, **QUICK) as brokers, watching(brokers):
        await brokers.settled()
        epochs = set()
        for number in range(ROUNDS):
            history.append(brokers.fault(chance))
            if number % 12 == 4 and brokers.masters:
                # In any case some masters are lost, with messages only they have.
                lost = brokers.masters[0]
                lost.isolate()
                code = await brokers.send(lost, chance.randint(1, 40))
                history.append(f"{lost.number}.isolate={code}")
                await asyncio.sleep(chance.uniform(1.5, 2.5) * QUICK["lease_ttl_s"])
            if number % 6 == 5:
                # Long enough for leases to end, and for elections.
                await asyncio.sleep(chance.uniform(0.5, 2.5) * QUICK["lease_ttl_s"])
                history.append("pause")
            # Every broker that claims to be master is believed, as by producers with old routes.
            for node in brokers.masters:
                code = await brokers.send(node, chance.randint(1, 40), b"x" * chance.randint(0, 2_000))
                history.append(f"{node.number}@{node.failover.epoch}={code}")
                epochs.add(node.failover.epoch)
            await asyncio.sleep(chance.uniform(0.0, 0.1))
        for node in brokers.nodes:
            node.heal()
        master = await brokers.settled()
        log = log_bytes(master.running)
        missing = [body[:20] for body in brokers.acknowledged if log.count(stored(body)) != 1]
        assert not missing, (seed, missing, history)
        for node in brokers.nodes:
            if node is not master:
                assert_equal_logs(master.running, node.running)
        assert brokers.most_holders == 1, (seed, history)
        assert len(epochs) > 1, "the faults must have been felt"
        assert brokers.acknowledged


def stored(body: bytes) -> bytes:
    """Returns a body as in the log of topic T: preceded by its size, followed by the topic."""
    return len(body).to_bytes(4, "big") + body + b"\x01T"


@asynccontextmanager
async def watching(brokers: Group) -> AsyncIterator[None]:
    owner = TaskOwner("watch")
    owner.start(brokers.watch_holders(), "holders")
    try:
        yield
    finally:
        await owner.close()

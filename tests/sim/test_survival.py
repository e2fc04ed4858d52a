"""The survival table of docs/failover.md: which acknowledged messages each configuration keeps, fault by fault.

Each cell is one run on virtual disks. Half of the messages are sent while all members are connected, the other half
after the network between them was cut, since that is when a weak acknowledgement shows. The fault comes 50 ms after
the last acknowledgement, and a power cut takes every byte that was not synced. A cell is **kept** when every message
answered with SEND_OK is in the log of the master at the end, and **lossy** when the run shows that some are not.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.fault.workload import read_queue
from tests.sim.cluster import (
    NAME_SERVER_HOSTS,
    Machine,
    World,
    broker_program,
    create_topic,
    run_name_server,
)
from tests.sim.loop import Process

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerRole
from orbitmq.codes import ResponseCode
from orbitmq.errors import ServerError
from orbitmq.model.topic import TopicConfig
from orbitmq.store.types import NewMessage

pytestmark = pytest.mark.slow

COUNT = 20
BORN_HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
KEPT, LOSSY = "kept", "lossy"


@dataclass(frozen=True)
class Setup:
    """One configuration of a group."""

    members: int = 2
    flush: str = "SYNC_FLUSH"
    flush_of_others: str = ""
    """Of all but the first member, which is elected first; empty: the same."""
    failover: bool = True
    role: str = "SYNC_MASTER"
    """Of the master, without failover."""
    options: dict[str, str | int | bool] = field(default_factory=dict)


class Group:
    """The brokers of a group, and the messages they acknowledged."""

    def __init__(self, world: World, setup: Setup) -> None:
        self.world = world
        self.setup = setup
        self.acknowledged: list[bytes] = []
        self._sent = 0
        world.machine("ns", NAME_SERVER_HOSTS[0], run_name_server)
        self.brokers = [self._broker(number) for number in range(1, setup.members + 1)]
        for machine in world.machines.values():
            machine.start()

    def _broker(self, number: int) -> Machine:
        settings: dict[str, str | int | bool] = {
            "flushDiskType": (number > 1 and self.setup.flush_of_others) or self.setup.flush,
            # No random flush: under ASYNC_FLUSH nothing is on the disk when the power is cut.
            "flushCommitLogThoroughInterval": 600_000,
        }
        if self.setup.failover:
            settings |= {"enableFailover": True, "etcdEndpoints": "10.0.0.9:2379", "brokerId": number}
        else:
            role = self.setup.role if number == 1 else "SLAVE"
            settings |= {"brokerRole": role, "brokerId": number - 1}
        program = broker_program(**{**settings, **self.setup.options})
        return self.world.machine("abc"[number - 1], f"10.0.0.{number + 1}", program)

    @property
    def servers(self) -> list[Broker]:
        return [machine.server for machine in self.brokers if machine.server is not None]

    def master(self) -> Machine | None:
        found = [
            machine
            for machine in self.brokers
            if machine.server is not None and not machine.server.config.is_slave
        ]
        return found[0] if len(found) == 1 else None

    def whole(self) -> bool:
        """Waits for one master with all running brokers following it and up to date."""
        master = self.master()
        if master is None or len(self.servers) != sum(machine.running for machine in self.brokers):
            return False
        ends = {server.store.max_log_offset for server in self.servers}
        if len(ends) != 1:
            return False
        broker: Broker = master.server
        if broker.failover is not None:
            return len(broker.failover.in_sync.members) == len(self.servers)
        return len(broker.roles.replicas.links) == len(self.servers) - 1

    async def until(self, done: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        loop = self.world.loop
        deadline = loop.now + seconds
        while not done():
            assert loop.now < deadline, f"no {what} within {seconds:.0f} s: {self.world.failures}"
            await asyncio.sleep(0.05)

    async def send(self, *, wait_s: float = 5.0) -> None:
        """Sends ``COUNT`` messages to the master, each after the previous one was acknowledged or timed out."""
        machine = self.master()
        assert machine is not None
        assert machine.process is not None
        try:
            async with asyncio.timeout(wait_s):
                await machine.process.start(self._send(machine.server), "send")
        except TimeoutError:
            return

    async def _send(self, broker: Broker) -> None:
        if broker.topics.find("T") is None:
            broker.topics.update(TopicConfig(topic_name="T"))
        for _ in range(COUNT):
            body = b"message %d" % self._sent
            self._sent += 1
            answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            where = broker.puts.append([NewMessage("T", 0, body, b"", 1, BORN_HOST)])[0]
            broker.puts.when_safe(where.log_offset + where.size, answered.set_result)
            if await answered == ResponseCode.SUCCESS:
                self.acknowledged.append(body)

    def cut_links(self) -> None:
        """Cuts the links between all brokers; where two copies are enough, those of the last one."""
        cut = self.brokers[-1:] if self.setup.options == TWO_ACKS else self.brokers
        for one in cut:
            for other in self.brokers:
                if one is not other:
                    self.world.network.cut(one.host, other.host)

    def lost(self) -> list[bytes]:
        master = self.master()
        assert master is not None
        found = set(stored_bodies(master.server))
        return [body for body in self.acknowledged if body not in found]


def simulated(work: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    world = World(seed)
    with world.patched():
        asyncio.set_event_loop(world.loop)
        try:
            world.loop.run_until_complete(work(world))
        finally:
            asyncio.set_event_loop(None)
            for machine in world.machines.values():
                if machine.process is not None:
                    machine.process.alive = False
            world.loop.close()
    gc.collect()


async def started(world: World, setup: Setup, *, cut: bool = True) -> tuple[Group, Machine]:
    """Returns a group that has just acknowledged messages, and its master."""
    group = Group(world, setup)
    await group.until(group.whole, "whole group")
    await group.send()
    if cut and setup.members > 1:
        group.cut_links()
        await group.send(wait_s=0.4)
    assert len(group.acknowledged) >= COUNT
    await asyncio.sleep(0.05)
    master = group.master()
    assert master is not None
    return group, master


# The faults. Each ends with all returning brokers running.
async def process_killed(group: Group, master: Machine) -> None:
    master.kill()
    group.world.network.heal()
    await asyncio.sleep(12.0)
    master.start()


async def machine_lost(group: Group, master: Machine) -> None:
    """Permanently, with its disk."""
    master.power_cut(0.0)
    group.world.network.heal()
    if not group.setup.failover:
        slave = group.brokers[1]
        assert slave.process is not None
        await slave.process.start(slave.server.roles.change(BrokerRole.SYNC_MASTER, 0), "promote")


async def two_machines_lost(group: Group, master: Machine) -> None:
    """Two of three, permanently; the last one remains."""
    last = group.brokers[-1]
    assert last is not master
    for machine in group.brokers[:-1]:
        machine.power_cut(0.0)
    group.world.network.heal()


async def power_of_master_lost(group: Group, master: Machine) -> None:
    master.power_cut(0.0)
    group.world.network.heal()
    await asyncio.sleep(12.0)
    master.start()


async def power_of_all_lost(group: Group, master: Machine) -> None:
    """The slaves are back first."""
    for machine in group.brokers:
        machine.power_cut(0.0)
    group.world.network.heal()
    for machine in group.brokers:
        if machine is not master:
            machine.start()
    await asyncio.sleep(20.0)
    master.start()


FAULTS = {
    "process killed": process_killed,
    "power of the master": power_of_master_lost,
    "machine lost": machine_lost,
    "power of all": power_of_all_lost,
    "two machines lost": two_machines_lost,
}
ASYNC_MASTER: dict[str, str | int | bool] = {"failoverRole": "ASYNC_MASTER"}
TWO_ACKS: dict[str, str | int | bool] = {"allAckInSyncStateSet": False, "inSyncReplicas": 2}
CELLS = [
    # The results are in the order of FAULTS; empty where no copy is left by definition.
    ("failover-sync-flush-1", Setup(1), (KEPT, KEPT, "", KEPT, "")),
    ("failover-sync-flush-2", Setup(2), (KEPT, KEPT, KEPT, KEPT, "")),
    ("failover-sync-flush-3", Setup(3), (KEPT, KEPT, KEPT, KEPT, KEPT)),
    ("failover-async-flush-1", Setup(1, "ASYNC_FLUSH"), (KEPT, LOSSY, "", LOSSY, "")),
    ("failover-async-flush-2", Setup(2, "ASYNC_FLUSH"), (KEPT, KEPT, KEPT, LOSSY, "")),
    ("failover-async-flush-3", Setup(3, "ASYNC_FLUSH"), (KEPT, KEPT, KEPT, LOSSY, KEPT)),
    ("failover-async-master", Setup(options=ASYNC_MASTER), (LOSSY, LOSSY, LOSSY, LOSSY, "")),
    ("failover-two-acks", Setup(3, options=TWO_ACKS), (KEPT, KEPT, KEPT, KEPT, LOSSY)),
    ("sync-master-sync-flush", Setup(failover=False), (KEPT, KEPT, KEPT, KEPT, "")),
    ("sync-master-async-flush", Setup(2, "ASYNC_FLUSH", failover=False), (KEPT, LOSSY, KEPT, LOSSY, "")),
    ("async-master-sync-flush", Setup(failover=False, role="ASYNC_MASTER"), (KEPT, KEPT, LOSSY, KEPT, "")),
    (
        "async-master-async-flush",
        Setup(2, "ASYNC_FLUSH", failover=False, role="ASYNC_MASTER"),
        (KEPT, LOSSY, LOSSY, LOSSY, ""),
    ),
]


@pytest.mark.parametrize(
    ("setup", "fault", "expected"),
    [
        pytest.param(setup, fault, expected, id=f"{name}-{fault.replace(' ', '-')}")
        for name, setup, results in CELLS
        for fault, expected in zip(FAULTS, results, strict=True)
        if expected
    ],
)
def test_a_cell_of_the_survival_table(setup: Setup, fault: str, expected: str) -> None:
    async def scenario(world: World) -> None:
        group, master = await started(world, setup)
        await FAULTS[fault](group, master)
        if setup.failover:
            await group.until(group.whole, "whole group after the fault")
        else:
            await group.until(lambda: group.master() is not None, "master after the fault")
        lost = group.lost()
        assert (LOSSY if lost else KEPT) == expected, lost[:5]
        if setup.failover and len(group.servers) >= int(setup.options.get("inSyncReplicas", 0)):
            await group.send()
            assert group.acknowledged[-1] == b"message %d" % (group._sent - 1), "sends go on"

    simulated(scenario)


def test_a_promoted_slave_outside_of_a_group_has_what_it_had_flushed() -> None:
    """Like Apache's, it reports written bytes, also under SYNC_FLUSH."""

    async def scenario(world: World) -> None:
        group, master = await started(world, Setup(failover=False), cut=False)
        slave = group.brokers[1]
        for machine in (master, slave):
            machine.power_cut(0.0)
        slave.start()
        await group.until(lambda: slave.server is not None, "start of the slave")
        assert slave.process is not None
        await slave.process.start(slave.server.roles.change(BrokerRole.SYNC_MASTER, 0), "promote")
        assert len(group.lost()) == COUNT

    simulated(scenario)


async def slave_lost_power_when_its_master_died(world: World, setup: Setup) -> tuple[Group, Machine, Machine]:
    """The master has everything and is down; the slave is back, without its unflushed bytes."""
    group, master = await started(world, setup, cut=False)
    slave = next(machine for machine in group.brokers if machine is not master)
    master.kill()
    slave.power_cut(0.0)
    slave.start()
    return group, master, slave


def test_a_member_in_doubt_waits_for_the_one_that_has_everything() -> None:
    async def scenario(world: World) -> None:
        group, master, slave = await slave_lost_power_when_its_master_died(world, Setup(2, "ASYNC_FLUSH"))
        await asyncio.sleep(60.0)
        assert slave.server.store.max_log_offset == 0
        assert slave.server.failover.ineligible
        assert not slave.server.failover.acting
        master.start()
        await group.until(group.whole, "whole group")
        assert group.master() is master
        assert not group.lost()
        await group.until(lambda: not slave.server.failover.in_doubt, "end of the doubt")
        # Now it may be elected alone, also after another restart.
        await group.send()
        slave.kill()
        slave.start()
        await group.until(group.whole, "whole group")
        master.power_cut(0.0)
        await group.until(lambda: group.master() is slave, "election of the slave")
        assert not group.lost()

    simulated(scenario)


@pytest.mark.parametrize(("master_flush", "expected"), [("SYNC_FLUSH", KEPT), ("ASYNC_FLUSH", LOSSY)])
def test_the_masters_flush_mode_decides_for_its_slaves(master_flush: str, expected: str) -> None:
    """The master's machine is lost, and the slave's power."""
    other = {"SYNC_FLUSH": "ASYNC_FLUSH", "ASYNC_FLUSH": "SYNC_FLUSH"}[master_flush]

    async def scenario(world: World) -> None:
        group, master = await started(world, Setup(2, master_flush, other), cut=False)
        slave = group.brokers[1]
        assert master is group.brokers[0]
        master.power_cut(0.0)
        slave.power_cut(0.0)
        slave.start()
        if expected is KEPT:
            await group.until(lambda: group.master() is slave, "election of the slave", 20.0)
            assert not group.lost()
        else:
            await asyncio.sleep(30.0)
            assert slave.server.failover.in_doubt
            assert not slave.server.failover.acting

    simulated(scenario)


def test_a_member_that_reports_what_it_flushed_waits_for_nobody() -> None:
    async def scenario(world: World) -> None:
        group, _, slave = await slave_lost_power_when_its_master_died(world, Setup(2))
        await group.until(lambda: group.master() is slave, "election of the slave", 15.0)
        assert not group.lost()

    simulated(scenario)


def test_an_operator_accepts_the_loss_and_the_other_member_keeps_what_it_has() -> None:
    async def scenario(world: World) -> None:
        group, master, slave = await slave_lost_power_when_its_master_died(world, Setup(2, "ASYNC_FLUSH"))
        await group.until(lambda: slave.server is not None and slave.server.failover.ineligible, "refusal")
        assert slave.process is not None
        failover = slave.server.failover

        async def elect(*, accept_loss: bool) -> str:
            try:
                await failover.change_role(BrokerRole.SYNC_MASTER, 0, accept_loss=accept_loss)
            except ServerError as error:
                return error.remark
            return ""

        refusal = await slave.process.start(elect(accept_loss=False), "elect")
        assert "members [1] of the in-sync set" in refusal or "members [2] of the in-sync set" in refusal
        assert "--acceptLoss" in refusal
        assert await slave.process.start(elect(accept_loss=True), "elect") == ""
        assert len(group.lost()) == COUNT
        await group.send()
        assert len(group.lost()) == COUNT
        # Its log is the only remaining copy.
        master.start()
        await asyncio.sleep(30.0)
        assert stored_bodies(master.server) == group.acknowledged[:COUNT]
        assert master.server.failover.in_sync.members == frozenset()
        object.__setattr__(master.server.config, "cut_differing_log", True)
        await group.until(group.whole, "whole group")
        assert stored_bodies(master.server) == stored_bodies(slave.server) == group.acknowledged[COUNT:]

    simulated(scenario)


def stored_bodies(broker: Broker) -> list[bytes]:
    """Returns all stored bodies, including messages not yet visible to consumers."""
    store = broker.store
    shown = store.confirm_offset
    store.limit_reads(store.max_log_offset)
    try:
        return [record.body for record in read_queue(store, "T", 0)] if store.queues("T") else []
    finally:
        store.limit_reads(shown)


@pytest.mark.parametrize("seed", range(3))
def test_a_topic_that_was_answered_is_known_to_the_next_master(seed: int) -> None:
    """With its number of queues, not the default, although the master died at that moment."""

    async def scenario(world: World) -> None:
        group, master = await started(world, Setup(), cut=False)
        world.network.slow = 0.02
        admin = Process(world.loop, "admin", "10.0.1.9")
        await admin.start(create_topic(f"{master.host}:10911", "new", 3), "create")
        master.power_cut(0.0)
        await group.until(lambda: group.master() is group.brokers[1], "election of the slave")
        found = group.brokers[1].server.topics.find("new")
        assert found is not None
        assert found.read_queue_nums == 3

    simulated(scenario, seed)


@pytest.mark.parametrize("seed", range(3))
def test_the_topic_of_an_acknowledged_message_is_known_to_the_next_master(seed: int) -> None:
    """Also a topic created by the send."""

    async def scenario(world: World) -> None:
        group, master = await started(world, Setup(), cut=False)
        world.network.slow = 0.02
        broker: Broker = master.server
        acknowledged = asyncio.Event()

        async def send() -> None:
            broker.topics.update(TopicConfig(topic_name="new", read_queue_nums=3, write_queue_nums=3))
            where = broker.puts.append([NewMessage("new", 0, b"first", b"", 1, BORN_HOST)])[0]
            broker.puts.when_safe(where.log_offset + where.size, lambda _code: acknowledged.set())

        assert master.process is not None
        await master.process.start(send(), "send")
        await acknowledged.wait()
        master.power_cut(0.0)
        await group.until(lambda: group.master() is group.brokers[1], "election of the slave")
        assert group.brokers[1].server.topics.find("new").read_queue_nums == 3

    simulated(scenario, seed)

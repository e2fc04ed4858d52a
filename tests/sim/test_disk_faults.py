"""Tests a failover group when the disk of one member loses data that it reported as flushed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.sim.cluster import Machine, World
from tests.sim.test_survival import COUNT, Group, Setup, simulated

from orbitmq.testing.faulty_fs import FaultyFileSystem

pytestmark = pytest.mark.slow

Damage = Callable[[FaultyFileSystem], None]
CONFIG = "/data/store/config/"


async def sent_to(world: World, setup: Setup) -> Group:
    """Returns a complete group that acknowledged ``COUNT`` messages some seconds ago."""
    group = Group(world, setup)
    await group.until(group.whole, "whole group")
    await group.send()
    assert len(group.acknowledged) == COUNT
    await asyncio.sleep(10.0)
    return group


def chosen(group: Group, role: str) -> Machine:
    master = group.master()
    assert master is not None
    return master if role == "master" else next(one for one in group.brokers if one is not master)


def stop_all(group: Group, how: str) -> None:
    for machine in group.brokers:
        if how == "kill":
            machine.kill()
        else:
            machine.power_cut(0.0)


@pytest.mark.parametrize("how", ["kill", "power cut"])
@pytest.mark.parametrize("role", ["master", "slave"])
@pytest.mark.parametrize("members", [2, 3])
def test_a_member_with_an_old_copy_of_its_disk_is_not_elected_first(
    members: int, role: str, how: str
) -> None:
    """The copy lacks the messages of half a second, all acknowledged just before everything stopped."""

    async def scenario(world: World) -> None:
        group = await sent_to(world, Setup(members))
        victim = chosen(group, role)
        copy = victim.fs.kill()
        await group.send()
        stop_all(group, how)
        victim.fs = copy
        victim.start()
        await asyncio.sleep(30.0)
        assert victim.server.failover.ineligible
        for machine in group.brokers:
            if machine is not victim:
                machine.start()
        await group.until(group.whole, "whole group")
        assert len(group.acknowledged) == 2 * COUNT
        assert not group.lost()

    simulated(scenario)


def test_a_member_keeps_what_it_knows_to_be_acknowledged_from_a_master_without_it() -> None:
    """Etcd has lost the note, so the old copy is elected; the other member stops with an error and
    truncates nothing.
    """

    async def scenario(world: World) -> None:
        group = await sent_to(world, Setup())
        victim = chosen(group, "slave")
        other = chosen(group, "master")
        copy = victim.fs.kill()
        await group.send()
        stop_all(group, "kill")
        victim.fs = copy
        for key in [key for key in world.etcd.keys if key.endswith("/acknowledged")]:
            del world.etcd.keys[key]
        victim.start()
        await group.until(lambda: group.master() is victim, "election of the old copy")
        end = victim.server.store.max_log_offset
        other.start()
        await asyncio.sleep(30.0)
        assert other.server.store.max_log_offset > end
        assert not other.server.failover.acting

    simulated(scenario)


@pytest.mark.parametrize("file", ["failover.json", "failover.json.safe"])
def test_a_damaged_file_of_a_member_does_not_cut_its_log(file: str) -> None:
    """Its backup has the same content: with an older epoch the member would truncate messages acknowledged since."""

    async def scenario(world: World) -> None:
        group = await sent_to(world, Setup())
        slave = chosen(group, "slave")
        master = chosen(group, "master")
        master.kill()
        await group.until(lambda: group.master() is slave, "election of the slave")
        await group.send()  # in the second epoch, alone
        for key in [key for key in world.etcd.keys if key.endswith("/acknowledged")]:
            del world.etcd.keys[key]
        slave.kill()
        slave.fs.flip(CONFIG + file, 3)
        slave.start()
        await group.until(lambda: group.master() is slave, "election of the slave")
        assert len(group.acknowledged) == 2 * COUNT
        assert not group.lost()

    simulated(scenario)

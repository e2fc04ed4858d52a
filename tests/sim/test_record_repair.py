"""Tests that a running broker replaces its damaged records with those of another broker of its group."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.sim.cluster import Machine, World
from tests.sim.test_disk_faults import chosen
from tests.sim.test_survival import COUNT, Group, Setup, simulated

from orbitmq.kernel.layout import IDENTITY
from orbitmq.store.types import ReadResult, ReadStatus

pytestmark = pytest.mark.slow

SEGMENT_BYTES = 4096
GROUPS = {
    "failover": Setup(3, options={"mappedFileSizeCommitLog": SEGMENT_BYTES}),
    "master and slave": Setup(failover=False, options={"mappedFileSizeCommitLog": SEGMENT_BYTES}),
}
BAD = 3
ROUNDS = 5
PLACES = {"body": 92, "checksum": 9, "size": 1, "magic": 6, "queue offset": 26, "log offset": 34}


async def filled(world: World, setup: Setup) -> Group:
    """Returns a complete group with several log segments."""
    group = Group(world, setup)
    await group.until(group.whole, "whole group")
    for _ in range(ROUNDS):
        await group.send()
    assert len(group.acknowledged) == ROUNDS * COUNT
    await asyncio.sleep(5.0)
    return group


async def rot(machine: Machine, position: int) -> None:
    """Stops a broker, flips a bit of message ``BAD`` in an old segment, and restarts it."""
    log_offset = machine.server.store.log_offset_at("T", 0, BAD)
    assert log_offset < machine.server.store.max_log_offset - 2 * SEGMENT_BYTES
    assert machine.process is not None
    await machine.process.start(machine.server.stop(), "stop")
    machine.kill()
    segment, at = log_offset - log_offset % SEGMENT_BYTES, log_offset % SEGMENT_BYTES
    path = f"/data/store/commitlog/{segment:020d}"
    assert IDENTITY.unpack_from(machine.fs.content(path), at)[2] == log_offset
    machine.fs.flip(path, at + position, 0x02)
    machine.start()


def read(machine: Machine) -> ReadResult:
    """Reads like a pull, in the broker's process."""
    assert machine.process is not None
    result: ReadResult = machine.process.context.run(machine.server.store.read, "T", 0, BAD, 1)
    return result


async def damaged(group: Group, machine: Machine, place: str) -> None:
    await rot(machine, PLACES[place])
    await group.until(group.whole, "whole group")
    await asyncio.sleep(1.0)


def bodies(machine: Machine) -> list[bytes]:
    store, found, offset = machine.server.store, [], 0
    while offset < store.max_offset("T", 0):
        result = store.read("T", 0, offset, 1)
        found += [bytes(one[91:]) for one in result.slices]
        offset = max(offset + 1, result.next_offset)
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("role", ["master", "slave"])
@pytest.mark.parametrize("kind", GROUPS)
def test_a_reader_waits_for_a_damaged_record_until_it_is_repaired(kind: str, role: str, place: str) -> None:
    async def scenario(world: World) -> None:
        group = await filled(world, GROUPS[kind])
        machine = chosen(group, role)
        oldest = machine.fs.paths("/data/store/commitlog/")[0]
        intact = machine.fs.content(oldest)
        await damaged(group, machine, place)
        first = read(machine)
        assert (first.status, first.count, first.next_offset) == (ReadStatus.OFFSET_OVERFLOW_ONE, 0, BAD)
        await group.until(lambda: read(machine).count == 1, "repaired message", 3.0)
        assert machine.server.roles.repair.repaired_count == 1
        assert machine.fs.content(oldest) == intact
        assert len(bodies(machine)) == ROUNDS * COUNT

    simulated(scenario)


def test_a_reader_skips_a_damaged_record_that_no_other_broker_can_replace() -> None:
    async def scenario(world: World) -> None:
        group = await filled(world, GROUPS["failover"])
        machine = chosen(group, "master")
        for one in group.brokers:
            await rot(one, PLACES["body"])
        await group.until(group.whole, "whole group")
        assert read(machine).count == 0
        await group.until(lambda: read(machine).next_offset > BAD, "skipped message", 8.0)
        assert len(bodies(machine)) == ROUNDS * COUNT - 1
        assert machine.server.roles.repair.failed_count == 1

    simulated(scenario)


def test_a_single_broker_skips_a_damaged_record_immediately() -> None:
    async def scenario(world: World) -> None:
        setup = replace(GROUPS["failover"], members=1)
        group = await filled(world, setup)
        machine = group.brokers[0]
        await rot(machine, PLACES["body"])
        await group.until(group.whole, "whole group")
        assert read(machine).next_offset == BAD + 1

    simulated(scenario)


def test_a_record_of_another_history_is_not_taken_for_the_damaged_one() -> None:
    """The other broker has different bytes from the damaged record to its end."""

    async def scenario(world: World) -> None:
        group = await filled(world, GROUPS["master and slave"])
        machine = chosen(group, "slave")
        await rot(machine, PLACES["body"])
        await group.until(group.whole, "whole group")
        repair = machine.server.roles.repair
        answers = repair._record

        async def changed(address: str, log_offset: int) -> bytes:
            record = bytearray(await answers(address, log_offset))
            record[60] ^= 1  # its store time
            return bytes(record)

        repair._record = changed
        log_offset = machine.server.store.log_offset_at("T", 0, BAD)
        read(machine)
        await group.until(lambda: read(machine).next_offset > BAD, "skipped message", 8.0)
        assert machine.server.store.integrity.whole_at(log_offset) is None
        assert repair.repaired_count == 0

    simulated(scenario)

"""Faults of single components that keep running: one-way partitions, a slow or unavailable etcd, slow and replaced
disks, lost files.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Final

import msgspec
from tests.sim.cluster import SEGMENT_BYTES, Machine
from tests.sim.etcd import HOST as ETCD_HOST

from orbitmq.broker.failover.state import Acknowledged
from orbitmq.store.config import StoreConfig
from orbitmq.store.tools.repair import FetchFailed, repair

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.scenario import Simulation

__all__ = ["RARE_FAULTS", "SKEW_MS", "skew_clocks"]

SKEW_MS: Final = 2_000
"""Largest difference between the clock of a member of a failover group and the true time."""
COPY_BYTES: Final = 4096
"""Another broker has the record and some after it, on its disk."""
BODY_SIZE: Final = struct.Struct(">i")
BODY_SIZE_AT: Final = 84
"""In a record with hosts of IPv4."""
STORE: Final = "/data/store/"
DERIVED: Final = ("consumequeue/", "index/", "checkpoint")
"""Files that a start rebuilds from the log."""


def skew_clocks(sim: Simulation) -> None:
    """Skews the clock of each member of a failover group. Delayed messages are due by the clock of whichever member
    is master.
    """
    shifts = []
    for machine in sim.brokers:
        machine.clock.shift_ms = sim.chance.randint(-SKEW_MS, SKEW_MS)
        shifts.append(machine.clock.shift_ms)
    sim.history.skew_s = (max(shifts) - min(shifts)) / 1000


def cut_one_way(sim: Simulation) -> None:
    hosts = [machine.host for machine in sim.world.machines.values()]
    hosts += ["10.0.1.1", "10.0.2.1", "10.0.2.2"]
    sender, receiver = sim.chance.sample(hosts, 2)
    if sim.failover and sim.chance.random() < 0.4:
        pair = [sim.chance.choice(sim.brokers).host, ETCD_HOST]
        sim.chance.shuffle(pair)
        sender, receiver = pair
    sim.note(f"cut one way {sender} to {receiver}")
    sim.world.network.cut_one_way(sender, receiver)
    sim.later(sim.chance.uniform(0.5, 15.0), sim.heal)


def slow_etcd(sim: Simulation) -> None:
    if not sim.failover:
        return
    etcd = sim.world.etcd
    etcd.slow_s = sim.chance.choice([0.2, 1.0, 4.0])
    sim.note(f"etcd takes up to {etcd.slow_s} s")
    sim.later(sim.chance.uniform(1.0, 10.0), lambda: setattr(etcd, "slow_s", 0.0))


def lose_etcd(sim: Simulation) -> None:
    """Takes etcd's majority down; leases expire meanwhile."""
    if not sim.failover:
        return
    etcd = sim.world.etcd
    etcd.is_down = True
    sim.note("etcd is down")

    def again() -> None:
        etcd.is_down = False
        sim.note("etcd is up")

    sim.later(sim.chance.uniform(0.5, 12.0), again)


def slow_disk(sim: Simulation) -> None:
    machine = sim.healthy_broker()
    if machine is None:
        return
    slow = sim.world.loop.slow_disks
    slow[machine.host] = sim.chance.choice([0.05, 0.5, 3.0])
    sim.note(f"disk of {machine.name} takes up to {slow[machine.host]} s")
    sim.later(sim.chance.uniform(1.0, 12.0), lambda: slow.pop(machine.host, None))


def old_disk(sim: Simulation) -> None:
    """Restarts a slave with an old copy of its disk that lacks acknowledged messages, like a snapshot."""
    slaves = (
        [
            machine
            for machine in sim.brokers
            if machine.server is not None and machine.running and not machine.server.failover.acting
        ]
        if sim.failover and sim.flushes
        else []
    )
    if not slaves or sim.master() is None or sim.has_old_disk:
        return
    machine = sim.chance.choice(slaves)
    if sim.is_faulty(machine):
        return
    copy = machine.fs.kill()
    end = machine.server.store.max_log_offset
    sim.note(f"snapshot of {machine.name} at {end}")
    sim.has_old_disk = True

    def replace() -> None:
        sim.has_old_disk = False
        master = sim.master()
        if master is None or master is machine or sim.is_faulty(machine) or not machine.running:
            return
        noted = _noted(sim)
        if noted <= end:
            return  # messages acknowledged since the last note are not guaranteed
        sim.kill(machine)
        copy.boot = machine.fs.boot
        machine.fs = copy
        sim.note(f"disk of {machine.name} replaced, its log ends at {end}, acknowledged up to {noted}")

    sim.later(sim.chance.uniform(2.0, 8.0), replace)


def _noted(sim: Simulation) -> int:
    for key, entry in sim.world.etcd.keys.items():
        if key.endswith("/acknowledged"):
            return msgspec.json.decode(entry.value, type=Acknowledged).log_offset
    return 0


def lose_file(sim: Simulation) -> None:
    """Restarts a killed broker without some of the files that can be rebuilt from its log."""
    machine = sim.healthy_broker()
    if machine is None:
        return
    sim.kill(machine)
    for path in _chosen_files(sim, machine):
        sim.note(f"lost {machine.name}:{path}")
        machine.fs.remove(path)
        machine.fs.sync_directory(path.rpartition("/")[0])


def _chosen_files(sim: Simulation, machine: Machine) -> list[str]:
    paths = machine.fs.paths(STORE + sim.chance.choice(DERIVED))
    return sorted(sim.chance.sample(paths, min(len(paths), sim.chance.randint(1, 3))))


def cut_power_of_slow_disks(sim: Simulation) -> None:
    """Slows the slaves' disks, cuts the power of all machines, and brings the master back last."""
    master = sim.master() if sim.failover and sim.flushes else None
    if master is None:
        return
    slow = sim.world.loop.slow_disks
    for machine in sim.brokers:
        if machine is not master:
            slow[machine.host] = 3.0
    sim.note("disks of the slaves take up to 3 s")

    def cut() -> None:
        slow.clear()
        for machine in sim.brokers:
            if machine.running:
                sim.lose_power(machine, back_s=25.0 if machine is master else sim.chance.uniform(1.0, 3.0))

    sim.later(sim.chance.uniform(0.5, 2.5), cut)


def flip_bit(sim: Simulation) -> None:
    """Flips a bit of a record on the disk of one broker while it is down. If its start refuses the log, an operator
    repairs the store from another broker.
    """
    machine = sim.healthy_broker()
    if machine is None or sim.has_flipped_bit:
        return
    place = _record_byte(sim, machine)
    if place is None:
        return
    sim.has_flipped_bit = True
    sim.kill(machine)
    path, position = place
    machine.fs.flip(path, position, 1 << sim.chance.randrange(8))
    sim.note(f"flipped a bit of {machine.name}:{path} at {position}")
    machine.on_damage = functools.partial(_repair, sim, machine)


def _record_byte(sim: Simulation, machine: Machine) -> tuple[str, int] | None:
    """Picks a byte of a body or of the fields before it, in the log of a running broker. Changed bytes of the
    properties are not covered by any checksum.
    """
    store = machine.server.store if machine.server is not None else None
    topics = [topic for topic in ("plain", "ordered") if store is not None and store.queues(topic)]
    if store is None or not topics:
        return None
    topic = sim.chance.choice(topics)
    queue_id = sim.chance.choice(store.queues(topic))
    count = store.max_offset(topic, queue_id)
    units = store.units(topic, queue_id, sim.chance.randrange(count), 1) if count else []
    if not units:
        return None
    log_offset = units[0][0]
    copies = [other for other in sim.brokers if other is not machine and not sim.is_faulty(other)]
    if all(one.server is None or one.server.store.flushed_offset < log_offset + COPY_BYTES for one in copies):
        return None
    body_bytes = BODY_SIZE.unpack_from(store.log_range(log_offset + BODY_SIZE_AT, BODY_SIZE.size))[0]
    segment, at = log_offset - log_offset % SEGMENT_BYTES, log_offset % SEGMENT_BYTES
    covered = (*range(12), *range(BODY_SIZE_AT, BODY_SIZE_AT + 4 + body_bytes))
    return f"{STORE}commitlog/{segment:020d}", at + sim.chance.choice(covered)


def _repair(sim: Simulation, machine: Machine) -> None:
    """Repairs like ``orbitmq store repair`` and restarts, or retries later if no other broker has the bytes."""
    machine.kill()
    config = StoreConfig(root="/data/store", segment_bytes=SEGMENT_BYTES)
    for other in sim.brokers:
        if other is machine:
            continue

        def fetch(start: int, end: int, other: Machine = other) -> bytes:
            segment = start - start % SEGMENT_BYTES
            path = f"{STORE}commitlog/{segment:020d}"
            if not other.running or path not in other.fs.paths(STORE):
                raise FetchFailed(f"{other.name} does not answer")
            return other.fs.content(path)[start - segment : end - segment]

        report = repair(config.root, fetch, config, fs=machine.fs)
        if report.ok:
            sim.note(f"repaired {machine.name} from {other.name}: {report.ranges}")
            machine.start()
            return
        sim.note(f"not repaired: {report.ranges}")
    sim.later(5.0, lambda: _repair(sim, machine))


RARE_FAULTS: Final[list[tuple[int, Callable[[Simulation], None]]]] = [
    (4, cut_one_way),
    (2, slow_etcd),
    (2, lose_etcd),
    (3, slow_disk),
    (2, old_disk),
    (2, lose_file),
    (3, cut_power_of_slow_disks),
    (3, flip_bit),
]

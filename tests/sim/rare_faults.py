"""Faults of single parts that keep running: one-way partitions, a slow or unavailable etcd, slow and replaced disks,
lost files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from tests.sim.cluster import Machine
from tests.sim.etcd import HOST as ETCD_HOST

from orbitmq.broker.failover.state import Acknowledged

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.scenario import Simulation

__all__ = ["RARE_FAULTS", "SKEW_MS", "skew_clocks"]

SKEW_MS: Final = 2_000
"""Largest difference between the clock of a member of a failover group and the true time."""
STORE: Final = "/data/store/"
DERIVED: Final = ("consumequeue/", "index/", "checkpoint")
"""Files that a start rebuilds from the log."""


def skew_clocks(sim: Simulation) -> None:
    """Give each member of a failover group a clock of its own. Delayed messages are due by the clock of whichever
    member is master."""
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
    """Its majority is gone; leases end meanwhile."""
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
    """A slave comes back with a copy of its disk that lacks acknowledged messages, as from a snapshot."""
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
            return  # what was acknowledged since the last note is not promised
        sim.kill(machine)
        machine.fs = copy
        sim.note(f"disk of {machine.name} replaced, its log ends at {end}, acknowledged up to {noted}")

    sim.later(sim.chance.uniform(2.0, 8.0), replace)


def _noted(sim: Simulation) -> int:
    for key, entry in sim.world.etcd.keys.items():
        if key.endswith("/acknowledged"):
            return msgspec.json.decode(entry.value, type=Acknowledged).log_offset
    return 0


def lose_file(sim: Simulation) -> None:
    """A killed broker comes back without some of the files that its log can replace."""
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


RARE_FAULTS: Final[list[tuple[int, Callable[[Simulation], None]]]] = [
    (4, cut_one_way),
    (2, slow_etcd),
    (2, lose_etcd),
    (3, slow_disk),
    (2, old_disk),
    (2, lose_file),
]

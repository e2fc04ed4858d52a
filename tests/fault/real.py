"""Real faults on real servers, ours and Apache's, with the checker of the simulation.

    python -m tests.fault.real                          # all, on ours
    python -m tests.fault.real --target apache --fault kill --fault pause --runs 10
    python -m tests.fault.real --json build/faults.json

A producer with eight sends in flight and a consumer, both our client with its defaults, run while servers are killed,
stopped (SIGSTOP), cut off, left without disk space or an etcd member, or have a disk whose syncs fail. An outage is
the longest time without an acknowledgement after a fault. Lost: acknowledged but no longer in any queue; if a full
disk caused it, the notes say how many are in the log and reappear after a restart. Doubled: handled more than once.
``full-disk`` mounts a tmpfs and needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.apache.etcd import Etcd, etcd_cluster
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.apache.process import StartFailed, wait_until
from tests.apache.servers import ApacheBroker, ApacheNamesrv, create_topic, remoting_call
from tests.fault.load import TOPIC, Load, bodies_in_log

from orbitmq.testing.chaos_proxy import ChaosProxy

Broker = OrbitBroker | ApacheBroker
GET_BROKER_HA_STATUS = 907
RECOVERS_S = 60.0
WARM_ACKS = 300


@dataclass
class Row:
    """One line of the table."""

    fault: str
    target: str
    runs: int = 0
    acked: int = 0
    lost: int = 0
    doubled: int = 0
    refused: int = 0
    outages_s: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def line(self) -> str:
        outages = self.outages_s or [0.0]
        return (
            f"| {self.fault} | {self.target} | {self.runs} | {self.acked} | {self.lost} | {self.doubled} | "
            f"{statistics.median(outages):.1f} | {max(outages):.1f} | {'; '.join(sorted(set(self.notes)))} |"
        )


HEAD = """| fault | on | runs | acked | lost | doubled | outage, median s | longest s | notes |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |"""


class Target:
    """The servers to disrupt."""

    def __init__(self, name: str) -> None:
        self.name = name

    def namesrv(self) -> OrbitNamesrv | ApacheNamesrv:
        return OrbitNamesrv() if self.name == "ours" else ApacheNamesrv("5.5.0")

    def broker(self, namesrv: Any, store_dir: Path | None = None, **conf: str | int | bool) -> Broker:
        options: dict[str, Any] = dict(conf)
        if self.name == "ours":
            return OrbitBroker(namesrv, store_dir, **options)
        return ApacheBroker("5.5.0", namesrv, store_dir, **options)


async def run_off_loop(work: Callable[[], Any]) -> Any:
    """Runs a call off the loop: the harness blocks, and the clients live on this loop."""
    return await asyncio.to_thread(work)


@asynccontextmanager
async def one_broker(
    target: Target, store_dir: Path | None = None, **conf: str | int | bool
) -> AsyncIterator[tuple[Broker, str]]:
    """Yields a started master with the topic, and the address of its name server."""
    namesrv = target.namesrv()
    broker: Broker | None = None
    try:
        await run_off_loop(namesrv.start)
        broker = target.broker(namesrv, store_dir, flushDiskType="SYNC_FLUSH", **conf)
        await run_off_loop(broker.start)
        await run_off_loop(lambda: create_topic(namesrv, f"127.0.0.1:{broker.port}", TOPIC, queue_count=4))
        yield broker, namesrv.address
    finally:
        if broker is not None:
            await run_off_loop(broker.close)
        await run_off_loop(namesrv.close)


async def finish(row: Row, load: Load) -> None:
    """Counts the checker's findings."""
    violations = await load.check()
    summary = load.history.summary()
    row.acked += int(summary["acked"])
    row.doubled += sum(len(times) > 1 for times in load.history.handled.values())
    row.refused += load.history.refused
    row.lost += sum(text.startswith("lost") for text in violations)
    row.notes += load.missing()
    if load.late:
        row.notes.append(f"{load.late} not handled within 90 s")
    row.notes += [text[:100] for text in violations if not text.startswith("lost")][:3]


async def kill(target: Target, row: Row, runs: int) -> None:
    """kill -9 of a master under SYNC_FLUSH, restarted immediately."""
    async with one_broker(target) as (broker, address), Load(address) as load:
        for _ in range(runs):
            await load.more_acks(WARM_ACKS, RECOVERS_S)
            at = time.monotonic()
            await run_off_loop(broker.kill)
            await run_off_loop(broker.start)
            row.outages_s.append(await load.outage_after(at, RECOVERS_S))
            row.runs += 1
        await finish(row, load)


async def pause(target: Target, row: Row, runs: int) -> None:
    """SIGSTOP for 5 s."""
    async with one_broker(target) as (broker, address), Load(address) as load:
        for _ in range(runs):
            await load.more_acks(WARM_ACKS, RECOVERS_S)
            at = time.monotonic()
            broker.pause()
            await asyncio.sleep(5.0)
            broker.resume()
            row.outages_s.append(await load.outage_after(at, RECOVERS_S))
            row.runs += 1
        await finish(row, load)


async def cut(target: Target, row: Row, runs: int) -> None:
    """The network between clients and broker: 2 s without a byte, then connections reset and refused for 3 s."""
    namesrv = target.namesrv()
    broker = None
    try:
        await run_off_loop(namesrv.start)
        broker = target.broker(
            namesrv, flushDiskType="SYNC_FLUSH", bindAddress="127.0.0.1", brokerIP1="127.0.0.2"
        )
        broker.address = f"127.0.0.2:{broker.port}"
        async with ChaosProxy("127.0.0.1", broker.port, listen=("127.0.0.2", broker.port)) as proxy:
            await run_off_loop(broker.start)
            port = broker.port
            await run_off_loop(lambda: create_topic(namesrv, f"127.0.0.1:{port}", TOPIC, queue_count=4))
            async with Load(namesrv.address) as load:
                for _ in range(runs):
                    await load.more_acks(WARM_ACKS, RECOVERS_S)
                    at = time.monotonic()
                    proxy.stall()
                    await asyncio.sleep(2.0)
                    proxy.accepting = False
                    proxy.cut()
                    await asyncio.sleep(3.0)
                    proxy.heal()
                    row.outages_s.append(await load.outage_after(at, RECOVERS_S))
                    row.runs += 1
                await finish(row, load)
    finally:
        if broker is not None:
            await run_off_loop(broker.close)
        await run_off_loop(namesrv.close)


@contextmanager
def small_disk(mebibytes: int) -> Iterator[Path]:
    """Mounts a separate tmpfs."""
    where = Path(tempfile.mkdtemp(prefix="orbitmq-full-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=False)
        shutil.rmtree(where, ignore_errors=True)


def fill(path: Path) -> None:
    """Uses up all remaining space."""
    piece = bytes(64 * 1024)
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(piece) == len(piece):
                pass
        except OSError:
            pass


async def full_disk(target: Target, row: Row, runs: int) -> None:
    """The disk is full for 8 s, then there is space again."""
    conf: dict[str, str | int | bool] = {
        "mappedFileSizeCommitLog": 1024 * 1024,
        "mappedFileSizeConsumeQueue": 20 * 5_000,
        "cleanFileForciblyEnable": False,
    }
    with small_disk(256) as disk:
        async with (
            one_broker(target, disk / "store", **conf) as (broker, address),
            Load(address, body_bytes=4_000) as load,
        ):
            for _ in range(runs):
                await load.more_acks(WARM_ACKS, RECOVERS_S)
                at = time.monotonic()
                await run_off_loop(lambda: fill(disk / "ballast"))
                await asyncio.sleep(8.0)
                (disk / "ballast").unlink()
                try:
                    row.outages_s.append(await load.outage_after(at, RECOVERS_S))
                except TimeoutError:
                    row.notes.append(
                        "ended by itself" if not broker.running else "took no sends again in 60 s"
                    )
                    await run_off_loop(broker.kill)
                    await run_off_loop(broker.start)
                    row.outages_s.append(await load.outage_after(at, RECOVERS_S))
                row.runs += 1
            await finish(row, load)
            if row.lost:
                await examine(row, load, broker)


async def examine(row: Row, load: Load, broker: Broker) -> None:
    """Notes how many messages missing from all queues are still in the log, and how many a restart brings back."""
    in_log = await run_off_loop(lambda: bodies_in_log(broker.store_dir, load.unhandled()))
    await run_off_loop(broker.kill)
    await run_off_loop(broker.start)
    found = await load.read_again("fault-auditors-again")
    row.notes.append(f"of the lost {in_log} are in the log, {found} were delivered after a restart")
    row.notes.append(f"logs in {keep([broker])}")


PRELOAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>
static int failing(void) { const char *flag = getenv("FAULT_FLAG"); return flag && access(flag, F_OK) == 0; }
#define NEXT(name) ((int (*)())dlsym(RTLD_NEXT, name))
int fsync(int fd) { if (failing()) { errno = EIO; return -1; } return NEXT("fsync")(fd); }
int fdatasync(int fd) { if (failing()) { errno = EIO; return -1; } return NEXT("fdatasync")(fd); }
int msync(void *start, size_t size, int flags) {
  if (failing()) { errno = EIO; return -1; }
  return ((int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync"))(start, size, flags);
}
"""


@contextmanager
def failing_syncs() -> Iterator[Path]:
    """Children started inside fail every sync with EIO while the yielded file exists."""
    where = Path(tempfile.mkdtemp(prefix="orbitmq-eio-"))
    source, library, flag = where / "eio.c", where / "eio.so", where / "flag"
    source.write_text(PRELOAD)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True, capture_output=True
    )
    os.environ["LD_PRELOAD"], os.environ["FAULT_FLAG"] = str(library), str(flag)
    try:
        yield flag
    finally:
        del os.environ["LD_PRELOAD"], os.environ["FAULT_FLAG"]
        shutil.rmtree(where, ignore_errors=True)


async def failing_disk(target: Target, row: Row, runs: int) -> None:
    """Every sync fails with EIO for 5 s; a broker that accepts no sends 10 s later is restarted."""
    with failing_syncs() as flag:
        async with one_broker(target) as (broker, address), Load(address) as load:
            for _ in range(runs):
                await load.more_acks(WARM_ACKS, RECOVERS_S)
                at = time.monotonic()
                flag.touch()
                await asyncio.sleep(1.0)
                acked = len(load.history.acks)
                await asyncio.sleep(4.0)
                if len(load.history.acks) > acked:
                    row.notes.append(
                        "acknowledges sends whose sync failed" if broker.running else "acknowledged late"
                    )
                flag.unlink()
                try:
                    row.outages_s.append(await load.outage_after(at, 15.0))
                except TimeoutError:
                    row.notes.append(
                        "takes no sends until it is started again" if broker.running else "ends by itself"
                    )
                    await run_off_loop(broker.kill)
                    await run_off_loop(broker.start)
                    row.outages_s.append(await load.outage_after(at, RECOVERS_S))
                row.runs += 1
            await finish(row, load)


def is_master(broker: Broker) -> bool:
    try:
        code, _, body = remoting_call(broker.address, GET_BROKER_HA_STATUS)
    except OSError:
        return False
    return code == 0 and json.loads(body).get("master") is True


def whole(brokers: list[Broker]) -> bool:
    """Returns whether one master has two slaves in sync."""
    for broker in brokers:
        try:
            code, _, body = remoting_call(broker.address, GET_BROKER_HA_STATUS)
        except OSError:
            continue
        status = json.loads(body) if code == 0 else {}
        if status.get("master") is True and status.get("inSyncSlaveNums") == len(brokers) - 1:
            return True
    return False


def state_of(broker: Broker) -> str:
    """Returns the state that a member of a group reports."""
    name = f"broker {broker.conf['brokerId']}"
    if not broker.running:
        return f"{name} does not run"
    try:
        code, _, body = remoting_call(broker.address, GET_BROKER_HA_STATUS)
    except OSError as error:
        return f"{name}: {error}"
    return f"{name}: code {code} {body.decode(errors='replace')}"


@asynccontextmanager
async def elected_group(members: list[Etcd]) -> AsyncIterator[tuple[list[Broker], str]]:
    """Starts three of our brokers with failover and creates the topic."""
    with ExitStack() as stack:
        namesrv = stack.enter_context(OrbitNamesrv())
        endpoints = ";".join(member.url for member in members)
        brokers: list[Broker] = []
        for number in (1, 2, 3):
            broker = OrbitBroker(
                namesrv,
                brokerId=number,
                enableFailover=True,
                etcdEndpoints=endpoints,
                flushDiskType="SYNC_FLUSH",
            )
            stack.callback(broker.close)
            await run_off_loop(broker.start)
            brokers.append(broker)
        await run_off_loop(lambda: wait_until(lambda: whole(brokers), timeout_s=60, what="a whole group"))
        master = next(broker for broker in brokers if is_master(broker))
        await run_off_loop(lambda: create_topic(namesrv, master, TOPIC, queue_count=4))
        yield brokers, namesrv.address


async def _hurt_group(row: Row, runs: int, etcd_count: int, hurt: Callable[..., Awaitable[None]]) -> None:
    with etcd_cluster(etcd_count) as members:
        async with elected_group(members) as (brokers, address), Load(address) as load:
            try:
                for _ in range(runs):
                    await load.more_acks(WARM_ACKS, RECOVERS_S)
                    await hurt(load, brokers, members)
                    await run_off_loop(
                        lambda: wait_until(lambda: whole(brokers), timeout_s=90, what="a whole group again")
                    )
                    row.runs += 1
                await finish(row, load)
            finally:
                if row.runs < runs:
                    row.notes += await run_off_loop(lambda: [state_of(broker) for broker in brokers])
                if row.lost or load.late or row.runs < runs:
                    row.notes.append(f"logs and stores in {keep(brokers)}")


def keep(brokers: list[Broker]) -> Path:
    """Copies the files the brokers wrote, to look for the missing messages."""
    where = Path(tempfile.mkdtemp(prefix="orbitmq-lost-"))
    for broker in brokers:
        copy = where / f"broker-{broker.conf['brokerId']}"
        subprocess.run(["cp", "-r", "--sparse=always", str(broker.workdir), str(copy)], check=False)
    return where


async def failover(target: Target, row: Row, runs: int) -> None:
    """kill -9 of the master of three; it comes back after another one has been promoted."""

    async def hurt(load: Load, brokers: list[Broker], members: list[Etcd]) -> None:
        master = next(broker for broker in brokers if is_master(broker))
        at = time.monotonic()
        await run_off_loop(master.kill)
        row.outages_s.append(await load.outage_after(at, RECOVERS_S))
        # On a machine with a load of 20, it took longer than the 20 s allowed for a start.
        await run_off_loop(lambda: master.start(RECOVERS_S))

    await _hurt_group(row, runs, 1, hurt)


async def failover_pause(target: Target, row: Row, runs: int) -> None:
    """SIGSTOP of the master of three, which wakes up after 15 s."""

    async def hurt(load: Load, brokers: list[Broker], members: list[Etcd]) -> None:
        master = next(broker for broker in brokers if is_master(broker))
        at = time.monotonic()
        master.pause()
        try:
            row.outages_s.append(await load.outage_after(at, RECOVERS_S))
            await asyncio.sleep(max(0.0, at + 15.0 - time.monotonic()))
        finally:
            master.resume()

    await _hurt_group(row, runs, 1, hurt)


async def etcd_member(target: Target, row: Row, runs: int) -> None:
    """One of three etcd members killed for 10 s, the leader first."""
    turn = 0

    async def hurt(load: Load, brokers: list[Broker], members: list[Etcd]) -> None:
        nonlocal turn
        leaders = [member for member in members if member.is_leader()]
        victim = leaders[0] if leaders and turn % 2 == 0 else members[turn % len(members)]
        turn += 1
        at = time.monotonic()
        await run_off_loop(victim.kill)
        await asyncio.sleep(10.0)
        row.outages_s.append(await load.outage_after(at, RECOVERS_S))
        await run_off_loop(victim.start)

    await _hurt_group(row, runs, 3, hurt)


FAULTS: dict[str, tuple[Callable[[Target, Row, int], Awaitable[None]], bool]] = {
    "kill": (kill, True),
    "pause": (pause, True),
    "cut": (cut, True),
    "full-disk": (full_disk, True),
    "failing-disk": (failing_disk, True),
    "failover": (failover, False),
    "failover-pause": (failover_pause, False),
    "etcd-member": (etcd_member, False),
}
"""By name: what is done, and whether it applies to Apache's servers as they are started here."""


def run(name: str, target: str, runs: int) -> Row:
    """Runs one scenario with a time limit."""
    row = Row(name, target)
    scenario, _ = FAULTS[name]

    async def bounded() -> None:
        # Both drains of ``Load.check`` and that of ``examine`` come after the last fault.
        async with asyncio.timeout(540 + 90 * runs):
            await scenario(Target(target), row, runs)

    try:
        asyncio.run(bounded())
    except (TimeoutError, StartFailed, AssertionError) as error:
        row.notes.append(f"ended early: {type(error).__name__} {str(error)[:200]}")
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS))
    parser.add_argument("--target", choices=("ours", "apache"), default="ours")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(HEAD, flush=True)
    for name in arguments.fault or FAULTS:
        if arguments.target == "apache" and not FAULTS[name][1]:
            continue
        rows.append(run(name, arguments.target, arguments.runs))
        print(rows[-1].line(), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if any(row.lost or not row.runs for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

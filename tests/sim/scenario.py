"""One seed, one history: a cluster and its clients, a period of faults, then a quiet period, then the checks."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections.abc import Callable, Collection
from typing import Any

from tests.sim.cluster import (
    NAME_SERVER,
    NAME_SERVER_HOSTS,
    Machine,
    World,
    broker_program,
    create_topic,
    run_name_server,
)
from tests.sim.etcd import HOST as ETCD_HOST
from tests.sim.history import History, Sent
from tests.sim.loop import Process, SimClock
from tests.sim.rare_faults import RARE_FAULTS, skew_clocks

from orbitmq.client import Message, Producer, PushConsumer, RetryLater
from orbitmq.client.message import ReceivedMessage, SendStatus, TransactionState
from orbitmq.errors import OrbitError
from orbitmq.record.codec import decode_record

SETTLE_S = 14.0
FAULTS_S = 60.0
PEACE_S = 200.0
"""Longest a consumer may need after the last fault: locks of the dead last a minute, their membership two."""
QUIET_S = 20.0
"""After the last fault began all brokers are reachable again, in the time of peace at the latest."""
DELAYS = {1: 1.0, 2: 5.0, 3: 10.0}


class Simulation:
    """The complete simulation of one seed."""

    def __init__(self, seed: int, often: Collection[str] = ()) -> None:
        """``often``: names of faults to draw ten times as often as usual."""
        self.seed = seed
        self._often = often
        random.seed(seed)
        self.world = World(seed)
        self.loop = self.world.loop
        self.chance = random.Random(seed * 7919 + 1)
        self.history = History()
        self.failover = seed % 3 == 2
        self.flushes = not self.failover or seed % 9 != 8
        """Whether brokers flush before they acknowledge."""
        self._lost_power: set[str] = set()
        self.log: list[str] = []
        self.sending = True
        self._numbers: dict[str, int] = {}
        self.consumers: list[Process] = []
        self._lives = 0
        self._faulty: set[str] = set()
        self.last_fault_at = 0.0
        self.has_flipped_bit = False
        self.has_old_disk = False
        """Whether a copy of a disk waits to replace it."""
        self._client_clocks: dict[str, SimClock] = {}

    def note(self, text: str) -> None:
        self.log.append(f"{self.loop.now - 1000:8.3f} {text}")

    def run(self) -> None:
        """Raises ``AssertionError`` with the violations."""
        integrity = logging.getLogger("orbitmq.store.read.integrity")
        integrity.addFilter(self._watch_skips)
        with self.world.patched():
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self._run())
            finally:
                integrity.removeFilter(self._watch_skips)
                asyncio.set_event_loop(None)
                self._drop()

    def _drop(self) -> None:
        for machine in self.world.machines.values():
            if machine.process is not None:
                machine.process.alive = False
        self.loop.close()

    async def _run(self) -> None:
        self._start_servers()
        await asyncio.sleep(SETTLE_S)
        clients = Process(self.loop, "producer", "10.0.1.1")
        await clients.start(self._create_topics(), "topics")
        await asyncio.sleep(SETTLE_S if self.failover else 1.0)
        for number in range(2):
            self._start_consumer(number)
        clients.start(self._produce(), "produce")
        watch = self.loop.create_task(self._watch_masters())
        until = self.loop.now + FAULTS_S
        while self.loop.now < until:
            await asyncio.sleep(self.chance.uniform(1.0, 8.0))
            await self._fault()
        self._make_peace()
        await asyncio.sleep(15.0)
        self.sending = False
        self.note("no more sends")
        await self._converge()
        await self._repair_unread()
        watch.cancel()
        self._check()

    # -- servers
    def _start_servers(self) -> None:
        world = self.world
        for number, host in enumerate(NAME_SERVER_HOSTS, 1):
            world.machine(f"ns{number}", host, run_name_server)
        if self.failover:
            for number, name in enumerate("abc", 1):
                program = broker_program(
                    enableFailover=True,
                    etcdEndpoints="10.0.0.9:2379",
                    brokerId=number,
                    brokerRole="SYNC_MASTER",
                    flushDiskType="SYNC_FLUSH" if self.flushes else "ASYNC_FLUSH",
                )
                world.machine(name, f"10.0.0.{number + 1}", program)
            skew_clocks(self)
        else:
            role = self.chance.choice(["SYNC_MASTER", "ASYNC_MASTER"])
            world.machine(
                "a", "10.0.0.2", broker_program(brokerRole=role, brokerId=0, flushDiskType="SYNC_FLUSH")
            )
            world.machine(
                "b", "10.0.0.3", broker_program(brokerRole="SLAVE", brokerId=1, haTruncateSlave=True)
            )
        for machine in world.machines.values():
            machine.start()

    @property
    def brokers(self) -> list[Machine]:
        return [machine for name, machine in self.world.machines.items() if not name.startswith("ns")]

    def master(self) -> Machine | None:
        """Returns the broker that currently accepts sends."""
        if not self.failover:
            machine = self.world.machines["a"]
            return machine if machine.running and machine.server is not None else None
        acting = [
            machine
            for machine in self.brokers
            if machine.running and machine.server is not None and machine.server.failover.acting
        ]
        return acting[0] if len(acting) == 1 else None

    async def _create_topics(self) -> None:
        for _ in range(60):
            if self.master() is not None:
                break
            await asyncio.sleep(1.0)
        master = self.master()
        assert master is not None, "no master after a minute"
        for topic in ("plain", "ordered", "delayed", "transacted"):
            await create_topic(f"{master.host}:10911", topic, 4)

    # -- clients
    def _identity(self, key: str) -> tuple[str, int]:
        number = self._numbers[key] = self._numbers.get(key, 0) + 1
        return f"{key}:{number}", number

    def _client_clock(self, name: str) -> SimClock:
        """Returns the clock of a client's machine; it is also set from time to time."""
        return self._client_clocks.setdefault(name, SimClock(self.loop))

    async def _produce(self) -> None:
        clock = self._client_clock("producer")
        producer = Producer(
            "producers",
            NAME_SERVER,
            clock=clock,
            client_ip="10.0.1.1",
            instance_name="p",
            check=self._check_transaction,
            route_refresh_s=5.0,
            heartbeat_s=5.0,
        )
        await producer.start()
        await asyncio.gather(
            self._send_plain(producer),
            *(self._send_ordered(producer, f"key-{number}") for number in range(3)),
            self._send_delayed(producer),
            self._send_transactions(producer),
        )

    async def _send(self, producer: Producer, message: Message, identity: str, sent: Sent) -> bool:
        self.history.attempt(identity, sent)
        try:
            result = await producer.send(message)
        except OrbitError as error:
            sent.done_at = self.loop.now
            self.history.refused += 1
            self.note(f"send of {identity} failed: {type(error).__name__} {str(error)[:80]}")
            return False
        if result.status is SendStatus.OK or result.status is SendStatus.SLAVE_NOT_AVAILABLE:
            place = (result.queue.broker_name, result.queue.queue_id, result.queue_offset)
            self.history.acked(identity, place, self.loop.now)
        else:
            sent.done_at = self.loop.now
        return True

    async def _send_plain(self, producer: Producer) -> None:
        while self.sending:
            identity, number = self._identity("plain")
            sent = Sent("plain", "plain", number, self.loop.now)
            size = self.chance.choice([0, 10, 300])
            await self._send(producer, Message("plain", identity + "." * size, keys=identity), identity, sent)
            await asyncio.sleep(self.chance.uniform(0.05, 0.4))

    async def _send_ordered(self, producer: Producer, key: str) -> None:
        while self.sending:
            identity, number = self._identity(key)
            sent = Sent("ordered", key, number, self.loop.now)
            await self._send(producer, Message("ordered", identity, shard_key=key), identity, sent)
            await asyncio.sleep(self.chance.uniform(0.1, 0.6))

    async def _send_delayed(self, producer: Producer) -> None:
        while self.sending:
            identity, number = self._identity("delayed")
            level = self.chance.choice(sorted(DELAYS))
            sent = Sent("delayed", "delayed", number, self.loop.now, delay_s=DELAYS[level])
            await self._send(producer, Message("delayed", identity, delay_level=level), identity, sent)
            await asyncio.sleep(self.chance.uniform(0.2, 1.0))

    async def _send_transactions(self, producer: Producer) -> None:
        while self.sending:
            identity, number = self._identity("transacted")
            outcome = self.chance.choice(["commit", "rollback"])
            answers = self.chance.random() < 0.7
            sent = Sent("transacted", "transacted", number, self.loop.now, outcome=outcome)
            self.history.attempt(identity, sent)

            def decide(message: Message, transaction: str, sent: Sent = sent, answers: bool = answers) -> Any:
                # Once the half message is stored the outcome is decided, whatever happens to the answer.
                sent.acked = True
                return self._state(sent) if answers else TransactionState.UNKNOWN

            async def local(message: Message, transaction: str, decide: Any = decide) -> Any:
                return decide(message, transaction)

            try:
                await producer.send_in_transaction(Message("transacted", identity), local)
            except OrbitError as error:
                self.note(f"transaction {identity} failed: {type(error).__name__}")
            sent.done_at = self.loop.now
            await asyncio.sleep(self.chance.uniform(0.5, 2.0))

    @staticmethod
    def _state(sent: Sent) -> TransactionState:
        return TransactionState.COMMIT if sent.outcome == "commit" else TransactionState.ROLLBACK

    async def _check_transaction(self, message: ReceivedMessage) -> TransactionState:
        return self._state(self.history.sent[_text(message).rstrip(".")])

    def _start_consumer(self, number: int) -> None:
        process = Process(self.loop, f"consumer-{number}", f"10.0.2.{number + 1}")
        if number < len(self.consumers):
            self.consumers[number] = process
        else:
            self.consumers.append(process)
        process.start(self._consume(number), "consume")

    async def _consume(self, number: int) -> None:
        clock = self._client_clock(f"consumer-{number}")
        self._lives += 1
        common: dict[str, Any] = {
            "clock": clock,
            "client_ip": f"10.0.2.{number + 1}",
            "start": "first",
            "heartbeat_s": 5.0,
            "route_refresh_s": 5.0,
            "rebalance_s": 5.0,
            "offset_persist_s": 1.0,
            "workers": 4,
        }
        plain = PushConsumer("readers", NAME_SERVER, instance_name=f"r{self._lives}", **common)
        for topic in ("plain", "delayed", "transacted"):
            plain.subscribe(topic, handler=self._handle)
        # A different id from before its crash: the locks of the dead client would block it.
        ordered = PushConsumer(
            "ordered-readers",
            NAME_SERVER,
            instance_name=f"o{self._lives}",
            orderly=True,
            suspend_queue_s=0.2,
            **common,
        )
        ordered.subscribe("ordered", handler=self._handle_in_order)
        await plain.start()
        await ordered.start()

    async def _handle(self, message: ReceivedMessage) -> None:
        # Some are slow, so that a crash hits messages whose successors are already handled.
        await asyncio.sleep(self.chance.uniform(0.0, 0.05 if self.chance.random() < 0.9 else 3.0))
        if self.chance.random() < 0.02:
            raise RetryLater(delay_level=1)
        self.history.got(_text(message).rstrip("."), self.loop.now, _place(message))

    async def _handle_in_order(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self.chance.uniform(0.0, 0.03))
        if self.chance.random() < 0.02:
            raise RetryLater
        self.history.got(_text(message), self.loop.now, _place(message), orderly=True)

    # -- faults
    async def _fault(self) -> None:
        faults: list[tuple[int, Callable[[], None]]] = [
            (6, self._kill_broker),
            (4, self._cut_power),
            (3, self._cut_power_of_several),
            (2, self._kill_name_server),
            (5, self._partition),
            (3, self._reset_connections),
            (3, self._slow_network),
            (4, self._pause_broker),
            (4, self._crash_consumer),
            (2, self._full_disk),
            (3, self._step_clock),
            (2, self._step_client_clock),
        ]
        faults += [(weight, functools.partial(fault, self)) for weight, fault in RARE_FAULTS]
        weights = [weight * 10 if _name(fault) in self._often else weight for weight, fault in faults]
        self.last_fault_at = self.loop.now
        self.chance.choices([fault for _, fault in faults], weights)[0]()

    def _watch_skips(self, record: logging.LogRecord) -> bool:
        """Checks that a reader skips a damaged message only while no other broker can replace it."""
        if record.msg.startswith("damaged message skipped topic") and isinstance(record.args, tuple):
            topic, queue_id, queue_offset = record.args[:3]
            self.note(record.getMessage())
            whole = self.last_fault_at < self.loop.now - QUIET_S and not self._faulty
            if whole and all(machine.running for machine in self.brokers):
                self.history.violations.append(f"skipped: {record.getMessage()}")
            self.history.skipped.add((str(topic), int(str(queue_id)), int(str(queue_offset))))
        return True

    def is_faulty(self, machine: Machine) -> bool:
        """Returns whether the machine already has a fault or is not running."""
        return machine.name in self._faulty or not machine.running

    def healthy_broker(self) -> Machine | None:
        choices = [
            machine for machine in self.brokers if machine.running and machine.name not in self._faulty
        ]
        return self.chance.choice(choices) if choices else None

    def later(self, seconds: float, work: Callable[[], Any]) -> None:
        self.loop.call_later(seconds, work)

    def _again(self, machine: Machine) -> None:
        self._faulty.discard(machine.name)
        if not machine.running:
            self.note(f"start {machine.name}")
            machine.start()

    def _kill_broker(self) -> None:
        machine = self.healthy_broker()
        if machine is not None:
            self.kill(machine)

    def kill(self, machine: Machine) -> None:
        self.note(f"kill {machine.name}")
        self._faulty.add(machine.name)
        machine.kill()
        self.later(self.chance.uniform(0.2, 12.0), lambda: self._again(machine))

    def _cut_power(self) -> None:
        machine = self.healthy_broker()
        if machine is not None and self._maylose_power(machine):
            self.lose_power(machine)

    def _cut_power_of_several(self) -> None:
        """Cuts the power of several machines at the same moment, possibly of all. A group that does not flush keeps
        the memory of the others: they are killed.
        """
        machines = [machine for machine in self.brokers if machine.running]
        if not self.failover or not machines:
            return
        if self.flushes:
            for machine in self.chance.sample(machines, self.chance.randint(1, len(machines))):
                self.lose_power(machine)
            return
        loser = self.chance.choice(machines)
        if self._maylose_power(loser):
            self.lose_power(loser)
            for machine in machines:
                if machine is not loser and machine.name not in self._faulty:
                    self.kill(machine)

    def lose_power(self, machine: Machine, back_s: float = 0.0) -> None:
        self.note(f"power cut {machine.name}")
        # A slave shows messages that its master has not flushed yet, like Apache's; with failover none does.
        self.history.phantoms_allowed = not self.failover
        self._faulty.add(machine.name)
        self._lost_power.add(machine.name)
        machine.power_cut()
        self.later(back_s or self.chance.uniform(1.0, 12.0), lambda: self._again(machine))

    def _maylose_power(self, machine: Machine) -> bool:
        """Returns whether the machine may lose power. Under ASYNC_FLUSH a group keeps acknowledged messages as long
        as one member of the in-sync set keeps its power. A member that lost power counts again when it is back in the
        set and its log is whole.
        """
        if not self.failover or self.flushes:
            return True
        master = self.master()
        if master is None or master.server is None:
            return False
        in_sync = master.server.failover.in_sync
        if in_sync.changing:
            return False
        whole = set()
        for other in self.brokers:
            failover = other.server.failover if other.running and other.server is not None else None
            if self.brokers.index(other) + 1 not in in_sync.members:
                continue
            if failover is not None and not failover.in_doubt:
                self._lost_power.discard(other.name)
            if other.name not in self._lost_power:
                whole.add(other.name)
        return len(whole - {machine.name}) > 0

    def _kill_name_server(self) -> None:
        machine = self.world.machines[self.chance.choice(["ns1", "ns2"])]
        if machine.running:
            self.note(f"kill {machine.name}")
            machine.kill()
            self.later(self.chance.uniform(0.5, 10.0), lambda: self._again(machine))

    def _partition(self) -> None:
        hosts = [machine.host for machine in self.world.machines.values()]
        hosts += ["10.0.1.1", "10.0.2.1", "10.0.2.2"] + ([ETCD_HOST] if self.failover else [])
        one, other = self.chance.sample(hosts, 2)
        if self.failover and self.chance.random() < 0.3:
            one, other = self.chance.choice(self.brokers).host, ETCD_HOST
        self.note(f"cut {one} {other}")
        self.world.network.cut(one, other)
        self.later(self.chance.uniform(0.5, 15.0), self.heal)

    def heal(self) -> None:
        self.note("heal")
        self.world.network.heal()

    def _reset_connections(self) -> None:
        self.note("reset connections")
        self.world.network.reset_some(self.chance.choice([0.1, 0.5, 1.0]))

    def _slow_network(self) -> None:
        self.note("slow network")
        self.world.network.slow = 0.05
        self.later(self.chance.uniform(1.0, 8.0), lambda: setattr(self.world.network, "slow", 0.0))

    def _pause_broker(self) -> None:
        machine = self.healthy_broker()
        if machine is None or machine.process is None:
            return
        process = machine.process
        self.note(f"pause {machine.name}")
        self._faulty.add(machine.name)
        process.pause()

        def resume() -> None:
            self._faulty.discard(machine.name)
            if process.alive:
                self.note(f"resume {machine.name}")
                process.resume()
                # Before a response of etcd can show it that time has passed.
                self.later(0.0001, self._look_for_masters)

        self.later(self.chance.uniform(0.5, 12.0), resume)

    def _crash_consumer(self) -> None:
        number = self.chance.randrange(len(self.consumers))
        process = self.consumers[number]
        if not process.alive:
            return
        self.note(f"crash consumer-{number}")
        process.kill()
        self.world.network.process_died(process, silent=False)

        def again() -> None:
            if self.consumers[number] is process:
                self._start_consumer(number)

        self.later(self.chance.uniform(0.5, 10.0), again)

    def _full_disk(self) -> None:
        machine = self.healthy_broker()
        if machine is not None:
            self.note(f"disk full {machine.name}")
            fs = machine.fs
            fs.fail_writes(after=self.chance.randrange(3))
            self.later(self.chance.uniform(0.5, 6.0), fs.heal)

    def _step_clock(self) -> None:
        machine = self.healthy_broker()
        # During its start it has not read its clock yet: this is a clock set while it was stopped.
        if machine is not None and machine.server is not None and not self.failover:
            # The state before a step is known only while the broker runs, so it keeps running for some time.
            self._faulty.add(machine.name)
            self.later(15.0, lambda: self._faulty.discard(machine.name))
            step_ms = self.chance.choice([-3_600_000, -5_000, 5_000, 3_600_000])
            self.note(f"clock of {machine.name} {step_ms / 1000:+.0f} s")
            machine.clock.shift_ms += step_ms

    def _step_client_clock(self) -> None:
        name = self.chance.choice(sorted(self._client_clocks))
        step_ms = self.chance.choice([-3_600_000, -5_000, 5_000, 3_600_000])
        self.note(f"clock of {name} {step_ms / 1000:+.0f} s")
        self._client_clocks[name].shift_ms += step_ms

    def _make_peace(self) -> None:
        """Ends all faults."""
        self.note("peace")
        self.world.network.heal()
        self.world.network.slow = 0.0
        self.world.loop.slow_disks.clear()
        self.world.etcd.slow_s, self.world.etcd.is_down = 0.0, False
        for machine in self.world.machines.values():
            machine.fs.heal()
            if machine.process is not None and machine.process.paused:
                machine.process.resume()
            if not machine.running:
                self._again(machine)
        for number, process in enumerate(self.consumers):
            if not process.alive:
                self._start_consumer(number)

    # -- the end
    async def _converge(self) -> None:
        """Waits until every acknowledged message was handled; ``check`` reports the ones that were not."""
        until = self.loop.now + PEACE_S
        while self.loop.now < until:
            await asyncio.sleep(1.0)
            ends = {machine.server.store.max_log_offset for machine in self.brokers if machine.server}
            if len(ends) == 1 and all(
                identity in self.history.handled
                for identity, sent in self.history.sent.items()
                if sent.acked and sent.outcome != "rollback" and not self.history.is_phantom(sent)
            ):
                break
        self.note(f"converged or timed out after {self.loop.now - until + PEACE_S:.0f} s")

    async def _watch_masters(self) -> None:
        """Checks that two brokers are never certain to be master at the same time."""
        while self.failover:
            if self._look_for_masters():
                return
            await asyncio.sleep(0.1)

    def _look_for_masters(self) -> bool:
        sure = [
            machine.name
            for machine in self.brokers
            if machine.running
            and machine.process is not None
            and not machine.process.paused
            and machine.server is not None
            and machine.server.failover is not None
            and machine.server.failover.holds()
        ]
        if len(sure) > 1:
            self.history.violations.append(f"two masters: {sure} at {self.loop.now:.3f}")
        return len(sure) > 1

    def _check_store(self) -> None:
        """Checks that every acknowledged message is at the position reported to its sender, in the logs of the master
        and its followers.
        """
        master = self.master()
        if master is None:
            self.history.violations.append("convergence: there is no master at the end")
            return
        ends = {
            machine.name: machine.server.store.max_log_offset for machine in self.brokers if machine.server
        }
        if len(ends) != len(self.brokers) or len(set(ends.values())) > 1:
            self.history.violations.append(f"convergence: logs end at {ends}")
        stored = self._stored(master)
        for identity, sent in self.history.sent.items():
            if sent.acked and sent.topic in ("plain", "ordered"):
                assert sent.place is not None
                found = stored.get((sent.topic, *sent.place[1:]))
                if found != identity and (sent.topic, *sent.place[1:]) not in self.history.skipped:
                    self.history.violations.append(
                        f"lost: {identity} was acknowledged at {sent.done_at:.3f} as {sent.place}, where {found} lies"
                    )

    def _stored(self, machine: Machine) -> dict[tuple[str, int, int], str | None]:
        """Returns what a reader gets at each position, in the broker's process; None where it has to wait."""
        assert machine.process is not None
        store, found = machine.server.store, dict[tuple[str, int, int], str | None]()
        for topic in ("plain", "ordered"):
            for queue_id in store.queues(topic):
                for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)):
                    read = machine.process.context.run(store.read, topic, queue_id, offset, 1)
                    if read.count:
                        found[topic, queue_id, offset] = (
                            decode_record(read.slices[0]).body.decode().rstrip(".")
                        )
                    elif read.next_offset == offset:
                        found[topic, queue_id, offset] = None
        return found

    async def _repair_unread(self) -> None:
        """Reads everything, because a damaged record that was not read yet is repaired only when it is read."""
        master = self.master()
        for _ in range(6):
            if master is None or None not in self._stored(master).values():
                return
            await asyncio.sleep(5.0)

    def _check(self) -> None:
        self._check_store()
        self.history.check()
        self.history.violations += self.world.failures
        violations = self.history.violations
        if violations:
            raise AssertionError(f"{len(violations)} violations, first: " + "\n  ".join(violations[:8]))


def _name(fault: Callable[[], None]) -> str:
    function = fault.func if isinstance(fault, functools.partial) else fault
    return function.__name__


def _place(message: ReceivedMessage) -> tuple[str, int, int]:
    return message.topic, message.queue_id, message.queue_offset


def _text(message: ReceivedMessage) -> str:
    return message.body.decode()

"""Clients that run while real servers are disrupted, with the checker of the simulation."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from pathlib import Path
from typing import Any

from tests.sim.history import History, Sent

from orbitmq.client import Message, Producer, PushConsumer
from orbitmq.client.message import ReceivedMessage, SendStatus
from orbitmq.errors import OrbitError

TOPIC = "faults"
SENDERS = 8
DRAIN_S = 90.0


class Load:
    """A producer with eight sends in flight and a consumer, both with default settings."""

    def __init__(self, namesrv: str, *, body_bytes: int = 200, pause_s: float = 0.005) -> None:
        self.history = History()
        self._namesrv = namesrv
        self._padding = "." * body_bytes
        self._pause_s = pause_s
        self._number = 0
        self._sending = True
        self._tasks: list[asyncio.Task[None]] = []
        self._progress = asyncio.Event()
        self.late = 0
        """Stored, and not handled within ``DRAIN_S`` by the consumer that saw the faults."""
        self.not_safe = 0
        """Answered with FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT: stored, not promised."""

    async def __aenter__(self) -> Load:
        common: dict[str, Any] = {"instance_name": f"faults-{time.monotonic_ns()}"}
        self._producer = Producer("fault-writers", self._namesrv, **common)
        self._consumer = PushConsumer("fault-readers", self._namesrv, start="first", **common)
        self._consumer.subscribe(TOPIC, handler=self._handle)
        await self._producer.start()
        await self._consumer.start()
        self._tasks = [asyncio.create_task(self._send()) for _ in range(SENDERS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end_sends()
        for client in (self._producer, self._consumer):
            try:
                async with asyncio.timeout(15.0):
                    await client.stop()
            except (OrbitError, TimeoutError):
                pass  # its server may be gone permanently

    async def _send(self) -> None:
        while self._sending:
            self._number += 1
            identity = f"plain:{self._number}"
            self.history.attempt(identity, Sent(TOPIC, "plain", self._number, time.monotonic()))
            try:
                result = await self._producer.send(Message(TOPIC, identity + self._padding))
            except OrbitError:
                self.history.refused += 1
                await asyncio.sleep(0.02)
                continue
            if result.status in (SendStatus.OK, SendStatus.SLAVE_NOT_AVAILABLE):
                place = (result.queue.broker_name, result.queue.queue_id, result.queue_offset)
                self.history.acked(identity, place, time.monotonic())
                self._progress.set()
            else:
                self.not_safe += 1
            await asyncio.sleep(self._pause_s)

    async def _handle(self, message: ReceivedMessage) -> None:
        place = (message.topic, message.queue_id, message.queue_offset)
        self.history.got(message.body.decode().rstrip("."), time.monotonic(), place)

    async def more_acks(self, count: int, timeout_s: float) -> None:
        """Raises ``TimeoutError``."""
        goal = len(self.history.acks) + count
        async with asyncio.timeout(timeout_s):
            while len(self.history.acks) < goal:
                self._progress.clear()
                await self._progress.wait()

    async def outage_after(self, fault_at: float, timeout_s: float) -> float:
        """Returns the seconds from a fault to the first acknowledgement that cannot predate it: the longest time
        without any. Raises ``TimeoutError``.
        """
        async with asyncio.timeout(timeout_s):
            while not self.history.acks or self.history.acks[-1] < fault_at + 0.2:
                self._progress.clear()
                await self._progress.wait()
        await self.more_acks(200, timeout_s)
        times = [fault_at, *(at for at in self.history.acks if at > fault_at)]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    async def end_sends(self) -> None:
        self._sending = False
        await asyncio.gather(*self._tasks)

    def unhandled(self) -> set[str]:
        """Returns the messages acknowledged but not handled so far."""
        handled = self.history.handled
        return {
            identity for identity, sent in self.history.sent.items() if sent.acked and identity not in handled
        }

    def missing(self) -> list[str]:
        """Returns the positions of acknowledged messages that were never handled, by queue."""
        offsets: dict[int, list[int]] = {}
        for identity, sent in self.history.sent.items():
            if sent.acked and sent.place is not None and identity not in self.history.handled:
                offsets.setdefault(sent.place[1], []).append(sent.place[2])
        return [
            f"queue {queue}: {len(found)} from {min(found)} to {max(found)}"
            for queue, found in sorted(offsets.items())
        ]

    async def check(self) -> list[str]:
        """Returns the violations, once all sends have ended and every acknowledged message had time to arrive."""
        await self.end_sends()
        until = time.monotonic() + DRAIN_S
        while time.monotonic() < until and self.unhandled():  # noqa: ASYNC110 - handlers do not say when all is done
            await asyncio.sleep(0.2)
        if self.unhandled():
            self.late = await self.read_again("fault-auditors")
        self.history.check()
        return self.history.violations

    async def read_again(self, group: str) -> int:
        """Reads everything with another group; returns how many of the unhandled messages it finds."""
        auditor = PushConsumer(group, self._namesrv, start="first")
        missing = self.unhandled()
        count = len(missing)

        async def seen(message: ReceivedMessage) -> None:
            identity = message.body.decode().rstrip(".")
            if identity in missing:
                missing.discard(identity)
                await self._handle(message)

        auditor.subscribe(TOPIC, handler=seen)
        await auditor.start()
        until = time.monotonic() + DRAIN_S
        while missing and time.monotonic() < until:  # noqa: ASYNC110 - handlers do not say when all is done
            await asyncio.sleep(0.2)
        await auditor.stop()
        return count - len(missing)


def bodies_in_log(store_dir: Path, identities: set[str]) -> int:
    """Returns how many of these messages have their body in a log file, whether or not a queue refers to it."""
    found: set[str] = set()
    for path in (store_dir / "commitlog").iterdir():
        found.update(match.decode() for match in re.findall(rb"plain:\d+(?=\.)", path.read_bytes()))
    return len(identities & found)

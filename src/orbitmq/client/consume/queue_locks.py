"""Locks queues in their brokers, for consumers that handle the messages of a queue in order."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from orbitmq.client.consume.membership import Membership
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.errors import OrbitError
from orbitmq.model.route import MessageQueue
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import LockBatchRequest, LockBatchResponse
from orbitmq.wire.headers import LockBatchMqRequest, UnlockBatchMqRequest

__all__ = ["QueueLocks"]

logger = logging.getLogger(__name__)


class QueueLocks:
    """Locks queues for one consumer. A broker lets a lock expire if it is not renewed."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._instance = membership.instance

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock queues. Returns those that are locked now. Failures are logged."""
        locked: set[MessageQueue] = set()
        for broker_name, wanted in _by_broker(queues).items():
            try:
                answer = await self._instance.ask(
                    self._instance.master(broker_name),
                    RequestCode.LOCK_BATCH_MQ,
                    LockBatchMqRequest(),
                    self._body(wanted),
                )
                got = set(LockBatchResponse.decode(answer.body).lock_ok_mq_set)
            except OrbitError as error:
                key, text = ("lock", broker_name), "queues not locked broker=%s error=%s"
                self._instance.log_limits.warning(logger, key, text, broker_name, error)
                continue
            locked |= got & set(wanted)
        return locked

    async def unlock(self, queues: Iterable[MessageQueue], *, wait: bool = False) -> None:
        """Unlock queues. With ``wait`` this returns when the brokers have answered. Failures are logged."""
        for broker_name, ours in _by_broker(queues).items():
            send = self._instance.call if wait else self._instance.tell
            try:
                await send(
                    self._instance.master(broker_name),
                    RequestCode.UNLOCK_BATCH_MQ,
                    UnlockBatchMqRequest(),
                    self._body(ours),
                )
            except OrbitError as error:
                text = "queues not unlocked, the lock will expire broker=%s error=%s"
                logger.info(text, broker_name, error)

    def mark(self, held: ProcessQueue, *, locked: bool) -> None:
        """Record a broker's answer for a queue."""
        held.locked = locked
        if locked:
            held.last_lock_ms = self._membership.steady.now_ms()

    async def renew(self, held: ProcessQueue) -> bool:
        """Renew the lock of one queue. Returns whether it is locked."""
        self.mark(held, locked=held.queue in await self.lock([held.queue]))
        return held.locked

    async def renew_all(self, table: Mapping[MessageQueue, ProcessQueue]) -> None:
        """Renew the locks of all queues of an assignment."""
        queues = list(table)
        locked = await self.lock(queues)
        for queue in queues:
            held = table.get(queue)
            if held is not None:
                self.mark(held, locked=queue in locked)

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return LockBatchRequest(
            consumer_group=self._membership.group, client_id=self._instance.client_id, mq_set=queues
        ).encode()


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    grouped: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        grouped.setdefault(queue.broker_name, []).append(queue)
    return grouped

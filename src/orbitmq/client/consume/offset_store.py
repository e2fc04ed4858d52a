"""Stores how far a group is in each queue (Apache: ``RemoteBrokerOffsetStore``, ``LocalFileOffsetStore``)."""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Iterable
from typing import Protocol

from orbitmq.client.net.instance import ClientInstance
from orbitmq.errors import BodyError, CorruptionError, OrbitError, QueryNotFound
from orbitmq.model.route import MessageQueue
from orbitmq.requests import RequestCode
from orbitmq.runtime.filesystem import FileSystem
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.wire import javajson
from orbitmq.wire.bodies import ResetOffset
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import OffsetResponse, QueryConsumerOffsetRequest, UpdateConsumerOffsetRequest
from orbitmq.wire.javajson import ObjectMap

__all__ = ["LocalOffsets", "OffsetStore", "RemoteOffsets"]

logger = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Stores the offset of the next message to consume in each queue."""

    offsets: dict[MessageQueue, int]
    """The offsets known here."""

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Record the offset of the next message to consume."""

    async def stored(self, queue: MessageQueue, *, or_zero: bool = True) -> int:
        """Returns the persisted offset, or -1 if there is none. Raises ``OrbitError`` if it cannot be read.

        A broker that still has the first message of the queue in memory returns 0 if no offset is stored, so that a
        group misses no message of a new queue. ``or_zero=False`` requests -1 in that case too, but brokers before 5.x
        ignore it.
        """

    async def persist(self, queues: Iterable[MessageQueue], *, wait: bool = False) -> None:
        """Persist the offsets of these queues.

        With ``wait`` this returns when the broker has stored them, and the first failure is raised after all queues
        have been tried. Without it failures are logged, because offsets are persisted again in the next round.
        """

    def freeze(self, queue: MessageQueue) -> None:
        """Ignore updates of the queue until ``forget``."""

    def forget(self, queue: MessageQueue) -> None:
        """Discard the offset of a queue that is no longer assigned to us."""


class _Memory:
    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        if self._frozen and queue in self._frozen:
            return
        if increase_only and self.offsets.get(queue, -1) >= offset:
            return
        self.offsets[queue] = offset

    def freeze(self, queue: MessageQueue) -> None:
        self._frozen.add(queue)

    def forget(self, queue: MessageQueue) -> None:
        self.offsets.pop(queue, None)
        self._frozen.discard(queue)


class RemoteOffsets(_Memory):
    """Offsets of a clustering group, which brokers store."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__()
        self._instance = instance
        self._group = group

    async def stored(self, queue: MessageQueue, *, or_zero: bool = True) -> int:
        address = await self._instance.address_for(queue.broker_name, queue.topic)
        header = QueryConsumerOffsetRequest(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            broker_name=queue.broker_name,
            set_zero_if_not_found=None if or_zero else False,
        )
        try:
            answer = await self._instance.ask(address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except QueryNotFound:
            return -1
        return decode_header(OffsetResponse, answer).offset

    async def persist(self, queues: Iterable[MessageQueue], *, wait: bool = False) -> None:
        # In parallel: one after the other, an unresponsive broker would cost a timeout for each of its queues, and
        # make a stop longer than supervisors allow.
        failures = await asyncio.gather(*(self._persist_one(queue, wait) for queue in queues))
        for failure in failures:
            if failure is not None:
                raise failure

    async def _persist_one(self, queue: MessageQueue, wait: bool) -> OrbitError | None:
        """Persist the offset of one queue. With ``wait`` it returns why that failed, or None; without it a failure is
        logged."""
        offset = self.offsets.get(queue)
        # Every offset is sent, changed or not, so that a broker that lost its table learns it again.
        if offset is None:
            return None
        try:
            address = await self._instance.address_for(queue.broker_name, queue.topic)
            send = self._instance.ask if wait else self._instance.tell
            await send(
                address,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                UpdateConsumerOffsetRequest(
                    consumer_group=self._group,
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    commit_offset=offset,
                    broker_name=queue.broker_name,
                ),
            )
        except OrbitError as error:
            if wait:
                return error
            self._instance.log_limits.warning(
                logger,
                ("offset", queue.broker_name),
                "offset not persisted queue=%s offset=%d error=%s",
                queue,
                offset,
                error,
            )
        return None


class LocalOffsets(_Memory):
    """Offsets of a broadcasting consumer, stored in a file of its own, which the Java client can read."""

    def __init__(self, fs: FileSystem, directory: str, client_id: str, group: str) -> None:
        super().__init__()
        self._file = SafeFile(fs, posixpath.join(directory, client_id, group, "offsets.json"))
        self._saved: dict[MessageQueue, int] = {}

    def load(self) -> None:
        """Read the file. An unreadable file is logged and treated as empty, like in the Java client."""
        try:
            found = self._file.load(_parse)
        except CorruptionError as error:
            logger.warning("local offsets unreadable, starting without them error=%s", error)
            found = None
        self._saved = dict(found or {})

    async def stored(self, queue: MessageQueue, *, or_zero: bool = True) -> int:
        return self._saved.get(queue, -1)

    async def persist(self, queues: Iterable[MessageQueue], *, wait: bool = False) -> None:
        changed = {queue: self.offsets[queue] for queue in queues if queue in self.offsets}
        if all(self._saved.get(queue) == offset for queue, offset in changed.items()):
            return
        self._saved.update(changed)
        try:
            self._file.save(javajson.encode_pretty(ResetOffset(offset_table=ObjectMap(self._saved))))
        except OSError as error:
            logger.warning("local offsets not saved path=%s error=%s", self._file.path, error)


def _parse(content: bytes) -> dict[MessageQueue, int]:
    try:
        return dict(javajson.decode(content, ResetOffset).offset_table)
    except BodyError as error:
        raise ValueError(str(error)) from None

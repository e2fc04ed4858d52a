"""The base class of all consumers: group, subscriptions, queue offsets, start and stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import ClassVar, Self

from orbitmq.client.checks import check_type
from orbitmq.client.consume.answers import AnswerReader
from orbitmq.client.consume.membership import GroupMember, Membership
from orbitmq.client.consume.offset_store import LocalOffsets, RemoteOffsets
from orbitmq.client.consume.queue_offsets import QueueOffsets
from orbitmq.client.consume.subscriptions import Subscriptions
from orbitmq.client.errors import ClientStateError
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.options import ConsumerOptions
from orbitmq.errors import RequestTimeoutError
from orbitmq.model.names import CONSUMER_GROUP_RESERVED, check_group, wrap_namespace
from orbitmq.model.route import MessageQueue
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM
from orbitmq.runtime.machine import home_directory
from orbitmq.transport.router import RawRoute, Route
from orbitmq.wire.bodies import ConsumeType, MessageModel

__all__ = ["ConsumerBase"]

_READY_PAUSE_S = 0.1


class ConsumerBase:
    """Everything that consumers have in common, apart from consuming."""

    consume_type: ClassVar[ConsumeType] = ConsumeType.PASSIVELY

    def __init__(self, group: str, name_servers: str, options: ConsumerOptions, clock: Clock) -> None:
        check_type("group", group, str)
        self.group = wrap_namespace(options.namespace, group)
        check_group(self.group)
        if group == CONSUMER_GROUP_RESERVED:
            raise ClientStateError(f"group {group} is reserved; choose a name of your own")
        self._subscriptions = Subscriptions(options.namespace, clock)
        broadcasting = options.model is MessageModel.BROADCASTING
        # A broadcasting consumer finds its local offsets only under the same client id.
        self._instance = ClientInstance(
            GroupMember(self.group, options, self.consume_type, self._subscriptions),
            name_servers,
            options,
            clock=clock,
            fixed_instance="DEFAULT" if broadcasting else "",
        )
        self._membership = Membership(self._instance, self.group, options, self._subscriptions)
        store: LocalOffsets | RemoteOffsets
        if broadcasting:
            directory = options.offset_directory or f"{home_directory()}/.rocketmq_offsets"
            store = LocalOffsets(LOCAL_FILE_SYSTEM, directory, self._instance.client_id, self.group)
        else:
            store = RemoteOffsets(self._instance, self.group)
        self._offsets = QueueOffsets(self._membership, store)
        self._reader = AnswerReader(self.group)

    @property
    def name_servers(self) -> list[str]:
        """The name servers in use, or the page they are read from. Empty if no setting names any."""
        return self._instance.name_server_sources

    @property
    def client_id(self) -> str:
        return self._instance.client_id

    @property
    def broadcasting(self) -> bool:
        return self._membership.broadcasting

    # -- start and stop --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._instance.running:
            self._acknowledge_left()
        await self.stop()

    def _acknowledge_left(self) -> None:
        """Treat the last iterated message as consumed. Called when the ``async with`` block ended without an
        exception."""

    async def start(self) -> None:
        """Join the group and begin to consume."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Leave the group."""
        raise NotImplementedError

    async def _join(self, routes: Iterable[Route | RawRoute] = ()) -> None:
        """Join the group and take the first queues. ``routes`` handle the calls that brokers make to this client."""
        if isinstance(self._offsets.store, LocalOffsets):
            self._offsets.store.load()
        self._membership.open(routes)
        try:
            await self._membership.join()
            await self._take_queues()
        except BaseException:
            await self._instance.stop()
            raise

    async def _take_queues(self) -> None:
        """Take the first queues. Overridden by consumers that hold queues."""

    async def wait_ready(self, timeout_s: float = 10.0) -> None:
        """Wait until every subscribed topic has been found and its queues have been assigned. Raises
        ``RequestTimeoutError``."""
        self._instance.check_running()
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready()
        except TimeoutError:
            waiting = ", ".join(sorted(self._without_route()))
            what = f"no route to {waiting}" if waiting else "queues not shared out"
            raise RequestTimeoutError(f"not ready within {timeout_s:g} s: {what}") from None

    async def _ready(self) -> None:
        while self._without_route():
            await self._membership.refresh_missing()
            await asyncio.sleep(_READY_PAUSE_S)

    def _without_route(self) -> set[str]:
        return self._subscriptions.wanted.keys() - self._instance.book.subscribe.keys()

    # -- offsets ---------------------------------------------------------------------------------------

    async def min_offset(self, queue: MessageQueue) -> int:
        """Returns the oldest offset that the broker still has."""
        return await self._offsets.lowest(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Returns the offset that the next message of the queue will get."""
        return await self._offsets.end(queue)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Returns the offset of the first message stored at or after ``timestamp_ms`` (milliseconds since the
        epoch)."""
        return await self._offsets.at(queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int:
        """Returns the offset that the group committed for the queue, or -1 if it never committed one. Brokers before
        5.x may return 0 instead of -1."""
        return await self._offsets.store.stored(queue, or_zero=False)

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """Returns all readable queues of a topic."""
        topic = self._subscriptions.wire(topic)
        await self._instance.book.refresh(topic)
        await self._instance.ensure_known()
        return list(self._instance.book.subscribe[topic])

    # -- metrics ---------------------------------------------------------------------------------------

    @property
    def held_messages(self) -> dict[str, int]:
        """The number of messages that were received and are not finished, by kind (``metrics.py``)."""
        return {"received": 0}

    @property
    def damaged_messages(self) -> int:
        """The number of messages that were skipped because their bytes were damaged."""
        return self._reader.skipped

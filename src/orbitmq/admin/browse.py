"""Browses the messages of a topic, newest first, filtered and page by page, or follows new messages.

Nothing here registers a group or stores an offset, so consumers are not affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final

import msgspec

from orbitmq.admin.base import Result
from orbitmq.admin.census import gather_bounded
from orbitmq.admin.errors import AdminError, UnknownNameError
from orbitmq.admin.messages import MessageView
from orbitmq.admin.offsets import max_offset, offset_at
from orbitmq.admin.previews import WHOLE, Preview
from orbitmq.admin.reading import ReadPlan, min_offset, pull_once, read_topic
from orbitmq.admin.session import Admin, best_address
from orbitmq.errors import OrbitError
from orbitmq.model.route import MessageQueue
from orbitmq.runtime.tasks import TaskOwner

__all__ = [
    "MessageFilter",
    "MessagePage",
    "TailBatch",
    "browse",
    "matching",
    "parse_cursor",
    "tail",
]

_BATCH: Final = 32
_BUFFERED_MAX: Final = 2_048
"""Messages buffered for a page, over all queues. If a topic has many queues, each is read in smaller batches."""
_PAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of the bytes that one page may inflate before filtering. The next page continues."""
_SCAN_MAX: Final = 5_000
"""Limit of the messages that one page may read, so that a filter with few matches does not read a whole topic."""
TAIL_WAIT_S: Final = 5.0
TAIL_PULLED_PER_S: Final = 2_000
TAIL_SHOWN_PER_S: Final = 200
_TAIL_TICK_S: Final = 0.25
_TAIL_BACKLOG: Final = 1_000
"""A follower that is further behind in a queue skips to near its end. At most this many messages are also kept for a
slow reader. Skipped messages are counted.
"""


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the messages of a topic to show."""

    topic: str
    broker_name: str | None = None
    queue_id: int | None = None
    tags: str = "*"
    sql: str = ""
    """An SQL92 expression that the broker evaluates; it replaces ``tags``."""
    text: str = ""
    """Text that must occur in the body or a property as they are shown, ignoring case."""
    preview: Preview = WHOLE
    begin_ms: int | None = None
    end_ms: int | None = None
    route_topic: str = ""

    def plan(self) -> ReadPlan:
        """Returns the part of the filter that is applied when the messages are read."""
        return ReadPlan(
            topic=self.topic,
            broker_name=self.broker_name,
            queue_id=self.queue_id,
            expression=self.sql or self.tags or "*",
            expression_type="SQL92" if self.sql else "TAG",
            begin_ms=self.begin_ms,
            end_ms=self.end_ms,
            route_topic=self.route_topic,
            read_bytes=self.preview.read_bytes,
        )

    def select(self, messages: list[MessageView]) -> list[MessageView]:
        """Returns the matching messages in the form in which they are shown."""
        return self.preview.select(messages, text=self.text, tags="*" if self.sql else self.tags)


class MessagePage(Result, kw_only=True):
    messages: list[MessageView]
    """The messages, newest first."""
    scanned: int
    """How many messages were read."""
    cursor: str
    """Where the next page begins; empty if this page is the last."""
    available: int
    """How many messages the queues hold in the requested time range; on later pages, how many are left."""


class TailBatch(Result, kw_only=True):
    messages: list[MessageView]
    arrived: int
    """How many messages were stored since the last batch, whether shown or not."""
    skipped: int
    """How many messages were left out because there were too many."""


def parse_cursor(text: str) -> dict[tuple[str, int], int]:
    """Parse a cursor into the offset at which the previous page stopped, by broker name and queue id.

    Raises ``AdminError``.
    """
    found: dict[tuple[str, int], int] = {}
    for part in text.split(","):
        if not part:
            continue
        try:
            name, queue_id, end = part.rsplit(":", 2)
            found[name, int(queue_id)] = int(end)
        except ValueError:
            raise AdminError(f"invalid page token {part!r}") from None
    return found


async def _queues(admin: Admin, wanted: MessageFilter) -> list[tuple[MessageQueue, str]]:
    """Returns the queues to read, each with the address of its broker. Raises ``UnknownNameError``."""
    route = await admin.route(wanted.route_topic or wanted.topic)
    addresses = {data.broker_name: best_address(data) for data in route.broker_datas}
    found = [
        (queue, address)
        for queue in route.subscribe_queues(wanted.topic)
        if wanted.broker_name in (None, "", queue.broker_name)
        and wanted.queue_id in (None, queue.queue_id)
        and (address := addresses.get(queue.broker_name)) is not None
    ]
    if not found:
        raise UnknownNameError("readable queue of topic", wanted.topic)
    return found


class _Backwards:
    """Reads one queue from its end to its beginning in batches."""

    def __init__(self, queue: MessageQueue, address: str, low: int, end: int) -> None:
        self.queue = queue
        self.address = address
        self.batch = _BATCH
        self.read_bytes = 0
        self.low = low
        self.end = end
        """Everything from this offset on has been read."""
        self.buffer: list[MessageView] = []
        """Messages that were read and not yet returned, oldest first."""

    @property
    def place(self) -> int:
        return self.buffer[-1].queue_offset + 1 if self.buffer else self.end

    async def fill(self, admin: Admin, wanted: MessageFilter) -> int:
        """Read the batch before ``end``. Returns how many messages it has."""
        begin = max(self.low, self.end - self.batch)
        plan, offset = wanted.plan(), begin
        self.buffer = []
        while offset < self.end:
            pulled = await pull_once(
                admin, self.address, self.queue, offset, count=self.end - offset, plan=plan
            )
            found = [one for one in pulled.messages if offset <= one.queue_offset < self.end]
            self.read_bytes += sum(len(one.body_base64) for one in found)
            self.buffer += wanted.select(found)
            if pulled.next_offset <= offset:
                break  # a broker that does not get on
            offset = pulled.next_offset
        scanned = self.end - begin
        self.end = begin
        return scanned


async def browse(
    admin: Admin, wanted: MessageFilter, *, count: int = 50, cursor: str = "", scan_max: int = _SCAN_MAX
) -> MessagePage:
    """Returns a page of messages from all queues, newest first."""
    places = parse_cursor(cursor)

    async def opened(one: tuple[MessageQueue, str]) -> _Backwards:
        queue, address = one
        if wanted.begin_ms is None:
            low = await min_offset(admin, address, queue)
        else:
            low = await offset_at(admin, address, queue, wanted.begin_ms)
        end = places.get((queue.broker_name, queue.queue_id))
        if end is None:
            if wanted.end_ms is None:
                end = await max_offset(admin, address, queue)
            else:
                end = await offset_at(admin, address, queue, wanted.end_ms)
        return _Backwards(queue, address, low, max(low, end))

    answers = await gather_bounded(opened, await _queues(admin, wanted))
    for answer in answers:
        if isinstance(answer, OrbitError):
            raise answer
    queues = [answer for answer in answers if isinstance(answer, _Backwards)]
    available = sum(queue.end - queue.low for queue in queues)
    for one in queues:
        one.batch = max(1, min(_BATCH, _BUFFERED_MAX // len(queues)))
    found: list[MessageView] = []
    scanned = 0
    while len(found) < count:
        empty = [queue for queue in queues if not queue.buffer and queue.end > queue.low]
        if empty:
            if scanned >= scan_max or sum(queue.read_bytes for queue in queues) >= _PAGE_BYTES_MAX:
                break
            counts = await gather_bounded(lambda queue: queue.fill(admin, wanted), empty)
            for counted in counts:
                if isinstance(counted, OrbitError):
                    raise counted
                scanned += counted
            continue
        ready = [queue for queue in queues if queue.buffer]
        if not ready:
            break
        newest = max(ready, key=lambda queue: queue.buffer[-1].store_timestamp)
        found.append(newest.buffer.pop())
    more = any(queue.buffer or queue.end > queue.low for queue in queues)
    place = ",".join(f"{one.queue.broker_name}:{one.queue.queue_id}:{one.place}" for one in queues)
    return MessagePage(messages=found, scanned=scanned, cursor=place if more else "", available=available)


async def matching(admin: Admin, wanted: MessageFilter, count_max: int) -> AsyncIterator[MessageView]:
    """Yields every matching message, queue by queue, oldest first, at most ``count_max``."""
    left = count_max
    async with aclosing(read_topic(admin, wanted.plan())) as slices:  # type: ignore[type-var]  # a generator
        async for part in slices:
            for message in part.messages:
                for shown in wanted.select([message]):
                    yield shown
                    left -= 1
                    if left <= 0:
                        return


# -- following ---------------------------------------------------------------------------------------------


class _Follower:
    """Follows the ends of all queues of a topic, with one task per queue that pulls."""

    def __init__(self, admin: Admin, wanted: MessageFilter) -> None:
        self._admin = admin
        self._wanted = wanted
        self.messages: list[MessageView] = []
        self.arrived = 0
        self.skipped = 0
        self.failure: OrbitError | None = None

    async def follow(self, queue: MessageQueue, address: str, pause_s: float) -> None:
        try:
            await self._follow(queue, address, pause_s)
        except OrbitError as error:
            self.failure = error

    async def _follow(self, queue: MessageQueue, address: str, pause_s: float) -> None:
        plan = self._wanted.plan()
        offset = await max_offset(self._admin, address, queue)
        while True:
            pulled = await pull_once(
                self._admin, address, queue, offset, count=_BATCH, plan=plan, suspend_s=TAIL_WAIT_S
            )
            following = max(offset, pulled.next_offset)
            behind = pulled.max_offset - following
            if behind > _TAIL_BACKLOG:
                jumped = pulled.max_offset - _BATCH
                self.skipped += jumped - following
                following = jumped
            self.arrived += following - offset
            offset = following
            self.messages += self._wanted.select(pulled.messages)
            if len(self.messages) > _TAIL_BACKLOG:  # the browser reads too slowly
                self.skipped += len(self.messages) - _TAIL_BACKLOG
                del self.messages[:-_TAIL_BACKLOG]
            if pulled.messages or behind > 0:
                await asyncio.sleep(pause_s)

    def take(self) -> TailBatch:
        """Returns the messages since the last call, limited to the newest that can be shown."""
        limit = int(TAIL_SHOWN_PER_S * _TAIL_TICK_S)
        messages = sorted(self.messages, key=lambda one: one.store_timestamp)
        left_out = max(0, len(messages) - limit)
        batch = TailBatch(messages=messages[left_out:], arrived=self.arrived, skipped=self.skipped + left_out)
        self.messages, self.arrived, self.skipped = [], 0, 0
        return batch


async def tail(admin: Admin, wanted: MessageFilter) -> AsyncIterator[TailBatch]:
    """Yields new messages four times a second until the caller stops. A batch may be empty.

    However busy the topic is, at most ``TAIL_PULLED_PER_S`` messages a second are read and ``TAIL_SHOWN_PER_S``
    returned.
    """
    queues = await _queues(admin, wanted)
    follower = _Follower(admin, wanted)
    tasks = TaskOwner("tail")
    pause_s = len(queues) * _BATCH / TAIL_PULLED_PER_S
    try:
        for queue, address in queues:
            tasks.start(follower.follow(queue, address, pause_s), f"{queue.broker_name}-{queue.queue_id}")
        while True:
            await asyncio.sleep(_TAIL_TICK_S)
            if follower.failure is not None:
                raise follower.failure
            yield follower.take()
    finally:
        await tasks.close()

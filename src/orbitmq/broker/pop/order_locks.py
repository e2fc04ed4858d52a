"""Ordered pops: the messages of a queue that a group currently holds (Apache: QueueLevelConsumerManager, OrderInfo).

There is one lock per (topic, group, queue). It stores the messages of the last pop, how often each was delivered,
which ones are acknowledged, and until when the others are hidden. While any message is hidden and not acknowledged,
no other consumer gets messages from the queue. There is no checkpoint: the group's offset stays at the first message
that is not acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from orbitmq.errors import BodyError
from orbitmq.runtime.safe_file import CONTENT_BYTES_MAX
from orbitmq.wire import javajson

__all__ = ["AckResult", "OrderLock", "OrderLocks"]

_UNUSED_MS: Final = 24 * 3_600_000


class OrderLock(msgspec.Struct, eq=False):
    """The messages of one queue that a group holds."""

    pop_time_ms: int
    invisible_ms: int
    offsets: list[int]
    attempt_id: str | None = None
    acked: int = 0
    """Bit set of the acknowledged messages, by position in ``offsets``."""
    counts: dict[int, int] = msgspec.field(default_factory=dict)
    """Offset -> number of earlier deliveries."""
    visible_ms: dict[int, int] = msgspec.field(default_factory=dict)
    """Offset -> time when it becomes visible again, if that was changed."""
    used_ms: int = 0

    def hidden_until(self, place: int) -> int:
        return self.visible_ms.get(self.offsets[place], self.pop_time_ms + self.invisible_ms)

    def blocked_until(self, now_ms: int) -> int | None:
        """Returns the time when the first unacknowledged message becomes visible, or None if it already is or all are
        acknowledged."""
        for place in range(len(self.offsets)):
            if self.acked >> place & 1:
                continue
            until = self.hidden_until(place)
            return until if until > now_ms else None
        return None

    def blocks(self, now_ms: int) -> bool:
        """Whether any message is neither acknowledged nor visible again."""
        return any(
            not self.acked >> place & 1 and self.hidden_until(place) > now_ms
            for place in range(len(self.offsets))
        )

    def next_offset(self) -> int:
        """Returns the queue offset of the first unacknowledged message, or the one after the last message."""
        for place, offset in enumerate(self.offsets):
            if not self.acked >> place & 1:
                return offset
        return self.offsets[-1] + 1 if self.offsets else 0


class AckResult(msgspec.Struct, frozen=True):
    """The effect of an acknowledgement."""

    commit: int = -1
    """The offset to commit; -1 if there is none."""
    known: bool = True
    """Whether the message is among those handed out."""
    free: bool = False
    """Whether other consumers may pop the queue now."""


_IGNORED: Final = AckResult()


class OrderLocks:
    """The locks of all queues; also the content of ``consumerOrderInfo.json``."""

    def __init__(self) -> None:
        self._locks: dict[str, dict[int, OrderLock]] = {}
        self.dirty = False

    def saved(self) -> None:
        """Record that the file has the current content."""
        self.dirty = False

    def find(self, topic: str, group: str, queue_id: int) -> OrderLock | None:
        return self._locks.get(f"{topic}@{group}", {}).get(queue_id)

    def blocks(self, topic: str, group: str, queue_id: int, attempt_id: str | None, now_ms: int) -> bool:
        """Whether a pop gets nothing from the queue. The attempt that holds the messages may receive them again."""
        lock = self.find(topic, group, queue_id)
        if lock is None or (attempt_id is not None and attempt_id == lock.attempt_id):
            return False
        return lock.blocks(now_ms)

    def hand_out(
        self,
        place: tuple[str, str, int],
        attempt_id: str | None,
        pop_time_ms: int,
        invisible_ms: int,
        offsets: Sequence[int],
    ) -> OrderLock:
        """Replace the lock of (topic, group, queue). Messages of the old lock are counted as delivered once more,
        unless the same attempt pops again."""
        topic, group, queue_id = place
        before = self.find(topic, group, queue_id)
        lock = OrderLock(pop_time_ms, invisible_ms, list(offsets), attempt_id, used_ms=pop_time_ms)
        if before is not None:
            same = attempt_id is not None and attempt_id == before.attempt_id
            known = set(before.offsets)
            for offset in lock.offsets:
                if offset in known:
                    count = before.counts.get(offset, 0) + (0 if same else 1)
                    if count:
                        lock.counts[offset] = count
        self._locks.setdefault(f"{topic}@{group}", {})[queue_id] = lock
        self.dirty = True
        return lock

    def ack(
        self, topic: str, group: str, queue_id: int, queue_offset: int, pop_time_ms: int, now_ms: int
    ) -> AckResult:
        """Acknowledge a message. Without a lock, the offset to commit is the one after the message. Ignored if
        another pop holds the lock."""
        lock = self.find(topic, group, queue_id)
        if lock is None:
            return AckResult(commit=queue_offset + 1)
        if lock.pop_time_ms != pop_time_ms:
            return _IGNORED
        if queue_offset not in lock.offsets:
            return AckResult(known=False)
        lock.acked |= 1 << lock.offsets.index(queue_offset)
        lock.used_ms = now_ms
        self.dirty = True
        return AckResult(commit=lock.next_offset(), free=not lock.blocks(now_ms))

    def change_visible(
        self, place: tuple[str, str, int], queue_offset: int, pop_time_ms: int, visible_ms: int
    ) -> bool:
        """Hide one message until ``visible_ms``. Returns False if this pop no longer holds the lock or the message is
        not in it."""
        lock = self.find(*place)
        if lock is None or lock.pop_time_ms != pop_time_ms or queue_offset not in lock.offsets:
            return False
        lock.visible_ms[queue_offset] = visible_ms
        self.dirty = True
        return True

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """Drop a lock because the group's offset was reset."""
        if self._locks.get(f"{topic}@{group}", {}).pop(queue_id, None) is not None:
            self.dirty = True

    def expire(self, now_ms: int, exists: Callable[[str, str], bool]) -> None:
        """Drop locks of deleted topics or groups, and those unused for a day."""
        for key, queues in list(self._locks.items()):
            topic, _, group = key.partition("@")
            if not exists(topic, group):
                del self._locks[key]
                self.dirty = True
                continue
            for queue_id, lock in list(queues.items()):
                if now_ms - lock.used_ms > _UNUSED_MS:
                    del queues[queue_id]
                    self.dirty = True
            if not queues:
                self._locks.pop(key, None)

    # -- the file --------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Returns the content of the file, in Apache's format."""
        table = {
            key: {queue_id: _to_json(lock) for queue_id, lock in queues.items()}
            for key, queues in self._locks.items()
        }
        count = sum(map(len, self._locks.values()))
        return javajson.encode_pretty(
            {"orderInfoCount": count, "orderedConsumptionLevel": "QUEUE", "table": table}
        )

    def take(self, content: bytes) -> None:
        """Replace all locks by a file's content. Raises ``BodyError``."""
        raw: Any = javajson.loads(content, bytes_max=CONTENT_BYTES_MAX)
        try:
            found = msgspec.convert(raw, _File, strict=False)
        except msgspec.ValidationError as error:
            raise BodyError(f"not a table of order locks: {error}") from None
        locks: dict[str, dict[int, OrderLock]] = {}
        for key, queues in (found.table or {}).items():
            for queue_id, saved in queues.items():
                if saved.o:
                    locks.setdefault(key, {})[queue_id] = _from_json(saved)
        self._locks = locks


class _Saved(msgspec.Struct, rename={"pop_time": "popTime"}):
    pop_time: int = 0
    a: str | None = None
    cm: int = 0
    i: int | None = 0
    l: int = 0  # noqa: E741 - Apache's name of the field
    o: list[int] = []
    oc: dict[int, int] | None = None
    ot: dict[int, int] | None = None


class _File(msgspec.Struct):
    table: dict[str, dict[int, _Saved]] | None = None


def _to_json(lock: OrderLock) -> dict[str, Any]:
    first = lock.offsets[0]
    fields: dict[str, Any] = {}
    if lock.attempt_id is not None:
        fields["a"] = lock.attempt_id
    fields["cm"] = lock.acked
    fields["i"] = lock.invisible_ms
    fields["l"] = lock.used_ms
    fields["o"] = [first, *(offset - first for offset in lock.offsets[1:])]
    if lock.counts:
        fields["oc"] = dict(lock.counts)
    if lock.visible_ms:
        fields["ot"] = dict(lock.visible_ms)
    fields["popTime"] = lock.pop_time_ms
    return fields


def _from_json(saved: _Saved) -> OrderLock:
    first = saved.o[0]
    return OrderLock(
        saved.pop_time,
        saved.i or 0,
        [first, *(first + relative for relative in saved.o[1:])],
        saved.a,
        saved.cm,
        dict(saved.oc or {}),
        dict(saved.ot or {}),
        saved.l,
    )

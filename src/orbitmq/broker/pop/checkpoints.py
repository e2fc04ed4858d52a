"""Checkpoints: which messages were handed out, and when they become visible again (Apache: PopCheckPoint and the maps
of PopReviveService). No I/O.

Invariants
1. A checkpoint covers the messages that one pop took from one queue. It is open until each of them is acknowledged or
   redelivered, and every such change is written to the revive topic before the checkpoint is dropped.
2. ``acked`` is the state in memory, ``written`` the part of it in the log. Both are bit sets by message position.
3. ``floor`` of a revive queue never passes a checkpoint that still has acknowledgements to write or messages to
   redeliver, so reading the queue from there restores every such checkpoint.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

__all__ = ["Checkpoint", "CheckpointKey", "CheckpointTable", "CheckpointTuple"]


class CheckpointKey(NamedTuple):
    """The key by which an acknowledgement finds its checkpoint."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int


CheckpointTuple = tuple[str, str, int, int, int]
"""A ``CheckpointKey``, or a plain tuple of its values."""


class Checkpoint(msgspec.Struct, eq=False):
    """The messages of one queue that one pop handed out."""

    topic: str
    """The topic that stores the messages, which may be a retry topic."""
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    offsets: Sequence[int]
    """Queue offsets of the messages; a ``range`` if there are no gaps."""
    acked: int = 0
    written: int = 0
    revive_offset: int = -1
    """Offset of the checkpoint's newest record in the revive queue."""
    written_ms: int = 0
    suspended: bool = False
    """Whether the next delivery does not count as an attempt."""
    grace_ms: int = 0
    """How much longer to wait for acknowledgements of an Apache broker that may still be in the timer."""

    @property
    def key(self) -> CheckpointTuple:
        return self.topic, self.group, self.queue_id, self.start_offset, self.pop_time_ms

    @property
    def due_ms(self) -> int:
        """Time when the messages become visible again."""
        return self.pop_time_ms + self.invisible_ms

    @property
    def all_bits(self) -> int:
        return (1 << len(self.offsets)) - 1

    @property
    def done(self) -> bool:
        return self.acked == self.all_bits

    @property
    def left(self) -> int:
        """Number of messages that are neither acknowledged nor redelivered."""
        return len(self.offsets) - self.acked.bit_count()

    def open_offsets(self) -> list[int]:
        return [offset for place, offset in enumerate(self.offsets) if not self.acked >> place & 1]

    @property
    def unwritten(self) -> int:
        """Bit set of the messages whose acknowledgement is not in the log yet."""
        return self.acked & ~self.written


class CheckpointTable:
    """All open checkpoints."""

    def __init__(self) -> None:
        self._by_key: dict[CheckpointTuple, Checkpoint] = {}
        self._due: list[tuple[int, int, Checkpoint]] = []
        self._sequence = itertools.count()
        self._by_revive_queue: dict[int, dict[int, Checkpoint]] = {}
        """Revive queue -> revive offset -> checkpoint, ordered by offset."""
        self._in_flight: dict[tuple[str, str, int], int] = {}
        self._unwritten: dict[CheckpointTuple, Checkpoint] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Checkpoint]:
        return iter(self._by_key.values())

    def __contains__(self, key: object) -> bool:
        return key in self._by_key or key in self._unwritten

    def knows_any(self, checkpoints: Iterable[Checkpoint]) -> bool:
        """Whether any of these checkpoints has the key of an open checkpoint, or of one with unwritten
        acknowledgements."""
        by_key, unwritten = self._by_key, self._unwritten
        for checkpoint in checkpoints:
            key = checkpoint.key
            if key in by_key or key in unwritten:
                return True
        return False

    @property
    def unwritten_count(self) -> int:
        return len(self._unwritten)

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]  # an empty table is what a new one is

    def find(self, key: CheckpointTuple) -> Checkpoint | None:
        return self._by_key.get(key)

    def in_flight(self, topic: str, group: str, queue_id: int) -> int:
        """Returns how many of a queue's messages a group holds unacknowledged."""
        return self._in_flight.get((topic, group, queue_id), 0)

    def in_flight_of_groups(self) -> dict[tuple[str, str], int]:
        """Returns the number of messages held unacknowledged by (topic, group), summed over all queues."""
        found: dict[tuple[str, str], int] = {}
        for (topic, group, _), count in self._in_flight.items():
            found[topic, group] = found.get((topic, group), 0) + count
        return found

    # -- changes ---------------------------------------------------------------------------------------

    def add(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint whose record is in the log. Replaces any checkpoint with the same key."""
        key = checkpoint.key
        known = self._by_key.get(key)
        if known is not None:
            self._drop(known)
            self._forget_record(known)
        self._by_key[key] = checkpoint
        left, place = checkpoint.left, key[:3]
        if left:
            self._in_flight[place] = self._in_flight.get(place, 0) + left
        self._by_revive_queue.setdefault(checkpoint.revive_queue_id, {})[checkpoint.revive_offset] = (
            checkpoint
        )
        heapq.heappush(self._due, (checkpoint.due_ms + checkpoint.grace_ms, next(self._sequence), checkpoint))

    def ack(self, key: CheckpointTuple, queue_offset: int) -> bool:
        """Acknowledge a message. Returns False if it is unknown, redelivered or already acknowledged."""
        # Hot: runs once per message, so what `_finish` does for many bits is written out for one.
        checkpoint = self._by_key.get(key)
        if checkpoint is None:
            return False
        try:
            bit = 1 << checkpoint.offsets.index(queue_offset)
        except ValueError:
            return False
        acked = checkpoint.acked
        if acked & bit:
            return False
        checkpoint.acked = acked = acked | bit
        self._unwritten[key] = checkpoint
        place = key[:3]
        count = self._in_flight.get(place, 0) - 1
        if count > 0:
            self._in_flight[place] = count
        else:
            self._in_flight.pop(place, None)
        if acked == (1 << len(checkpoint.offsets)) - 1:
            del self._by_key[key]
        return True

    def finish(self, checkpoint: Checkpoint) -> None:
        """Mark all messages of the checkpoint as done, because they were redelivered or are no longer needed."""
        self._finish(checkpoint, checkpoint.all_bits & ~checkpoint.acked)

    def _finish(self, checkpoint: Checkpoint, bits: int) -> None:
        checkpoint.acked |= bits
        self._count(checkpoint, -bits.bit_count())
        self._unwritten[checkpoint.key] = checkpoint
        if checkpoint.done:
            self._by_key.pop(checkpoint.key, None)

    def take_unwritten(self) -> list[Checkpoint]:
        """Take the checkpoints whose acknowledgements are not in the log yet. The caller must then call ``written``
        or ``put_back``."""
        taken = list(self._unwritten.values())
        self._unwritten.clear()
        return taken

    def put_back(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Put back checkpoints from ``take_unwritten`` whose acknowledgements could not be written."""
        for checkpoint in checkpoints:
            self._unwritten[checkpoint.key] = checkpoint

    def written(self, checkpoint: Checkpoint) -> None:
        """Record that the checkpoint's acknowledgements are in the log."""
        checkpoint.written = checkpoint.acked
        self._unwritten.pop(checkpoint.key, None)
        if checkpoint.done:
            self._forget_record(checkpoint)

    def rewritten(self, checkpoint: Checkpoint, revive_offset: int, now_ms: int) -> None:
        """Record that the checkpoint was rewritten with its current state."""
        self._forget_record(checkpoint)
        checkpoint.revive_offset, checkpoint.written_ms = revive_offset, now_ms
        checkpoint.written = checkpoint.acked
        self._unwritten.pop(checkpoint.key, None)
        if not checkpoint.done:
            self._by_revive_queue.setdefault(checkpoint.revive_queue_id, {})[revive_offset] = checkpoint

    def postpone(self, checkpoint: Checkpoint, wait_ms: int) -> None:
        """Requeue a checkpoint from ``take_due`` for a later time."""
        heapq.heappush(self._due, (checkpoint.due_ms + wait_ms, next(self._sequence), checkpoint))

    def _drop(self, checkpoint: Checkpoint) -> None:
        self._by_key.pop(checkpoint.key, None)
        self._count(checkpoint, -checkpoint.left)

    def _forget_record(self, checkpoint: Checkpoint) -> None:
        records = self._by_revive_queue.get(checkpoint.revive_queue_id)
        if records is not None and records.get(checkpoint.revive_offset) is checkpoint:
            del records[checkpoint.revive_offset]

    def _count(self, checkpoint: Checkpoint, change: int) -> None:
        place = (checkpoint.topic, checkpoint.group, checkpoint.queue_id)
        count = self._in_flight.get(place, 0) + change
        if count > 0:
            self._in_flight[place] = count
        else:
            self._in_flight.pop(place, None)

    # -- due and old checkpoints -----------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """Returns the time when the next message becomes visible again, or None if no message is hidden."""
        self._skip_done()
        return self._due[0][0] if self._due else None

    def take_due(self, now_ms: int, limit: int) -> list[Checkpoint]:
        """Take up to ``limit`` due checkpoints. Each must then be finished or postponed."""
        found: list[Checkpoint] = []
        while len(found) < limit:
            self._skip_done()
            if not self._due or self._due[0][0] > now_ms:
                break
            found.append(heapq.heappop(self._due)[2])
        return found

    def _skip_done(self) -> None:
        due = self._due
        while due and self._by_key.get(due[0][2].key) is not due[0][2]:
            heapq.heappop(due)
        if len(due) > 64 and len(due) > 4 * len(self._by_key):
            # Most were acknowledged long before they were due. Keep the heap as small as the table.
            due[:] = [entry for entry in due if self._by_key.get(entry[2].key) is entry[2]]
            heapq.heapify(due)

    def floor(self, revive_queue_id: int) -> int | None:
        """Returns the queue offset of a revive queue's oldest record that is still needed, or None if none is."""
        records = self._by_revive_queue.get(revive_queue_id)
        return next(iter(records)) if records else None

    def oldest(self, revive_queue_id: int, count: int) -> list[Checkpoint]:
        """Returns up to ``count`` checkpoints with the oldest records of a revive queue."""
        records = self._by_revive_queue.get(revive_queue_id, {})
        return list(itertools.islice(records.values(), count))

    def open_count(self, revive_queue_id: int) -> int:
        """Returns how many of a revive queue's records are still needed."""
        return len(self._by_revive_queue.get(revive_queue_id, ()))

    def of_queue(self, topic: str, group: str, queue_id: int) -> list[Checkpoint]:
        """Returns the open checkpoints of one queue and group."""
        if not self.in_flight(topic, group, queue_id):
            return []
        return [
            checkpoint
            for checkpoint in self._by_key.values()
            if (checkpoint.topic, checkpoint.group, checkpoint.queue_id) == (topic, group, queue_id)
        ]

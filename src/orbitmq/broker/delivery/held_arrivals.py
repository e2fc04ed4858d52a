"""Tracks queues with messages that consumers may not read yet."""

from __future__ import annotations

__all__ = ["HeldArrivals"]


class HeldArrivals:
    """The queues to notify when the readable end of the log advances."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}
        """For each queue, the log end offsets of its first and last held messages."""

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, topic: str, queue_id: int, log_end: int) -> None:
        """Record that a queue has new messages, the last of which ends at ``log_end``."""
        first, _ = self._ends.get((topic, queue_id), (log_end, log_end))
        self._ends[topic, queue_id] = (first, log_end)

    def take(self, log_offset: int) -> list[tuple[str, int]]:
        """Returns the queues that have messages up to ``log_offset``. Queues that also have messages after it remain
        held."""
        # Compare with the first end, because under load the last one is always beyond ``log_offset``.
        ready = [key for key, (first, _) in self._ends.items() if first <= log_offset]
        for key in ready:
            _, last = self._ends.pop(key)
            if last > log_offset:
                self._ends[key] = (last, last)
        return ready

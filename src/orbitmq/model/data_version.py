"""The version of a table a broker owns (Apache: ``DataVersion``)."""

from __future__ import annotations

import msgspec

__all__ = ["DataVersion"]


class DataVersion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The version of a table. Two versions are equal only if all three parts are; ``newer_than`` decides which one is
    newer."""

    counter: int = 0
    """Incremented with every change."""
    state_version: int = 0
    """The master's epoch in controller mode, else 0. Brokers of 4.x do not send it."""
    timestamp_ms: int = msgspec.field(name="timestamp", default=0)
    """The time of the last change."""

    def next(self, now_ms: int, state_version: int = 0) -> DataVersion:
        """Returns the version after one more change."""
        return DataVersion(counter=self.counter + 1, state_version=state_version, timestamp_ms=now_ms)

    def newer_than(self, other: DataVersion) -> bool:
        """Whether this version is newer, in Apache's order: compares the epoch first, then the counter, then the
        time."""
        return (self.state_version, self.counter, self.timestamp_ms) > (
            other.state_version,
            other.counter,
            other.timestamp_ms,
        )

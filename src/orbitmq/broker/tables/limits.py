"""Limits the state that clients can create. Declares the options, which are a part of ``BrokerConfig``, and enforces
them.

Apache has no such limits. The defaults follow from memory and file size: every saved table stays below what
``SafeFile`` can load, so a large table never keeps a broker from starting. Entries found at start are kept even above
a limit. Only new ones are refused, with INVALID_PARAMETER (29), which official clients report with its remark and do
not retry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orbitmq.broker.idle_options import IdleOptions
from orbitmq.errors import InvalidParameter
from orbitmq.runtime.options import option

__all__ = ["Bound", "TableLimits"]


class Bound:
    """A limit, with the current size of the table and the number of refusals."""

    __slots__ = ("_limit", "_size", "key", "refused", "table")

    def __init__(self, table: str, key: str, size: Callable[[], int], limit: Callable[[], int]) -> None:
        """``table`` is the table's name in the metrics, and ``key`` is the name of the option."""
        self.table = table
        self.key = key
        self._size = size
        self._limit = limit
        self.refused = 0

    @property
    def size(self) -> int:
        return self._size()

    @property
    def limit(self) -> int:
        return self._limit()

    def check(self, what: str, more: int = 1) -> None:
        """Raise ``InvalidParameter`` if there is no room for ``more`` entries or bytes. ``what`` begins the error
        message."""
        if self._size() + more > self._limit():
            self.refuse(what)

    def refuse(self, what: str) -> None:
        """Count the refusal and raise ``InvalidParameter``. ``what`` begins the error message."""
        self.refused += 1
        raise InvalidParameter(
            f"{what}: this broker has {self._size():,} {self.table} and the limit is {self._limit():,} ({self.key})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLimits(IdleOptions):
    """The limits of the tables that clients can grow."""

    topics_max: int = option(
        100_000,
        apache="maxTopics",
        low=1,
        high=200_000,
        reload=True,
        doc="Topics of this broker, retry topics and dead letters included. Each takes up to 1 KiB in topics.json. "
        "Not an Apache key.",
    )
    groups_max: int = option(
        50_000,
        apache="maxGroups",
        low=1,
        high=100_000,
        reload=True,
        doc="Subscription groups of this broker, and topics they may not read. A group takes up to 2 KiB in "
        "subscriptionGroup.json. Not an Apache key.",
    )
    offset_bytes_max: int = option(
        64 << 20,
        apache="maxConsumerOffsetBytes",
        low=1 << 10,
        high=192 << 20,
        reload=True,
        doc="Size of consumerOffset.json above which offsets of new queues and groups are refused: about one million "
        "offsets, which take 300 MiB of memory. Not an Apache key.",
    )
    consumers_max: int = option(
        100_000,
        apache="maxConsumers",
        low=1,
        reload=True,
        doc="Connected consumers; one client counts once for each of its groups. Each takes about 1 KiB of memory. "
        "Not an Apache key.",
    )
    producers_max: int = option(
        100_000,
        apache="maxProducers",
        low=1,
        reload=True,
        doc="Connected producers; one client counts once for each of its groups. Each takes about 1 KiB of memory. "
        "Not an Apache key.",
    )
    subscription_bytes_max: int = option(
        256 << 20,
        apache="maxSubscriptionBytes",
        low=1 << 10,
        reload=True,
        doc="Memory of the subscriptions of connected consumers: 500 bytes each, and 32 for each character of their "
        "expressions. Not an Apache key.",
    )
    filters_max: int = option(
        20_000,
        apache="maxFilters",
        low=1,
        high=25_000,
        reload=True,
        doc="SQL92 expressions of groups, one for each topic. Not an Apache key.",
    )
    queue_locks_max: int = option(
        500_000,
        apache="maxQueueLocks",
        low=1,
        reload=True,
        doc="Queues locked by orderly consumers. Each takes about 300 bytes of memory. Not an Apache key.",
    )

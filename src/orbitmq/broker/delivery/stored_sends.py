"""Finds idempotent sends that are already stored.

A producer that gets no answer does not know whether its message is stored. With ``idempotent=True`` it sends the
message again with the same unique key, and the broker stores the message once. The key index shows whether a key is
stored: it contains every record's key before the next query, a slave's index is as complete as its log, and recovery
rebuilds it from the log. No other state is needed, and nothing is lost by a restart or a failover. Only idempotent
sends use this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from orbitmq.broker.delivery.parking import own_place
from orbitmq.codes import Property
from orbitmq.errors import MessageIllegal, RecordError
from orbitmq.model.names import TIMER_TOPIC
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.properties import find_property
from orbitmq.runtime.clock import Clock
from orbitmq.store.errors import StoreUnavailable
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage

__all__ = ["WINDOW_MS", "FoundSend", "StoredSends"]

WINDOW_MS: Final = 3_600_000
"""How long stored sends can be found. With a longer window, every idempotent send would read more index files."""
_CANDIDATES_MAX: Final = 8
"""The maximum number of records inspected for the hash of a key. The index keeps 31 bits, so two records within an
hour rarely share a hash."""
_UNIQUE_KEY: Final = Property.UNIQUE_KEY.encode()


class FoundSend(NamedTuple):
    """A send that is already stored."""

    log_offsets: list[int]
    end: int
    """The log offset of the end of the last message."""
    queue_offset: int
    """Queue offset of the first message."""
    queue_id: int
    """The queue that the first answer named."""
    timer: NewMessage | None
    """The stored message if it waits for its time."""


class StoredSends:
    """Looks up the messages of a send by their unique keys."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def find(self, messages: Sequence[NewMessage], topic: str) -> FoundSend | None:
        """Returns the send that stored these messages within the last ``WINDOW_MS``, or None. ``messages`` are in the
        form to store.

        A delayed message is looked up in the topic where it waits, and in its own ``topic``, which contains it after
        delivery. Raises ``BrokerError`` if another message has the same key, and ``StoreUnavailable`` while the index
        is incomplete.
        """
        if self._store.index_gap:
            raise StoreUnavailable(f"stored sends cannot be found: {self._store.index_gap}")
        first = self._find(messages[0], topic)
        if first is None:
            return None
        records = [first]
        for message in messages[1:]:
            record = self._find(message, topic)
            if record is None:
                raise MessageIllegal(f"message {_key(message)!r} was stored in another batch")
            records.append(record)
        last = records[-1]
        return FoundSend(
            [record.log_offset for record in records],
            last.log_offset + last.size,
            first.queue_offset,
            _own_queue(first),
            _timer(first),
        )

    def _find(self, message: NewMessage, topic: str) -> Record | None:
        key = _key(message)
        if not key:
            raise MessageIllegal("an idempotent send needs a unique key (UNIQ_KEY)")
        begin_ms = self._clock.now_ms() - WINDOW_MS
        for stored_in in dict.fromkeys((message.topic, topic)):
            raw, _ = self._store.query(stored_in, key, _CANDIDATES_MAX, begin_ms, 1 << 62)
            for record in map(decode_record, raw):
                if record.topic != stored_in or record.find(_UNIQUE_KEY) != key.encode():
                    continue  # another key with the same hash
                if record.body != message.body:
                    raise MessageIllegal(f"message id {key!r} is already used by a message with another body")
                return record
        return None


def _key(message: NewMessage) -> str:
    return (find_property(message.properties, _UNIQUE_KEY) or b"").decode("utf-8", "replace")


def _own_queue(record: Record) -> int:
    try:
        return own_place(record.properties)[1]
    except RecordError:
        return record.queue_id


def _timer(record: Record) -> NewMessage | None:
    if record.topic != TIMER_TOPIC:
        return None
    return NewMessage(
        record.topic,
        record.queue_id,
        record.body,
        record.properties,
        record.born_timestamp_ms,
        record.born_host,
    )

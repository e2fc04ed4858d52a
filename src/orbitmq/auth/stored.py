"""Finds the topic whose rights apply to a stored record, no matter which topic a request names."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from orbitmq.codes import Property
from orbitmq.model.names import (
    DERIVED_TOPIC_LENGTH_MAX,
    DLQ_PREFIX,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    RETRY_PREFIX,
    ROCKSDB_HALF_OP_TOPIC,
    ROCKSDB_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TIMER_TOPIC,
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
)
from orbitmq.record.codec import Record

__all__ = ["BrokerFacts", "Place", "is_internal", "place_of"]

_PARKING: Final = frozenset(
    {HALF_TOPIC, ROCKSDB_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TRANSACTION_CHECK_MAX_TIME_TOPIC}
)
_INTERNAL: Final = _PARKING | {HALF_OP_TOPIC, ROCKSDB_HALF_OP_TOPIC}
_REAL_TOPIC: Final = Property.REAL_TOPIC.encode()
_RETRY_TOPIC: Final = Property.RETRY_TOPIC.encode()
_ORIGIN_GROUP: Final = Property.ORIGIN_GROUP.encode()


def is_internal(topic: str) -> bool:
    """Whether brokers keep messages of other topics, or their own state, in this topic."""
    return topic in _INTERNAL or topic.startswith(SYSTEM_TOPIC_PREFIX)


class Place(NamedTuple):
    """The topics a record belongs to."""

    topic: str
    """The topic that the record is stored in or, while it is parked, the topic it will be delivered to."""
    origin: str
    """The topic that the record was first sent to, if it waits for a retry or is a dead letter; otherwise
    ``topic``."""


def place_of(record: Record) -> Place:
    """Returns the topics that a record belongs to.

    Properties are trusted only in topics whose records a broker writes, because anyone can send ``REAL_TOPIC`` to a
    topic of their own.
    """
    topic = record.topic
    if topic in _PARKING:
        topic = _text(record, _REAL_TOPIC) or topic
    origin = topic
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        origin = _text(record, _RETRY_TOPIC) or topic
    group = _text(record, _ORIGIN_GROUP)
    if group and origin.startswith((f"{RETRY_PREFIX}{group}_", f"{RETRY_PREFIX}{group}+")):
        origin = origin[len(RETRY_PREFIX) + len(group) + 1 :]
    return Place(topic, origin or topic)


def _text(record: Record, name: bytes) -> str:
    return (record.find(name) or b"").decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The information, besides the request, that access decisions depend on: the broker's cluster, records, groups
    and topics."""

    cluster: str
    place_at: Callable[[int], Place | None] = lambda _log_offset: None
    """Returns the topics of the record at a log offset; None if there is no record."""
    groups: Container[str] = ()
    topics: Container[str] = ()
    reads_pop_retry_v1: Callable[[], bool] = lambda: True
    """Whether pops read the retry topics that join group and topic with an underscore."""
    is_strict: bool = True
    """Whether internal topics require a right on the cluster. With Apache's rules they are ordinary
    topics."""

    def retry_owner(self, name: str) -> tuple[str, str]:
        """Returns the group and the topic that own the retry topic ``%RETRY%name``. The topic is empty for an
        ordinary retry topic.

        ``%RETRY%pay_roll`` is the retry topic of the group ``pay_roll`` and, with POP, of the group ``pay`` for the
        topic ``roll``. A known group of the full name is preferred, then the longest known group followed by a known
        topic, then the longest known group. Otherwise the full name is the group.
        """
        found: tuple[str, str] | None = None
        if name not in self.groups:
            for position in range(min(len(name) - 1, DERIVED_TOPIC_LENGTH_MAX), 0, -1):
                if name[position] in "_+" and name[:position] in self.groups:
                    split = name[:position], name[position + 1 :]
                    if split[1] in self.topics:
                        return split
                    found = found or split
        return found or (name, "")

    def sharers_of_pop_retry(self, group: str, topic: str) -> Iterator[tuple[str, str]]:
        """Yields the other owners, as (group, topic), of the retry topic that a pop of this group and topic reads.
        The topic is empty for the owner of an ordinary retry topic. For example, ``%RETRY%a_b`` for the group ``a``
        and the topic ``b`` is also the retry topic of the group ``a_b``."""
        name = f"{group}_{topic}"
        if not self.reads_pop_retry_v1() or len(name) > DERIVED_TOPIC_LENGTH_MAX:
            return
        if name in self.groups:
            yield name, ""
        if name.count("_") > 1:
            for position, letter in enumerate(name):
                if letter == "_" and position != len(group) and name[:position] in self.groups:
                    part = name[position + 1 :]
                    if part in self.topics:
                        yield name[:position], part

"""Routes: the locations of a topic's queues (Apache: ``TopicRouteData``, ``QueueData``, ``BrokerData``,
``MessageQueue``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from orbitmq.errors import InvalidParameter
from orbitmq.model.topic import is_readable, is_writable

__all__ = [
    "MASTER_ID",
    "BrokerData",
    "MessageQueue",
    "QueueData",
    "TopicRoute",
    "parse_order_conf",
    "utf16_key",
]

MASTER_ID: Final = 0


def utf16_key(text: str) -> bytes:
    """Returns a sort key that orders like Java's ``String.compareTo``."""
    return text.encode("utf-16-be", "surrogatepass")


class MessageQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queue. Queues are ordered like in Java, because all members of a group must see them in the same order."""

    broker_name: str
    queue_id: int
    topic: str

    @property
    def sort_key(self) -> tuple[bytes, bytes, int]:
        """The key by which queues are ordered: topic, broker name and queue id."""
        return (utf16_key(self.topic), utf16_key(self.broker_name), self.queue_id)

    def __lt__(self, other: MessageQueue) -> bool:
        return self.sort_key < other.sort_key

    def __str__(self) -> str:
        # The consistent-hash strategy hashes this text, so it must match Java's exactly.
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"


class QueueData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A topic's queues on the brokers with one name."""

    broker_name: str
    perm: int
    read_queue_nums: int
    topic_sys_flag: int = 0
    write_queue_nums: int


class BrokerData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The addresses of the brokers with one name. Id 0 is the master."""

    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str | None = None
    enable_acting_master: bool = False
    zone_name: str | UnsetType | None = UNSET

    @property
    def master_address(self) -> str | None:
        """The address to send to; None if there is no master."""
        return self.broker_addrs.get(MASTER_ID)

    def read_address(self, broker_id: int) -> tuple[int, str] | None:
        """Returns the id and address of the broker to pull from: the one with the suggested id or, without it, the
        next slave, or any other. Returns None if there are no addresses."""
        for candidate in (broker_id, broker_id + 1) if broker_id != MASTER_ID else (broker_id,):
            if candidate in self.broker_addrs:
                return candidate, self.broker_addrs[candidate]
        return next(iter(self.broker_addrs.items()), None)


class TopicRoute(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The route of one topic. This is also the body of the name server's response."""

    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | UnsetType | None = UNSET
    queue_datas: list[QueueData] = []
    topic_queue_mapping_by_broker: dict[str, Any] | UnsetType | None = UNSET

    def broker(self, broker_name: str) -> BrokerData | None:
        """Returns the addresses of the brokers with this name; None if the route does not contain it."""
        return next((data for data in self.broker_datas if data.broker_name == broker_name), None)

    def publish_queues(self, topic: str) -> list[MessageQueue]:
        """Returns the queues to send to, in the order that all clients use.

        The queues of an ordered topic are fixed in the name server. Otherwise these are all writable queues whose
        broker has a master.
        """
        if self.order_topic_conf:
            return [
                MessageQueue(topic=topic, broker_name=name, queue_id=queue_id)
                for name, count in parse_order_conf(self.order_topic_conf)
                for queue_id in range(count)
            ]
        return list(self._queues(topic, write=True))

    def subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """Returns the queues to consume, sorted. A slave is sufficient to read from."""
        return sorted(self._queues(topic, write=False))

    def _queues(self, topic: str, *, write: bool) -> Iterator[MessageQueue]:
        with_master = {data.broker_name for data in self.broker_datas if MASTER_ID in data.broker_addrs}
        for data in sorted(self.queue_datas, key=lambda data: utf16_key(data.broker_name)):
            if write and not (is_writable(data.perm) and data.broker_name in with_master):
                continue
            if not write and not is_readable(data.perm):
                continue
            for queue_id in range(data.write_queue_nums if write else data.read_queue_nums):
                yield MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=queue_id)

    def same_as(self, other: TopicRoute) -> bool:
        """Whether two routes are equal, regardless of the order of their parts."""
        return self._in_order() == other._in_order()

    def _in_order(self) -> tuple[object, ...]:
        return (
            sorted(self.queue_datas, key=lambda data: utf16_key(data.broker_name)),
            sorted(self.broker_datas, key=lambda data: utf16_key(data.broker_name)),
            self.filter_server_table,
            self.order_topic_conf or None,
            self.topic_queue_mapping_by_broker or None,
        )


def parse_order_conf(text: str) -> list[tuple[str, int]]:
    """Parse ``broker-a:4;broker-b:4`` into pairs of broker name and number of queues. Raises ``InvalidParameter``."""
    pairs: list[tuple[str, int]] = []
    for part in text.split(";"):
        if not part:
            continue
        name, _, count = part.partition(":")
        if not (name and count.isascii() and count.isdigit() and int(count) <= _QUEUES_MAX):
            raise InvalidParameter(f"order configuration {text!r}: {part!r} is not broker:queues")
        pairs.append((name, int(count)))
    return pairs


_QUEUES_MAX: Final = 65_536
"""A broker with more queues than this is misconfigured, and its route would fill the client's memory."""

"""Queries everything about a broker in a few requests, however many topics and groups it has.

A page about thousands of topics cannot query each of them. These answers contain all topics, all groups, and the
progress of all groups of one broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from orbitmq.admin.base import Result
from orbitmq.admin.brokers import runtime_info
from orbitmq.admin.errors import UnreachableError
from orbitmq.admin.session import Admin
from orbitmq.errors import BrokerError, OrbitError
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.route import MASTER_ID, MessageQueue
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import ConsumeStatsList, OffsetWrapper, SubscriptionGroupWrapper, TopicConfigWrapper
from orbitmq.wire.headers import GetBrokerConsumeStatsRequest

__all__ = [
    "BrokerPlace",
    "Lag",
    "all_groups",
    "all_lags",
    "all_topics",
    "broker_places",
    "gather_bounded",
    "runtime_or_reason",
]

REQUESTS_AT_ONCE: Final = 20
_LAG_TIMEOUT_S: Final = 50.0
"""The broker reads a message from every queue of every group to answer."""

T = TypeVar("T")
R = TypeVar("R")


class BrokerPlace(Result, kw_only=True):
    """A broker process: a master or a slave."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID


class Lag(Result, kw_only=True):
    """A group's progress in one queue."""

    group: str
    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    """When the last consumed message was stored, in milliseconds; 0 if unknown."""
    unfinished: int | None = None
    """Stored messages that the group has not finished; None if the broker does not report them."""
    oldest_unfinished: int | None = None
    """When the oldest unfinished message was stored, in milliseconds; 0 if there is none, None if the broker does not
    report it.
    """

    @property
    def diff(self) -> int:
        """The number of unfinished messages, or the difference of the offsets if the broker does not report it."""
        if self.unfinished is not None:
            return self.unfinished
        return max(0, self.broker_offset - self.consumer_offset)


async def gather_bounded(
    work: Callable[[T], Awaitable[R]], items: Iterable[T], *, at_once: int = REQUESTS_AT_ONCE
) -> list[R | OrbitError]:
    """Run ``work`` for each item, at most ``at_once`` at a time. Returns the results in order.

    The result of an item that failed is its error.
    """
    limit = asyncio.Semaphore(at_once)

    async def one(item: T) -> R | OrbitError:
        async with limit:
            try:
                return await work(item)
            except OrbitError as error:
                return error

    return list(await asyncio.gather(*(one(item) for item in items)))


async def broker_places(admin: Admin) -> list[BrokerPlace]:
    """Returns every broker of every cluster, masters before their slaves."""
    info = await admin.cluster_info()
    return [
        BrokerPlace(cluster=cluster, broker_name=name, broker_id=broker_id, address=address)
        for cluster, names in sorted(info.cluster_addr_table.items())
        for name in sorted(names)
        if name in info.broker_addr_table
        for broker_id, address in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]


async def runtime_or_reason(admin: Admin, address: str) -> dict[str, str] | str:
    """Returns the statistics of a broker, or the reason why they are unavailable."""
    try:
        return await runtime_info(admin, address)
    except (BrokerError, UnreachableError) as error:
        return str(error)


async def all_topics(admin: Admin, address: str) -> dict[str, TopicConfig]:
    """Returns the settings of every topic of a broker, by name."""
    answer = await admin.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG, timeout_s=admin.slow_s)
    return TopicConfigWrapper.decode(answer.body).topic_config_table


async def all_groups(admin: Admin, address: str) -> dict[str, SubscriptionGroupConfig]:
    """Returns the settings of every consumer group of a broker, by name."""
    answer = await admin.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout_s=admin.slow_s)
    return SubscriptionGroupWrapper.decode(answer.body).subscription_group_table


async def all_lags(admin: Admin, address: str) -> list[Lag]:
    """Returns the progress of every group in each queue for which it has an offset.

    Brokers of this project also include the queues of subscribed topics without an offset.
    """
    answer = await admin.ask(
        address,
        RequestCode.GET_BROKER_CONSUME_STATS,
        GetBrokerConsumeStatsRequest(is_order=False, unfinished=True),
        timeout_s=max(_LAG_TIMEOUT_S, admin.slow_s),
    )
    body = ConsumeStatsList.decode(answer.body)
    return [
        _lag(group, queue, offset)
        for groups in body.consume_stats_list
        for group, many in groups.items()
        for stats in many
        for queue, offset in stats.offset_table.items()
    ]


def _lag(group: str, queue: MessageQueue, offset: OffsetWrapper) -> Lag:
    return Lag(
        group=group,
        topic=queue.topic,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        broker_offset=offset.broker_offset,
        consumer_offset=offset.consumer_offset,
        last_timestamp=offset.last_timestamp,
        unfinished=offset.unfinished,
        oldest_unfinished=offset.oldest_unfinished,
    )

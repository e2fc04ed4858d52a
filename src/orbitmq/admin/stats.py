"""Message rates of topics and groups (Apache: ``StatsAllSubCommand``)."""

from __future__ import annotations

from typing import Final

from orbitmq.admin.base import Result
from orbitmq.admin.errors import UnknownNameError
from orbitmq.admin.groups import consume_stats
from orbitmq.admin.session import Admin
from orbitmq.admin.topics import groups_of_topic, topic_names
from orbitmq.errors import BrokerError, OrbitError
from orbitmq.model.names import is_dlq_topic, is_retry_topic
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import BrokerStatsData
from orbitmq.wire.headers import ViewBrokerStatsDataRequest

__all__ = ["TopicRate", "TopicRates", "broker_stats", "stats_all", "sum_of_a_day"]

PUT_COUNT: Final = "TOPIC_PUT_NUMS"
GET_COUNT: Final = "GROUP_GET_NUMS"


class TopicRate(Result, kw_only=True):
    topic: str
    group: str
    """The consumer group; empty if no group consumes the topic."""
    accumulation: int
    in_tps: float = 0.0
    out_tps: float = 0.0
    in_msg24_hour: int = 0
    out_msg24_hour: int = 0


class TopicRates(Result, kw_only=True):
    topics: list[TopicRate]


async def broker_stats(admin: Admin, address: str, name: str, key: str) -> BrokerStatsData | None:
    """Returns a broker's counter over a minute, an hour and a day.

    Returns None if the broker refuses, for example because it has counted nothing yet.
    """
    header = ViewBrokerStatsDataRequest(stats_name=name, stats_key=key)
    try:
        answer = await admin.ask(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
    except BrokerError:
        return None
    return BrokerStatsData.decode(answer.body)


def sum_of_a_day(data: BrokerStatsData | None) -> int:
    """Returns the sum of a counter over the longest period that has one; 0 without data."""
    if data is None:
        return 0
    sums = (item.sum for item in (data.stats_day, data.stats_hour, data.stats_minute) if item is not None)
    return next((one for one in sums if one), 0)


async def _counted(admin: Admin, masters: list[str], name: str, key: str) -> tuple[float, int]:
    """Returns the rate over the last minute and the sum of a day, added up over the given masters."""
    found = [await broker_stats(admin, address, name, key) for address in masters]
    minutes = [data.stats_minute for data in found if data is not None]
    return sum(item.tps for item in minutes if item is not None), sum(map(sum_of_a_day, found))


async def stats_all(admin: Admin, topic: str | None = None, *, active_only: bool = False) -> TopicRates:
    """Returns the rates, daily sums and backlog of every topic and each of its groups."""
    names = (await topic_names(admin)).topics
    if topic is not None and topic not in names:
        raise UnknownNameError("topic", topic, names)
    chosen = [
        name
        for name in names
        if topic in (None, name) and not is_retry_topic(name) and not is_dlq_topic(name)
    ]
    rows: list[TopicRate] = []
    for name in admin.each("topics", chosen):
        try:
            rows += await _rates(admin, name)
        except OrbitError:
            continue  # deleted meanwhile, or its broker does not answer
    if active_only:
        rows = [row for row in rows if row.in_msg24_hour > 0 or row.out_msg24_hour > 0]
    return TopicRates(topics=rows)


async def _rates(admin: Admin, topic: str) -> list[TopicRate]:
    route = await admin.route(topic)
    groups = await groups_of_topic(admin, topic)
    masters = [address for data in route.broker_datas if (address := data.master_address) is not None]
    in_tps, in_sum = await _counted(admin, masters, PUT_COUNT, topic)
    if not groups:
        return [TopicRate(topic=topic, group="", accumulation=0, in_tps=in_tps, in_msg24_hour=in_sum)]
    rows = []
    for group in groups:
        out_tps, out_sum = await _counted(admin, masters, GET_COUNT, f"{topic}@{group}")
        try:
            offsets = (await consume_stats(admin, group, topic)).offset_table.values()
            waiting = sum(offset.broker_offset - offset.consumer_offset for offset in offsets)
        except OrbitError:
            waiting = 0
        rows.append(
            TopicRate(
                topic=topic,
                group=group,
                accumulation=max(0, waiting),
                in_tps=in_tps,
                out_tps=out_tps,
                in_msg24_hour=in_sum,
                out_msg24_hour=out_sum,
            )
        )
    return rows

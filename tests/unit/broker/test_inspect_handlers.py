"""Read-only admin requests: 202-204, 208, 300, 303, 305, 308, 315, 317, 328, 343, 345."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.admin_kit import World, ask_slowly, talking
from tests.unit.broker.kit import Asker, channel

from orbitmq.broker.config import change_option
from orbitmq.broker.handlers import group_progress
from orbitmq.broker.handlers.broker_state import StatsInspection
from orbitmq.broker.handlers.client_connections import ClientInspection
from orbitmq.broker.handlers.group_progress import GroupInspection, Lags
from orbitmq.broker.handlers.topic_state import TopicInspection
from orbitmq.codes import ResponseCode, Version
from orbitmq.model.route import MessageQueue
from orbitmq.requests import Request, RequestCode
from orbitmq.wire import bodies
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import Header
from orbitmq.wire.headers import (
    GetBrokerConsumeStatsRequest,
    GetConsumerConnectionListRequest,
    GetConsumeStatsRequest,
    GetProducerConnectionListRequest,
    GetTopicStatsInfoRequest,
    QueryConsumeTimeSpanRequest,
    QueryCorrectionOffsetRequest,
    QuerySubscriptionByConsumerRequest,
    QueryTopicConsumeByWhoRequest,
    QueryTopicsByConsumerRequest,
    ViewBrokerStatsDataRequest,
)

ADDRESS = "10.0.0.9:10911"
START_MS = 1_700_000_000_000


class Inspected(World):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        lags = Lags(broker_name="broker-a", offsets=self.offsets, consumers=self.consumers, store=self.store)
        parts = (
            ClientInspection(
                consumers=self.consumers,
                producers=self.producers,
                offsets=self.offsets,
                topics=self.topics,
                address=ADDRESS,
            ),
            GroupInspection(
                address=ADDRESS,
                lags=lags,
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                stats=self.stats,
            ),
            TopicInspection(
                broker_name="broker-a",
                topics=self.topics,
                offsets=self.offsets,
                store=self.store,
                stats=self.stats,
                clock=self.clock,
            ),
            StatsInspection(
                config=self.config, stats=self.stats, runtime_info=lambda: {"brokerActive": "true"}
            ),
        )
        self.routes = [route for part in parts for route in part.routes()]
        self.asker = Asker(self.routes)

    def ask(self, code: Request, header: Header | None = None) -> Frame:
        return self.asker.ask(code, header)

    def answer(self, code: Request, header: Header | None = None) -> bytes:
        frame = self.asker.ask(code, header)
        assert frame.code == ResponseCode.SUCCESS, frame.remark
        return frame.body

    def fill(self, topic: str = "T", count: int = 4) -> None:
        """Stores messages one second apart, over two queues."""
        for number in range(count):
            self.put(topic, number % 2)
            self.clock.advance(1000)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Inspected]:
    world = Inspected(tmp_path)
    world.topic("T")
    world.group("g")
    yield world
    world.store.close()


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(broker_name="broker-a", queue_id=queue_id, topic=topic)


# -- clients -----------------------------------------------------------------------------------------------


def test_consumers_are_told_with_their_subscriptions(world: Inspected) -> None:
    world.consumer("g", "T", client="one", number=1)
    world.consumer("g", "T", client="two", number=2)
    body = world.answer(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnectionListRequest(consumer_group="g")
    )
    answer = bodies.ConsumerConnection.decode(body)
    assert [(one.client_id, one.client_addr, one.language, one.version) for one in answer.connection_set] == [
        ("one", "10.0.0.1:1", "JAVA", Version.OURS),
        ("two", "10.0.0.1:2", "JAVA", Version.OURS),
    ]
    assert list(answer.subscription_table) == ["T"]
    assert (answer.consume_type, answer.message_model, answer.consume_from_where) == (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_FIRST_OFFSET",
    )


def test_consumers_of_a_group_nobody_is_in_are_206(world: Inspected) -> None:
    frame = world.ask(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnectionListRequest(consumer_group="g")
    )
    assert frame.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert "g" in (frame.remark or "")


def test_producers_of_a_group_and_of_all(world: Inspected) -> None:
    header = GetProducerConnectionListRequest(producer_group="p")
    assert world.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, header).code == ResponseCode.SYSTEM_ERROR
    _, connection = talking(7)
    world.producers.register("p", channel(connection, "maker", 5))
    one = bodies.ProducerConnection.decode(world.answer(RequestCode.GET_PRODUCER_CONNECTION_LIST, header))
    assert [entry.client_id for entry in one.connection_set] == ["maker"]
    table = bodies.ProducerTable.decode(world.answer(RequestCode.GET_ALL_PRODUCER_INFO)).data
    (producer,) = table["p"]
    assert producer.remote_ip == "/10.0.0.1:7", "with Java's slash"
    assert (producer.client_id, producer.last_update_timestamp) == ("maker", 5)


def test_groups_of_a_topic_are_those_online_and_those_with_offsets(world: Inspected) -> None:
    world.consumer("online", "T")
    world.offsets.commit("", "past", "T", 0, 1)
    world.offsets.commit("", "elsewhere", "U", 0, 1)
    body = world.answer(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, QueryTopicConsumeByWhoRequest(topic="T"))
    assert bodies.GroupList.decode(body).group_list == ["online", "past"]


def test_topics_of_a_group_come_from_its_offsets(world: Inspected) -> None:
    world.offsets.commit("", "g", "U", 0, 1)
    world.offsets.commit("", "g", "T", 0, 1)
    body = world.answer(RequestCode.QUERY_TOPICS_BY_CONSUMER, QueryTopicsByConsumerRequest(group="g"))
    answer = bodies.TopicList.decode(body)
    assert (answer.topic_list, answer.broker_addr) == (["T", "U"], ADDRESS)


def test_subscription_of_a_group_is_absent_while_it_is_offline(world: Inspected) -> None:
    def subscription(topic: str | None) -> bodies.QuerySubscriptionResponse:
        header = QuerySubscriptionByConsumerRequest(group="g", topic=topic)
        return bodies.QuerySubscriptionResponse.decode(
            world.answer(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header)
        )

    assert subscription("T").subscription_data is None
    world.consumer("g", "T")
    online = subscription("T")
    assert online.subscription_data is not None
    assert (online.group, online.topic) == ("g", "T")
    assert subscription(None).subscription_data is None


def test_system_topics_include_this_brokers_own(world: Inspected) -> None:
    topics = bodies.TopicList.decode(world.answer(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).topic_list
    assert {"TBW102", "broker-a", "DefaultCluster", "SCHEDULE_TOPIC_XXXX"} <= set(topics)
    assert "T" not in topics


# -- topics ------------------------------------------------------------------------------------------------


def test_topic_stats_tell_bounds_and_last_time_of_every_queue(world: Inspected) -> None:
    world.fill(count=3)
    body = world.answer(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequest(topic="T"))
    table = bodies.TopicStats.decode(body).offset_table
    assert {key: (value.min_offset, value.max_offset) for key, value in table.items()} == {
        queue(0): (0, 2),
        queue(1): (0, 1),
    }
    assert table[queue(0)].last_update_timestamp == START_MS + 2000


def test_topic_stats_of_queues_never_written_are_zero(world: Inspected) -> None:
    world.topic("more", 3)
    body = world.answer(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequest(topic="more"))
    stats = bodies.TopicStats.decode(body)
    assert len(stats.offset_table) == 3
    assert set(stats.offset_table.values()) == {bodies.TopicOffset()}
    assert stats.topic_put_tps == 0.0


def test_unknown_topic_is_17(world: Inspected) -> None:
    requests = (
        (RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsInfoRequest(topic="no")),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequest(topic="no", group="g")),
    )
    for code, header in requests:
        frame = world.ask(code, header)
        assert frame.code == ResponseCode.TOPIC_NOT_EXIST
        assert "no" in (frame.remark or "")


def test_time_spans_of_a_group_that_has_begun_and_of_one_that_has_not(world: Inspected) -> None:
    world.fill(count=4)

    def spans(group: str) -> list[bodies.QueueTimeSpan]:
        header = QueryConsumeTimeSpanRequest(topic="T", group=group)
        return bodies.QueueTimeSpans.decode(
            world.answer(RequestCode.QUERY_CONSUME_TIME_SPAN, header)
        ).consume_time_span_set

    world.offsets.commit("", "g", "T", 0, 1)
    world.offsets.commit("", "g", "T", 1, 2)
    half, done = spans("g")
    assert half.message_queue == queue(0)
    assert (half.min_time_stamp, half.max_time_stamp) == (START_MS, START_MS + 2000)
    assert half.consume_time_stamp == START_MS
    assert half.delay_time == 2000, "the next message was stored two seconds ago"
    assert done.delay_time == 0
    fresh = spans("new")[0]
    assert (fresh.consume_time_stamp, fresh.delay_time) == (START_MS, 4000)


def test_correction_offsets_are_the_least_of_the_others(world: Inspected) -> None:
    world.fill(count=4)
    for group, offset in (("a", 2), ("b", 1), ("c", 0)):
        world.offsets.commit("", group, "T", 0, offset)

    def corrections(compare: str, filtered: str | None = None) -> dict[int, int]:
        header = QueryCorrectionOffsetRequest(topic="T", compare_group=compare, filter_groups=filtered)
        body = world.answer(RequestCode.QUERY_CORRECTION_OFFSET, header)
        return bodies.CorrectionOffsets.decode(body).correction_offsets

    assert corrections("a") == {0: 0}
    assert corrections("a", "c") == {0: 1}
    assert corrections("c", "c") == {0: 2**63 - 1}, "the compared group is further back"
    assert corrections("nobody", "a,b,c") == {}
    assert world.offsets.query("c", "T", 0) == 0, "asking deletes nothing"


# -- lags --------------------------------------------------------------------------------------------------


def lags(
    world: Inspected, group: str, topic: str | None = None, listed: str | None = None
) -> bodies.ConsumeStats:
    header = GetConsumeStatsRequest(consumer_group=group, topic=topic, topic_list=listed)
    return bodies.ConsumeStats.decode(world.answer(RequestCode.GET_CONSUME_STATS, header))


def test_lag_of_a_group_in_all_its_topics(world: Inspected) -> None:
    world.topic("U", 1)
    world.fill(count=4)
    world.offsets.commit("", "g", "T", 0, 1)
    world.offsets.commit("", "g", "U", 0, 0)
    world.offsets.note_pull("g", "T", 0, 0, 2)
    table = lags(world, "g").offset_table
    assert set(table) == {queue(0), queue(1), queue(0, "U")}
    behind = table[queue(0)]
    assert (behind.broker_offset, behind.consumer_offset, behind.pull_offset) == (2, 1, 2)
    assert behind.last_timestamp == START_MS
    assert table[queue(1)] == bodies.OffsetWrapper(broker_offset=2, pull_offset=0)


def test_group_without_offsets_has_a_lag_when_it_is_asked_for_and_none_in_apaches_answer(
    world: Inspected,
) -> None:
    world.fill(count=4)
    world.consumer("g", "T")
    assert lags(world, "g").offset_table == {}
    header = GetConsumeStatsRequest(consumer_group="g", unfinished=True)
    answer = world.answer(RequestCode.GET_CONSUME_STATS, header)
    table = bodies.ConsumeStats.decode(answer).offset_table
    assert {key: row.unfinished for key, row in table.items()} == {queue(0): 2, queue(1): 2}
    assert table[queue(1)].oldest_unfinished == START_MS + 1000
    whole = GetBrokerConsumeStatsRequest(is_order=False, unfinished=True)
    found = ask_slowly(world.routes, RequestCode.GET_BROKER_CONSUME_STATS, whole)
    groups = bodies.ConsumeStatsList.decode(found.body).consume_stats_list
    (stats,) = next(entry["g"] for entry in groups if "g" in entry)
    assert stats.offset_table == table


def test_answers_without_our_field_have_apaches_members_only(world: Inspected) -> None:
    world.offsets.commit("", "g", "T", 0, 0)
    header = GetConsumeStatsRequest(consumer_group="g")
    assert b"nfinished" not in world.answer(RequestCode.GET_CONSUME_STATS, header)


def test_lag_by_topic_and_by_list(world: Inspected) -> None:
    world.topic("U", 1)
    world.offsets.commit("", "g", "T", 0, 0)
    world.offsets.commit("", "g", "U", 0, 0)
    assert {key.topic for key in lags(world, "g", "U").offset_table} == {"U"}
    assert {key.topic for key in lags(world, "g", listed="U;gone").offset_table} == {"U"}
    assert {key.topic for key in lags(world, "g", "  ").offset_table} == {"T", "U"}
    assert lags(world, "g", "gone").offset_table == {}


def test_lag_leaves_out_topics_an_online_group_no_longer_wants(world: Inspected) -> None:
    world.topic("U", 1)
    world.offsets.commit("", "g", "T", 0, 0)
    world.offsets.commit("", "g", "U", 0, 0)
    world.consumer("g", "T")
    assert {key.topic for key in lags(world, "g").offset_table} == {"T"}
    assert lags(world, "g", "U").offset_table == {}
    assert {key.topic for key in lags(world, "g", listed="U").offset_table} == {"U"}, (
        "a list is not questioned"
    )


def test_consume_rate_is_summed_over_topics(world: Inspected) -> None:
    world.topic("U", 1)
    world.offsets.commit("", "g", "T", 0, 0)
    world.offsets.commit("", "g", "U", 0, 0)
    world.stats.get("g", "T", 0, 30, 1)
    world.stats.get("g", "U", 0, 20, 1)
    world.stats.sample(world.clock.now_ms() + 10_000)
    assert lags(world, "g").consume_tps == 5.0


def test_lag_of_the_whole_broker(world: Inspected) -> None:
    world.topic("ordered", 1, order=True)
    world.fill(count=4)
    world.put("ordered")
    for group in ("g", "unknown"):
        world.offsets.commit("", group, "T", 0, 1)
        world.offsets.commit("", group, "ordered", 0, 0)

    def stats(*, order: bool) -> bodies.ConsumeStatsList:
        header = GetBrokerConsumeStatsRequest(is_order=order)
        answer = ask_slowly(world.routes, RequestCode.GET_BROKER_CONSUME_STATS, header)
        return bodies.ConsumeStatsList.decode(answer.body)

    whole = stats(order=False)
    assert (whole.broker_addr, whole.total_diff, whole.total_inflight_diff) == (ADDRESS, 1 + 2 + 1, 0)
    by_group = {group: found for entry in whole.consume_stats_list for group, found in entry.items()}
    assert set(by_group) == set(world.groups.configs), "every configured group, also without offsets"
    assert [len(one.offset_table) for one in by_group["g"]] == [2, 1]
    assert stats(order=True).total_diff == 1


def test_lag_of_the_whole_broker_gives_others_their_turn_and_is_bounded(
    world: Inspected, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        world.group(f"group-{number}")
        world.offsets.commit("", f"group-{number}", "T", 0, 0)
    header = GetBrokerConsumeStatsRequest(is_order=False)
    monkeypatch.setattr(group_progress, "_QUEUES_AT_ONCE", 1)
    answer = ask_slowly(world.routes, RequestCode.GET_BROKER_CONSUME_STATS, header)
    listed = bodies.ConsumeStatsList.decode(answer.body).consume_stats_list
    assert len(listed) == len(world.groups.configs)
    monkeypatch.setattr(group_progress, "_ANSWER_BYTES_MAX", 500)
    answer = ask_slowly(world.routes, RequestCode.GET_BROKER_CONSUME_STATS, header)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "too many" in (answer.remark or "")


# -- statistics --------------------------------------------------------------------------------------------


def test_stats_data_tells_the_three_windows(world: Inspected) -> None:
    world.stats.put("T", 0, 20, 100)
    world.stats.sample(world.clock.now_ms() + 10_000)
    header = ViewBrokerStatsDataRequest(stats_name="TOPIC_PUT_NUMS", stats_key="T")
    answer = bodies.BrokerStatsData.decode(world.answer(RequestCode.VIEW_BROKER_STATS_DATA, header))
    assert answer.stats_minute == bodies.BrokerStatsItem(sum=20, tps=2.0, avgpt=20.0)
    assert answer.stats_day == bodies.BrokerStatsItem()


def test_stats_by_queue_can_be_switched_off(world: Inspected) -> None:
    world.stats.put("T", 0, 20, 100)
    header = ViewBrokerStatsDataRequest(stats_name="QUEUE_PUT_NUMS", stats_key="T@0")
    assert world.ask(RequestCode.VIEW_BROKER_STATS_DATA, header).code == ResponseCode.SUCCESS
    change_option(world.config, "enableDetailStat", "false")
    assert world.ask(RequestCode.VIEW_BROKER_STATS_DATA, header).code == ResponseCode.SYSTEM_ERROR


def test_stats_data_nobody_counted_is_1(world: Inspected) -> None:
    header = ViewBrokerStatsDataRequest(stats_name="TOPIC_PUT_NUMS", stats_key="T")
    frame = world.ask(RequestCode.VIEW_BROKER_STATS_DATA, header)
    assert frame.code == ResponseCode.SYSTEM_ERROR
    assert "TOPIC_PUT_NUMS" in (frame.remark or "")


def test_runtime_info_is_a_table_of_texts(world: Inspected) -> None:
    body = world.answer(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert bodies.KvTable.decode(body).table == {"brokerActive": "true"}


def test_missing_fields_are_named(world: Inspected) -> None:
    fields = {
        RequestCode.GET_TOPIC_STATS_INFO: "topic",
        RequestCode.GET_CONSUME_STATS: "consumerGroup",
        RequestCode.GET_BROKER_CONSUME_STATS: "isOrder",
        RequestCode.GET_CONSUMER_CONNECTION_LIST: "consumerGroup",
        RequestCode.GET_PRODUCER_CONNECTION_LIST: "producerGroup",
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: "topic",
        RequestCode.QUERY_TOPICS_BY_CONSUMER: "group",
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: "group",
        RequestCode.VIEW_BROKER_STATS_DATA: "statsName",
    }
    for code, field in fields.items():
        frame = world.asker.ask_raw(code)
        assert frame.code == ResponseCode.SYSTEM_ERROR, code
        assert field in (frame.remark or ""), code

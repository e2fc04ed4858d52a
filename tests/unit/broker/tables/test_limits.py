"""Limits on state that clients can create in the broker: every table refuses new entries when it is full."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.kit import channel, peer, safe_file, subscriptions

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.clients import ConsumerTable, ProducerTable
from orbitmq.broker.tables.consumer_filters import ConsumerFilters
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.limits import Bound, TableLimits
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.errors import CorruptionError, InvalidParameter
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.subscription import SQL92, SubscriptionData
from orbitmq.model.topic import TopicConfig
from orbitmq.runtime import safe_file as safe_files
from orbitmq.runtime.options import options_of
from orbitmq.testing.manual_clock import ManualClock

BIG = 4_096


def refused(work: Callable[[], Any], bound: Bound, key: str) -> None:
    before, size = bound.refused, bound.size
    with pytest.raises(InvalidParameter, match=rf"the limit is [\d,]+ \({key}\)"):
        work()
    assert (bound.refused, bound.size) == (before + 1, size)


# -- topics ------------------------------------------------------------------------------------------------


def topics(directory: Path, room: int) -> TopicTable:
    built_in = len(
        TopicTable(
            BrokerConfig(), ManualClock(), safe_file(directory, "none.json"), events=BrokerEvents()
        ).configs
    )
    config = BrokerConfig(topics_max=built_in + room)
    return TopicTable(config, ManualClock(), safe_file(directory, "topics.json"), events=BrokerEvents())


def test_topics_above_the_limit_are_refused_by_every_way_that_creates_one(tmp_path: Path) -> None:
    table = topics(tmp_path, 1)
    assert table.create_in_send("T", "TBW102", 4) is not None
    ways: tuple[Callable[[], Any], ...] = (
        lambda: table.create_in_send("U", "TBW102", 4),
        lambda: table.create_in_send_back("%RETRY%g", 1, 6),
        lambda: table.apply([(TopicConfig(topic_name="U"), {})]),
        lambda: table.check_room_for("%RETRY%g_T"),
    )
    for way in ways:
        refused(way, table.bound, "maxTopics")
    assert table.create_in_send("T", "TBW102", 4) is table.configs["T"]
    table.apply([(TopicConfig(topic_name="T", perm=4), {})])
    assert table.configs["T"].perm == 4, "known topics change"
    table.delete("T")
    assert table.create_in_send("U", "TBW102", 4) is not None


def test_a_list_of_topics_needs_room_for_all_of_them(tmp_path: Path) -> None:
    table = topics(tmp_path, 1)
    refused(
        lambda: table.apply([(TopicConfig(topic_name=name), {}) for name in ("A", "B")]),
        table.bound,
        "maxTopics",
    )
    assert "A" not in table.configs


def test_the_broker_creates_what_it_must_above_the_limit(tmp_path: Path) -> None:
    table = topics(tmp_path, 0)
    assert table.create_own("%RETRY%g_T", 1, 6) is table.create_own("%RETRY%g_T", 1, 6)


# -- groups ------------------------------------------------------------------------------------------------


def groups(directory: Path, room: int) -> GroupTable:
    built_in = len(
        GroupTable(
            BrokerConfig(), ManualClock(), safe_file(directory, "none.json"), events=BrokerEvents()
        ).configs
    )
    config = BrokerConfig(groups_max=built_in + room)
    return GroupTable(config, ManualClock(), safe_file(directory, "groups.json"), events=BrokerEvents())


def test_groups_above_the_limit_are_refused_on_first_use_and_by_request(tmp_path: Path) -> None:
    table = groups(tmp_path, 1)
    assert table.find("g") is not None
    refused(lambda: table.find("h"), table.bound, "maxGroups")
    refused(lambda: table.apply([SubscriptionGroupConfig(group_name="h")]), table.bound, "maxGroups")
    assert table.find("g") is not None
    table.delete("g")
    assert table.find("h") is not None


def test_a_group_config_too_large_for_its_share_of_the_file_is_refused(tmp_path: Path) -> None:
    table = groups(tmp_path, 1)
    large = SubscriptionGroupConfig(group_name="g", attributes={"+priority.factor": "0" * 2_000})
    with pytest.raises(InvalidParameter, match="bytes; the limit is 1,536"):
        table.apply([large])
    assert "g" not in table.configs


def test_forbidden_topics_are_counted(tmp_path: Path) -> None:
    table = groups(tmp_path, 0)
    room = table.bound.limit
    for number in range(room):
        table.forbid_reading(f"g{number % 2}", f"T{number}", forbidden=True)
    refused(lambda: table.forbid_reading("g", "T", forbidden=True), table.forbidden_bound, "maxGroups")
    assert "g" not in table.forbidden_table
    table.forbid_reading("g0", "T0", forbidden=True)
    table.forbid_reading("g0", "T0", forbidden=False)
    table.forbid_reading("g", "T", forbidden=True)
    table.delete("g1")
    again = groups(tmp_path, 0)
    again.load()
    assert again.forbidden_bound.size == table.forbidden_bound.size == room // 2


# -- offsets -----------------------------------------------------------------------------------------------


def offsets(directory: Path, offset_bytes_max: int = 64 << 20) -> ConsumerOffsets:
    config = BrokerConfig(offset_bytes_max=offset_bytes_max)
    return ConsumerOffsets(config, ManualClock(), safe_file(directory, "offsets.json"))


def fill(table: ConsumerOffsets) -> int:
    """Commits offsets of new queues until one is refused; returns how many were accepted."""
    for queue_id in range(BIG):
        try:
            table.commit("host", "g", "T", queue_id, 2**62)
        except InvalidParameter:
            return queue_id
    raise AssertionError("nothing was refused")


def test_offsets_of_new_queues_are_refused_when_the_file_would_grow_too_large(tmp_path: Path) -> None:
    table = offsets(tmp_path, offset_bytes_max=BIG)
    taken = fill(table)
    assert taken > BIG // 50
    assert len(table.content()) <= BIG, "what is counted is not less than what is written"
    for way in (
        lambda: table.commit("host", "h", "T", 0, 1),
        lambda: table.assign_reset("g", "T", taken, 1),
        lambda: table.clone("g", "h", "T"),
    ):
        refused(way, table.bound, "maxConsumerOffsetBytes")
    table.commit("host", "g", "T", 0, 7)
    table.commit("broker", "own", "T", 0, 1, own=True)
    table.note_pull("h", "T", 0, 0, 1)
    assert (table.query("g", "T", 0), table.query("own", "T", 0)) == (7, 1)
    assert table.pulled == {}
    table.remove_group("g")
    table.commit("host", "h", "T", 0, 1)


def test_pull_positions_count_and_both_counts_survive_a_restart(tmp_path: Path) -> None:
    table = offsets(tmp_path)
    for queue_id in range(20):
        table.commit("host", "g" * 100, "T", queue_id, 2**62)
        table.note_pull("g" * 100, "T", queue_id, 0, 2**62)
        table.note_pull("g" * 100, "U", queue_id, 0, 2**62)
    assert len(table.content()) - 200 < table.bound.size < 2 * len(table.content())
    table.persist()
    again = offsets(tmp_path)
    again.load()
    assert again.bound.size == table.bound.size
    again.clear_pulled("g" * 100, "U")
    again.remove_group("g" * 100)
    assert again.bound.size == 0


def test_a_file_above_the_limit_is_loaded_and_only_new_queues_are_refused(tmp_path: Path) -> None:
    fill(offsets(tmp_path, offset_bytes_max=2 * BIG))
    table = offsets(tmp_path, offset_bytes_max=2 * BIG)
    taken = fill(table)
    table.persist()
    again = offsets(tmp_path, offset_bytes_max=BIG)
    again.load()
    assert len(again.queues_of("g", "T")) == taken
    again.commit("host", "g", "T", 0, 1)
    refused(lambda: again.commit("host", "g", "T", taken, 1), again.bound, "maxConsumerOffsetBytes")


def test_a_table_larger_than_can_be_loaded_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = safe_file(tmp_path, "table.json")
    file.save(b"good")
    monkeypatch.setattr(safe_files, "CONTENT_BYTES_MAX", 8)
    with pytest.raises(OSError, match="9 bytes; the limit is 8"):
        file.save(b"x" * 9)
    assert file.load(bytes) == b"good"
    file.save(b"x" * 8)
    (tmp_path / "table.json").write_bytes(b"x" * 9)
    with pytest.raises(CorruptionError):
        file.load(bytes)


# -- clients -----------------------------------------------------------------------------------------------


def join(table: ConsumerTable, number: int, group: str, *wanted: SubscriptionData) -> None:
    table.register(
        group,
        channel(peer(number), f"c{number}"),
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        from_where="",
        subscriptions=wanted,
    )


def test_consumers_above_the_limit_are_refused_and_those_known_are_renewed() -> None:
    table = ConsumerTable(BrokerConfig(consumers_max=2), ManualClock(), events=BrokerEvents())
    one = channel(peer(1), "c1")
    for group in ("g", "h"):
        table.register(
            group, one, consume_type="", message_model="", from_where="", subscriptions=None, notify=False
        )
    refused(lambda: join(table, 2, "i"), table.bound, "maxConsumers")
    assert set(table.groups) == {"g", "h"}, "no group without members"
    table.register("g", one, consume_type="", message_model="", from_where="", subscriptions=None)
    table.connection_closed(one.connection)
    assert table.bound.size == 0
    join(table, 2, "i")


def test_subscriptions_above_the_limit_are_refused() -> None:
    table = ConsumerTable(BrokerConfig(subscription_bytes_max=2_000), ManualClock(), events=BrokerEvents())
    join(table, 1, "g", *subscriptions("A", "B", "C"))
    refused(
        lambda: join(table, 2, "h", *subscriptions("A", expression="x" * 20)),
        table.subscription_bound,
        "maxSubscriptionBytes",
    )
    join(table, 2, "g", *subscriptions("A", version=2))
    assert table.subscription_bound.size < 600, "the last heartbeat of a group counts"
    join(table, 3, "h", *subscriptions("A", expression="x" * 20))
    for group in ("g", "h"):
        for connection in list(table.groups[group].members):
            table.unregister(group, connection)
    assert table.subscription_bound.size == 0


def test_producers_above_the_limit_are_refused() -> None:
    table = ProducerTable(BrokerConfig(producers_max=1), ManualClock())
    one = channel(peer(1), "c1")
    table.register("p", one)
    refused(lambda: table.register("q", one), table.bound, "maxProducers")
    table.register("p", one)
    table.unregister("p", one.connection)
    table.register("q", one)
    assert set(table.groups) == {"q"}


def test_filters_above_the_limit_are_refused_until_one_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    table = ConsumerFilters(
        BrokerConfig(filters_max=1), clock, safe_file(tmp_path, "filters.json"), events=BrokerEvents()
    )

    def subscribe(topic: str, expression: str, version: int = 1) -> None:
        wanted = SubscriptionData(
            topic=topic, sub_string=expression, expression_type=SQL92, sub_version=version
        )
        table.subscribed("g", [wanted])

    subscribe("T", "a > 1")
    subscribe("T", "a > 2", 2)
    refused(lambda: subscribe("U", "a > 1"), table.bound, "maxFilters")
    table.group_gone("g")
    clock.advance(24 * 3_600_000 + 1)
    table.persist()
    assert table.bound.size == 0
    subscribe("U", "a > 1")


# -- all of them -------------------------------------------------------------------------------------------


def test_every_limit_is_generous_live_and_not_a_key_of_apaches() -> None:
    from orbitmq.broker.idle_options import IdleOptions
    from orbitmq.runtime.apache_options import BROKER_KEYS

    others = {declared.key for declared in options_of(IdleOptions)}
    limits = [declared for declared in options_of(TableLimits) if declared.key not in others]
    assert len(limits) == 8
    for declared in limits:
        assert declared.key not in BROKER_KEYS
        assert re.fullmatch(r"max[A-Z][A-Za-z]+", declared.key)
        assert declared.reload
        assert declared.default >= 20_000

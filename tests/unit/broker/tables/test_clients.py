"""The tables of producers and consumers."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import pytest
from tests.unit.broker.kit import CONFIG, FakeConnection, channel, notices, peer, subscriptions

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.clients import ConsumerTable, PeerInfo, ProducerTable
from orbitmq.model.subscription import SubscriptionData, subscribe_by_tags
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.connection import Connection


def register(
    table: ConsumerTable,
    connection: Connection,
    client_id: str = "c",
    *,
    group: str = "g",
    model: str = "CLUSTERING",
    subs: Collection[SubscriptionData] | None = (),
    now_ms: int = 0,
    notify: bool = True,
) -> bool:
    return table.register(
        group,
        channel(connection, client_id, now_ms),
        consume_type="CONSUME_PASSIVELY",
        message_model=model,
        from_where="CONSUME_FROM_LAST_OFFSET",
        subscriptions=subs,
        notify=notify,
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def table(clock: ManualClock) -> ConsumerTable:
    return ConsumerTable(CONFIG, clock, events=BrokerEvents())


def test_every_member_is_told_when_one_joins(table: ConsumerTable) -> None:
    one, two = peer(1), peer(2)
    assert register(table, one, "a", subs=subscriptions("T"))
    assert notices(one) == ["g"]
    assert register(table, two, "b", subs=subscriptions("T"))
    assert (notices(one), notices(two)) == (["g"], ["g"])
    assert not register(table, two, "b", subs=subscriptions("T"))
    assert (notices(one), notices(two)) == ([], [])
    group = table.group("g")
    assert group is not None
    assert group.client_ids == ["a", "b"]


def test_members_are_told_when_the_topics_change_but_not_when_a_tag_does(table: ConsumerTable) -> None:
    one = peer(1)
    register(table, one, subs=subscriptions("T"))
    notices(one)
    newer = [subscribe_by_tags("T", "A || B", 2)]
    assert not register(table, one, subs=newer)
    assert notices(one) == []
    found = table.subscription("g", "T")
    assert found is not None
    assert found.tags_set == {"A", "B"}
    assert register(table, one, subs=[*newer, *subscriptions("U")])
    assert notices(one) == ["g"]
    assert register(table, one, subs=subscriptions("U"))
    assert notices(one) == ["g"]
    assert table.subscription("g", "T") is None


def test_an_older_subscription_does_not_replace_a_newer_one(table: ConsumerTable) -> None:
    one = peer(1)
    register(table, one, subs=[subscribe_by_tags("T", "new", 5)])
    register(table, one, subs=[subscribe_by_tags("T", "old", 4)])
    found = table.subscription("g", "T")
    assert found is not None
    assert found.sub_string == "new"


def test_a_heartbeat_without_subscriptions_keeps_them(table: ConsumerTable) -> None:
    one = peer(1)
    register(table, one, subs=subscriptions("T"))
    assert not register(table, one, subs=None)
    assert table.subscription("g", "T") is not None


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(BrokerConfig(notify_consumer_changes=False), id="broker-flag"),
        pytest.param(CONFIG, id="group-flag"),
    ],
)
def test_nobody_is_told_when_a_flag_forbids_it(config: BrokerConfig) -> None:
    table = ConsumerTable(config, ManualClock(), events=BrokerEvents())
    one = peer(1)
    register(table, one, notify=config is not CONFIG)
    table.unregister("g", one, notify=config is not CONFIG)
    assert notices(one) == []


def test_a_broadcasting_group_is_never_told(table: ConsumerTable) -> None:
    one, two = peer(1), peer(2)
    register(table, one, model="BROADCASTING")
    register(table, two, model="BROADCASTING")
    table.connection_closed(two)
    assert notices(one) == []


def test_notices_are_collected_when_they_may_not_be_sent_at_once() -> None:
    config = BrokerConfig(notify_at_once=False)
    table = ConsumerTable(config, ManualClock(), events=BrokerEvents())
    one, two = peer(1), peer(2)
    register(table, one)
    register(table, two)
    assert notices(one) == []
    table.send_collected_notices()
    assert (notices(one), notices(two)) == (["g"], ["g"])
    table.send_collected_notices()
    assert notices(one) == []
    table.connection_closed(one)
    table.connection_closed(two)
    table.send_collected_notices()


def test_a_closed_connection_leaves_all_its_groups(table: ConsumerTable) -> None:
    gone: list[str] = []
    table._group_gone.append(gone.append)
    one, two = peer(1), peer(2)
    for group in ("g", "h"):
        register(table, one, group=group)
    register(table, two, group="g")
    notices(two)
    table.connection_closed(one)
    assert notices(two) == ["g"]
    assert gone == ["h"]
    assert set(table.groups) == {"g"}
    table.connection_closed(one)
    table.connection_closed(peer(9))
    assert notices(two) == []
    assert table._groups_of.keys() == {two}


def test_unregistering_tells_those_who_stay(table: ConsumerTable) -> None:
    one, two = peer(1), peer(2)
    register(table, one)
    register(table, two)
    notices(one), notices(two)
    table.unregister("g", two)
    assert (notices(one), notices(two)) == (["g"], [])
    table.unregister("g", two)
    table.unregister("unknown", two)
    assert notices(one) == []


def test_silence_for_two_minutes_ends_a_member(table: ConsumerTable, clock: ManualClock) -> None:
    one, two = peer(1), peer(2)
    register(table, one, now_ms=clock.now_ms())
    clock.advance(60_000)
    register(table, two, now_ms=clock.now_ms())
    notices(one), notices(two)
    clock.advance(60_000)
    table.expire()
    assert (one.closed, two.closed) == (False, False)
    clock.advance(1)
    table.expire()
    assert (one.closed, two.closed) == (True, False)
    assert notices(two) == ["g"]
    register(table, two, now_ms=clock.now_ms())
    clock.advance(120_000)
    table.expire()
    assert not two.closed


def test_a_second_client_id_on_a_connection_replaces_the_first(table: ConsumerTable) -> None:
    one = peer(1)
    register(table, one, "a")
    assert not register(table, one, "b")
    group = table.group("g")
    assert group is not None
    assert group.client_ids == ["b"]
    found = table.channel_of("g", "b")
    assert found is not None
    assert found.connection is one
    assert table.channel_of("g", "a") is None


def test_subscriptions_of_pulls_are_known_for_ten_minutes(table: ConsumerTable, clock: ManualClock) -> None:
    (learnt,) = subscriptions("T", version=clock.now_ms())
    table.learn("puller", "CONSUME_ACTIVELY", "CLUSTERING", learnt)
    assert table.subscription("puller", "T") is None
    assert table.known_subscription("puller", "T") == learnt
    assert table.known_group("puller") is not None
    clock.advance(600_000)
    table.expire()
    assert table.known_subscription("puller", "T") == learnt
    clock.advance(1)
    table.expire()
    assert table.known_subscription("puller", "T") is None
    assert table.known_group("puller") is None


def test_groups_of_a_topic_are_those_who_subscribe_now(table: ConsumerTable) -> None:
    one = peer(1)
    register(table, one, group="h", subs=subscriptions("T", "U"))
    register(table, one, group="g", subs=subscriptions("T"))
    assert table.groups_of_topic("T") == ["g", "h"]
    register(table, one, group="h", subs=subscriptions("U", version=2))
    assert table.groups_of_topic("T") == ["g"]


def test_subscribers_are_reported(table: ConsumerTable) -> None:
    seen: list[tuple[str, list[str]]] = []
    table._subscribed.append(lambda group, subs: seen.append((group, [sub.topic for sub in subs])))
    register(table, peer(1), subs=subscriptions("T"))
    register(table, peer(2), subs=None)
    assert seen == [("g", ["T"])]


@pytest.fixture
def producers(clock: ManualClock) -> ProducerTable:
    return ProducerTable(CONFIG, clock)


def test_producers_are_picked_in_turn(producers: ProducerTable) -> None:
    peers = [peer(number) for number in range(3)]
    for number, connection in enumerate(peers):
        producers.register("p", channel(connection, f"c{number}"))
    picked = [producers.pick("p") for _ in range(6)]
    assert set(picked[:3]) == set(peers)
    assert picked[:3] == picked[3:]
    assert producers.pick("nobody") is None


def test_a_producer_that_does_not_read_is_picked_last(producers: ProducerTable) -> None:
    slow, dead, good = peer(1), peer(2), peer(3)
    cast(FakeConnection, slow).unsent_bytes = 2 << 20
    dead.closed = True
    for number, connection in enumerate((slow, dead, good)):
        producers.register("p", channel(connection, f"c{number}"))
    assert all(producers.pick("p") is good for _ in range(6))
    producers.connection_closed(good)
    assert all(producers.pick("p") is slow for _ in range(4))


def test_a_client_is_found_by_its_id_until_its_last_group_left(producers: ProducerTable) -> None:
    one = peer(1)
    for group in ("p", "q"):
        producers.register(group, channel(one, "c"))
    producers.unregister("p", one)
    producers.unregister("p", one)
    assert producers.channel_of("c") is one
    assert [(group, found.client_id) for group, found in producers.channels()] == [("q", "c")]
    producers.connection_closed(one)
    assert producers.channel_of("c") is None
    assert producers.groups == {}


def test_a_client_that_reconnected_is_not_forgotten_with_its_old_connection(producers: ProducerTable) -> None:
    old, new = peer(1), peer(2)
    producers.register("p", channel(old, "c"))
    producers.register("p", channel(new, "c"))
    producers.connection_closed(old)
    assert producers.channel_of("c") is new


def test_silent_producers_are_closed(producers: ProducerTable, clock: ManualClock) -> None:
    one, two = peer(1), peer(2)
    producers.register("p", channel(one, "a", clock.now_ms()))
    clock.advance(100_000)
    producers.register("p", channel(two, "b", clock.now_ms()))
    clock.advance(20_001)
    producers.expire()
    assert (one.closed, two.closed) == (True, False)
    assert list(producers.groups["p"]) == [two]


def test_producers_are_not_kept_when_nothing_needs_them() -> None:
    config = BrokerConfig(register_producers=False, transactions_refused=True)
    table = ProducerTable(config, ManualClock())
    table.register("p", channel(peer(1), "a"))
    assert table.groups == {}


def test_a_peer_is_remembered_by_the_address_its_messages_carry() -> None:
    info = PeerInfo.of(peer(80))
    assert info.host == bytes([10, 0, 0, 1, 0, 0, 0, 80])

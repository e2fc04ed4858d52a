"""Groups through the admin functions: members, progress, moves of offsets, and deletion."""

from __future__ import annotations

import pytest
from tests.unit.admin.scripted import NS, NS2, A, Asked, B, Scripted

from orbitmq.admin import groups
from orbitmq.admin.errors import AdminError, UnknownNameError
from orbitmq.admin.moves import OffsetTarget, plan_moves
from orbitmq.codes import ResponseCode
from orbitmq.errors import ConsumerNotOnline
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.route import MessageQueue
from orbitmq.requests import RequestCode
from orbitmq.wire import bodies
from orbitmq.wire.bodies.clients import ClientConnection
from orbitmq.wire.bodies.stats import ConsumeStats, OffsetWrapper
from orbitmq.wire.javajson import ObjectMap

NAMES = {A: "broker-a", B: "broker-b"}
STATS, MEMBERS = RequestCode.GET_CONSUME_STATS, RequestCode.GET_CONSUMER_CONNECTION_LIST


@pytest.fixture
def admin() -> Scripted:
    return Scripted()


def queue(broker: str, number: int = 0) -> MessageQueue:
    return MessageQueue(topic="T", broker_name=broker, queue_id=number)


def stats(asked: Asked, **offset: int | None) -> bytes:
    """Returns the statistics of queue 0 of the queried broker."""
    values = {"broker_offset": 100, "consumer_offset": 40, **offset}
    table = ObjectMap({queue(NAMES[asked.address]): OffsetWrapper(**values)})  # type: ignore[arg-type]  # of any field
    return ConsumeStats(consume_tps=2.0, offset_table=table).encode()


def members(*client_ids: str) -> bytes:
    clients = [ClientConnection(client_id=one, client_addr="10.0.0.9:1", version=493) for one in client_ids]
    return bodies.ConsumerConnection(connection_set=clients, consume_type="CONSUME_PASSIVELY").encode()


def test_progress_adds_up_brokers_and_prefers_what_is_unfinished(admin: Scripted) -> None:
    admin.route_of("%RETRY%G")
    unfinished = {A: 7, B: None}
    admin.answers[STATS] = lambda asked: stats(asked, unfinished=unfinished[asked.address], pull_offset=45)
    found = admin.run(groups.group_progress(admin, "G"))
    assert [(row.broker_name, row.diff, row.lag, row.inflight) for row in found.queues] == [
        ("broker-a", 60, 7, 5),
        ("broker-b", 60, 60, 5),
    ]
    assert (found.consume_tps, found.diff_total, found.lag_total, found.inflight_total) == (4.0, 120, 67, 10)
    assert admin.of(STATS)[0].fields.items() >= {"consumerGroup": "G", "unfinished": "true"}.items()


def test_progress_of_an_older_broker_has_nothing_in_flight_and_no_negative_lag(admin: Scripted) -> None:
    admin.route_of("%RETRY%G")
    admin.answers[STATS] = lambda asked: stats(asked, broker_offset=30)
    found = admin.run(groups.group_progress(admin, "G"))
    assert {(row.diff, row.lag, row.inflight) for row in found.queues} == {(-10, 0, 0)}


@pytest.mark.parametrize("routed", ["%RETRY%G", "T", "%RETRY%G_T", "route-of-another"])
def test_group_is_found_by_the_first_topic_that_has_a_route(admin: Scripted, routed: str) -> None:
    admin.route_of(routed)
    admin.answers[STATS] = stats
    found = admin.run(groups.consume_stats(admin, "G", "T", route_topic="route-of-another"))
    assert {one.broker_name for one in found.offset_table} == {"broker-a", "broker-b"}


def test_group_without_any_route_is_unknown(admin: Scripted) -> None:
    admin.route_of("another")
    with pytest.raises(UnknownNameError, match="consumer group 'G'"):
        admin.run(groups.consume_stats(admin, "G", "T"))


def test_progress_of_a_group_with_nothing_at_all_says_that_it_is_offline(admin: Scripted) -> None:
    admin.route_of("%RETRY%G")
    admin.answers[STATS] = lambda asked: ConsumeStats().encode()
    admin.answers[MEMBERS] = lambda asked: int(ResponseCode.CONSUMER_NOT_ONLINE)
    with pytest.raises(ConsumerNotOnline):
        admin.run(groups.group_progress(admin, "G"))
    assert [asked.address for asked in admin.of(MEMBERS)] == [A, B], "the other broker may have the members"


def test_members_are_those_of_the_first_broker_that_has_any(admin: Scripted) -> None:
    admin.route_of("%RETRY%G")
    admin.answers[MEMBERS] = lambda asked: (
        int(ResponseCode.CONSUMER_NOT_ONLINE) if asked.address == A else members("one@1", "two@2")
    )
    found = admin.run(groups.consumer_connection(admin, "G"))
    assert [client.client_id for client in found.connections] == ["one@1", "two@2"]
    assert admin.run(groups.consumer_connection(admin, "G", "broker-b")) == found
    with pytest.raises(ConsumerNotOnline):
        admin.run(groups.consumer_connection(admin, "G", A))


def test_list_of_groups_shows_those_that_are_offline_or_cannot_be_asked(admin: Scripted) -> None:
    admin.topics("T", "%RETRY%on", "%RETRY%off")
    admin.route_of("%RETRY%on")
    admin.answers[STATS] = stats
    admin.answers[MEMBERS] = lambda asked: members("one@1")
    on, off = admin.run(groups.consumer_groups(admin)).groups
    assert (on.group, on.count, on.type, on.tps, on.diff_total, on.lag_total) == (
        "on",
        1,
        "PUSH",
        4,
        120,
        120,
    )
    assert (off.group, off.count, off.version, off.diff_total) == ("off", 0, "OFFLINE", 0)


@pytest.mark.parametrize("cluster", [True, False])
def test_group_of_a_cluster_is_deleted_with_its_own_topics(admin: Scripted, cluster: bool) -> None:
    known = bodies.SubscriptionGroupWrapper(
        subscription_group_table={"G": SubscriptionGroupConfig(group_name="G")}
    ).encode()
    admin.answers[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = lambda asked: (
        known if asked.address == A else bodies.SubscriptionGroupWrapper().encode()
    )
    where = {"broker": None, "cluster": "C"} if cluster else {"broker": "broker-a", "cluster": None}
    done = admin.run(groups.delete_group(admin, "G", remove_offset=True, **where))
    asked = admin.of(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    assert [one.address for one in asked] == ([A, B] if cluster else [A])
    assert asked[0].fields.items() >= {"groupName": "G", "cleanOffset": "true"}.items()
    assert {one.action for one in done.changes} == {"group G deleted"}
    own = ["%RETRY%G", "%DLQ%G"] if cluster else []
    in_brokers = admin.of(RequestCode.DELETE_TOPIC_IN_BROKER)
    assert [(one.address, one.fields["topic"]) for one in in_brokers] == [
        (address, topic) for topic in own for address in (A, B)
    ]
    in_name_servers = admin.of(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    assert [(one.address, one.fields["topic"]) for one in in_name_servers] == [
        (address, topic) for topic in own for address in (NS, NS2)
    ]


def test_unknown_group_is_not_deleted(admin: Scripted) -> None:
    nothing = bodies.SubscriptionGroupWrapper().encode()
    admin.answers[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = lambda asked: nothing
    with pytest.raises(UnknownNameError, match="group 'G'"):
        admin.run(groups.delete_group(admin, "G", broker=None, cluster="C"))
    assert admin.of(RequestCode.DELETE_SUBSCRIPTIONGROUP) == []


@pytest.fixture
def moving(admin: Scripted) -> Scripted:
    """Queues hold 10 to 100, the group is at 40, and another one at 70 on broker-a alone."""
    admin.route_of("T", queues=1)
    admin.answers[RequestCode.GET_MIN_OFFSET] = lambda asked: {"offset": "10"}
    admin.answers[RequestCode.GET_MAX_OFFSET] = lambda asked: {"offset": "100"}
    admin.answers[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = lambda asked: {"offset": "55"}

    def progress(asked: Asked) -> bytes:
        if asked.fields["consumerGroup"] == "G":
            return stats(asked)
        return stats(asked, consumer_offset=70) if asked.address == A else ConsumeStats().encode()

    admin.answers[STATS] = progress
    return admin


@pytest.mark.parametrize(
    ("target", "a", "b"),
    [
        (OffsetTarget("first"), 10, 10),
        (OffsetTarget("last"), 100, 100),
        (OffsetTarget("time", time_ms=1), 55, 55),
        (OffsetTarget("offset", offset=60), 60, 60),
        (OffsetTarget("offset", offset=5), 10, 10),
        (OffsetTarget("offset", offset=500), 100, 100),
        (OffsetTarget("shift", shift=-20), 20, 20),
        (OffsetTarget("shift", shift=-50), 10, 10),
        (OffsetTarget("group", source="H"), 70, 40),
    ],
)
def test_offsets_move_within_what_the_queue_holds(
    moving: Scripted, target: OffsetTarget, a: int, b: int
) -> None:
    found = moving.run(plan_moves(moving, "G", "T", target))
    assert [(move.queue.broker_name, move.address, move.now, move.then) for move in found] == [
        ("broker-a", A, 40, a),
        ("broker-b", B, 40, b),
    ]
    assert moving.of(RequestCode.UPDATE_CONSUMER_OFFSET) == [], "a plan changes nothing"


def test_one_queue_is_moved_alone_and_an_unknown_one_is_refused(moving: Scripted) -> None:
    first = OffsetTarget("first")
    [move] = moving.run(plan_moves(moving, "G", "T", first, queue_name="broker-b:0"))
    assert move.queue == queue("broker-b")
    with pytest.raises(UnknownNameError, match="queue 'broker-b:1'"):
        moving.run(plan_moves(moving, "G", "T", first, queue_name="broker-b:1"))
    with pytest.raises(AdminError, match="not 'sideways'"):
        moving.run(plan_moves(moving, "G", "T", OffsetTarget("sideways")))


def test_group_that_consumed_nothing_starts_from_the_oldest_message(moving: Scripted) -> None:
    moving.answers[STATS] = lambda asked: int(ResponseCode.SYSTEM_ERROR)
    found = moving.run(plan_moves(moving, "G", "T", OffsetTarget("shift", shift=1)))
    assert [(move.now, move.then) for move in found] == [(10, 11), (10, 11)]

"""The route table: registration rules, liveness, acting masters, permissions, the clients' view."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from tests.unit.namesrv.brokers import (
    CLUSTER,
    addresses,
    check_invariants,
    key,
    perms,
    registration,
    topic_config,
)

from orbitmq.errors import ServerError
from orbitmq.model.data_version import DataVersion
from orbitmq.model.route import BrokerData, QueueData
from orbitmq.namesrv.registration import BrokerKey, MinIdNotice, Registered, RouteRules
from orbitmq.namesrv.route_table import RouteTable, route_in_zone
from orbitmq.testing.manual_clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def table(clock: ManualClock) -> Iterator[RouteTable]:
    table = RouteTable(clock)
    yield table
    check_invariants(table)


# -- registration ----------------------------------------------------------------------------------------


def test_register_master_gives_routes_for_its_topics(table: RouteTable) -> None:
    assert table.register(registration([topic_config("T", queues=8, flag=3), "U"])) == Registered()
    route = table.route("T")
    assert route is not None
    assert route.queue_datas == [
        QueueData(broker_name="a", perm=6, read_queue_nums=8, topic_sys_flag=3, write_queue_nums=8)
    ]
    assert route.broker_datas == [BrokerData(broker_addrs={0: "a0:1"}, broker_name="a", cluster=CLUSTER)]
    assert route.filter_server_table == {}
    assert table.clusters() == {CLUSTER: ["a"]}
    assert table.route("none") is None


def test_first_registration_with_one_topic_is_refused_and_leaves_nothing(table: RouteTable) -> None:
    with pytest.raises(ServerError, match="register broker failed"):
        table.register(registration(["T"]))
    assert table.brokers() == {}
    assert table.clusters() == {}
    assert table.topics() == []


def test_one_topic_of_a_known_broker_is_an_increment(table: RouteTable) -> None:
    table.register(registration(["T", "U"]))
    table.register(registration(["V"], version=2))
    assert sorted(table.topics()) == ["T", "U", "V"]


def test_first_registration_without_topics_is_taken(table: RouteTable) -> None:
    table.register(registration([]))
    assert addresses(table) == {0: "a0:1"}


def test_unchanged_data_version_keeps_queues_but_brings_missing_topics(table: RouteTable) -> None:
    table.register(registration(["T", "U"]))
    table.delete_topic("U")
    table.register(registration([topic_config("T", queues=16), "U"]))
    route = table.route("T")
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 4
    assert table.route("U") is not None


def test_changed_data_version_changes_queues(table: RouteTable) -> None:
    table.register(registration(["T", "U"]))
    table.register(registration([topic_config("T", queues=16), "U"], version=2))
    route = table.route("T")
    assert route is not None
    assert route.queue_datas[0].read_queue_nums == 16


def test_registration_without_a_topic_keeps_it(table: RouteTable) -> None:
    table.register(registration(["T", "U", "V"]))
    table.register(registration(["T", "U"], version=2))
    assert table.route("V") is not None


def test_registration_without_a_topic_removes_it_where_that_is_switched_on(clock: ManualClock) -> None:
    table = RouteTable(clock, RouteRules(delete_topic_with_registration=True))
    table.register(registration(["T", "U", "V"]))
    table.register(registration(["T", "V", "W"], name="b"))
    table.register(registration(["T", "U"], version=2))
    assert sorted(perms(table, "V")) == ["b"]
    table.register(registration(["T", "X"], name="b", version=2))
    assert table.route("V") is None
    check_invariants(table)


def test_topic_removal_by_registration_never_touches_a_broker_with_static_topics(clock: ManualClock) -> None:
    table = RouteTable(clock, RouteRules(delete_topic_with_registration=True))
    table.register(registration(["T", "U"]))
    table.register(registration(["U", "V"], version=2, mappings={"S": {"bname": "a", "topic": "S"}}))
    assert table.route("T") is not None


def test_slave_is_told_its_master_and_does_not_change_topics(table: RouteTable) -> None:
    table.register(registration(["T", "U"]))
    answer = table.register(registration(["T", "U", "Slave"], broker_id=1, version=9))
    assert answer == Registered("a0:1", "a0:10")
    assert table.route("Slave") is None
    assert addresses(table) == {0: "a0:1", 1: "a1:1"}


def test_slave_without_master_is_told_nothing(table: RouteTable) -> None:
    assert table.register(registration(broker_id=1)) == Registered()


@pytest.mark.parametrize(
    ("acting", "expected"), [(None, None), (False, 6), (True, 4)], ids=["4.x", "5.x", "5.x acting master"]
)
def test_lone_slave_defines_topics_only_from_5_on_and_read_only_as_acting_master(
    table: RouteTable, acting: bool | None, expected: int | None
) -> None:
    table.register(registration(broker_id=2, acting=acting))
    assert perms(table, "T").get("a") == expected


def test_slave_that_is_not_the_smallest_id_does_not_define_topics(table: RouteTable) -> None:
    table.register(registration(broker_id=1))
    table.register(registration(["T", "U", "V"], broker_id=2))
    assert table.route("V") is None


def test_slave_that_becomes_master_keeps_one_id(table: RouteTable) -> None:
    table.register(registration(broker_id=0))
    table.register(registration(broker_id=1))
    table.unregister(key("a", 0), "a")
    table.register(registration(broker_id=0, address="a1:1", version=2))
    assert addresses(table) == {0: "a1:1"}


def test_id_held_by_another_address_with_a_newer_epoch_is_not_given_away(table: RouteTable) -> None:
    table.register(registration(epoch=5, address="new:1"))
    table.register(registration(broker_id=1, epoch=5, address="old:1"))
    # The old master returns, still believing it is master.
    assert table.register(registration(epoch=4, address="old:1", version=7)) == Registered()
    assert addresses(table) == {0: "new:1"}
    assert table.data_version(BrokerKey(CLUSTER, "old:1")) is None


@pytest.mark.parametrize("epoch", [5, 6])
def test_id_held_by_another_address_with_no_newer_epoch_moves(
    table: RouteTable, epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    table.register(registration(epoch=5, address="old:1"))
    table.register(registration(epoch=epoch, address="new:1"))
    assert addresses(table) == {0: "new:1"}
    warned = "another master registered under the name broker=a address=new:1 from=old:1" in caplog.text
    assert warned is (epoch == 5), "an elected master takes it by right"


def test_address_that_comes_back_under_another_name_leaves_the_old_name(table: RouteTable) -> None:
    table.register(registration(["T", "U"], name="a", address="x:1"))
    table.register(registration(["V", "W"], name="b", address="x:1"))
    assert table.clusters() == {CLUSTER: ["b"]}
    assert table.route("T") is None


def test_two_clusters_may_use_one_broker_name(table: RouteTable) -> None:
    table.register(registration(cluster="C1", address="x:1"))
    table.register(registration(cluster="C2", address="y:1", broker_id=1))
    assert table.clusters() == {"C1": ["a"], "C2": ["a"]}
    table.unregister(BrokerKey("C1", "x:1"), "a")
    table.unregister(BrokerKey("C2", "y:1"), "a")
    assert table.clusters() == {}


# -- liveness --------------------------------------------------------------------------------------------


def test_silent_broker_expires_after_its_timeout(table: RouteTable, clock: ManualClock) -> None:
    table.register(registration(name="a", connection="one"))
    table.register(registration(name="b", connection="two", timeout_ms=10_000))
    clock.advance(10_000)
    assert table.expire() == ([], [])
    clock.advance(1)
    assert table.expire() == (["two"], [])
    assert table.clusters() == {CLUSTER: ["a"]}
    clock.advance(110_000)
    assert table.expire() == (["one"], [])
    assert table.topics() == []


def test_heartbeat_keeps_a_broker_alive(table: RouteTable, clock: ManualClock) -> None:
    table.register(registration())
    for _ in range(5):
        clock.advance(100_000)
        table.heartbeat(key())
        assert table.expire() == ([], [])


def test_heartbeat_of_an_unknown_broker_does_nothing(table: RouteTable) -> None:
    table.heartbeat(key("nobody"))
    assert table.brokers() == {}


def test_wall_clock_that_jumps_expires_nobody(table: RouteTable, clock: ManualClock) -> None:
    table.register(registration())
    clock.jump(clock.now_ms() + 10_000_000)
    assert table.expire() == ([], [])


def test_lost_connection_removes_its_brokers_at_once(table: RouteTable) -> None:
    table.register(registration(name="a", connection="one"))
    table.register(registration(name="b", connection="one"))
    table.register(registration(name="c", connection="two"))
    table.connection_lost("one")
    assert table.clusters() == {CLUSTER: ["c"]}


def test_old_connection_lost_after_the_broker_came_back_removes_nothing(table: RouteTable) -> None:
    table.register(registration(connection="old"))
    table.register(registration(connection="new"))
    table.connection_lost("old")
    assert addresses(table) == {0: "a0:1"}
    table.connection_lost("new")
    assert table.brokers() == {}


def test_connection_without_broker_lost_does_nothing(table: RouteTable) -> None:
    table.register(registration())
    assert table.connection_lost("a client") == []
    assert addresses(table) == {0: "a0:1"}


def test_unregister_removes_topics_nobody_else_holds(table: RouteTable) -> None:
    table.register(registration(["T", "U"], name="a"))
    table.register(registration(["U", "V"], name="b"))
    table.unregister(key("a"), "a")
    assert sorted(table.topics()) == ["U", "V"]
    assert sorted(perms(table, "U")) == ["b"]


def test_unregister_of_an_unknown_broker_does_nothing(table: RouteTable) -> None:
    table.register(registration())
    assert table.unregister(key("x"), "x") is None
    assert table.unregister(key("x"), "a") is None
    assert addresses(table) == {0: "a0:1"}


def test_data_version_is_the_one_last_registered(table: RouteTable) -> None:
    assert table.data_version(key()) is None
    table.register(registration(version=7, epoch=2))
    assert table.data_version(key()) == DataVersion(counter=7, state_version=2)


# -- acting masters and notices --------------------------------------------------------------------------


def group_with_acting_master(table: RouteTable) -> None:
    for broker_id in (0, 1, 2):
        table.register(registration(broker_id=broker_id, acting=True))


def test_lost_master_leaves_a_read_only_group_and_tells_the_rest(table: RouteTable) -> None:
    group_with_acting_master(table)
    notice = table.unregister(key("a", 0), "a")
    assert notice == MinIdNotice(("a1:1", "a2:1"), 1, "a1:1", "a0:1", None)
    assert perms(table, "T") == {"a": 4}


def test_lost_master_of_a_group_without_acting_master_changes_no_perm(table: RouteTable) -> None:
    table.register(registration(broker_id=0))
    table.register(registration(broker_id=1))
    assert table.unregister(key("a", 0), "a") is None
    assert perms(table, "T") == {"a": 6}


def test_lost_slave_with_a_larger_id_is_not_announced(table: RouteTable) -> None:
    group_with_acting_master(table)
    assert table.unregister(key("a", 2), "a") is None
    assert perms(table, "T") == {"a": 6}


def test_master_that_returns_is_announced_and_writable_again(table: RouteTable) -> None:
    group_with_acting_master(table)
    table.unregister(key("a", 0), "a")
    answer = table.register(registration(broker_id=0, acting=True))
    assert answer.notice == MinIdNotice(("a1:1", "a2:1"), 0, "a0:1", None, "a0:10")
    assert perms(table, "T") == {"a": 6}


@pytest.mark.parametrize("enabled", [True, False])
def test_clients_see_the_smallest_id_as_master_where_that_is_switched_on(
    clock: ManualClock, enabled: bool
) -> None:
    table = RouteTable(clock, RouteRules(support_acting_master=enabled))
    group_with_acting_master(table)
    table.unregister(key("a", 0), "a")
    route = table.route("T")
    assert route is not None
    shown = {0: "a1:1", 2: "a2:1"} if enabled else {1: "a1:1", 2: "a2:1"}
    assert route.broker_datas[0].broker_addrs == shown
    assert addresses(table) == {1: "a1:1", 2: "a2:1"}


def test_acting_master_is_not_shown_for_writable_topics_nor_for_member_topics(clock: ManualClock) -> None:
    table = RouteTable(clock, RouteRules(support_acting_master=True))
    member_topic = "rmq_sys_SYNC_BROKER_MEMBER_a"
    table.register(registration(["T", member_topic], broker_id=1, acting=True))
    table.add_write_perm("a")
    for topic in ("T", member_topic):
        route = table.route(topic)
        assert route is not None
        assert route.broker_datas[0].broker_addrs == {1: "a1:1"}


def test_expiry_gives_the_notices_of_the_groups_it_hit(table: RouteTable, clock: ManualClock) -> None:
    table.register(registration(broker_id=0, acting=True, timeout_ms=1_000, connection="master"))
    table.register(registration(broker_id=1, acting=True))
    clock.advance(1_001)
    assert table.expire() == (["master"], [MinIdNotice(("a1:1",), 1, "a1:1", "a0:1", None)])


# -- topics ----------------------------------------------------------------------------------------------


def test_wipe_and_add_write_perm_touch_one_broker_name(table: RouteTable) -> None:
    table.register(registration([topic_config("T", perm=7), "U"], name="a"))
    table.register(registration(["T", "V"], name="b"))
    assert table.wipe_write_perm("a") == 2
    assert perms(table, "T") == {"a": 5, "b": 6}
    # The same version again does not undo it; a change does.
    table.register(registration([topic_config("T", perm=7), "U"], name="a"))
    assert perms(table, "T") == {"a": 5, "b": 6}
    assert table.add_write_perm("a") == 2
    assert perms(table, "T") == {"a": 6, "b": 6}
    table.register(registration([topic_config("T", perm=7), "U"], name="a", version=2))
    assert perms(table, "T") == {"a": 7, "b": 6}
    assert table.wipe_write_perm("nobody") == 0


def test_delete_topic_everywhere_or_in_one_cluster(table: RouteTable) -> None:
    table.register(registration(["T", "U"], name="a", cluster="C1"))
    table.register(registration(["T", "U"], name="b", cluster="C2"))
    table.delete_topic("T", "C1")
    assert sorted(perms(table, "T")) == ["b"]
    table.delete_topic("T", "unknown")
    assert sorted(perms(table, "T")) == ["b"]
    table.delete_topic("T", "C2")
    assert table.route("T") is None
    table.delete_topic("U")
    table.delete_topic("U")
    assert table.topics() == []


def test_add_topic_needs_known_brokers(table: RouteTable) -> None:
    table.register(registration(name="a"))
    queues = [QueueData(broker_name=name, perm=6, read_queue_nums=1, write_queue_nums=1) for name in "ab"]
    table.add_topic("N", queues)
    assert table.route("N") is None
    table.add_topic("N", queues[:1])
    assert perms(table, "N") == {"a": 6}


def test_topic_lists(table: RouteTable) -> None:
    table.register(registration([topic_config("unit", flag=1), topic_config("both", flag=3)], name="a"))
    table.register(registration([topic_config("sub", flag=2), "plain"], name="b", cluster="D"))
    assert table.topics_of_cluster(CLUSTER) == ["unit", "both"]
    assert table.topics_of_cluster("none") == []
    assert table.topics_with(lambda flag: flag & 1 != 0) == ["unit", "both"]
    assert table.topics_with(lambda flag: flag == 2) == ["sub"]


def test_static_topic_mappings_are_passed_on_and_survive_their_broker(table: RouteTable) -> None:
    mapping = {"bname": "a", "topic": "S", "totalQueues": 2}
    table.register(registration(["S", "T"], name="a", mappings={"S": mapping}))
    table.register(registration(["S", "T"], name="b"))
    route = table.route("S")
    assert route is not None
    assert route.topic_queue_mapping_by_broker == {"a": mapping}
    table.unregister(key("a"), "a")
    route = table.route("S")
    assert route is not None
    assert route.topic_queue_mapping_by_broker == {"a": mapping}
    plain = table.route("T")
    assert plain is not None
    assert plain.topic_queue_mapping_by_broker is msgspec.UNSET


def test_filter_servers_are_shown_until_the_broker_has_none(table: RouteTable) -> None:
    table.register(registration(filter_servers=["f:1"]))
    route = table.route("T")
    assert route is not None
    assert route.filter_server_table == {"a0:1": ["f:1"]}
    table.register(registration(filter_servers=[]))
    route = table.route("T")
    assert route is not None
    assert route.filter_server_table == {}


def test_route_in_zone_keeps_the_zone_and_groups_without_master(table: RouteTable) -> None:
    table.register(registration(name="a", zone="East"))
    table.register(registration(name="b", zone="west", filter_servers=["f:1"]))
    table.register(registration(name="c"))
    table.register(registration(name="d", broker_id=1, zone="west"))
    route = table.route("T")
    assert route is not None
    near = route_in_zone(route, "eAsT")
    assert [broker.broker_name for broker in near.broker_datas] == ["a", "d"]
    assert [queues.broker_name for queues in near.queue_datas] == ["a", "d"]
    assert near.filter_server_table == {}

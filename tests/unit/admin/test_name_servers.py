"""Settings, keys and write permissions in all name servers, and rates from the counters of brokers."""

from __future__ import annotations

import pytest
from tests.unit.admin.scripted import NS, NS2, A, Asked, Scripted

from orbitmq.admin import namesrv
from orbitmq.admin.base import properties_text, read_properties
from orbitmq.admin.errors import UnknownNameError
from orbitmq.admin.stats import stats_all, sum_of_a_day
from orbitmq.codes import ResponseCode
from orbitmq.requests import RequestCode
from orbitmq.wire import bodies
from orbitmq.wire.bodies.stats import BrokerStatsData, BrokerStatsItem


@pytest.fixture
def admin() -> Scripted:
    return Scripted()


def test_settings_of_every_name_server_are_read(admin: Scripted) -> None:
    admin.answers[RequestCode.GET_NAMESRV_CONFIG] = lambda asked: f"listenPort={asked.address}\n".encode()
    found = admin.run(namesrv.name_server_configs(admin)).servers
    assert [(one.address, one.config) for one in found] == [
        (NS, {"listenPort": NS}),
        (NS2, {"listenPort": NS2}),
    ]


@pytest.mark.parametrize("value", ["plain", "two\nlines", "a\\b", "cr\rlf\n", "=: #"])
def test_a_setting_stays_one_line_and_reads_back(admin: Scripted, value: str) -> None:
    admin.run(namesrv.update_name_server_config(admin, "key", value))
    bodies_sent = {asked.body for asked in admin.of(RequestCode.UPDATE_NAMESRV_CONFIG)}
    assert bodies_sent == {properties_text({"key": value})}
    [body] = bodies_sent
    assert body.count(b"\n") == 1
    assert read_properties(body, "here") == {"key": value}


def test_keys_are_stored_and_deleted_in_every_name_server(admin: Scripted) -> None:
    put = admin.run(namesrv.put_kv(admin, "space", "key", "value"))
    gone = admin.run(namesrv.delete_kv(admin, "space", "key"))
    assert [one.target for one in put.changes + gone.changes] == [NS, NS2, NS, NS2]
    assert admin.of(RequestCode.PUT_KV_CONFIG)[0].fields == {
        "namespace": "space",
        "key": "key",
        "value": "value",
    }
    assert admin.of(RequestCode.DELETE_KV_CONFIG)[1].fields == {"namespace": "space", "key": "key"}


def test_write_permission_is_taken_and_given_back_by_name(admin: Scripted) -> None:
    admin.answers[RequestCode.WIPE_WRITE_PERM_OF_BROKER] = lambda asked: {"wipeTopicCount": "3"}
    admin.answers[RequestCode.ADD_WRITE_PERM_OF_BROKER] = lambda asked: {"addTopicCount": "2"}
    wiped = admin.run(namesrv.wipe_write_perm(admin, "broker-a")).name_servers
    added = admin.run(namesrv.add_write_perm(admin, "broker-a")).name_servers
    assert [(one.name_server, one.topic_count) for one in wiped] == [(NS, 3), (NS2, 3)]
    assert [(one.name_server, one.topic_count) for one in added] == [(NS, 2), (NS2, 2)]
    assert admin.of(RequestCode.WIPE_WRITE_PERM_OF_BROKER)[0].fields == {"brokerName": "broker-a"}


def test_write_permission_of_an_unknown_broker_is_not_reported_as_taken(admin: Scripted) -> None:
    """Name servers answer with success and no topic."""
    for change in (namesrv.wipe_write_perm, namesrv.add_write_perm):
        with pytest.raises(UnknownNameError) as caught:
            admin.run(change(admin, "broker-x"))
        assert caught.value.known == ["broker-a", "broker-b"]
    assert admin.of(RequestCode.WIPE_WRITE_PERM_OF_BROKER) == []


def item(sum_: int, tps: float = 0.0) -> BrokerStatsItem:
    return BrokerStatsItem(sum=sum_, tps=tps)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, 0),
        (BrokerStatsData(), 0),
        (BrokerStatsData(stats_minute=item(5)), 5),
        (BrokerStatsData(stats_minute=item(5), stats_hour=item(50)), 50),
        (BrokerStatsData(stats_minute=item(5), stats_hour=item(50), stats_day=item(0)), 50),
        (BrokerStatsData(stats_minute=item(5), stats_hour=item(50), stats_day=item(500)), 500),
    ],
)
def test_sum_of_a_day_is_the_longest_there_is(data: BrokerStatsData | None, expected: int) -> None:
    assert sum_of_a_day(data) == expected


def test_rates_are_those_of_masters_and_only_of_topics_of_users(admin: Scripted) -> None:
    admin.topics("T", "idle", "%RETRY%G", "%DLQ%G")
    admin.route_of("T")

    def counted(asked: Asked) -> bytes | int:
        if asked.fields["statsName"] == "GROUP_GET_NUMS" and asked.address == A:
            return int(ResponseCode.SYSTEM_ERROR)  # counted nothing yet
        return BrokerStatsData(stats_minute=item(60, 1.0)).encode()

    admin.answers[RequestCode.VIEW_BROKER_STATS_DATA] = counted
    groups = bodies.GroupList(group_list=["G"]).encode()
    admin.answers[RequestCode.QUERY_TOPIC_CONSUME_BY_WHO] = lambda asked: groups
    [row] = admin.run(stats_all(admin)).topics
    assert (row.topic, row.group, row.in_tps, row.in_msg24_hour) == ("T", "G", 2.0, 120)
    assert (row.out_tps, row.out_msg24_hour, row.accumulation) == (1.0, 60, 0)
    with pytest.raises(UnknownNameError):
        admin.run(stats_all(admin, "unknown"))

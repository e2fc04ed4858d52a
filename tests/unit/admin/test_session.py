"""The targets of admin calls: name servers in turn, masters of a cluster, brokers by name, and partial failures."""

from __future__ import annotations

import pytest
from tests.unit.admin.scripted import NS, NS2, SLAVE, A, B, Scripted

from orbitmq.admin import Admin
from orbitmq.admin.errors import NoNameServerError, PartlyDoneError, UnknownNameError, UnreachableError
from orbitmq.codes import ResponseCode
from orbitmq.errors import ServerError, TopicNotFound
from orbitmq.requests import RequestCode

CHANGE = RequestCode.UPDATE_BROKER_CONFIG


@pytest.fixture
def admin() -> Scripted:
    return Scripted()


def test_next_name_server_is_asked_when_one_is_down(admin: Scripted) -> None:
    admin.down = {NS}
    assert set(admin.run(admin.cluster_info()).cluster_addr_table) == {"C"}
    assert [asked.address for asked in admin.asked] == [NS, NS2]


def test_a_refusal_is_not_asked_of_the_next_name_server(admin: Scripted) -> None:
    admin.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda asked: int(ResponseCode.SYSTEM_ERROR)
    with pytest.raises(ServerError, match="as scripted"):
        admin.run(admin.cluster_info())
    assert [asked.address for asked in admin.asked] == [NS]


def test_without_an_answer_the_last_name_server_is_named(admin: Scripted) -> None:
    admin.down = {NS, NS2}
    with pytest.raises(UnreachableError, match=f"no answer from the name server at {NS2}: down"):
        admin.run(admin.cluster_info())


def test_every_name_server_is_told(admin: Scripted) -> None:
    assert list(admin.run(admin.tell_name_servers(RequestCode.UPDATE_NAMESRV_CONFIG))) == [NS, NS2]
    admin.down = {NS2}
    with pytest.raises(UnreachableError):
        admin.run(admin.tell_name_servers(RequestCode.UPDATE_NAMESRV_CONFIG))


def test_name_servers_are_read_from_either_separator_once_each() -> None:
    assert Admin(" a:1 ;b:2,a:1;; ").name_servers == ["a:1", "b:2"]
    with pytest.raises(NoNameServerError):
        Admin("").required_name_servers()


def test_targets_are_one_broker_or_the_masters_of_a_cluster_by_name(admin: Scripted) -> None:
    assert admin.run(admin.targets("10.9.9.9:1", None)) == ["10.9.9.9:1"]
    assert admin.asked == [], "an address needs no name server"
    assert admin.run(admin.targets("broker-a", "C")) == [A], "the broker is the closer choice"
    assert admin.run(admin.targets(None, "C")) == [A, B]
    assert admin.run(admin.targets(None, "C", slaves=True)) == [A, SLAVE, B]


@pytest.mark.parametrize(
    ("broker", "cluster", "kind", "known"),
    [("broker-x", None, "broker", ["broker-a", "broker-b"]), (None, "D", "cluster", ["C"])],
)
def test_an_unknown_name_says_what_there_is(
    admin: Scripted, broker: str | None, cluster: str | None, kind: str, known: list[str]
) -> None:
    with pytest.raises(UnknownNameError) as caught:
        admin.run(admin.targets(broker, cluster))
    assert (caught.value.kind, caught.value.name, caught.value.known) == (kind, broker or cluster, known)


def test_broker_of_an_address_is_found_by_master_and_slave(admin: Scripted) -> None:
    assert [admin.run(admin.name_of(address)) for address in (A, SLAVE, B)] == [
        "broker-a",
        "broker-a",
        "broker-b",
    ]
    with pytest.raises(UnknownNameError) as caught:
        admin.run(admin.name_of("10.9.9.9:1"))
    assert caught.value.known == [A, SLAVE, B]


def test_group_without_a_retry_topic_is_unknown(admin: Scripted) -> None:
    admin.route_of("%RETRY%billing")
    assert admin.run(admin.addresses_of_group("billing")) == [("broker-a", A), ("broker-b", B)]
    with pytest.raises(UnknownNameError, match="consumer group 'others'"):
        admin.run(admin.addresses_of_group("others"))
    with pytest.raises(TopicNotFound):
        admin.run(admin.addresses_of_topic("billing"))


def test_a_change_goes_to_every_server_although_one_fails(admin: Scripted) -> None:
    admin.down = {A}
    with pytest.raises(PartlyDoneError, match="1 of 2 servers did not take the change") as caught:
        admin.run(admin.change_each([A, B], "config stored", CHANGE))
    assert caught.value.done == [B]
    assert list(caught.value.failures) == [A]
    assert [asked.address for asked in admin.of(CHANGE)] == [A, B]


def test_a_change_that_nobody_takes_raises_the_first_failure(admin: Scripted) -> None:
    admin.down = {A, B}
    with pytest.raises(UnreachableError) as caught:
        admin.run(admin.change_each([A, B], "config stored", CHANGE))
    assert caught.value.address == A


def test_a_change_tells_targets_and_progress() -> None:
    told: list[tuple[str, int, int]] = []
    admin = Scripted(progress=lambda *step: told.append(step))
    changed = admin.run(admin.change_each([A, B], "config stored", CHANGE, detail="a=1"))
    assert [(one.target, one.action, one.detail) for one in changed.changes] == [
        (A, "config stored", "a=1"),
        (B, "config stored", "a=1"),
    ]
    assert told == [("servers", 0, 2), ("servers", 1, 2), ("servers", 2, 2)]

"""Policies: which entry applies."""

from __future__ import annotations

import pytest

from orbitmq.auth.control import AccessControl
from orbitmq.auth.model import Action, Decision, Entry, Need, Policies, Resource, ResourceType, User
from orbitmq.auth.stored import BrokerFacts
from orbitmq.auth.table import AuthTable
from orbitmq.errors import NoPermission

ADDRESS = "127.0.0.1"


def entry(resource: str, decision: str = "Allow", actions: str = "PUB", ips: tuple[str, ...] = ()) -> Entry:
    parsed = Resource.parse(resource)
    assert parsed is not None
    names = tuple(Action[name] for name in actions.split(","))
    return Entry(parsed, names, Decision[decision.upper()], ips)


def allowed(
    custom: list[Entry], default: tuple[Entry, ...] = (), *, name: str = "orders", address: str = ADDRESS
) -> bool:
    table = AuthTable()
    table.store_user(User("u", "p"))
    table.store_policies("u", Policies(tuple(custom), default))
    control = AccessControl(table, BrokerFacts("C"))
    need = Need(ResourceType.TOPIC, name, (Action.PUB,))
    try:
        control.authorize_needs(table.users["u"], [need], address)
    except NoPermission as error:
        refusal = error.remark
    else:
        return True
    assert refusal.startswith(f"User:u has no permission to access Topic:{name} from {address}, ")
    return False


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([], False),
        ([entry("Topic:orders")], True),
        ([entry("Topic:order")], False),
        ([entry("topic:ORDERS")], False),
        ([entry("Topic:orders", actions="ALL")], True),
        ([entry("Topic:orders", actions="SUB,GET")], False),
        ([entry("Group:orders")], False),
        ([entry("*")], True),
        ([entry("Topic:*", "Deny"), entry("Topic:ord*")], True),
        ([entry("Topic:orders"), entry("Topic:ord*", "Deny")], True),
        ([entry("Topic:order*", "Deny"), entry("Topic:ord*")], False),
        ([entry("Topic:*"), entry("*", "Deny")], True),
        ([entry("Topic:orders"), entry("Topic:orders", "Deny", ips=("10.0.0.1",))], True),
        ([entry("Topic:orders"), entry("Topic:orders", "Deny", actions="SUB")], True),
        ([entry("Topic:orders"), entry("Topic:orders", "Deny")], False),
    ],
)
def test_most_special_entry_decides(entries: list[Entry], expected: bool) -> None:
    assert allowed(entries) is expected
    assert allowed(list(reversed(entries))) is expected


def test_default_entries_count_only_when_no_custom_one_matches() -> None:
    assert allowed([], (entry("Topic:orders"),))
    assert not allowed([entry("Topic:*", "Deny")], (entry("Topic:orders"),))


@pytest.mark.parametrize(
    ("pattern", "address", "expected"),
    [
        ("10.0.0.0/8", "10.9.9.9", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.1", "10.0.0.1", True),
        ("2001:db8::/32", "2001:db8::1", True),
        ("2001:db8::/32", "10.0.0.1", False),
    ],
)
def test_source_address_limits_an_entry(pattern: str, address: str, expected: bool) -> None:
    assert allowed([entry("Topic:orders", ips=(pattern,))], address=address) is expected


def test_change_of_a_policy_counts_at_once() -> None:
    table = AuthTable()
    user = User("u", "p")
    table.store_user(user)
    control = AccessControl(table, BrokerFacts("C"))
    need = Need(ResourceType.TOPIC, "T", (Action.PUB,))
    with pytest.raises(NoPermission, match="no matched policies"):
        control.authorize_needs(user, [need], ADDRESS)
    table.store_policies("u", Policies((entry("Topic:T"),)))
    control.authorize_needs(user, [need], ADDRESS)
    table.store_policies("u", Policies((entry("Topic:T", "Deny"),)))
    with pytest.raises(NoPermission, match="the decision is deny"):
        control.authorize_needs(user, [need], ADDRESS)


def test_request_without_a_user_is_refused_where_a_right_is_needed() -> None:
    control = AccessControl(AuthTable(), BrokerFacts("C"))
    with pytest.raises(NoPermission, match="Authorization failed"):
        control.authorize(None, 310, {"b": "T"}, b"", ADDRESS)


@pytest.mark.parametrize("text", ["", " ", "Topik:x", "x", "Any:x"])
def test_text_that_is_no_resource_is_none(text: str) -> None:
    assert Resource.parse(text) is None


@pytest.mark.parametrize("text", ["*", "Topic:*", "Topic:a", "Group:a*", "Cluster:c", "Topic:"])
def test_resource_is_written_as_it_was_read(text: str) -> None:
    parsed = Resource.parse(text)
    assert parsed is not None
    assert parsed.text == text

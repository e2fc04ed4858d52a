"""Users and policies that a proxy reads from brokers: what it asks, keeps, and refuses to believe."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbitmq.errors import ConnectionLostError, OrbitError
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.remote_users import RemoteUsers
from orbitmq.requests import RequestCode
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.bodies.auth import AclInfo, PolicyEntry, PolicyInfo, UserInfo

ENTRY = PolicyEntry(resource="Topic:T", actions=["Pub"], decision="Allow")
RULES = AclInfo(subject="User:alice", policies=[PolicyInfo(policy_type="Custom", entries=[ENTRY])])
ALICE = UserInfo(username="alice", password="secret")


class _Brokers:
    """Two brokers that know alice; ``down`` do not answer."""

    def __init__(self) -> None:
        self.addresses = {"b:1", "a:1"}
        self.down: set[str] = set()
        self.asked: list[tuple[str, int, dict[str, str]]] = []
        self.user, self.rules = ALICE.encode(), RULES.encode()

    async def find_brokers(self) -> set[str]:
        return self.addresses

    async def ask_fields(self, address: str, code: int, fields: dict[str, str]) -> Any:
        self.asked.append((address, code, fields))
        if address in self.down:
            raise ConnectionLostError(f"{address} is down")
        if code == RequestCode.AUTH_GET_USER:
            return SimpleNamespace(body=self.user if fields["username"] == "alice" else b"")
        return SimpleNamespace(body=self.rules)


def visit(work: Callable[[RemoteUsers, _Brokers, ManualClock], Awaitable[None]]) -> None:
    async def run() -> None:
        brokers, clock, tasks = _Brokers(), ManualClock(), TaskOwner("test")
        users = RemoteUsers(ProxyConfig(), cast(Any, brokers), clock=clock, tasks=tasks)
        try:
            await work(users, brokers, clock)
        finally:
            await tasks.close()

    asyncio.run(run())


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def names(users: RemoteUsers) -> tuple[set[str], set[str]]:
    return set(users._table.users), set(users._table.policies)


def test_user_is_read_once_with_its_policies_as_a_replica() -> None:
    async def work(users: RemoteUsers, brokers: _Brokers, clock: ManualClock) -> None:
        await users.learn("alice")
        await users.learn("alice")
        assert brokers.asked == [
            ("a:1", RequestCode.AUTH_GET_USER, {"username": "alice", "orbitmqReplica": "true"}),
            ("a:1", RequestCode.AUTH_GET_ACL, {"subject": "User:alice", "orbitmqReplica": "true"}),
        ]
        assert names(users) == ({"alice"}, {"alice"})

    visit(work)


def test_unknown_user_is_remembered_and_gets_no_rights() -> None:
    async def work(users: RemoteUsers, brokers: _Brokers, clock: ManualClock) -> None:
        for _ in range(3):
            await users.learn("eve")
        assert len(brokers.asked) == 1
        assert names(users) == (set(), set())

    visit(work)


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_name_that_cannot_be_a_user_is_not_looked_up(name: str) -> None:
    async def work(users: RemoteUsers, brokers: _Brokers, clock: ManualClock) -> None:
        await users.learn(name)
        assert brokers.asked == []

    visit(work)


def test_next_broker_is_asked_when_one_does_not_answer() -> None:
    async def work(users: RemoteUsers, brokers: _Brokers, clock: ManualClock) -> None:
        brokers.down = {"a:1"}
        await users.learn("alice")
        assert names(users) == ({"alice"}, {"alice"})

    visit(work)


def test_lookup_fails_without_a_broker_and_is_tried_again() -> None:
    async def work(users: RemoteUsers, brokers: _Brokers, clock: ManualClock) -> None:
        brokers.down = {"a:1", "b:1"}
        with pytest.raises(ConnectionLostError, match="b:1 is down"):
            await users.learn("alice")
        addresses, brokers.addresses = brokers.addresses, set()
        with pytest.raises(ConnectionLostError, match="no broker is known"):
            await users.learn("alice")
        brokers.addresses, brokers.down = addresses, set()
        await users.learn("alice")
        assert names(users) == ({"alice"}, {"alice"})

    visit(work)


def test_change_takes_effect_after_the_refresh_and_an_outage_changes_nothing() -> None:
    async def work(users: RemoteUsers, brokers: _Brokers, clock: ManualClock) -> None:
        async def later() -> None:
            clock.advance(21_000)
            await users.learn("alice")
            await turns()

        await users.learn("alice")
        brokers.down = set(brokers.addresses)
        await later()
        assert names(users) == ({"alice"}, {"alice"}), "an outage locks nobody out"
        brokers.down, brokers.rules = set(), b""
        await later()
        assert names(users) == ({"alice"}, set()), "nothing is allowed any longer"
        brokers.user = b""
        await later()
        assert names(users)[0] == set()

    visit(work)


@pytest.mark.parametrize(
    ("user", "rules", "reason"),
    [
        (UserInfo(username="alice").encode(), RULES.encode(), "does not reveal passwords"),
        (
            ALICE.encode(),
            AclInfo(
                policies=[PolicyInfo(policy_type="Custom", entries=[PolicyEntry(resource="Topic:T")])]
            ).encode(),
            "cannot be read",
        ),
        (b"{", RULES.encode(), None),
    ],
    ids=["no password", "damaged policy", "damaged user"],
)
def test_answer_that_cannot_be_trusted_admits_nobody(user: bytes, rules: bytes, reason: str | None) -> None:
    async def work(users: RemoteUsers, brokers: _Brokers, clock: ManualClock) -> None:
        brokers.user, brokers.rules = user, rules
        with pytest.raises(OrbitError, match=reason):
            await users.learn("alice")
        assert names(users) == (set(), set())

    visit(work)

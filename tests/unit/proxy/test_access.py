"""The date and the rights of signed calls."""

from __future__ import annotations

import asyncio
import datetime
import hmac
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbitmq.auth.acl_files import AclFiles
from orbitmq.auth.control import AccessControl
from orbitmq.auth.model import Action, Decision, Entry, Policies, Resource, User
from orbitmq.auth.stored import BrokerFacts
from orbitmq.auth.table import AuthTable
from orbitmq.errors import NoPermission
from orbitmq.proxy.access import Access, ListedCalls, Right, SignedCalls, SignedDates
from orbitmq.proxy.http2.call import Call
from orbitmq.proxy.statuses import Refused
from orbitmq.runtime.filesystem import LocalFileSystem
from orbitmq.testing.manual_clock import ManualClock

FORM = "%Y%m%dT%H%M%SZ"
NOW = datetime.datetime(2026, 11, 18, 12, 0, tzinfo=datetime.UTC)


def _call() -> Call:
    return cast(Call, SimpleNamespace(is_dated=False))


def _is_accepted(mode: str, date: str, call: Call | None = None) -> bool:
    dates = SignedDates(mode, ManualClock(int(NOW.timestamp() * 1000)))
    try:
        dates.check(call or _call(), date)
    except NoPermission:
        return False
    return True


@pytest.fixture
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "zone", ["Asia/Shanghai", "America/New_York", "Pacific/Kiritimati", "Etc/GMT+12", "UTC"], indirect=True
)
def test_local_time_of_official_clients_is_accepted(zone: str) -> None:
    """Java, Go, Python and C# write local time and a literal Z."""
    date = time.strftime(FORM, time.localtime(NOW.timestamp()))
    assert _is_accepted("zones", date)
    assert _is_accepted("utc", date) is (zone == "UTC")
    assert _is_accepted("off", date)


@pytest.mark.parametrize(
    ("mode", "minutes", "is_accepted"),
    [
        ("zones", 14 * 60 + 15, True),
        ("zones", 14 * 60 + 16, False),
        ("zones", -12 * 60 - 15, True),
        ("zones", -12 * 60 - 16, False),
        ("utc", 15, True),
        ("utc", 16, False),
        ("utc", -15, True),
        ("utc", -16, False),
        ("off", -10_000_000, True),
    ],
)
def test_date_is_held_to_the_clock(mode: str, minutes: int, is_accepted: bool) -> None:
    date = (NOW + datetime.timedelta(minutes=minutes)).strftime(FORM)
    assert _is_accepted(mode, date) is is_accepted


@pytest.mark.parametrize(
    "date", ["", "now", "20261118120000", "2026-11-18T12:00Z", "20261318T120000Z", "20261118T12000²Z"]
)
def test_date_of_another_form_is_refused(date: str) -> None:
    assert not _is_accepted("zones", date)


def test_stream_outlives_its_date() -> None:
    call: Any = _call()
    assert _is_accepted("utc", NOW.strftime(FORM), call)
    assert _is_accepted("utc", (NOW - datetime.timedelta(hours=3)).strftime(FORM), call)


USER, SECRET = "eve-user", "eve-secret"
GRANTED = ("Topic:eve", "Topic:roll", "Group:eve", "Group:pay")
FACTS = BrokerFacts("C", groups={"pay", "pay_roll"}, topics={"eve", "roll"})


def _signed_calls(_folder: str) -> Access:
    table = AuthTable()
    table.store_user(User(USER, SECRET))
    entries = []
    for text in GRANTED:
        resource = Resource.parse(text)
        assert resource is not None
        entries.append(Entry(resource, (Action.SUB,), Decision.ALLOW))
    table.store_policies(USER, Policies(tuple(entries)))
    control = AccessControl(table, FACTS)
    return SignedCalls(control, SignedDates("off", ManualClock()))


def _listed_calls(folder: str) -> Access:
    files = AclFiles(LocalFileSystem(), folder, FACTS, clock=ManualClock())
    files.load()
    account: dict[str, object] = {"accessKey": USER, "secretKey": SECRET}
    account |= {"topicPerms": ["eve=SUB", "roll=SUB"], "groupPerms": ["eve=SUB", "pay=SUB"]}
    files.store_account(account)
    return ListedCalls(files, SignedDates("off", ManualClock()))


@pytest.fixture(params=[_signed_calls, _listed_calls], ids=["policies", "lists"])
def access(request: pytest.FixtureRequest, tmp_path: Path) -> Access:
    (tmp_path / "conf").mkdir()
    made: Access = request.param(str(tmp_path))
    return made


def _is_allowed(access: Access, *rights: Right) -> bool:
    digest = hmac.digest(SECRET.encode(), b"20261118T120000Z", "sha1").hex()
    headers = {
        "authorization": f"MQv2-HMAC-SHA1 Credential={USER}, SignedHeaders=x-mq-date-time, Signature={digest}",
        "x-mq-date-time": "20261118T120000Z",
    }
    call = SimpleNamespace(header=lambda name: headers.get(name, ""), remote="127.0.0.1:1", is_dated=True)
    try:
        return asyncio.run(access.check(cast(Call, call), rights)) == USER
    except Refused:
        return False


def test_retry_topics_take_more_than_the_right_on_a_group(access: Access) -> None:
    """Brokers know which group and topic own ``%RETRY%pay_roll``, but a proxy queries them with its own rights."""
    assert _is_allowed(access, Right.sub_group("eve"), Right.sub_topic("eve"))
    for name in ("pay", "pay_roll", "eve"):
        assert not _is_allowed(access, Right.sub_group("eve"), Right.sub_topic(f"%RETRY%{name}"))


def test_receive_reads_no_retry_topic_that_is_also_another_groups(access: Access) -> None:
    assert _is_allowed(access, Right.sub_group("eve"), Right.sub_topic("roll"))
    assert not _is_allowed(access, Right.sub_group("pay"), Right.sub_topic("roll"))


def test_rights_of_a_connected_client_are_the_current_ones(access: Access) -> None:
    before = access.version
    assert access.allows(USER, Right.sub_topic("eve"), "127.0.0.1:1")
    assert not access.allows(USER, Right.pub_topic("eve"), "127.0.0.1:1")
    assert not access.allows("", Right.sub_topic("eve"), "127.0.0.1:1")
    if isinstance(access, SignedCalls):
        access._control.table.store_policies(USER, None)
    else:
        assert isinstance(access, ListedCalls)
        access._files.delete_account(USER)
    assert access.version != before
    assert not access.allows(USER, Right.sub_topic("eve"), "127.0.0.1:1")

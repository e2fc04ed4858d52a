"""Dates that calls are signed with."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbitmq.errors import NoPermission
from orbitmq.proxy.access import SignedDates
from orbitmq.proxy.http2.call import Call
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

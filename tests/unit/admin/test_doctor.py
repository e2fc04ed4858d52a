"""The findings of ``orbitmq doctor``, without a cluster."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.transport.peers import address_of, serving

from orbitmq.admin import Admin, doctor
from orbitmq.admin.census import BrokerPlace
from orbitmq.admin.doctor import Level, checkup
from orbitmq.admin.groups import Client, GroupConnection
from orbitmq.requests import RequestCode
from orbitmq.runtime.apache_options import WITHOUT_EFFECT_HEADING
from orbitmq.transport.router import Reply, Route
from orbitmq.wire.headers import Empty

NOW_MS = 1_800_000_000_000


def connection(*client_ids: str) -> GroupConnection:
    clients = [
        Client(client_id=client_id, client_addr=f"10.0.0.{number}:1", language="JAVA", version="V5_5_0")
        for number, client_id in enumerate(client_ids)
    ]
    return GroupConnection(
        connections=clients,
        subscriptions=[],
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
    )


@pytest.mark.parametrize(
    ("ratio", "level"),
    [
        ("0.10", Level.OK),
        ("0.7499", Level.OK),
        ("0.75", Level.WARN),
        ("0.90", Level.FAIL),
        ("1.0", Level.FAIL),
    ],
)
def test_disk_is_judged_by_the_marks_of_the_broker(ratio: str, level: Level) -> None:
    notes = doctor._Notes()
    doctor._disk("broker a", {"commitLogDiskRatio": ratio}, notes)
    assert [one.level for one in notes.findings] == [level]
    assert bool(notes.findings[0].remedy) == (level is not Level.OK)


@pytest.mark.parametrize("table", [{}, {"commitLogDiskRatio": ""}, {"commitLogDiskRatio": "full"}])
def test_disk_that_a_broker_does_not_tell_is_no_finding(table: dict[str, str]) -> None:
    notes = doctor._Notes()
    doctor._disk("broker a", table, notes)
    assert notes.findings == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("messages 0, queue units repaired 0, found in the background 0", 0),
        ("messages 2, queue units repaired 0, found in the background 0", 1),
        ("messages 0, queue units repaired 0, found in the background 10", 1),
        (None, 0),
    ],
)
def test_damage_found_by_a_broker_is_a_warning(text: str | None, count: int) -> None:
    notes = doctor._Notes()
    doctor._damage("broker a", {} if text is None else {"orbitmqDamage": text}, notes)
    assert [one.level for one in notes.findings] == [Level.WARN] * count
    assert all(text in one.what for one in notes.findings if text)


@pytest.mark.parametrize(
    ("ahead_s", "said"),
    [(0, "agrees"), (4, "agrees"), (-4, "agrees"), (60, "60 s ahead of"), (-3600, "3600 s behind")],
)
def test_clock_of_a_broker_is_its_start_and_what_it_ran(ahead_s: int, said: str) -> None:
    notes = doctor._Notes()
    ran_s = 2 * 86_400 + 3 * 3_600 + 4 * 60 + 5
    started = NOW_MS + 1000 * (ahead_s - ran_s)
    table = {"bootTimestamp": str(started), "runtime": "[ 2 days, 3 hours, 4 minutes, 5 seconds ]"}
    doctor._clock("broker a", table, NOW_MS, notes)
    assert said in notes.findings[0].what


def test_client_id_that_two_members_share_is_found() -> None:
    notes = doctor._Notes()
    doctor._members("billing", connection("10.0.0.1@1", "10.0.0.2@1", "10.0.0.1@1"), notes)
    (found,) = notes.findings
    assert found.level is Level.FAIL
    assert "client id 10.0.0.1@1 is connected more than once" in found.what
    doctor._members("billing", connection("a", "b"), notes)
    assert len(notes.findings) == 1


def test_name_server_that_does_not_answer_is_a_finding() -> None:
    async def run() -> doctor.Checkup:
        async with Admin("127.0.0.1:1") as admin:
            return await checkup(admin)

    found = asyncio.run(run())
    assert found.failed
    assert "orbitmq up" in found.findings[0].remedy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("brokerName=a\n", []),
        (
            f"brokerName=a\n{WITHOUT_EFFECT_HEADING}\nenableLmqStats=true\nasyncSendEnable=false\n",
            ["asyncSendEnable, enableLmqStats"],
        ),
    ],
)
def test_options_without_effect_are_a_warning(text: str, said: list[str]) -> None:
    async def read() -> list[str]:
        notes = doctor._Notes()
        route = Route(RequestCode.GET_BROKER_CONFIG, lambda _call: Reply(body=text.encode()), Empty)
        async with serving([route]) as server, Admin("127.0.0.1:1") as admin:
            place = BrokerPlace(cluster="c", broker_name="a", broker_id=0, address=address_of(server))
            await doctor._options(admin, place, "broker a", notes)
        assert all(one.level is Level.WARN for one in notes.findings)
        return [one.what.removeprefix("broker a: options without effect: ") for one in notes.findings]

    assert asyncio.run(read()) == said

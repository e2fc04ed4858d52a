"""The offsets to which the form "Move offsets" would set a group."""

from __future__ import annotations

import re

import pytest
from tests.unit.console.cluster import Browser, Cluster, browse

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("form", "then"),
    [
        ({"to": "first"}, "0"),
        ({"to": "last"}, "5"),
        ({"to": "offset", "offset": "3"}, "3"),
        ({"to": "offset", "offset": "99"}, "5"),
        ({"to": "shift", "shift": "2"}, "2"),
        ({"to": "shift", "shift": "-2"}, "0"),
    ],
)
def test_offsets_move_within_what_the_queue_holds(form: dict[str, str], then: str) -> None:
    cluster = Cluster()
    for _ in range(5):
        cluster.store("orders", b"x")

    async def work(browser: Browser) -> str:
        return (await browser.post("offsets", group="g", topic="orders", **form)).text

    row = re.search(r"<tr><td>broker-a:0</td><td>0</td><td>(\d+)</td>", browse(cluster, work))
    assert row is not None
    assert row.group(1) == then


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"to": "elsewhere"}, "not &#39;elsewhere&#39;"),
        ({"to": "offset", "offset": "x"}, "whole number"),
        ({"to": "time", "time": "noon"}, "is not a time"),
        ({"to": "group"}, "the group to copy from is missing"),
        ({"to": "last", "queue": "broker-a:7"}, "there is no queue"),
    ],
)
def test_move_that_cannot_be_planned_says_why(form: dict[str, str], why: str) -> None:
    cluster = Cluster()
    cluster.store("orders", b"x")

    async def work(browser: Browser) -> str:
        return (await browser.post("offsets", group="g", topic="orders", **form)).text

    assert why in browse(cluster, work)


@pytest.mark.parametrize(
    ("count", "accepted"), [("0", False), ("1", True), ("65535", True), ("65536", False)]
)
def test_console_accepts_as_many_queues_as_a_broker(count: str, accepted: bool) -> None:
    async def work(browser: Browser) -> str:
        form = {"topic": "orders", "cluster": "DefaultCluster", "read": "on", "write": "on"}
        answer = await browser.post("topic-store", **form, read_queues=count, write_queues="4")
        return answer.text

    page = browse(Cluster(), work)
    assert ("Create topic orders" in page) is accepted
    assert ("1 to 65,535 queues" in page) is not accepted

"""A console connects only to its name servers and to the brokers they list, even if a request names another
address.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.console.cluster import BROKER, NAME_SERVER, Browser, Cluster, browse

from orbitmq.admin import Admin
from orbitmq.admin.errors import UnknownNameError
from orbitmq.console.pages.table import PAGES
from orbitmq.record.hosts import encode_host
from orbitmq.record.ids import offset_message_id
from orbitmq.requests import RequestCode

pytestmark = pytest.mark.slow

ELSEWHERE = "192.0.2.7:6379"
ID_ELSEWHERE = offset_message_id(encode_host("192.0.2.7", 6379), 0)


def strangers(cluster: Cluster) -> set[str]:
    return {address for address, _ in cluster.asked} - {BROKER, NAME_SERVER}


@pytest.mark.parametrize(
    "address", [ELSEWHERE, "localhost:22", f"{BROKER}1", "[::1]:10911", ":", "broker-a:1"]
)
def test_broker_page_of_another_address_is_not_found_and_not_connected_to(address: str) -> None:
    cluster = Cluster()
    answer = browse(cluster, lambda browser: browser.get(f"/brokers/{address}"))
    assert answer.status_code == 404
    assert strangers(cluster) == set()


def test_broker_page_of_the_cluster_shows_its_settings() -> None:
    answer = browse(Cluster(), lambda browser: browser.get(f"/brokers/{BROKER}"))
    assert answer.status_code == 200
    assert "messageDelayLevel" in answer.text


@pytest.mark.parametrize("path", sorted(path for path in PAGES if not path.endswith(".stream")))
def test_no_page_connects_to_an_address_in_its_path_or_query(path: str) -> None:
    cluster = Cluster()
    cluster.store("orders", b"x")

    async def work(browser: Browser) -> None:
        for part in (ELSEWHERE, ID_ELSEWHERE):
            names = {"topic": "orders"} | dict.fromkeys(("id", "address", "group", "client", "key"), part)
            await browser.get(path.format_map(names))
            for name in ("id", "like", "from", "key", "cluster", "broker", "topic", "address"):
                await browser.get(path.format_map(names), **{name: part})
            for name in ("queue", "cursor"):
                await browser.get(path.format_map(names), **{name: f"{part}:0"})

    browse(cluster, work)
    assert strangers(cluster) == set()


def test_setting_is_not_sent_to_an_address_in_a_form() -> None:
    cluster = Cluster()

    async def work(browser: Browser) -> None:
        for confirmed in ("", "1"):
            answer = await browser.post(
                "config-set", broker=ELSEWHERE, key="brokerName", value="x", confirmed=confirmed
            )
            assert answer.status_code == 400

    browse(cluster, work)
    assert strangers(cluster) == set()


def test_broker_that_joined_after_the_last_look_is_found() -> None:
    cluster = Cluster()

    async def work() -> None:
        admin = Admin(NAME_SERVER, clock=cluster.clock)
        admin._rpc = cluster  # type: ignore[assignment]  # has what is used of it
        admin.restrict_to_cluster()
        await admin.ask(BROKER, RequestCode.GET_BROKER_CONFIG)
        with pytest.raises(UnknownNameError):
            await admin.call(ELSEWHERE, RequestCode.GET_BROKER_CONFIG)

    asyncio.run(work())
    assert strangers(cluster) == set()

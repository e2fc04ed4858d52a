"""The cost of a page depends on what it shows, not on the inflated size of small compressed bodies."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.console.cluster import Browser, Cluster, browse

from orbitmq.admin.browse import MessageFilter, matching
from orbitmq.admin.deadletters import each_dead_letter
from orbitmq.codes import SysFlag
from orbitmq.console.masking import EXPORTED
from orbitmq.console.settings import Bodies, ConsoleSettings

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
BOMB = zlib.compress(b'{"a": "' + b"x" * (40 * MIB) + b'"}')
ZLIB = int(SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB)


@pytest.fixture(scope="module")
def bombs() -> Cluster:
    """Returns a cluster with twelve messages of 40 KB that inflate to 40 MiB each, and the same as dead letters."""
    cluster = Cluster()
    for number in range(12):
        properties = {"KEYS": "k", "TAGS": "t", "number": str(number), "RETRY_TOPIC": "orders"}
        for topic in ("orders", "%DLQ%billing"):
            cluster.store(topic, BOMB, properties, sys_flag=ZLIB)
    return cluster


def peak_mib(cluster: Cluster, work: Callable[[Browser], Awaitable[None]], bodies: Bodies) -> float:
    """Returns the memory used by the work, above what was in use before."""

    async def measured(browser: Browser) -> float:
        await browser.get("/topics")  # compiles the templates
        tracemalloc.start()
        try:
            await work(browser)
            return tracemalloc.get_traced_memory()[1] / MIB
        finally:
            tracemalloc.stop()

    return browse(cluster, measured, ConsoleSettings(bodies=bodies))


@pytest.mark.parametrize("bodies", [Bodies.SHOW, Bodies.MASK])
@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/topics/orders/messages", {}),
        ("/topics/orders/messages", {"text": "never"}),
        ("/topics/orders/messages", {"key": "k"}),
        ("/topics/orders/messages", {"offset": "3", "queue": "broker-a:0"}),
        ("/messages", {"id": "k", "topic": "orders"}),
        ("/messages/ID", {"topic": "orders"}),
        ("/topics/orders/send", {"like": "ID"}),
        ("/dlq/billing", {}),
        ("/dlq/billing", {"text": "never"}),
    ],
)
def test_page_over_bombs_stays_small(
    bombs: Cluster, bodies: Bodies, path: str, query: dict[str, str]
) -> None:
    unique = bombs.records["orders"][5].unique_key or ""

    async def work(browser: Browser) -> None:
        answer = await browser.get(
            path.replace("ID", unique), **{name: value.replace("ID", unique) for name, value in query.items()}
        )
        assert answer.status_code == 200, answer.text
        assert len(answer.text) < MIB

    assert peak_mib(bombs, work, bodies) < 16


def test_selection_of_dead_letters_keeps_none_of_their_bodies(bombs: Cluster) -> None:
    async def work(browser: Browser) -> None:
        answer = await browser.post("dlq-resend", group="billing", everything="1")
        assert "Resend 12 dead letters of billing" in answer.text

    assert peak_mib(bombs, work, Bodies.SHOW) < 16


@pytest.mark.parametrize("bodies", [Bodies.SHOW, Bodies.MASK])
def test_download_over_bombs_holds_a_few_bodies_at_once(bombs: Cluster, bodies: Bodies) -> None:
    async def work(browser: Browser) -> None:
        preview = browser.console.services.masking.preview(EXPORTED)
        count = 0
        async for message in matching(
            browser.console.admin, MessageFilter(topic="orders", preview=preview), 100
        ):
            assert message.body_cut
            count += 1
        async for letter in each_dead_letter(browser.console.admin, "billing", preview=preview):
            assert letter.message.body_cut
            count += 1
        assert count == 24

    assert peak_mib(bombs, work, bodies) < 80


def test_body_below_the_limit_is_whole_and_above_it_is_cut_between_characters() -> None:
    cluster = Cluster()
    cluster.store("orders", zlib.compress(b"y" * 4096), sys_flag=ZLIB)
    cluster.store("orders", "é".encode() * 200_000)
    cluster.store("orders", b"not zlib", sys_flag=ZLIB)

    async def work(browser: Browser) -> list[tuple[int, bool]]:
        preview = browser.console.services.masking.preview(
            EXPORTED._replace(read_bytes=4097, kept_bytes=4097)
        )
        wanted = MessageFilter(topic="orders", preview=preview)
        return [
            (len(one.body or ""), bool(one.body_cut))
            async for one in matching(browser.console.admin, wanted, 10)
        ]

    assert browse(cluster, work) == [(4096, False), (2048, True), (8, False)]

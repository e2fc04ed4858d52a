"""Every page and every change, in a browser, over our cluster and over Apache 5.5.0."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.console.kit import Site, check_access, watched_page

from orbitmq.client import Message, Producer
from orbitmq.console.view import link

pytestmark = pytest.mark.slow

PATHS: Final[dict[str, Callable[[Site], str]]] = {
    "overview": lambda site: "/",
    "topics": lambda site: "/topics",
    "topic": lambda site: "/topics/orders",
    "messages": lambda site: "/topics/orders/messages",
    "tail": lambda site: "/topics/orders/tail",
    "send": lambda site: "/topics/orders/send",
    "find": lambda site: "/messages",
    "life": lambda site: link("messages", site.seeds.plain, topic="orders"),
    "groups": lambda site: "/groups",
    "group": lambda site: "/groups/readers",
    "member": lambda site: link("groups", "readers", "clients", site.members[0].client_id),
    "dead letters": lambda site: "/dlq",
    "dead letters of a group": lambda site: "/dlq/billing",
    "producers": lambda site: "/producers",
    "configuration": lambda site: "/brokers",
    "broker": lambda site: link("brokers", _broker(site)),
    "pipelines": lambda site: "/pipelines",
    "access": lambda site: "/access",
    "audit": lambda site: "/audit",
}


def _broker(site: Site) -> str:
    return site.console.console.services.sampler.snapshot.brokers[0].place.address


def confirm(page: Page, *, typed: str = "") -> None:
    """Say yes on the page that tells what will happen."""
    expect(page.locator(".confirm")).to_be_visible()
    if typed:
        page.get_by_label(re.compile("to confirm")).fill(typed)
    page.locator(".confirm button[type=submit]").click()


FORMS: Final = (
    (1280, "light", True),
    (390, "dark", False),
    pytest.param(1280, "dark", True, marks=pytest.mark.soak),
    pytest.param(390, "light", True, marks=pytest.mark.soak),
    pytest.param(390, "dark", True, marks=pytest.mark.soak),
)


@pytest.mark.parametrize(("width", "scheme", "with_axe"), FORMS)
def test_pages_have_no_error_and_no_violation(
    site: Site, browser: Browser, width: int, scheme: str, with_axe: bool
) -> None:
    if site.kind == "apache":
        with_axe = False  # what axe-core looks at is the same over both clusters
    with watched_page(browser, site.url, width=width, scheme=scheme) as page:
        for path in (one(site) for one in PATHS.values()):
            answer = page.goto(path)
            assert answer is not None
            assert answer.status == 200, page.locator("main").inner_text()
            if with_axe:
                check_access(page)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{path} is {wide} pixels wide"


@pytest.mark.ui_only
def test_overview_shows_the_broker_and_draws(page: Page) -> None:
    page.goto("/")
    expect(page.get_by_label(re.compile("Brokers of"))).to_contain_text("master")
    wrong = page.get_by_label("Needs attention")
    expect(wrong).to_contain_text("group billing has 2 dead letters", timeout=60_000)
    expect(page.locator(".chart canvas").first).to_be_visible(timeout=60_000)


@pytest.mark.ui_only
def test_topics_search_keeps_the_filter_in_the_url(page: Page) -> None:
    page.goto("/topics?kind=all")
    page.keyboard.press("/")
    page.keyboard.type("paym")
    expect(page.locator("#list tbody tr", has_text="orders")).to_have_count(0)
    expect(page.locator("#list")).to_contain_text("payments")
    assert "q=paym" in page.url


def test_topic_is_created_changed_and_deleted(page: Page) -> None:
    page.goto("/topics")
    page.get_by_text("Create a topic").click()
    page.get_by_label("Name").fill("made-here")
    page.get_by_label("Queues to read from").fill("3")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("h1")).to_contain_text("Create topic made-here")
    confirm(page)
    expect(page.locator(".note.good")).to_contain_text("made-here")
    page.get_by_text("Change the settings").click()
    page.get_by_label("Queues to read from").fill("5")
    page.locator("details[open]").get_by_role("button", name="Preview").click()
    confirm(page)
    expect(page.locator(".tile", has_text="Queues")).to_contain_text("5")
    page.get_by_text("Delete the topic").click()
    page.locator("details[open]").get_by_role("button", name="Preview").click()
    page.get_by_label(re.compile("to confirm")).fill("another")
    page.locator(".confirm button[type=submit]").click()
    expect(page.locator(".confirm")).to_contain_text("The name does not match")
    confirm(page, typed="made-here")
    expect(page.locator(".note.good")).to_contain_text("deleted")
    page.goto("/audit")
    expect(page.locator("tbody")).to_contain_text("topic-delete")


def test_messages_are_filtered_by_tag_sql_text_key_and_offset(page: Page) -> None:
    rows = page.locator("table.messages tbody tr")
    for query, count in (("tag=paid", 30), ("sql=price%20%3E%2057", 2), ("text=c-3", 9), ("key=order-7", 1)):
        page.goto(f"/topics/orders/messages?{query}")
        expect(rows).to_have_count(count)
    page.goto("/topics/orders/messages")
    queue = page.locator("select[name=queue] option").nth(1).inner_text()
    page.goto(link("topics", "orders", "messages", queue=queue, offset=3))
    expect(rows).to_have_count(1)
    page.goto("/topics/orders/messages?offset=x")
    expect(page.locator(".note.bad")).to_contain_text("whole number")


@pytest.mark.ui_only
def test_messages_are_downloaded_whole(page: Page) -> None:
    page.goto("/topics/orders/messages?tag=paid")
    with page.expect_download() as started:
        page.get_by_text("Download all matches").click()
    lines = [json.loads(line) for line in started.value.path().read_text().splitlines()]
    assert len(lines) == 30
    assert {line["tags"] for line in lines} == {"paid"}


def test_message_is_sent_with_everything(page: Page) -> None:
    page.goto("/topics/orders/send")
    page.get_by_label("Tag").fill("hand")
    page.get_by_label(re.compile("Keys")).fill("by-hand")
    page.get_by_label("Ordering key").fill("k1")
    page.get_by_label(re.compile("Properties")).fill("colour=red\nsize=7")
    page.get_by_label("Body").fill('{"typed": true,\n "html": "<b>bold</b>"}')
    page.get_by_role("button", name="Preview").click()
    confirm(page)
    expect(page.locator(".note.good")).to_contain_text("SEND_OK")
    expect(page.locator("main")).to_contain_text("<b>bold</b>")
    expect(page.locator("main")).to_contain_text("colour")
    expect(page.locator(".life")).to_contain_text("Stored in orders")


def test_tail_shows_what_comes_and_pauses(page: Page, site: Site) -> None:
    site.loop.run(_send(site, "shipping", ["first"]))
    page.goto("/topics/shipping/tail")
    expect(page.locator("#tail-state")).to_have_text("live")
    rows = page.locator("#tail-rows tr")
    for number in range(100):
        site.loop.run(_send(site, "shipping", [f"<i>tail {number}</i>"]))
        if rows.count():
            break
        page.wait_for_timeout(100)
    expect(rows.first).to_contain_text("<i>tail")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#tail-state")).to_have_text("paused")
    site.loop.run(_send(site, "shipping", ["while paused"]))
    expect(page.get_by_role("button", name="Go on")).to_be_visible()
    assert rows.filter(has_text="while paused").count() == 0
    page.goto("/")  # closes the stream


async def _send(site: Site, topic: str, bodies: list[str]) -> None:
    async with Producer("tail-test", site.name_server) as producer:
        for body in bodies:
            await producer.send(Message(topic, body))


def test_group_shows_subscriptions_that_differ(page: Page) -> None:
    page.goto("/groups/readers")
    expect(page.locator("tr.differs")).to_contain_text("orders")
    expect(page.locator(".note.bad")).to_contain_text("subscriptions of the members differ")
    expect(page.get_by_label("Members").locator("tbody tr")).to_have_count(2)


def test_member_tells_its_stack(page: Page, site: Site) -> None:
    page.goto(PATHS["member"](site))
    expect(page.get_by_label("Stack")).to_be_visible()


def test_offsets_are_moved_after_a_preview(page: Page) -> None:
    page.goto("/groups/billing")
    page.get_by_text("Move offsets").click()
    page.locator("input[name=topic]").fill("payments")
    page.locator("select[name=to]").select_option("first")
    page.locator("details[open]").get_by_role("button", name="Preview").click()
    expect(page.locator(".confirm")).to_contain_text("2 messages will be delivered again")
    confirm(page)
    expect(page.locator(".note.good")).to_contain_text("Offsets of billing")
    expect(page.locator(".tile", has_text="Lag").first).to_contain_text("2")
    moves = (
        ("offset", "offset", "0", "No offset changes."),
        ("shift", "shift", "1", "2 messages will be skipped"),
        ("time", "time", "2001-02-03T04:05:06", "2 messages will be delivered again"),
        ("last", "", "", "2 messages will be skipped"),
    )
    for choice, label, value, told in moves:
        _move(page, choice, label, value)
        expect(page.locator(".confirm")).to_contain_text(told)
        confirm(page)
        expect(page.locator(".note.good")).to_contain_text("Offsets of billing")
    expect(page.locator(".tile", has_text="Lag").first).to_contain_text("0")


@pytest.mark.ui_only
def test_offset_of_one_queue_is_moved(page: Page) -> None:
    page.goto("/groups/billing")
    queue = page.locator("select[name=queue] option").nth(1).get_attribute("value")
    _move(page, "first", "", "", queue=queue)
    expect(page.locator(".confirm")).to_contain_text("in 1 queues of topic payments")
    expect(page.locator(".confirm tbody tr")).to_have_count(1)
    confirm(page)
    expect(page.locator(".note.good")).to_contain_text("Offsets of billing")
    _move(page, "first", "", "", queue=queue)
    expect(page.locator(".confirm")).to_contain_text("No offset changes.")
    page.goto("/groups/billing")
    _move(page, "last", "", "", queue=queue)
    confirm(page)
    expect(page.locator(".tile", has_text="Lag").first).to_contain_text("0")
    _move(page, "offset", "offset", "x")
    expect(page.locator(".note.bad")).to_contain_text("whole number")
    _forgive(page)


def _move(page: Page, choice: str, label: str, value: str, *, queue: str | None = None) -> None:
    page.get_by_text("Move offsets").click()
    page.locator("input[name=topic]").fill("payments")
    if queue is not None:
        page.locator("select[name=queue]").select_option(queue)
    page.locator("select[name=to]").select_option(choice)
    if label:
        page.locator(f"input[name={label}]").fill(value)
    page.locator("details[open]").get_by_role("button", name="Preview").click()


def test_group_is_created_and_deleted(page: Page) -> None:
    page.goto("/groups")
    page.get_by_text("Create a group").click()
    page.get_by_label("Name").fill("made-group")
    page.locator("details[open]").get_by_role("button", name="Preview").click()
    confirm(page)
    expect(page.locator(".note.good")).to_contain_text("made-group")
    page.get_by_text("Delete the group").click()
    page.locator("details[open]").get_by_role("button", name="Preview").click()
    confirm(page, typed="made-group")
    expect(page.locator(".note.good")).to_contain_text("deleted")


def test_broker_option_is_changed(page: Page, site: Site) -> None:
    page.goto(link("brokers", _broker(site), q="flushIntervalCommitLog", edit="flushIntervalCommitLog"))
    page.get_by_label("New value of flushIntervalCommitLog").fill("600")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".confirm")).to_contain_text("600")
    confirm(page)
    expect(page.locator("tr#flushIntervalCommitLog")).to_contain_text("600")


STORIES: Final = {
    "plain": ("Stored;", ["Sent by", "Stored in orders"]),
    "delayed": ("Waits until it is due.", ["Delayed at level 18", "waits until"]),
    "dead": (
        "Dead letter of group billing",
        [
            "Stored in payments",
            "Handed back by group billing",
            "Ready for try 2",
            "Dead letter of group billing",
        ],
    ),
    "rolled_back": ("Rolled back", ["Prepared in a transaction", "Transaction rolled back"]),
    "recalled": ("Recalled before it was due.", ["Waits in the timer", "Recalled"]),
}


@pytest.mark.parametrize("kind", STORIES)
def test_life_of_a_message_is_told(page: Page, site: Site, kind: str) -> None:
    state, titles = STORIES[kind]
    message_id = getattr(site.seeds, kind)
    for _ in range(50):  # the op message of a transaction is written a little later
        page.goto(link("messages", id=message_id))  # without a topic
        if state in page.locator(".state").inner_text():
            break
        page.wait_for_timeout(200)
    expect(page.locator(".state")).to_contain_text(state)
    for title in titles:
        expect(page.locator(".life")).to_contain_text(title)


def test_dead_letters_are_exported_resent_edited_and_dropped(page: Page) -> None:
    page.goto("/dlq/billing")
    rows = page.locator("table.messages tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("payments")
    with page.expect_download() as started:
        page.get_by_role("link", name="Export").click()
    exported = [json.loads(line) for line in started.value.path().read_text().splitlines()]
    assert [line["originTopic"] for line in exported] == ["payments", "payments"]
    page.get_by_role("button", name="Preview resending").click()
    expect(page.locator(".note.bad")).to_contain_text("no dead letter is selected")
    _forgive(page)
    page.goto("/dlq/billing")
    rows.filter(has_text="p-1").get_by_role("checkbox").check()
    page.get_by_role("button", name="Preview resending").click()
    expect(page.locator("h1")).to_contain_text("Resend 1 dead letters of billing")
    confirm(page)
    expect(page.locator("#job-state")).to_have_text("done")
    page.goto("/dlq/billing")
    expect(rows).to_have_count(1)
    page.locator("input[name=id]").check()
    page.get_by_role("button", name="Preview dropping").click()
    confirm(page)
    expect(page.locator(".empty")).to_contain_text("resent or dropped")
    page.goto("/dlq/billing?all=1")
    expect(rows).to_have_count(2)
    expect(page.locator("table.messages")).to_contain_text("dropped")
    expect(page.locator("table.messages")).to_contain_text("resent")


def _forgive(page: Page) -> None:
    """The browser logs an answer of 400 as an error; here it was asked for."""
    wrong: list[str] = page.expected_errors  # type: ignore[attr-defined]  # set by the kit
    wrong[:] = [line for line in wrong if "status of 400" not in line]

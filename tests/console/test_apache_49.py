"""The console over Apache 4.9.7: every page, and what can be told of messages there (it has no timers to recall)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect
from tests.apache.artifacts import LEGACY
from tests.apache.servers import ApacheBroker, ApacheNamesrv
from tests.console.kit import DELAY_LEVELS, Site, site_of, watched_page
from tests.console.test_browser import PATHS, STORIES, confirm

from orbitmq.console.view import link

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.apache]


@pytest.fixture(scope="module")
def site(apache_tools: object) -> Iterator[Site]:
    with (
        ApacheNamesrv(LEGACY) as namesrv,
        ApacheBroker(
            LEGACY,
            namesrv,
            enablePropertyFilter=True,
            messageDelayLevel=DELAY_LEVELS,
            autoCreateTopicEnable=True,
        ),
        site_of("apache-4.9", namesrv.address) as found,
    ):
        yield found


@pytest.mark.parametrize("name", [name for name in PATHS if name != "access"])
def test_page_shows(site: Site, browser: Browser, name: str) -> None:
    with watched_page(browser, site.url) as page:
        answer = page.goto(PATHS[name](site))
        assert answer is not None
        assert answer.status == 200, page.locator("main").inner_text()


def test_users_are_said_to_be_unknown(site: Site, browser: Browser) -> None:
    with watched_page(browser, site.url) as page:
        page.goto("/access")
        expect(page.locator(".note.warn")).to_contain_text("do not list their users")


# 4.9 has no recall, and a transaction that was rolled back is shown as open there (docs/console.md).
@pytest.mark.parametrize("kind", ["plain", "delayed", "dead"])
def test_life_of_a_message_is_told(site: Site, browser: Browser, kind: str) -> None:
    state, titles = STORIES[kind]
    with watched_page(browser, site.url) as page:
        page.goto(link("messages", id=getattr(site.seeds, kind)))
        expect(page.locator(".state")).to_contain_text(state)
        for title in titles:
            expect(page.locator(".life")).to_contain_text(title)


def test_offsets_and_dead_letters_are_changed(site: Site, browser: Browser) -> None:
    with watched_page(browser, site.url) as page:
        page.goto("/groups/billing")
        page.get_by_text("Move offsets").click()
        page.locator("input[name=topic]").fill("payments")
        page.locator("select[name=to]").select_option("first")
        page.locator("details[open]").get_by_role("button", name="Preview").click()
        confirm(page)
        expect(page.locator(".note.good")).to_contain_text("Offsets of billing")
        page.goto("/dlq/billing")
        page.locator("input[name=id]").first.check()
        page.get_by_role("button", name="Preview resending").click()
        confirm(page)
        expect(page.locator("#job-state")).to_have_text("done")

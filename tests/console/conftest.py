"""The console in a real browser, over our cluster and over Apache's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page
from tests.apache.fixtures import apache_tools
from tests.console.kit import DELAY_LEVELS, Site, chromium, site_of, watched_page

from orbitmq.testing import run_broker

__all__ = ["apache_tools"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What only a page and its script can break runs over our cluster; over Apache's with `make soak`."""
    for item in items:
        params: dict[str, object] = getattr(getattr(item, "callspec", None), "params", {})
        narrow = params.get("width") == 390
        if params.get("site") == "apache" and (narrow or item.get_closest_marker("ui_only")):
            item.add_marker(pytest.mark.soak)


# Per module: while Playwright runs, asyncio.run cannot be used on this thread, and other tests do.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module", params=["ours", pytest.param("apache", marks=pytest.mark.apache)])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A cluster with something of everything, and its console."""
    if request.param == "ours":
        with (
            run_broker(
                enablePropertyFilter=True, recallMessageEnable=True, messageDelayLevel=DELAY_LEVELS
            ) as broker,
            site_of("ours", broker.name_server) as found,
        ):
            yield found
        return
    request.getfixturevalue("apache_tools")
    from tests.apache.artifacts import LATEST
    from tests.apache.servers import ApacheBroker, ApacheNamesrv

    with (
        ApacheNamesrv(LATEST) as namesrv,
        ApacheBroker(
            LATEST,
            namesrv,
            enablePropertyFilter=True,
            recallMessageEnable=True,
            messageDelayLevel=DELAY_LEVELS,
            autoCreateTopicEnable=True,
        ),
        site_of("apache", namesrv.address) as found,
    ):
        yield found


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    with watched_page(browser, site.url) as found:
        yield found

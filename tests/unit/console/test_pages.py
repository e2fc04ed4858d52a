"""The messages on pages when something is missing, unknown or not allowed."""

from __future__ import annotations

import re

import pytest
from tests.unit.console.cluster import Browser, Cluster, browse

from orbitmq.console.settings import ConsoleSettings

pytestmark = pytest.mark.slow


def tile(page: str, label: str) -> str:
    found = re.search(rf'<span class="label">{label}</span><span class="value">(.*?)</div>', page)
    assert found is not None, label
    return re.sub(r"<[^>]*>", "", found.group(1))


def test_overview_of_a_cluster_that_does_not_answer_has_no_zeros() -> None:
    cluster = Cluster()
    cluster.up = False
    page = browse(cluster, lambda browser: browser.get("/")).text
    for label in ("Total lag", "Dead letters", "Topics", "Groups"):
        assert tile(page, label) == "?"
    assert "No group" not in page
    assert "No group" not in browse(cluster, lambda browser: browser.get("/dlq")).text


@pytest.mark.parametrize(
    "path", ["/topics/none", "/topics/none/messages", "/groups/none", "/messages/none", "/nowhere"]
)
def test_page_of_something_that_does_not_exist_is_a_404(path: str) -> None:
    assert browse(Cluster(), lambda browser: browser.get(path)).status_code == 404


def test_download_of_a_topic_that_does_not_exist_is_a_404() -> None:
    for path in ("/topics/none/messages.ndjson", "/dlq/none/export.ndjson"):
        assert browse(Cluster(), lambda browser, path=path: browser.get(path)).status_code == 404  # type: ignore[misc]


def test_read_only_console_says_so_instead_of_naming_a_role() -> None:
    cluster = Cluster()
    cluster.store("orders", b"x")
    settings = ConsoleSettings(read_only=True)
    page = browse(cluster, lambda browser: browser.get("/topics/orders/send"), settings).text
    assert "read-only, so it cannot send" in page
    assert "operator" not in page


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        ({"id": "ID"}, "billing ID --rate 50"),
        ({"everything": "1"}, "billing --all --rate 50"),
        ({"everything": "1", "text": "a b"}, "billing --text 'a b' --rate 50"),
    ],
)
def test_command_of_a_resend_selects_the_same_letters(form: dict[str, str], arguments: str) -> None:
    cluster = Cluster()
    cluster.store("%DLQ%billing", b"a b", {"RETRY_TOPIC": "orders"})
    letter = cluster.offset_id("%DLQ%billing", 0)

    async def work(browser: Browser) -> str:
        given = {name: value.replace("ID", letter) for name, value in form.items()}
        return (await browser.post("dlq-resend", group="billing", **given)).text

    page = browse(cluster, work).replace("&#39;", "'")
    assert f"orbitmq dlq resend {arguments.replace('ID', letter)}" in page


def test_chart_with_two_lines_names_them_and_times_have_a_zone() -> None:
    page = browse(Cluster(), lambda browser: browser.get("/")).text
    assert '<span class="key key1">in</span> <span class="key key2">out</span>' in page
    assert "Times in UTC" in page


def test_dead_letters_are_listed_with_their_reason() -> None:
    cluster = Cluster()
    cluster.store("%DLQ%billing", b"x", {"RETRY_TOPIC": "orders", "RETRY_REASON": "ValueError('no <price>')"})
    page = browse(cluster, lambda browser: browser.get("/dlq/billing")).text
    assert "ValueError(&#39;no &lt;price&gt;&#39;)" in page

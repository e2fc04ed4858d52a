"""With bodies masked or off, no page, filter, search, form or download reveals a hidden word."""

from __future__ import annotations

import json
from urllib.parse import quote, quote_plus

import pytest
from tests.unit.console.cluster import BROKER, Browser, Cluster, browse

from orbitmq.admin.browse import MessageFilter
from orbitmq.admin.reading import pull_once
from orbitmq.console.masking import HIDDEN, LISTED
from orbitmq.console.pages.table import PAGES
from orbitmq.console.settings import Bodies, ConsoleSettings
from orbitmq.model.route import MessageQueue

SECRET = "s3cretword"
MAIL = "joe@mail.example"
pytestmark = pytest.mark.slow

HIDING = [Bodies.MASK, Bodies.OFF]


def filled() -> Cluster:
    """Returns a cluster with a message in a topic, and the same as a dead letter; another with a different secret."""
    cluster = Cluster()
    for secret in (SECRET, "otherword"):
        body = json.dumps({"password": secret, "note": f"write to {MAIL}"}).encode()
        properties = {
            "password": secret,
            "KEYS": f"order-1 {MAIL}",
            "TAGS": MAIL,
            "customer": MAIL,
            "RETRY_REASON": f"cannot book {secret}",
            "RETRY_TOPIC": "orders",
        }
        cluster.store("orders", body, properties)
        cluster.store("%DLQ%billing", body, properties)
    return cluster


def settings(bodies: Bodies) -> ConsoleSettings:
    return ConsoleSettings(bodies=bodies)


def ask(cluster: Cluster, bodies: Bodies, path: str, **query: str) -> str:
    return browse(cluster, lambda browser: browser.get(path, **query), settings(bodies)).text


def rows(page: str) -> int:
    """Returns the number of messages a page lists."""
    return page.count('href="/messages/')


def neutral(page: str, asked: str) -> str:
    """Returns a page without the parts of the query that it repeats."""
    return page.replace(asked, "").replace(quote_plus(asked), "").replace(quote(asked), "")


@pytest.mark.parametrize("bodies", HIDING)
def test_no_page_has_a_hidden_word(bodies: Bodies) -> None:
    cluster = filled()
    unique = cluster.records["orders"][0].unique_key or ""
    names = {"topic": "orders", "id": unique, "group": "billing", "address": "x", "client": "x", "key": "x"}

    found_by = {"id": "order-1", "topic": "orders"}
    queries: list[dict[str, str]] = [{}, {"topic": "orders"}, {"like": unique}, {"key": "order-1"}, found_by]

    async def work(browser: Browser) -> dict[str, str]:
        found = {}
        for path in PAGES:
            if path.endswith(".stream"):
                continue
            for query in queries:
                answer = await browser.get(path.format_map(names), **query)
                found[f"{path} {query}"] = answer.text
        return found

    for path, text in browse(cluster, work, settings(bodies)).items():
        for word in (SECRET, MAIL, "joe@"):
            assert word not in text, path


@pytest.mark.parametrize("bodies", HIDING)
@pytest.mark.parametrize("path", ["/topics/orders/messages", "/dlq/billing"])
def test_text_filter_cannot_tell_a_hidden_word_from_any_other(bodies: Bodies, path: str) -> None:
    for guess in (SECRET, SECRET[:3], MAIL, "cannot book"):
        page, wrong = (ask(filled(), bodies, path, text=text) for text in (guess, "q" * len(guess)))
        assert neutral(page, guess) == neutral(wrong, "q" * len(guess))


@pytest.mark.parametrize("path", ["/topics/orders/messages.ndjson", "/dlq/billing/export.ndjson"])
def test_download_has_neither_hidden_words_nor_checksums_and_cannot_be_filtered_by_them(path: str) -> None:
    text = ask(filled(), Bodies.MASK, path)
    assert len(text.splitlines()) == 2
    assert SECRET not in text
    assert "bodyCRC" not in text
    assert "bodyBase64" not in text
    assert ask(filled(), Bodies.MASK, path, text=SECRET) == ""


@pytest.mark.parametrize("bodies", HIDING)
def test_key_tag_and_sql_filters_do_not_find_what_is_masked(bodies: Bodies) -> None:
    path = "/topics/orders/messages"
    assert rows(ask(filled(), bodies, path)) == 2
    assert rows(ask(filled(), bodies, path, key="order-1")) == 2
    assert rows(ask(filled(), bodies, path, key=MAIL)) == 0
    assert rows(ask(filled(), bodies, path, tag=MAIL)) == 0
    assert rows(ask(filled(), bodies, "/messages", id=MAIL, topic="orders")) == 0
    page = ask(filled(), bodies, path, sql=f"password = '{SECRET}'")
    assert "SQL92 filters are off" in page
    assert page.replace(SECRET, "") == ask(filled(), bodies, path, sql="password = ''")


@pytest.mark.parametrize("bodies", HIDING)
def test_plan_of_a_resend_does_not_count_by_a_hidden_word(bodies: Bodies) -> None:
    async def work(browser: Browser) -> str:
        answer = await browser.post("dlq-resend", group="billing", text=SECRET, everything="1")
        return answer.text

    assert "the selected dead letters were already handled or have expired" in browse(
        filled(), work, settings(bodies)
    )


@pytest.mark.parametrize("bodies", HIDING)
def test_form_from_an_old_message_leaves_masked_properties_out(bodies: Bodies) -> None:
    cluster = filled()
    unique = cluster.records["orders"][0].unique_key or ""
    page = ask(cluster, bodies, "/topics/orders/send", like=unique)
    assert "Masked properties are left out: customer, password" in page
    assert HIDDEN not in page, "a mask must not be sent as a key"


def test_live_tail_is_filtered_by_what_it_shows() -> None:
    cluster = filled()
    queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=0)

    async def work(browser: Browser) -> list[int]:
        counts = []
        for text in (SECRET, "order-1"):
            preview = browser.console.services.masking.preview(LISTED)
            wanted = MessageFilter(topic="orders", text=text, preview=preview)
            pulled = await pull_once(browser.console.admin, BROKER, queue, 0, count=10, plan=wanted.plan())
            counts.append(len(wanted.select(pulled.messages)))
        return counts

    assert browse(cluster, work, settings(Bodies.MASK)) == [0, 2]


def test_audit_log_of_a_masking_console_has_no_properties() -> None:
    async def work(browser: Browser) -> str:
        await browser.post(
            "send", topic="nowhere/", body=SECRET, properties=f"password={SECRET}", confirmed="1"
        )
        return json.dumps(browser.console.services.audit.last())

    log = browse(filled(), work, settings(Bodies.MASK))
    assert "properties" in log
    assert SECRET not in log

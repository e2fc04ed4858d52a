"""Features of only some installations: filter servers, and a page that lists the name servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.conformance.waiting import Collector, until

from orbitmq.client import (
    ClassFilter,
    ConsumeFromWhere,
    Message,
    NameServerError,
    Producer,
    PushConsumer,
)
from orbitmq.filtersrv.config import FilterServerConfig
from orbitmq.filtersrv.server import FilterServer
from orbitmq.testing import RunningBroker, run_broker

FIRST = ConsumeFromWhere.FIRST_OFFSET
SOURCE = """
class Expensive:
    def match(self, message):
        return int(message.properties["price"]) >= 7
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker(filterServerNums=1) as running:
        yield running


async def send_prices(broker: RunningBroker, topic: str) -> None:
    async with Producer("prices", broker.name_server) as producer:
        for price in range(10):
            await producer.send(Message(topic, str(price), properties={"price": str(price)}))


@pytest.mark.slow
@pytest.mark.parametrize("uploaded", [False, True])
async def test_class_filter_of_the_operator_and_of_the_consumer(
    broker: RunningBroker, tmp_path: Path, uploaded: bool
) -> None:
    topic = f"by-class-{uploaded}"
    await send_prices(broker, topic)
    (tmp_path / "shop.py").write_text(SOURCE)
    config = FilterServerConfig(
        broker_address=broker.address,
        listen_port=0,
        bind_address="127.0.0.1",
        class_directory="" if uploaded else str(tmp_path),
        upload_allowed=uploaded,
    )
    wanted = ClassFilter("shop.Expensive", SOURCE if uploaded else "")
    collector = Collector()
    consumer = PushConsumer(
        f"readers-{uploaded}", broker.name_server, from_where=FIRST, pull_error_pause_s=0.1
    )
    consumer.subscribe(topic, wanted, collector)
    # The consumer starts first: it finds the filter server once the routes name it.
    async with consumer:
        async with FilterServer(config):
            await collector.wait(3)
            assert sorted(collector.bodies) == ["7", "8", "9"]
            await send_prices(broker, topic)
            await collector.wait(6)
        # Without a filter server no message arrives unfiltered; with a new one delivery resumes.
        await send_prices(broker, topic)
        async with FilterServer(config):
            await collector.wait(9)
    assert sorted(collector.bodies) == sorted(["7", "8", "9"] * 3)


class Page(HTTPServer):
    """Answers every GET with its text."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PageHandler)
        self.text = ""
        self.status = 200
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/rocketmq/nsaddr"


class PageHandler(BaseHTTPRequestHandler):
    server: Page

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.text.encode())

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as in the base class
        """Discards the log line."""


@pytest.fixture
def page() -> Iterator[Page]:
    with Page() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


async def test_name_servers_are_read_from_a_page_and_read_again(broker: RunningBroker, page: Page) -> None:
    page.text = f" {broker.name_server} \n"
    async with Producer("paged", page.url, name_server_lookup_s=0.05, call_timeout_s=1.0) as producer:
        await producer.send(Message("paged", "x"))
        assert page.asked[0] == "/rocketmq/nsaddr"
        page.text = "127.0.0.1:1;127.0.0.1:2"
        await until(lambda: set(producer._instance.name_servers) == {"127.0.0.1:1", "127.0.0.1:2"})
        with pytest.raises(NameServerError, match="no name server answers"):
            await producer.send(Message("paged-two", "x"))
        page.status = 500  # the addresses known before stay
        before = len(page.asked)
        await until(lambda: len(page.asked) > before + 1)
        assert producer._instance.name_servers
        page.status, page.text = 200, broker.name_server
        await until(lambda: producer._instance.name_servers == [broker.name_server])
        await producer.send(Message("paged-two", "x"))


@pytest.mark.parametrize(
    ("status", "text", "told"),
    [(404, "gone", "answers 404"), (200, " \n", "names no name server"), (200, "x" * 70_000, "longer than")],
)
async def test_page_without_addresses_is_an_error_that_says_so(
    page: Page, status: int, text: str, told: str
) -> None:
    page.status, page.text = status, text
    async with Producer("paged", page.url) as producer:
        with pytest.raises(NameServerError, match=told):
            await producer.send(Message("paged", "x"))


async def test_page_that_does_not_answer_ends_in_time() -> None:
    async with Producer("paged", "http://127.0.0.1:1/", call_timeout_s=0.5) as producer:
        with pytest.raises(NameServerError, match=r"no name server addresses from http://127\.0\.0\.1:1/"):
            await producer.send(Message("paged", "x"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        async with Producer("paged", address, call_timeout_s=0.2) as producer:
            with pytest.raises(NameServerError, match=r"within 0\.2 s"):
                await producer.send(Message("paged", "x"))

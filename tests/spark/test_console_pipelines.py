"""The console's page of pipelines over the checkpoint of a real query."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from tests.spark.test_stream import Stream, send

from orbitmq.admin import Admin
from orbitmq.client.sync import LoopThread
from orbitmq.console.serve import serve_console
from orbitmq.console.settings import ConsoleSettings
from orbitmq.testing import run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]


def test_page_shows_the_batch_and_the_lag_of_a_query(spark: SparkSession, tmp_path: Path) -> None:
    with run_broker() as broker:
        broker.create_topic("orders")
        send(broker, "orders", range(20))
        Stream(spark, broker, tmp_path / "orders", topic="orders").run()
        send(broker, "orders", range(7))
        loop = LoopThread()
        try:
            settings = ConsoleSettings(pipelines=(tmp_path,))
            serving = serve_console(Admin(broker.name_server), settings, port=0)
            console = loop.run(serving.__aenter__())
            try:
                text = httpx.get(f"{console.url.rstrip('/')}/pipelines", timeout=30.0).text
            finally:
                loop.run(serving.__aexit__(None, None, None))
        finally:
            loop.close()
    row = re.sub(r"<[^>]+>", " ", text.partition("<tbody>")[2].partition("</tbody>")[0])
    assert "orders/checkpoint" in row
    assert re.search(r"\b7\b", row), row

"""The snippets of docs/spark.md, run one after the other as a reader would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.registry_kit import framed, run_registry

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.testing import run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_snippets_of_the_guide_run(spark: SparkSession, tmp_path: Path) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) == 8
    with run_broker() as broker, run_registry() as registry:
        broker.create_topic("orders", queue_count=2)
        broker.create_topic("copies", queue_count=2)
        with Producer("guide", broker.name_server) as producer:
            for number in range(20):
                producer.send(Message(topic="orders", body=b"order %d" % number, tags="new"))
            for name in ("paid", "invoices"):
                broker.create_topic(name, queue_count=2)
            record = '{"type": "record", "name": "Invoice", "fields": [{"name": "cents", "type": "int"}]}'
            body = framed(registry.register("invoices-value", record), b"\x0a")
            producer.send(Message(topic="invoices", body=body))
        names: dict[str, Any] = {
            "registry": registry.url,
            "spark": spark,
            "name_server": broker.name_server,
            "lake": str(tmp_path),
            "store": str(broker.data / "store"),
        }
        for snippet in snippets:
            exec(compile(snippet, str(GUIDE), "exec"), names)  # our own document
        assert spark.read.parquet(f"{tmp_path}/orders").count() == 20
        options = {"namesrvAddr": broker.name_server, "topic": "copies"}
        copies = spark.read.format("rocketmq").options(**options).load()
        assert spark.read.parquet(f"{tmp_path}/log").count() == 20
        assert spark.read.format("rocketmq").options(**{**options, "topic": "paid"}).load().count() == 20
        assert [row.cents for row in names["decoded"].select("value.cents").collect()] == [5]
        assert copies.filter("cast(body AS string) LIKE 'copy of order %'").count() == 20

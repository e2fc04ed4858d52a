"""The snippets of docs/spark.md, run one after the other as a reader would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.testing import run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]

GUIDE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_snippets_of_the_guide_run(spark: SparkSession, tmp_path: Path) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) == 5
    with run_broker() as broker:
        broker.create_topic("orders", queue_count=2)
        broker.create_topic("copies", queue_count=2)
        with Producer("guide", broker.name_server) as producer:
            for number in range(20):
                producer.send(Message(topic="orders", body=b"order %d" % number, tags="new"))
        names = {
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
        assert copies.filter("cast(body AS string) LIKE 'copy of order %'").count() == 20

"""The pipelines of examples/pipelines, over real messages."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.pipeline_kit import read_all, run_plan, send_all

from orbitmq.client import ConsumeFromWhere, RetryLater, sync
from orbitmq.client.message import Message, ReceivedMessage
from orbitmq.pipeline.load import load_pipeline
from orbitmq.pipeline.plan import Plan, make_plan
from orbitmq.spark.register import register
from orbitmq.testing import run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
WAIT_S = 60.0


def example(name: str, **parameters: str) -> Plan:
    return make_plan(load_pipeline(EXAMPLES / name, parameters), EXAMPLES)


def consume(
    name_server: str, group: str, topic: str, count: int, *, refuse: bool = False, trace: bool = False
) -> None:
    """Have a group consume ``count`` messages of a topic; a refused one goes to its dead letters at once."""
    done = threading.Semaphore(0)

    def handle(message: ReceivedMessage) -> None:
        done.release()
        if refuse:
            raise RetryLater(delay_level=-1)

    first = ConsumeFromWhere.FIRST_OFFSET
    consumer = sync.PushConsumer(group, name_server, from_where=first, rebalance_s=0.5, trace=trace)
    consumer.subscribe(topic, "*", handle)
    with consumer:
        for _ in range(count):
            assert done.acquire(timeout=WAIT_S)


def test_dlq_triage_tells_reasons_and_sends_again(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with run_broker() as broker:
        broker.create_topic("orders", queue_count=1)
        bodies = [b'{"id": 1}', b'{"id": 2', b"text"]
        send_all(broker.name_server, [Message("orders", body, keys=f"k{n}") for n, body in enumerate(bodies)])
        consume(broker.name_server, "billing", "orders", 3, refuse=True)
        out = str(tmp_path / "dlq")
        outcome = run_plan(
            spark, example("dlq_triage.yaml", namesrv=broker.name_server, out=out, resend="true")
        )
        again = read_all(broker.name_server, "orders")
    table = {(row[0], row[1], row[2]): row[3] for row in outcome.tables["dead letters by reason"]}
    assert table == {
        ("billing", "orders", "broken JSON"): 1,
        ("billing", "orders", "sent here at once by its consumer"): 2,
    }
    assert {bytes(row.body) for row in spark.read.parquet(out).collect()} == set(bodies)
    # Each message is there twice now, with the id and the keys it had.
    assert sorted(message.body for message in again) == sorted(bodies * 2)
    assert len({message.message_id for message in again}) == 3
    assert sorted(message.keys[0] for message in again) == ["k0", "k0", "k1", "k1", "k2", "k2"]


def test_trace_latency_tells_times_by_topic_and_group(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    with run_broker(traceTopicEnable=True) as broker:
        broker.create_topic("orders", queue_count=1)
        with sync.Producer("shop", broker.name_server, trace=True) as producer:
            for number in range(5):
                producer.send(Message("orders", f"{number}"))
        consume(broker.name_server, "billing", "orders", 5, trace=True)
        out = str(tmp_path / "trace")
        plan = example("trace_latency.yaml", namesrv=broker.name_server, out=out)
        outcome = run_plan(spark, plan)
    ((topic, group, messages, send_p50, _, way_p50, _, handler_p50, _, failed, retried),) = outcome.tables[
        "milliseconds by topic and group"
    ]
    assert (topic, group, messages, failed, retried) == ("orders", "billing", 5, 0, 0)
    assert 0 <= send_p50 < 10_000
    assert 0 <= way_p50 < 60_000
    assert 0 <= handler_p50 < 10_000
    assert spark.read.parquet(out).count() == 5


def test_orders_stream_goes_to_files_and_its_bad_orders_to_a_topic(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    with run_broker() as broker:
        for topic in ("orders", "orders_rejected"):
            broker.create_topic(topic, queue_count=1)
        good = {"id": "1", "customer": "c", "amount": 12.5, "placed": "2026-05-01T12:00:00Z"}
        bodies = [json.dumps(good), json.dumps(good | {"amount": -1}), "junk"]
        send_all(broker.name_server, [Message("orders", body) for body in bodies])
        run_plan(spark, example("orders.toml", namesrv=broker.name_server, out=str(tmp_path)))
        rejected = read_all(broker.name_server, "orders_rejected")
    (row,) = spark.read.parquet(f"{tmp_path}/lake").collect()
    assert (row.value.id, str(row.value.amount), row.topic) == ("1", "12.50", "orders")
    assert sorted(one.properties["reject_rules"] for one in rejected) == [
        "positive",
        "readable,has_id,positive",
    ]

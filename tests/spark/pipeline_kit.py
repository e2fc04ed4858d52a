"""Pieces shared by the tests of pipelines."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orbitmq.client import sync
from orbitmq.client.consume.puller import PullStatus
from orbitmq.client.message import Message, ReceivedMessage
from orbitmq.pipeline.load import parse_pipeline
from orbitmq.pipeline.plan import Plan, make_plan
from orbitmq.pipeline.run import BatchReport, run_batch, run_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Outcome:
    """Collects what a run shows and reports."""

    def __init__(self) -> None:
        self.tables: dict[str, list[tuple[Any, ...]]] = {}
        self.reports: dict[str, list[BatchReport]] = {}

    def view(self, title: str, columns: list[str], rows: list[tuple[Any, ...]], more: bool) -> None:
        self.tables[title] = rows

    def report(self, batch: BatchReport) -> None:
        self.reports.setdefault(batch.query, []).append(batch)

    def rows(self, query: str) -> int:
        return sum(batch.rows for batch in self.reports.get(query, ()))


def plan_of(directory: Path, **document: Any) -> Plan:
    return make_plan(parse_pipeline({"name": "test"} | document, {}, {}), directory)


def run_plan(spark: SparkSession, plan: Plan) -> Outcome:
    """Run a plan to its end; streams read what is there."""
    outcome = Outcome()
    stop = threading.Event()
    if plan.streaming:
        run_stream(spark, plan, outcome.view, outcome.report, stop, once=True)
    else:
        run_batch(spark, plan, outcome.view, outcome.report, stop)
    return outcome


def send_all(name_server: str, messages: list[Message]) -> None:
    with sync.Producer("pipeline-test", name_server) as producer:
        for message in messages:
            producer.send(message)


def read_all(name_server: str, topic: str) -> list[ReceivedMessage]:
    """Every message of a topic, queue by queue."""
    found: list[ReceivedMessage] = []
    with sync.PullConsumer("pipeline-test", name_server) as consumer:
        for queue in consumer.fetch_queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                pulled = consumer.pull(queue, offset, 1000)
                assert pulled.status is PullStatus.FOUND, pulled
                found += pulled.messages
                offset = pulled.next_offset
    return found

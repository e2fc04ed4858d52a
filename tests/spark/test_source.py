"""``spark.read.format("rocketmq")``: what Spark shows is what was sent, and the options do what they say."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.apache.harness import JavaClients
from tests.apache.harness import Message as JavaMessage
from tests.apache.values import Received

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.testing import RunningBroker, run_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]

NASTY = 'größe "quoted" \\ back\tslash\n新しい 🚀 {"a":1}'
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker(enablePropertyFilter=True) as running:
        yield running


def load(spark: SparkSession, broker: RunningBroker, schema: str | None = None, **options: Any) -> DataFrame:
    # Without register(): Spark finds the format by itself.
    reader = spark.read.format("rocketmq").option("namesrvAddr", broker.name_server).options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


def send_from_java(java: JavaClients, broker: RunningBroker, topic: str) -> list[Received]:
    """Messages that use everything a message has, by the official client; and what it reads back itself."""
    producer = java.producer("spark-producers", broker.name_server)
    for message in [
        JavaMessage(topic=topic, body=b"plain"),
        JavaMessage(
            topic=topic, body=b"all", tags="A", keys="k1 k2", flag=7, properties={"a": "1", "b": NASTY}
        ),
        JavaMessage(topic=topic, body=NASTY.encode(), tags="größe", keys="schlüssel"),
        JavaMessage(topic=topic, body=bytes(range(256)) * 400, tags="B"),  # compressed by the client
        JavaMessage(topic=topic, body=b"\x00\x01\x02\xff", properties={"empty-ish": " "}),
    ]:
        producer.send(message)
    producer.send_batch([JavaMessage(topic=topic, body=b"batch %d" % n, tags="A") for n in range(40)])
    consumer = java.pull_consumer("spark-readers", broker.name_server)
    found: list[Received] = []
    for queue in consumer.queues(topic):
        offset = 0
        while (result := consumer.pull(queue, offset, max_count=32)).messages:
            found += result.messages
            offset = result.next_offset
    return found


def test_messages_of_the_java_client_are_read_with_equal_content_in_every_column(
    spark: SparkSession, broker: RunningBroker, java_latest: JavaClients
) -> None:
    topic = broker.create_topic("FromJava", queue_count=3)
    sent = {(one.queue.queue_id, one.queue_offset): one for one in send_from_java(java_latest, broker, topic)}
    assert len(sent) == 45
    rows = load(spark, broker, topic=topic).collect()
    assert len(rows) == len(sent)
    for row in rows:
        one = sent[row.queue_id, row.queue_offset]
        # What the client's own copy of the properties has and the stored message has not.
        own = {name: value for name, value in one.properties.items() if name in row.properties}
        assert set(one.properties) - set(own) <= {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}
        assert row.asDict(recursive=True) == {
            "topic": topic,
            "broker": one.broker_name or "broker-a",
            "queue_id": one.queue.queue_id,
            "queue_offset": one.queue_offset,
            "log_offset": one.log_offset,
            "msg_id": one.msg_id,
            "keys": one.keys,
            "tags": one.tags,
            "body": one.body,
            "properties": own,
            "born_timestamp": _as_spark(one.born_at_ms),
            "store_timestamp": _as_spark(one.stored_at_ms),
            "born_host": (one.born_host or "").removeprefix("/"),
            "store_host": (one.store_host or "").removeprefix("/"),
            "reconsume_times": one.reconsume_times,
            # As stored. The client clears the bit of a body it has inflated, and only that.
            "sys_flag": one.sys_flag | (len(one.body) > 4096),
            "flag": one.flag,
        }


def _as_spark(moment_ms: int) -> datetime:
    """PySpark gives timestamps without a zone, in the zone of the machine."""
    return (EPOCH + timedelta(milliseconds=moment_ms)).astimezone().replace(tzinfo=None)


def test_options_choose_what_is_read(spark: SparkSession, broker: RunningBroker) -> None:
    topic = broker.create_topic("Chosen", queue_count=2)
    with Producer("spark-chosen", broker.name_server) as producer:
        for number in range(60):
            tag = "A" if number % 3 else "B"
            producer.send(Message(topic=topic, body=b"%d" % number, tags=tag, properties={"n": str(number)}))
    assert load(spark, broker, topic=topic, sql="n BETWEEN 10 AND 19").count() == 10
    cut = load(spark, broker, "body binary, queue_offset bigint", topic=topic, minPartitions=6)
    assert cut.columns == ["body", "queue_offset"]
    parts = cut.selectExpr("cast(body as string) as body", "spark_partition_id() as part").collect()
    assert sorted(int(row.body) for row in parts) == list(range(60))
    assert len(Counter(row.part for row in parts)) >= 6
    # Two filters of one frame must not see each other's rows, as they do where filters are pushed down.
    both = load(spark, broker, topic=topic)
    assert both.filter("tags = 'A'").union(both.filter("tags = 'B'")).count() == 60
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW chosen USING rocketmq "
        f"OPTIONS (namesrvAddr '{broker.name_server}', topic '{topic}')"
    )
    assert spark.sql("SELECT max(cast(properties['n'] AS int)) AS n FROM chosen").collect()[0].n == 59


@pytest.mark.parametrize(
    ("schema", "options", "problem"),
    [
        ("body binary", {"topic": "x", "startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ("bodie binary", {"topic": "x"}, "a column 'bodie' that messages do not have"),
    ],
)
def test_what_is_wrong_is_said_where_the_user_sees_it(
    spark: SparkSession, broker: RunningBroker, schema: str, options: dict[str, str], problem: str
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        load(spark, broker, schema, **options).count()
    assert problem in str(caught.value)


@pytest.mark.parametrize("module", ["orbitmq.spark", "orbitmq.cli.main"])
def test_nothing_outside_the_sources_imports_spark(module: str) -> None:
    code = f"import sys, {module}; sys.exit(sum(name in sys.modules for name in ('pyspark', 'pyarrow', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path.cwd()).returncode == 0

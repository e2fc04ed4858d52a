"""Format ``rocketmq-store`` in Spark: Apache's stores, and ours while its broker runs, equal what the brokers say."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.golden import data as golden

from orbitmq.client import Message
from orbitmq.client.sync import Producer, PullConsumer
from orbitmq.spark import register
from orbitmq.testing import RunningBroker, run_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]

Sums = tuple[int, int, int, int]
IDS = "topic, queue_id, queue_offset, log_offset, msg_id, tags"
COUNT = 4_000
BODY_BYTES = 1_000


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    """A broker with small log files, and messages over several of them."""
    with run_broker(mappedFileSizeCommitLog=1024 * 1024) as running:
        running.create_topic("Rows", queue_count=4)
        running.create_topic("Other", queue_count=1)
        with Producer("store-test", running.name_server) as producer:
            for start in range(0, COUNT, 500):
                producer.send_batch(
                    [Message("Rows", body(i), tags="even" * (i % 2 == 0)) for i in range(start, start + 500)]
                )
                producer.send(Message("Other", body(start)))
        yield running


def body(number: int) -> bytes:
    return (b"%06d " % number) * (BODY_BYTES // 7)


def sums(frame: DataFrame) -> Sums:
    """Rows, bytes, and checksums of bodies and ids that do not depend on the order."""
    found = frame.selectExpr(
        "count(*)",
        "coalesce(sum(length(body)), 0)",
        "coalesce(sum(crc32(body)), 0)",
        f"coalesce(sum(crc32(cast(concat_ws('/', {IDS}) as binary))), 0)",
    ).first()
    assert found is not None
    return found[0], found[1], found[2], found[3]


def sums_of_broker(running: RunningBroker, topic: str) -> Sums:
    """The same of everything the broker delivers."""
    rows = size = bodies = ids = 0
    with PullConsumer("store-test-check", running.name_server) as consumer:
        for queue in consumer.fetch_queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset, 1000)
                for message in result.messages:
                    parts = [
                        topic,
                        message.queue_id,
                        message.queue_offset,
                        message.log_offset,
                        message.message_id,
                    ]
                    parts += [message.tags] if message.tags else []
                    rows, size = rows + 1, size + len(message.body)
                    bodies += zlib.crc32(message.body)
                    ids += zlib.crc32("/".join(map(str, parts)).encode())
                offset = result.next_offset
    return rows, size, bodies, ids


def store(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return register(spark).read.format("rocketmq-store").options(**options).load(str(path))


def test_apache_store_has_the_rows_and_checksums_that_were_recorded(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = golden.extract("store-crashed", tmp_path)
    records = golden.messages("store-crashed")["records"]
    plain = [one for one in records if "bodyHex" in one and not one["sysFlag"] & 1]
    frame = store(spark, root, maxPartitionBytes=600_000).selectExpr("*", "spark_partition_id() as part")
    short = "sys_flag % 2 = 0 and length(body) <= 4096"
    found = frame.selectExpr(
        "count(*)",
        "count(distinct part)",
        f"sum(crc32(body)) filter (where {short})",
        "sum(map_contains_key(properties, 'CLUSTER')::int)",
        "sum(crc32(cast(topic as binary)))",
    ).first()
    assert found is not None
    assert tuple(found) == (
        len(records),
        4,
        sum(zlib.crc32(bytes.fromhex(one["bodyHex"])) for one in plain),
        sum("CLUSTER" in one["properties"] for one in records),
        sum(zlib.crc32(one["topic"].encode()) for one in records),
    )


def test_store_of_a_running_broker_equals_what_the_broker_delivers(
    spark: SparkSession, broker: RunningBroker
) -> None:
    wanted = sums_of_broker(broker, "Rows")
    assert wanted[0] == COUNT
    path = broker.data / "store"
    assert sums(store(spark, path, topic="Rows", maxPartitionBytes=700_000)) == wanted
    assert sums(store(spark, path, topic="Rows", splitSegments=False)) == wanted
    with Producer("store-test", broker.name_server) as producer:
        producer.send(Message("Other", b"later"))
    counted = store(spark, path, topic="Rows,Other").groupBy("topic").count().collect()
    assert {row[0]: row[1] for row in counted} == {"Rows": COUNT, "Other": COUNT // 500 + 1}


def test_time_range_equals_a_filter_on_the_column(spark: SparkSession, broker: RunningBroker) -> None:
    path = broker.data / "store"
    times = sorted(row[0] for row in store(spark, path).selectExpr("unix_millis(store_timestamp)").collect())
    begin, end = times[len(times) // 4], times[len(times) // 2]
    chosen = store(spark, path, startingTimestamp=begin, endingTimestamp=end)
    assert chosen.count() == sum(begin <= time < end for time in times)
    assert store(spark, path, startingTimestamp=times[-1] + 3_600_000).count() == 0


def test_schema_with_fewer_columns_decodes_only_those(spark: SparkSession, broker: RunningBroker) -> None:
    reader = register(spark).read.format("rocketmq-store").schema("body binary, broker string")
    frame = reader.option("broker", "broker-x").option("topic", "Rows").load(str(broker.data / "store"))
    assert frame.columns == ["body", "broker"]
    found = frame.selectExpr("count(*)", "sum(crc32(body))", "min(broker)").first()
    assert found is not None
    assert tuple(found) == (COUNT, sum(zlib.crc32(body(number)) for number in range(COUNT)), "broker-x")


def test_problem_of_a_path_or_an_option_is_the_last_thing_spark_says(
    spark: SparkSession, tmp_path: Path, broker: RunningBroker
) -> None:
    with pytest.raises(Exception, match="there is no commit log at"):
        store(spark, tmp_path).count()
    with pytest.raises(Exception, match="did you mean 'failOnDataLoss'"):
        store(spark, broker.data / "store", failOnDataLost=False).count()
    path = broker.data / "store"
    listed = register(spark).read.format("rocketmq-store").option("paths", json.dumps([str(path)]))
    assert listed.option("topic", "Rows").load().count() == COUNT

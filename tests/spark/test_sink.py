"""``write.format("rocketmq")`` in Spark: what consumers get is what the frame held; a replay can be recognised."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.client import ReceivedMessage
from orbitmq.client.produce.queue_picker import select_by_hash
from orbitmq.client.sync import PullConsumer
from orbitmq.model.route import MessageQueue
from orbitmq.spark import register
from orbitmq.testing import RunningBroker, run_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


def received(broker: RunningBroker, topic: str) -> list[ReceivedMessage]:
    """Everything in a topic, queue by queue."""
    found: list[ReceivedMessage] = []
    with PullConsumer("sink-test", broker.name_server) as consumer:
        for queue in consumer.fetch_queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset, 1000)
                found += result.messages
                offset = result.next_offset
    return found


def send(frame: DataFrame, broker: RunningBroker, **options: Any) -> None:
    writer = frame.write.format("rocketmq").option("namesrvAddr", broker.name_server)
    writer.options(**options).mode("append").save()


def test_every_column_arrives_and_the_report_says_where(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    topic = broker.create_topic("Columns", queue_count=4)
    rows = 6_000
    frame = (
        register(spark)
        .range(0, rows, 1, 2)
        .selectExpr(
            "cast(rpad(concat('body ', id), 100, '.') as binary) as body",
            "array(concat('k', id), 'shared') as keys",
            "if(id % 2 = 0, 'even', null) as tags",
            "map('number', cast(id as string), 'CLUSTER', 'dropped') as properties",
            "concat('user-', id % 5) as sharding_key",
        )
    )
    report_path = tmp_path / "reports" / "sink.json"
    send(frame, broker, topic=topic, reportPath=str(report_path), batchBytes=50_000)
    found = received(broker, topic)
    assert len({message.message_id for message in found}) == len(found) == rows
    queues = sorted({message.queue for message in found})
    all_queues = [MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue) for queue in range(4)]
    by_number = {int(message.get("number") or -1): message for message in found}
    for number in range(0, rows, 97):
        message = by_number[number]
        assert message.body == b"body %d" % number + b"." * (95 - len(str(number)))
        assert message.keys == [f"k{number}", "shared"]
        assert message.tags == ("even" if number % 2 == 0 else "")
        assert message.get("CLUSTER") is None
        assert message.queue == select_by_hash(all_queues, f"user-{number % 5}")
    # Rows of one key keep their order: each of the two tasks sends its own one after the other.
    for queue in queues:
        numbers = [int(message.get("number") or -1) for message in found if message.queue == queue]
        for half in (range(rows // 2), range(rows // 2, rows)):
            mine = [number for number in numbers if number in half]
            assert mine == sorted(mine)
    report = json.loads(report_path.read_text())
    assert (report["outcome"], report["rows"], report["body_bytes"]) == ("committed", rows, 100 * rows)
    assert {one["queue_id"]: one["rows"] for one in report["queues"]} == {
        queue.queue_id: sum(message.queue == queue for message in found) for queue in queues
    }
    assert len(report["tasks"]) == 2


def test_delays_places_and_topics_of_rows_are_kept(spark: SparkSession, broker: RunningBroker) -> None:
    first, second = broker.create_topic("First", queue_count=3), broker.create_topic("Second", queue_count=3)
    frame = register(spark).sql(
        f"""
        select * from values
          ('{first}', 'placed', 2, null, null),
          ('{second}', 'other topic', 0, null, null),
          (null, 'by option', 1, null, null),
          ('{first}', 'level', 0, 18, null),
          ('{first}', 'timed', 0, null, current_timestamp() + interval 1 hour)
        as t(topic, body, queue_id, delay_level, deliver_at)
        """
    )
    send(frame, broker, topic=second)
    assert [(m.text(), m.queue_id) for m in received(broker, first)] == [("placed", 2)]
    assert {(m.text(), m.queue_id) for m in received(broker, second)} == {
        ("other topic", 0),
        ("by option", 1),
    }
    waiting = received(broker, "SCHEDULE_TOPIC_XXXX")
    assert [(m.text(), m.get("REAL_TOPIC"), m.queue_id) for m in waiting] == [("level", first, 17)]
    timed = (
        register(spark)
        .read.format("rocketmq-store")
        .option("topicPattern", ".*timer.*")
        .load(str(broker.data / "store"))
    )
    assert [row.body for row in timed.select("body").collect()] == [b"timed"]


def test_row_that_cannot_be_sent_fails_the_write_with_its_number(
    spark: SparkSession, broker: RunningBroker
) -> None:
    topic = broker.create_topic("Refused", queue_count=1)
    frame = register(spark).range(0, 10, 1, 1).selectExpr("if(id = 7, '', 'x') as body")
    with pytest.raises(Exception, match="row 7 of this partition has an empty body"):
        send(frame, broker, topic=topic)
    with pytest.raises(Exception, match="column 'id' has no meaning for a message"):
        send(register(spark).range(1), broker, topic=topic)
    writer = frame.write.format("rocketmq").option("namesrvAddr", broker.name_server).option("topic", topic)
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        writer.mode("overwrite").save()


def test_micro_batch_replayed_after_a_crash_has_the_same_unique_keys(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    topic = broker.create_topic("Stream", queue_count=2)
    checkpoint, lines = tmp_path / "checkpoint", tmp_path / "lines"
    lines.mkdir()
    for file in range(3):
        (lines / f"{file}.txt").write_text("\n".join(str(500 * file + row) for row in range(500)))

    def run() -> None:
        source = register(spark).readStream.format("text").option("maxFilesPerTrigger", 1)
        query = (
            source.load(str(lines))
            .selectExpr("value as body")
            .writeStream.format("rocketmq")
            .option("namesrvAddr", broker.name_server)
            .option("topic", topic)
            .option("checkpointLocation", str(checkpoint))
            .option("reportPath", str(tmp_path / "reports"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    run()
    before = received(broker, topic)
    assert sorted(int(message.text()) for message in before) == list(range(1500))
    # What a crash between the sink's commit and Spark's own leaves behind: the sends are out, the commit is not.
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    run()
    after = received(broker, topic)
    assert len(after) == 2000, "the last micro-batch was sent twice"
    unique = {message.message_id: message.text() for message in after}
    assert all(unique[message.message_id] == message.text() for message in after)
    assert sorted(int(text) for text in unique.values()) == list(range(1500)), "exactly once by unique key"
    report = json.loads((tmp_path / "reports" / "batch-2.json").read_text())
    assert (report["batch_id"], report["rows"]) == (2, 500)

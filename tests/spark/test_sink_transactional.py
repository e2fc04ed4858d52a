"""``mode=transactional``: each row is seen once, nothing of a failed micro-batch is, wherever the driver dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.client.sync import PullConsumer
from orbitmq.spark import register
from orbitmq.testing import RunningBroker, run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache, pytest.mark.usefixtures("fast_jvm")]

ROWS = 150
FILES = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


def bodies(name_server: str, topic: str) -> list[str]:
    """Everything consumers can read of a topic."""
    found: list[str] = []
    with PullConsumer("sink-test", name_server) as consumer:
        for queue in consumer.fetch_queues(topic):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset, 1000)
                found += [message.text() for message in result.messages]
                offset = result.next_offset
    return found


def numbers(first_file: int, end_file: int) -> list[int]:
    return list(range(first_file * ROWS, end_file * ROWS))


def write_lines(directory: Path) -> None:
    (directory / "lines").mkdir()
    for file in range(FILES):
        text = "\n".join(map(str, numbers(file, file + 1)))
        (directory / "lines" / f"{file}.txt").write_text(text)


def run_job(name_server: str, topic: str, directory: Path, point: str) -> int:
    command = [sys.executable, "-m", "tests.spark.sink_job", name_server, topic, str(directory), point]
    with (directory / "log").open("ab") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        return job.wait(240)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("point", "visible"),
    [
        pytest.param("preparing", 1, marks=pytest.mark.soak),
        pytest.param("prepared", 1, marks=pytest.mark.soak),
        pytest.param("decided", 1, marks=pytest.mark.soak),
        ("committing", None),
        pytest.param("committed", 2, marks=pytest.mark.soak),
        pytest.param("done", 2, marks=pytest.mark.soak),
    ],
)
def test_driver_killed_at_a_point_of_a_micro_batch_leaves_each_row_once(
    broker: RunningBroker, tmp_path: Path, point: str, visible: int | None
) -> None:
    topic = broker.create_topic(f"Killed-{point}", queue_count=2)
    write_lines(tmp_path)
    assert run_job(broker.name_server, topic, tmp_path, point) == -signal.SIGKILL, (
        tmp_path / "log"
    ).read_text()
    seen = sorted(map(int, bodies(broker.name_server, topic)))
    if visible is None:
        assert ROWS < len(seen) < 2 * ROWS, "some of the second micro-batch is committed, not all"
        assert len(set(seen)) == len(seen)
    else:
        # A file is a micro-batch; which one comes first is up to Spark.
        files = sorted({number // ROWS for number in seen})
        assert len(files) == visible
        assert seen == [number for file in files for number in numbers(file, file + 1)]
    assert run_job(broker.name_server, topic, tmp_path, "none") == 0, (tmp_path / "log").read_text()[-3000:]
    assert sorted(map(int, bodies(broker.name_server, topic))) == numbers(0, FILES)


def test_rows_of_a_failed_task_are_never_seen_and_order_in_a_queue_is_kept(
    spark: SparkSession, broker: RunningBroker
) -> None:
    topic = broker.create_topic("AllOrNone", queue_count=2)
    frame = register(spark).range(0, 200, 1, 2)

    def write(body: str) -> None:
        rows = frame.selectExpr(f"{body} AS body", "id % 3 AS sharding_key")
        writer = rows.write.format("rocketmq").option("namesrvAddr", broker.name_server)
        writer.options(topic=topic, mode="transactional").mode("append").save()

    with pytest.raises(Exception, match="has an empty body"):
        write("if(id = 150, '', cast(id AS string))")
    assert bodies(broker.name_server, topic) == []
    write("cast(id AS string)")
    found = list(map(int, bodies(broker.name_server, topic)))
    assert sorted(found) == list(range(200))
    for key in range(3):
        for half in (range(100), range(100, 200)):
            mine = [number for number in found if number % 3 == key and number in half]
            assert mine == sorted(mine)


def test_options_that_cannot_be_meant_are_refused(spark: SparkSession, broker: RunningBroker) -> None:
    frame = register(spark).sql("SELECT 'x' AS body, 3 AS delay_level")
    writer = frame.write.format("rocketmq").option("namesrvAddr", broker.name_server).option("topic", "T")
    with pytest.raises(Exception, match="'delay_level' cannot be used with mode=transactional"):
        writer.option("mode", "transactional").mode("append").save()
    with pytest.raises(Exception, match="dedup and transactional are accepted"):
        writer.option("mode", "exactly-once").mode("append").save()

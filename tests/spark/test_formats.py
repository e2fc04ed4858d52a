"""Every documented way to name a format works in a session that never called ``register``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.testing import RunningBroker, run_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]

COUNT = 8


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        running.create_topic("Named", queue_count=2)
        running.create_topic("Written", queue_count=2)
        with Producer("formats", running.name_server) as producer:
            for number in range(COUNT):
                producer.send(Message("Named", b"%d" % number))
        yield running


@pytest.fixture
def fresh(spark: SparkSession) -> SparkSession:
    """A session with a registry of data sources of its own: what other tests registered is not in it."""
    return spark.newSession()


def options(broker: RunningBroker, name: str) -> dict[str, str]:
    if name == "rocketmq-store":
        return {"path": str(broker.data / "store"), "topic": "Named"}
    return {"namesrvAddr": broker.name_server, "topic": "Named", "startingOffsets": "earliest"}


def count_stream(frame: DataFrame, directory: Path) -> int:
    counts: list[int] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: counts.append(batch.count()))
        .option("checkpointLocation", str(directory / "state"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(counts)


@pytest.mark.parametrize("name", ["rocketmq", "rocketmq-store"])
def test_formats_are_read_as_a_batch_a_stream_and_a_view(
    fresh: SparkSession, broker: RunningBroker, tmp_path: Path, name: str
) -> None:
    given = options(broker, name)
    stream: Any = fresh.readStream.format(name).options(**given)
    assert count_stream(stream.load(), tmp_path) == COUNT
    if name == "rocketmq-store":
        del given["path"]
        batch = fresh.read.format(name).options(**given).load(str(broker.data / "store"))
    else:
        batch = fresh.read.format(name).options(**given).load()
    assert batch.count() == COUNT
    pairs = ", ".join(f"{key} '{value}'" for key, value in options(broker, name).items())
    fresh.sql(f"CREATE TEMPORARY VIEW named USING `{name}` OPTIONS ({pairs})")
    assert fresh.sql("SELECT count(*) FROM named").first() == (COUNT,)


def test_topics_are_written_as_a_batch_and_a_stream(
    fresh: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    target = {"namesrvAddr": broker.name_server, "topic": "Written"}
    fresh.sql("SELECT 'x' AS body").write.format("rocketmq").options(**target).mode("append").save()
    rows = fresh.readStream.format("rocketmq").options(**options(broker, "rocketmq")).load().select("body")
    query = (
        rows.writeStream.format("rocketmq")
        .options(**target)
        .option("checkpointLocation", str(tmp_path / "state"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    written = fresh.read.format("rocketmq").options(**target).load()
    assert written.count() == COUNT + 1

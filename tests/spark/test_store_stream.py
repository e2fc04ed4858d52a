"""A store as a stream, without Spark: every record once and whole, whenever one looks while a broker writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from tests.spark.test_store_files import SEGMENT_BYTES, Log, numbers, write_log

from orbitmq.errors import ConfigError, CorruptionError
from orbitmq.spark.store.options import StoreOptions
from orbitmq.spark.store.stream import StoreStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BODIES = [b"x" * (50 + 37 * number % 400) for number in range(60)]


def reader(root: Path, **options: Any) -> StoreStreamReader:
    return StoreStreamReader(StoreOptions(paths=(str(root),), **options), ("queue_offset", "body"))


def rows_between(
    stream: StoreStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[dict[str, Any]]:
    return [
        row
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]


def reveal(log: Log, root: Path, log_end: int) -> None:
    """The same log as it was when that many bytes were written."""
    directory = root / "commitlog"
    directory.mkdir(parents=True, exist_ok=True)
    for path in sorted((log.root / "commitlog").iterdir()):
        base = int(path.name)
        if base >= log_end and base > 0:
            continue
        content = path.read_bytes()[: max(0, log_end - base)]
        (directory / path.name).write_bytes(content.ljust(SEGMENT_BYTES, b"\0"))


def test_every_record_comes_once_however_much_is_written_between_two_looks(tmp_path: Path) -> None:
    log = write_log(tmp_path / "whole", BODIES, ahead=0)
    for step in (61, 997, 5000):
        root = tmp_path / f"growing-{step}"
        reveal(log, root, 0)
        stream = reader(root, partition_bytes=700)
        place = stream.initialOffset()
        assert place == {str(root): 0}
        found: list[int] = []
        for written in [*range(step, log.end, step), log.end]:
            reveal(log, root, written)
            latest = stream.latestOffset(place, ReadAllAvailable())
            assert latest[str(root)] <= written
            found += numbers(rows_between(stream, place, latest))
            place = latest
        assert found == list(range(len(BODIES)))
        assert stream.latestOffset(place, ReadAllAvailable()) is place, "no news, the same text"


@pytest.mark.parametrize("most", [1, 300, 1500, 9000])
def test_micro_batches_are_bounded_and_hold_one_record_at_least(tmp_path: Path, most: int) -> None:
    log = write_log(tmp_path, BODIES)
    stream = reader(tmp_path, bytes_per_trigger_max=most)
    limit = stream.getDefaultReadLimit()
    assert limit == ReadMaxBytes(most)
    place, found = stream.initialOffset(), []
    stream.prepareForTriggerAvailableNow()
    while (latest := stream.latestOffset(place, limit)) is not place:
        rows = rows_between(stream, place, latest)
        assert len(rows) == 1 or sum(len(row["body"]) for row in rows) <= most
        found += numbers(rows)
        # What a restart does: another reader is given the same offsets, as JSON.
        again = reader(tmp_path, partition_bytes=512)
        assert rows_between(again, json.loads(json.dumps(place)), latest) == rows
        place = latest
    assert found == list(range(len(BODIES)))
    assert place == {str(tmp_path): log.end}


def test_lost_part_of_a_log_stops_the_stream_or_is_passed_over(tmp_path: Path) -> None:
    log = write_log(tmp_path, BODIES)
    place = reader(tmp_path).initialOffset()
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(CorruptionError, match=f"log offsets 0 to {SEGMENT_BYTES} were deleted"):
        reader(tmp_path).latestOffset(place, ReadAllAvailable())
    stream = reader(tmp_path, fail_on_data_loss=False)
    latest = stream.latestOffset(place, ReadAllAvailable())
    rows = numbers(rows_between(stream, place, latest))
    assert rows == list(range(rows[0], len(BODIES)))
    assert log.offsets[rows[0]] == SEGMENT_BYTES
    shutil.rmtree(tmp_path / "commitlog")
    write_log(tmp_path, BODIES[:5])
    with pytest.raises(CorruptionError, match="is it another one"):
        reader(tmp_path).latestOffset(latest, ReadAllAvailable())


def test_stream_begins_at_the_end_if_told_so_and_options_are_checked(tmp_path: Path) -> None:
    log = write_log(tmp_path, BODIES)
    parsed = StoreOptions.parse({"path": str(tmp_path), "startingOffsets": "latest"}, streaming=True)
    assert StoreStreamReader(parsed).initialOffset() == {str(tmp_path): log.end}
    for options, problem in (
        ({"startingOffsets": "first"}, "earliest and latest"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger"),
    ):
        with pytest.raises(ConfigError, match=problem):
            StoreOptions.parse({"path": "x", **options}, streaming=True)
    with pytest.raises(ConfigError, match="is for readStream"):
        StoreOptions.parse({"path": "x", "maxBytesPerTrigger": "5"})


@pytest.mark.slow
@pytest.mark.apache
def test_store_of_a_running_broker_is_followed_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    from orbitmq.client import Message
    from orbitmq.client.sync import Producer
    from orbitmq.spark import register
    from orbitmq.testing import run_broker

    with run_broker() as broker, Producer("stream", broker.name_server) as producer:
        topic = broker.create_topic("Followed", queue_count=2)

        def run() -> None:
            query = (
                register(spark)
                .readStream.format("rocketmq-store")
                .option("topic", topic)
                .option("maxBytesPerTrigger", 40_000)
                .load(str(broker.data / "store"))
                .selectExpr("cast(body AS string) AS body")
                .writeStream.format("parquet")
                .option("path", str(tmp_path / "rows"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(200)

        for part in range(2):
            rows = range(300 * part, 300 * part + 300)
            producer.send_batch([Message(topic=topic, body=b"%d" % row) for row in rows])
            run()
        found = sorted(int(row.body) for row in spark.read.parquet(str(tmp_path / "rows")).collect())
        assert found == list(range(600))

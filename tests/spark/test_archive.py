"""Topics to Parquet and back: nothing lost, nothing twice, everything as it was."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.pipeline_kit import read_all, send_all

from orbitmq.client.message import Message, ReceivedMessage
from orbitmq.pipeline.archive import (
    Archive,
    Replay,
    Run,
    archive_topics,
    paced,
    plan_archive,
    read_manifest,
    replay,
)
from orbitmq.runtime.clock import SYSTEM_CLOCK
from orbitmq.spark.errors import EnvironmentFault, RunFailed
from orbitmq.spark.register import register
from orbitmq.testing import run_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


def message(topic: str, number: int) -> Message:
    return Message(
        topic,
        f"body {number}" + "x" * (5000 if number == 3 else 0),  # one is compressed on its way
        keys=[f"a{number}", f"b{number}"],
        tags="even" if number % 2 == 0 else "",
        properties={"number": str(number)},
        shard_key=f"s{number % 3}" if number % 4 == 0 else "",
    )


def seen(one: ReceivedMessage) -> tuple[Any, ...]:
    return (
        one.message_id,
        one.body,
        tuple(one.keys),
        one.tags,
        one.properties["number"],
        one.properties.get("__SHARDINGKEY"),
    )


def take(session: SparkSession, options: dict[str, str], directory: str, **span: int | None) -> Run:
    known = read_manifest(directory) or Archive()
    ranges = plan_archive(options, span.get("since"), span.get("until"), known)
    return archive_topics(session, options, directory, ranges, known, ("", ""))


def test_archive_and_replay_keep_every_message_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    directory = str(tmp_path / "archive")
    with run_broker() as broker:
        for topic in ("orders", "2026", "copy"):
            broker.create_topic(topic, queue_count=2)
        options = {"namesrvAddr": broker.name_server, "topic": "orders,2026"}
        send_all(
            broker.name_server,
            [message("orders", n) for n in range(20)] + [message("2026", n) for n in range(4)],
        )
        assert take(spark, options, directory).rows == 24
        assert take(spark, options, directory).rows == 0
        between_ms = SYSTEM_CLOCK.now_ms() + 1
        while SYSTEM_CLOCK.now_ms() <= between_ms:
            pass
        send_all(broker.name_server, [message("orders", n) for n in range(20, 26)])
        # A run that was cut short leaves files behind and no line in the list.
        (tmp_path / "archive" / "run=00001" / "topic=orders").mkdir(parents=True)
        (tmp_path / "archive" / "run=00001" / "topic=orders" / "rest.parquet").write_bytes(b"torn")
        second = take(spark, options, directory)
        assert (second.number, second.rows) == (1, 6)
        request = Replay(
            directory,
            {"namesrvAddr": broker.name_server},
            topics=("orders",),
            renamed={"orders": "copy"},
            until_ms=between_ms,
        )
        assert replay(spark, request) == (20, {"copy": 20})
        sent = [one for one in read_all(broker.name_server, "orders") if int(one.properties["number"]) < 20]
        copies = read_all(broker.name_server, "copy")
        assert Counter(map(seen, copies)) == Counter(map(seen, sent))
        later = Replay(
            directory,
            {"namesrvAddr": broker.name_server},
            renamed={"orders": "copy"},
            since_ms=between_ms,
            rate=4.0,
        )
        start = SYSTEM_CLOCK.monotonic()
        assert replay(spark, later) == (6, {"copy": 6})
        # Two tasks with two messages a second each; one of them has at least three.
        assert SYSTEM_CLOCK.monotonic() - start >= 1.5
        nothing = Replay(directory, {"namesrvAddr": broker.name_server}, topics=("other",))
        assert replay(spark, nothing) == (0, {})
        # A file that is gone is told before anything is sent.
        next((tmp_path / "archive" / "run=00000").rglob("*.parquet")).unlink()
        with pytest.raises(RunFailed, match=r"its list says 30 rows, its files hold \d+; nothing was sent"):
            replay(spark, later)


def test_archive_of_a_topic_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with run_broker() as broker:
        options = {"namesrvAddr": broker.name_server, "topic": "nothing"}
        with pytest.raises(EnvironmentFault, match="there is no topic 'nothing'"):
            plan_archive(options, None, None, Archive())


def test_rate_holds_back_what_would_be_too_fast() -> None:
    start = SYSTEM_CLOCK.monotonic()
    columns = list(paced(100.0)(iter([[b"x"] * 10] * 3)))
    assert len(columns) == 3
    assert SYSTEM_CLOCK.monotonic() - start >= 0.3

"""A program with one streaming query from text files into a topic, which ends itself with -9 at a chosen point.

python -m tests.spark.sink_job NAME_SERVER TOPIC DIRECTORY POINT

Points, all in micro-batch 1: ``preparing``, ``prepared``, ``decided``, ``committing``, ``committed``, ``done``; any
other word lets the query run to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType
from tests.spark.stream_job import short_session

from orbitmq.spark.sink import commit as sink_commit
from orbitmq.spark.sink import send as sink_send
from orbitmq.spark.sink.bulk import ask_brokers
from orbitmq.spark.sink.prepared import TransactionLog
from orbitmq.spark.sink.transactional import TransactionalStreamWriter
from orbitmq.spark.sink.writers import stream_writer
from orbitmq.spark.source.topic_source import RocketmqSource

POINT = sys.argv[4] if len(sys.argv) > 4 else ""
DRIVER = os.getpgrp()
"""This module travels to Python workers by value, so both names are those of the driver there."""
BATCH = 1
ROWS_BEFORE = 40


def die() -> None:
    """Driver and JVM first, then the workers of this one's daemon and itself."""
    os.killpg(DRIVER, signal.SIGKILL)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def counted(work: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """Lets some calls pass and dies with the next."""
    left = [calls]

    def call(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            die()
        return work(*arguments, **named)

    return call


def dying_after(work: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        work(*arguments, **named)
        die()

    return call


def dying_midway(ask: Callable[..., Any]) -> Callable[..., Any]:
    def call(asks: Sequence[Any], *arguments: Any) -> Any:
        ask(asks[:ROWS_BEFORE], *arguments)
        die()

    return call


class DyingWriter(TransactionalStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if POINT == "preparing" and context.getLocalProperty("streaming.sql.batchId") == str(BATCH):
            vars(sink_send)["ask_brokers"] = dying_midway(ask_brokers)  # a fault
        return super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        if batchId == BATCH:
            if POINT == "prepared":
                die()
            if POINT == "decided":
                TransactionLog.decide = dying_after(TransactionLog.decide)  # type: ignore[method-assign]  # a fault
            if POINT == "committing":
                vars(sink_commit)["ask_brokers"] = dying_midway(ask_brokers)  # a fault
            if POINT == "committed":
                TransactionLog.finish = counted(TransactionLog.finish, 0)  # type: ignore[method-assign]  # a fault
            if POINT == "done":
                TransactionLog.finish = dying_after(TransactionLog.finish)  # type: ignore[method-assign]  # a fault
        super().commit(messages, batchId)


class DyingSource(RocketmqSource):
    @classmethod
    def name(cls) -> str:
        return "rocketmq-dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TransactionalStreamWriter:  # noqa: N802 - Spark's name
        writer = stream_writer(self.options, schema, overwrite)
        assert isinstance(writer, TransactionalStreamWriter)
        return DyingWriter(writer._plan)


def main(name_server: str, topic: str, directory: str, point: str) -> None:
    spark = short_session()
    spark.dataSource.register(DyingSource)
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(f"{directory}/lines")
    query = (
        lines.selectExpr("value AS body", "concat('k', value) AS keys")
        .repartition(2)
        .writeStream.format("rocketmq-dying")
        .options(namesrvAddr=name_server, topic=topic, mode="transactional")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

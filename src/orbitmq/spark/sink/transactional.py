"""``mode=transactional``: consumers see all rows of a micro-batch exactly once, or none of them.

A task stores its rows as half messages, and the driver commits the half messages of all tasks (the rules are in
``commit.py``). If Spark reruns a micro-batch that has already been decided, nothing is sent, because its half
messages are already stored.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from orbitmq.client.options import ProducerOptions
from orbitmq.codes import Property
from orbitmq.spark.options import access, client_settings
from orbitmq.spark.sink.commit import BATCH_PROPERTY, Committer, batch_mark, roll_back
from orbitmq.spark.sink.plan import ATTEMPT_TIMEOUT_S, RowsSent, SinkPlan, TaskOf, report, send_rows, sent_by
from orbitmq.spark.sink.prepared import Decision, Half, TransactionLog, pack, unpack
from orbitmq.spark.sink.send import SendSession, sink_client

__all__ = ["TransactionalBatchWriter", "TransactionalStreamWriter"]

_BATCH_WRITE: Final = 0
"""A write without a stream counts as a stream with a single micro-batch."""


def committer(plan: SinkPlan) -> Committer:
    """Returns this process's committer for these options."""
    found = access(plan.options)
    settings = client_settings(plan.options)

    def make() -> Committer:
        options = ProducerOptions(send_timeout_s=ATTEMPT_TIMEOUT_S, **settings)
        return Committer(plan.group, found, options, settings)

    client = sink_client((found, plan.group, "committer"), make)
    assert isinstance(client, Committer)
    return client


def prepare(plan: SinkPlan, task: TaskOf, query: str, batches: Iterator[pa.RecordBatch]) -> RowsSent:
    """Stores the rows of a task as half messages, and rolls them back if the attempt fails."""
    client = plan.client()
    session = SendSession(client, plan.timeout_s, plan.in_flight_max, partition=task.partition)
    pairs = {
        Property.TRANSACTION_PREPARED: "true",
        Property.PRODUCER_GROUP: plan.group,
        BATCH_PROPERTY: batch_mark(query, int(task.batch or _BATCH_WRITE)),
    }
    half = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
    try:
        send_rows(plan, task, session, batches, half.encode())
    except BaseException:
        roll_back(client, session.halves)
        raise
    return RowsSent(task.partition, task.attempt, session.tallies, query, pack(session.halves))


def _halves(messages: Sequence[RowsSent | None]) -> list[Half]:
    return [
        half
        for message in messages
        if message is not None and message.halves
        for half in unpack(message.halves)
    ]


class TransactionalStreamWriter(DataSourceStreamArrowWriter):
    """The writer of one micro-batch of a query. The driver creates one for each micro-batch, and another one to
    commit it."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._decided = TransactionLog(plan.log_location).decided()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskOf.current()
        if int(task.batch) <= self._decided.get(task.query, -1):
            for _ in iterator:
                pass  # the rows are already stored
            return RowsSent(task.partition, task.attempt, {}, task.query, replayed=True)
        return prepare(self._plan, task, task.query, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        sent = sent_by(messages)
        query = next((one.query for one in sent if one is not None), None)
        if query is None:
            return  # without tasks there are no rows
        log = TransactionLog(self._plan.log_location)
        client = committer(self._plan)
        client.note_over(query, log.done(query))
        if batchId > log.done(query):
            decision = log.read(query, batchId)
            resumed = decision is not None
            if decision is None:
                assert not any(one.replayed for one in sent if one is not None), "decided, and no decision"
                halves = _halves(sent)
                client.greet({half.topic for half in halves})
                decision = Decision(halves, client.ends(halves))
                if halves:
                    log.decide(query, batchId, decision)
            client.finish(decision, self._plan.timeout_s, resumed=resumed)
            log.finish(query, batchId)
        client.note_over(query, batchId)
        report(self._plan, sent, batchId, "committed")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        sent = sent_by(messages)
        query = next((one.query for one in sent if one is not None), "")
        # After a partly failed commit Spark calls abort; the decision stands.
        if TransactionLog(self._plan.log_location).decided().get(query, -1) < batchId:
            roll_back(committer(self._plan), _halves(sent))
        report(self._plan, sent, batchId, "aborted")


class TransactionalBatchWriter(DataSourceArrowWriter):
    """The writer of one ``df.write``. Writes all rows or none, unless the driver dies during the commits, which
    nothing resumes."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._query = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return prepare(self._plan, TaskOf.current(), self._query, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        sent = sent_by(messages)
        halves = _halves(sent)
        client = committer(self._plan)
        client.finish(Decision(halves, client.ends(halves)), self._plan.timeout_s, resumed=False)
        client.note_over(self._query, _BATCH_WRITE)
        report(self._plan, sent, None, "committed")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        sent = sent_by(messages)
        client = committer(self._plan)
        roll_back(client, _halves(sent))
        client.note_over(self._query, _BATCH_WRITE)
        report(self._plan, sent, None, "aborted")

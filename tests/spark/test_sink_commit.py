"""Half messages of the sink on our broker and on Apache's: a decision is carried out once, by whichever driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.apache.artifacts import LATEST
from tests.apache.servers import ApacheBroker, ApacheNamesrv, create_topic
from tests.spark.test_sink_transactional import bodies

from orbitmq.client.message import ReceivedMessage, TransactionState
from orbitmq.client.options import ProducerOptions
from orbitmq.errors import RequestTimeoutError
from orbitmq.spark.options import Access
from orbitmq.spark.sink.commit import BATCH_PROPERTY, Committer, batch_mark, end_all, roll_back
from orbitmq.spark.sink.prepared import Decision, Half, TransactionLog, pack, unpack
from orbitmq.spark.sink.send import HalfRow, SendSession, SinkClient
from orbitmq.testing import run_broker

pytestmark = [pytest.mark.slow, pytest.mark.apache]

ROWS = 60
GROUP = "sink-commit"
QUESTIONS: dict[str, Any] = {"transactionTimeOut": 500, "transactionCheckInterval": 500}


@dataclass(frozen=True)
class Target:
    name_server: str
    topic: str


@pytest.fixture(scope="module", params=["orbitmq", "apache"])
def servers(request: pytest.FixtureRequest) -> Iterator[Target]:
    with ExitStack() as stack:
        if request.param == "orbitmq":
            broker = stack.enter_context(run_broker(**QUESTIONS))
            yield Target(broker.name_server, broker.create_topic("Halves", queue_count=2))
            return
        request.getfixturevalue("apache_tools")
        namesrv = stack.enter_context(ApacheNamesrv(LATEST))
        apache = stack.enter_context(ApacheBroker(LATEST, namesrv, **QUESTIONS))
        create_topic(namesrv, apache, "Halves", queue_count=2)
        yield Target(namesrv.address, "Halves")


class CountingCommitter(Committer):
    answered = 0

    async def _judge(self, message: ReceivedMessage) -> TransactionState:
        state = await super()._judge(message)
        self.answered += state is TransactionState.ROLLBACK
        return state


def committer(target: Target) -> CountingCommitter:
    return CountingCommitter(GROUP, Access(target.name_server), ProducerOptions(send_timeout_s=10), {})


def prepare(target: Target, query: str, batch: int) -> list[Half]:
    """Half messages as a task stores them."""
    client = SinkClient(GROUP, Access(target.name_server), ProducerOptions(send_timeout_s=10), member=False)
    try:
        session = SendSession(client, 30, 16)
        rows = []
        for number in range(ROWS):
            key = f"{query}-{batch}-{number}"
            pairs = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": GROUP}
            pairs[BATCH_PROPERTY] = batch_mark(query, batch)
            text = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
            rows.append(HalfRow(number, key.encode(), text.encode(), key))
        session.store_halves(rows, target.topic, None)
        session.finish()
        return session.halves
    finally:
        client.close()


def mine(target: Target, query: str) -> list[str]:
    return [text for text in bodies(target.name_server, target.topic) if text.startswith(f"{query}-")]


def test_second_driver_commits_what_the_first_one_left_and_questions_roll_back_the_rest(
    servers: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.spark.sink.commit.SETTLE_S", 1.0)
    log = TransactionLog(str(tmp_path))
    lost = prepare(servers, "q", 0)  # of a driver that died before it decided
    halves = prepare(servers, "q", 0)
    assert len(lost) == len(halves) == ROWS
    assert unpack(pack(halves)) == halves
    assert mine(servers, "q") == []
    first = committer(servers)
    try:
        log.decide("q", 0, Decision(halves, first.ends(halves)))
        assert log.decided() == {"q": 0}
        assert end_all(first, halves[:25], TransactionState.COMMIT) == []
    finally:
        first.close()
    second = committer(servers)
    try:
        decision = log.read("q", 0)
        assert decision is not None
        assert list(decision.halves) == halves
        assert second.finish(decision, 30, resumed=True) == ROWS - 25
        assert second.finish(decision, 30, resumed=True) == 0
        expected = sorted(half.key for half in halves)
        assert sorted(mine(servers, "q")) == expected
        log.finish("q", 0)
        assert (log.done("q"), log.read("q", 0), log.decided()) == (0, None, {"q": 0})
        # The broker asks about those nobody ended, and about copies of those it had asked about before.
        second.greet({servers.topic})
        second.note_over("q", 0)
        deadline = time.monotonic() + 60
        while second.answered < ROWS:
            assert time.monotonic() < deadline, second.answered
            threading.Event().wait(0.05)
        assert sorted(mine(servers, "q")) == expected
    finally:
        second.close()


def test_rolled_back_rows_are_never_seen_and_a_wrong_half_message_is_named(
    servers: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.spark.sink.commit.SETTLE_S", 0.1)
    halves = prepare(servers, "r", 1)
    client = committer(servers)
    try:
        roll_back(client, halves)
        ends = client.ends(halves)
        assert mine(servers, "r") == []
        wrong = [halves[0]._replace(half_offset=halves[0].half_offset + 1)]
        with pytest.raises(RequestTimeoutError, match=r"1 of 1 rows were not committed within 0\.5 s"):
            client.finish(Decision(wrong, ends), 0.5, resumed=False)
        assert mine(servers, "r") == []
    finally:
        client.close()

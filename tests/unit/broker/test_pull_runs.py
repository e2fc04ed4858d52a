"""Pulls of one socket read answered together: the same responses and bookkeeping as one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.test_pull_handlers import ALL, WAIT_MS, Puller, in_loop

from orbitmq.broker.config import BrokerRole
from orbitmq.broker.handlers import pull_runs
from orbitmq.broker.handlers.pull_runs import PullRuns
from orbitmq.codes import PullFlag, ResponseCode, SerializeType
from orbitmq.errors import NoPermission
from orbitmq.kernel.layout import FIXED_V4
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.record.codec import decode_records
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Router
from orbitmq.wire.frame import Frame, FrameDecoder, encode_oneway, encode_request

SUBSCRIPTION = PullFlag.SUBSCRIPTION
COMMITS = PullFlag.SUBSCRIPTION | PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND


def guard(frame: Frame, _connection: Connection) -> None:
    if frame.pull is not None and frame.pull.consumer_group == "stranger":
        raise NoPermission("strangers may not pull")


class Broker:
    """A pull path that serves pulls one by one or together."""

    def __init__(self, directory: Path, *, together: bool, **options: Any) -> None:
        directory.mkdir()
        self.puller = Puller(directory, **options)
        self.world = self.puller.world
        self.world.group("stranger")
        self.world.topic("Other", queues=4, topic_sys_flag=1)
        self.world.groups.update(SubscriptionGroupConfig(group_name="lagging", group_sys_flag=2, broker_id=1))
        self.runs = PullRuns(self.puller.handlers, self.world.store.reader, guard)
        self.serve_run = self.runs.serve if together else None
        self.router = Router(self.puller.handlers.routes(), guard=guard)

    def fill(self, count: int) -> None:
        for number in range(count):
            body = b"%d" % number * (1 + number % 5)
            topic = ("T", "T", "Other")[number % 3]
            self.world.put(topic, number % 2, body, TAGS=f"tag{number % 3}", price=str(number))

    def serve(self, requests: Sequence[bytes]) -> list[bytes]:
        """Returns the bytes answered to one read, including those of parked pulls that were answered meanwhile."""
        frames = FrameDecoder().feed(b"".join(requests))
        answers, at = list[bytes](), 0
        while at < len(frames):
            answer, before = None, at
            if self.serve_run is not None:
                answer, at = self.serve_run(frames, at, self.puller.connection)
            if at == before:
                answer = self.router.dispatch(frames[at], self.puller.connection)
                at += 1
            if answer is not None:
                answers.append(answer)
        return answers

    def books(self) -> object:
        """Returns all state left behind by a pull."""
        stats, offsets = self.world.stats, self.world.offsets
        gets = {key: (one.count, one.bytes, one.times) for key, one in stats.gets.items()}
        first = [offsets.first_pull("g", "T", queue_id) for queue_id in range(2)]
        return gets, stats.misses, offsets.committed, offsets.pulled, first, offsets.data_version


def pull(
    offset: int = 0, *, form: SerializeType = SerializeType.JSON, opaque: int = 7, **fields: Any
) -> bytes:
    asked = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(int(SUBSCRIPTION)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(WAIT_MS),
        "subVersion": "0",
    }
    given = {name: str(value) for name, value in fields.items()}
    return encode_request(11, opaque, asked | ALL | given, b"", form)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "together", together=True)
    made.fill(120)
    yield made
    made.world.store.close()


def bodies(answers: Sequence[bytes]) -> list[list[bytes]]:
    replies = FrameDecoder().feed(b"".join(answers))
    assert [reply.code for reply in replies] == [ResponseCode.SUCCESS] * len(replies)
    return [[record.body for record in decode_records(reply.body)] for reply in replies]


def kinds(rng: random.Random) -> list[dict[str, Any]]:
    """Returns the ways in which pulls differ."""
    commits = {"sysFlag": int(COMMITS), "commitOffset": rng.choice((20, 20, 20, 30, 10))}
    by_tags = [{"subscription": one} for one in ("tag1", "tag0 || tag2", "no such tag")]
    by_sql = [
        {"subscription": one, "expressionType": "SQL92"}
        for one in ("price > 20 AND price < 60", "price > 1000", "price =")
    ]
    return [
        *[dict[str, Any]()] * 9,
        *[commits] * 5,
        *by_tags,
        *by_sql,
        {"topic": "Other"},
        {"topic": "Unknown"},
        {"consumerGroup": "lagging"},
        {"consumerGroup": "stranger"},
        {"maxMsgNums": rng.choice((-1, 0, 1, 1000))},
        {"maxMsgBytes": rng.choice((-5, 1, 300, 2**31 - 1))},
        {"subVersion": "x"},
        {"sysFlag": 0},
        {"sysFlag": int(SUBSCRIPTION | PullFlag.SUSPEND)},
    ]


def any_pull(rng: random.Random, opaque: int) -> bytes:
    """Returns a pull of any kind, most of them for available messages."""
    return pull(
        rng.choice((0, 0, 1, 2, 3, 10, 30, 39, 40, 90, -3)),
        opaque=opaque,
        form=rng.choice(list(SerializeType)),
        queueId=rng.choice((0, 0, 0, 0, 1, 1, 1, 1, 2, 9, -1)),
        **rng.choice(kinds(rng)),
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lags": True, "slave_read_enabled": True},
        {"slave_read_enabled": True},
        {"slave_read_enabled": True, "role": BrokerRole.SLAVE, "broker_id": 1},
        {"lite_pull_enabled": False},
    ],
)
@in_loop
async def test_answers_and_books_are_those_of_single_pulls(tmp_path: Path, options: dict[str, Any]) -> None:
    lags = "lags" in options
    options = {name: value for name, value in options.items() if name != "lags"}
    one, all_ = (Broker(tmp_path / str(together), together=together, **options) for together in (False, True))
    together = 0
    rng = random.Random(5)
    for broker in (one, all_):
        broker.fill(120)
        if lags:  # all but the last messages are beyond what fits the memory
            broker.world.store.reader._machine_bytes = 10_000
    for number in range(300):
        requests = [any_pull(rng, 10 * number + index) for index in range(rng.randrange(1, 9))]
        if rng.random() < 0.1:
            requests.insert(0, encode_oneway(11, 1, {"consumerGroup": "g", "topic": "T"}))
        expected, got = one.serve(requests), all_.serve(requests)
        assert b"".join(got) == b"".join(expected)
        assert all_.books() == one.books()
        together += len(expected) - len(got)
        if number % 100 == 0:
            for broker in (one, all_):
                broker.world.offsets.assign_reset("g", "T", 1, 5)
    assert together > 150, "pulls must be served together"
    for broker in (one, all_):
        broker.puller.handlers.waiters.release_all()
        broker.world.store.close()


def test_pulls_of_one_read_are_answered_by_one_call(broker: Broker) -> None:
    answers = broker.serve([pull(at, opaque=at) for at in range(6)])
    assert len(answers) == 1
    assert [len(found) for found in bodies(answers)] == [32] * 6


def test_messages_in_two_segments_are_all_found(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "b", together=True)
    body = b"x" * 60_000
    for number in range(40):  # 2.4 MB in segments of 1 MiB
        broker.world.put("T", number % 2, body)
    answers = broker.serve([pull(offset, queueId=offset % 2, opaque=offset) for offset in range(20)])
    assert [len(found) for found in bodies(answers)] == [min(4, 20 - offset) for offset in range(20)]
    broker.world.store.close()


def test_no_more_answers_are_made_than_a_peer_takes_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_runs, "ENOUGH_BYTES", 1)
    frames = FrameDecoder().feed(b"".join(pull(0, opaque=opaque) for opaque in range(3)))
    answer, at = broker.runs.serve(frames, 0, broker.puller.connection)
    assert answer is not None
    assert (len(bodies([answer])), at) == (1, 1)


def test_damaged_record_is_skipped_and_its_neighbours_are_given(broker: Broker) -> None:
    store = broker.world.store
    store.reader.own_offset = store.max_log_offset  # as after a restart: reads are verified
    (segment,) = Path(store.config.root, "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.seek(FIXED_V4.size)
        file.write(b"!")
    answers = broker.serve([pull(0, maxMsgNums=2), pull(0, maxMsgNums=2, queueId=1), pull(1, maxMsgNums=2)])
    assert bodies(answers) == [[b"44444"], [b"11", b"3333"], [b"44444", b"66"]]

"""Pulls without sockets: checks, filters, responses, and long polling on a manual clock."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec

import pytest
from tests.unit.broker.admin_kit import TalkingConnection, World, talking

from orbitmq.broker.delivery.pull_waiters import WaitingPull
from orbitmq.broker.delivery.revocation import Revocation
from orbitmq.broker.handlers.pull import PullHandlers
from orbitmq.codes import Perm, PullFlag, ResponseCode, SerializeType
from orbitmq.filter import compile_expression
from orbitmq.kernel import Filter
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.subscription import SubscriptionData
from orbitmq.record.codec import decode_records
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Router
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request

WAIT_MS = 15_000
P = ParamSpec("P")


def in_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Runs a test in its own event loop."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        async def running() -> None:
            await test(*arguments, **named)

        asyncio.run(running())

    return run


ALL = {"subscription": "*", "expressionType": "TAG"}


class Sql:
    """Every expression of a request, compiled."""

    def filter_for(self, group: str, subscription: SubscriptionData, *, from_request: bool) -> Filter:
        assert from_request
        return compile_expression(subscription.sub_string).filter


class Puller:
    """A world with the pull path in it, and one consumer."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.world = World(directory, property_filter_enabled=True, **options)
        self.world.topic("T", queues=2)
        self.world.group("g")
        self.handlers = PullHandlers(
            config=self.world.config,
            store=self.world.store,
            topics=self.world.topics,
            groups=self.world.groups,
            offsets=self.world.offsets,
            consumers=self.world.consumers,
            stats=self.world.stats,
            clock=self.world.clock,
            events=self.world.events,
            revocation=Revocation(lambda _frame, _connection: None),
            sql_filters=Sql(),
        )
        self.router = Router(self.handlers.routes())
        self.fake: TalkingConnection
        self.connection: Connection
        self.fake, self.connection = talking(5)

    def pull(
        self,
        offset: int = 0,
        *,
        flags: int = PullFlag.SUBSCRIPTION,
        code: int = 11,
        form: SerializeType = SerializeType.ROCKETMQ,
        **fields: Any,
    ) -> Frame | None:
        """Sends one pull; returns None when it waits."""
        asked = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": str(int(flags)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(WAIT_MS),
            "subVersion": "0",
        }
        [frame] = FrameDecoder().feed(encode_request(code, 7, asked | ALL | fields, b"", form))
        answer = self.router.dispatch(frame, self.connection)
        if answer is None:
            return None
        [reply] = FrameDecoder().feed(answer)
        assert reply.opaque == 7
        return reply

    def wait(self, offset: int = 0, **fields: Any) -> Frame | None:
        return self.pull(offset, flags=PullFlag.SUBSCRIPTION | PullFlag.SUSPEND, **fields)

    def answers(self) -> list[Frame]:
        """Returns the responses of parked pulls since the last call."""
        sent = FrameDecoder().feed(b"".join(self.fake.sent))
        self.fake.sent.clear()
        return sent


@pytest.fixture
def puller(tmp_path: Path) -> Iterator[Puller]:
    made = Puller(tmp_path)
    yield made
    made.world.store.close()


def found(reply: Frame | None) -> list[bytes]:
    assert reply is not None
    assert reply.code == ResponseCode.SUCCESS, reply.remark
    return [record.body for record in decode_records(reply.body)]


@pytest.mark.parametrize("form", list(SerializeType))
@pytest.mark.parametrize("code", [11, 361])
def test_pull_returns_records_and_where_to_go_on(puller: Puller, form: SerializeType, code: int) -> None:
    for number in range(40):
        puller.world.put("T", body=b"%d" % number)
    reply = puller.pull(3, form=form, code=code)
    assert found(reply) == [b"%d" % number for number in range(3, 35)]
    assert reply is not None
    assert reply.remark == "FOUND"
    assert reply.ext_fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "35",
        "minOffset": "0",
        "maxOffset": "40",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }


def test_pull_by_tags_and_by_expression_selects(puller: Puller) -> None:
    for number in range(6):
        puller.world.put("T", body=b"%d" % number, TAGS=f"tag{number % 2}", price=str(number))
    assert found(puller.pull(subscription="tag1")) == [b"1", b"3", b"5"]
    assert found(puller.pull(subscription="price > 3", expressionType="SQL92")) == [b"4", b"5"]
    nothing = puller.pull(subscription="price > 30", expressionType="SQL92")
    assert nothing is not None
    assert (nothing.code, nothing.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert nothing.ext_fields["nextBeginOffset"] == "6"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "Other"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "-bad-/"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": "9"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "-1"}, ResponseCode.INVALID_PARAMETER),
        ({"subscription": "a = ", "expressionType": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"maxMsgNums": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_refusals_have_apaches_codes(tmp_path: Path, fields: dict[str, Any], code: int) -> None:
    puller = Puller(tmp_path, auto_create_groups=False)
    reply = puller.pull(**fields)
    assert reply is not None
    assert reply.code == code, reply.remark


def test_group_and_topic_without_permission_are_refused(puller: Puller) -> None:
    puller.world.groups.update(SubscriptionGroupConfig(group_name="g", consume_enable=False))
    reply = puller.pull()
    assert reply is not None
    assert reply.code == ResponseCode.NO_PERMISSION
    puller.world.group("g")
    puller.world.topic("T", perm=int(Perm.WRITE))
    reply = puller.pull()
    assert reply is not None
    assert reply.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("offset", "code", "following"),
    [
        (3, ResponseCode.PULL_NOT_FOUND, "3"),
        (9, ResponseCode.PULL_OFFSET_MOVED, "3"),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "0"),
    ],
)
def test_offsets_outside_of_the_queue_are_answered_with_the_right_one(
    puller: Puller, offset: int, code: int, following: str
) -> None:
    for _ in range(3):
        puller.world.put("T")
    reply = puller.pull(offset)
    assert reply is not None
    assert (reply.code, reply.ext_fields["nextBeginOffset"]) == (code, following)


def test_pull_commits_only_with_both_flags(puller: Puller) -> None:
    puller.world.put("T")
    puller.pull(flags=PullFlag.SUBSCRIPTION | PullFlag.COMMIT_OFFSET, commitOffset="1")
    assert puller.world.offsets.query("g", "T", 0) == -1
    puller.pull(flags=PullFlag.SUBSCRIPTION | PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND, commitOffset="1")
    assert puller.world.offsets.query("g", "T", 0) == 1


@in_loop
async def test_waiting_pull_is_answered_by_the_append_that_brings_a_message(puller: Puller) -> None:
    assert puller.wait() is None
    assert puller.handlers.waiters.count == 1
    puller.world.put("T", queue_id=1)
    await asyncio.sleep(0)
    assert puller.answers() == [], "another queue"
    puller.world.put("T", body=b"here")
    assert puller.answers() == [], "in the next turn of the loop, with all that came in this one"
    puller.world.put("T", body=b"too")
    await asyncio.sleep(0)
    [reply] = puller.answers()
    assert found(reply) == [b"here", b"too"]
    assert puller.handlers.waiters.count == 0


@in_loop
async def test_waiting_pull_whose_filter_matches_nothing_goes_on_waiting(puller: Puller) -> None:
    assert puller.wait(subscription="price = 5", expressionType="SQL92") is None
    for price in ("1", "2", "3"):
        puller.world.put("T", price=price)
        await asyncio.sleep(0)
        assert puller.answers() == []
    puller.world.put("T", body=b"wanted", price="5")
    await asyncio.sleep(0)
    [reply] = puller.answers()
    assert (found(reply), reply.ext_fields["nextBeginOffset"]) == ([b"wanted"], "4")


@in_loop
async def test_waiting_pull_is_answered_when_its_time_is_over(puller: Puller) -> None:
    assert puller.wait() is None
    puller.world.clock.advance(WAIT_MS - 1)
    puller.handlers.waiters.tick()
    assert puller.answers() == []
    puller.world.clock.advance(1)
    puller.handlers.waiters.tick()
    [reply] = puller.answers()
    assert (reply.code, reply.opaque) == (ResponseCode.PULL_NOT_FOUND, 7)
    puller.world.put("T")
    await asyncio.sleep(0)
    assert puller.answers() == [], "answered once"


@in_loop
async def test_waiting_pulls_are_released_before_a_stop(puller: Puller) -> None:
    assert puller.wait() is None
    assert puller.wait(queueId="1") is None
    puller.handlers.waiters.release_all()
    assert [reply.code for reply in puller.answers()] == [ResponseCode.PULL_NOT_FOUND] * 2


@in_loop
async def test_pull_of_a_closed_connection_is_forgotten(puller: Puller) -> None:
    assert puller.wait() is None
    puller.fake.closed = True
    puller.world.put("T")
    await asyncio.sleep(0)
    assert puller.answers() == []
    assert puller.handlers.waiters.count == 0


@in_loop
async def test_answered_pulls_are_forgotten_long_before_their_time(puller: Puller) -> None:
    """If they were kept until then, the memory of a busy broker would grow whenever pulls arrived faster."""
    assert puller.wait(queueId="1") is None
    for offset in range(500):
        assert puller.wait(offset) is None
        puller.world.put("T")
        await asyncio.sleep(0)
    assert len(puller.answers()) == 500
    kept = sum(isinstance(one, WaitingPull) for one in gc.get_objects())
    assert kept < 100
    puller.world.clock.advance(WAIT_MS)
    puller.handlers.waiters.tick()
    [reply] = puller.answers()
    assert reply.code == ResponseCode.PULL_NOT_FOUND, "the one on hold keeps its time"


@in_loop
async def test_topic_deleted_meanwhile_is_said_to_who_waits(puller: Puller) -> None:
    assert puller.wait() is None
    puller.world.topics.configs.pop("T")
    puller.handlers.waiters.release_all()
    [reply] = puller.answers()
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST


@in_loop
async def test_too_many_waiting_pulls_are_answered_at_once(tmp_path: Path) -> None:
    puller = Puller(tmp_path, pull_queue_capacity=2)
    replies = [puller.wait() for _ in range(3)]
    assert replies[:2] == [None, None]
    assert replies[2] is not None
    assert replies[2].code == ResponseCode.PULL_NOT_FOUND


@in_loop
async def test_pull_without_the_flag_or_without_time_does_not_wait(puller: Puller) -> None:
    for reply in (puller.pull(), puller.wait(suspendTimeoutMillis="0")):
        assert reply is not None
        assert reply.code == ResponseCode.PULL_NOT_FOUND


@in_loop
async def test_short_polling_waits_its_own_time(tmp_path: Path) -> None:
    puller = Puller(tmp_path, long_polling_enabled=False, short_polling_ms=1000)
    assert puller.wait() is None
    puller.world.clock.advance(1000)
    puller.handlers.waiters.tick()
    assert len(puller.answers()) == 1


@pytest.mark.parametrize(
    ("slave_reads", "lags", "suggested"),
    [(True, True, "2"), (True, False, "0"), (False, True, "0"), (False, False, "0")],
)
def test_readers_that_lag_are_sent_to_the_slave_of_their_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slave_reads: bool, lags: bool, suggested: str
) -> None:
    """Row H06."""
    puller = Puller(tmp_path, slave_read_enabled=slave_reads)
    puller.world.groups.update(SubscriptionGroupConfig(group_name="g", which_broker_when_consume_slowly=2))
    puller.world.put("T")
    puller.world.put("T")
    # No memory means that all messages are read from the disk.
    monkeypatch.setattr(puller.world.store._reader, "_machine_bytes", 0 if lags else 1 << 30)
    reply = puller.pull()
    assert found(reply) == [b"x", b"x"]
    assert reply is not None
    assert reply.ext_fields["suggestWhichBrokerId"] == suggested
    puller.world.store.close()

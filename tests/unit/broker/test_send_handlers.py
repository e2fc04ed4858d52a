"""The send path: plain and general path store the same, and nothing of a refused send is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.unit.broker.admin_kit import TalkingConnection, World, talking
from tests.unit.broker.kit import door

from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.handlers.send import SendHandlers
from orbitmq.broker.handlers.send_checks import SendChecks
from orbitmq.broker.quotas import LimitsConfig
from orbitmq.broker.tables.queue_locks import QueueLocks
from orbitmq.codes import ResponseCode, SerializeType, SysFlag
from orbitmq.kernel import Sends
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.route import MessageQueue
from orbitmq.model.topic import TopicConfig, TopicFilterType
from orbitmq.record.batch import encode_batch
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.ids import UniqueKeys
from orbitmq.store.types import FlushMode, PutSends
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Router
from orbitmq.wire.frame import Frame, FrameDecoder, encode_oneway, encode_request

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
KEY = "7F0000014676C0DEE0B0588B00000001"


class Sender:
    """A world with the send path in it, and one producer."""

    def __init__(self, directory: Path, *, together: bool = True, **options: object) -> None:
        """``together``: the plain sends of a read are processed as one value, as without access control."""
        self.sends_max = 64 if together else 0
        self.world = World(directory, **options)
        self.world.topic("T", queues=4)
        clock = self.world.clock
        self.puts = door(self.world.store, clock, self.world.config, self.world.stats)
        self.handlers = SendHandlers(
            config=self.world.config,
            store=self.world.store,
            topics=self.world.topics,
            groups=self.world.groups,
            stats=self.world.stats,
            puts=self.puts,
            checks=SendChecks(
                self.world.config, self.world.topics, self.puts.gate, clock, LimitsConfig(), BrokerEvents()
            ),
            locks=QueueLocks(self.world.config, clock),
            store_host=HOST,
            unique_keys=UniqueKeys(
                address=HOST[:4],
                process_id=1,
                process_constant=2,
                now_ms=clock.now_ms,
                month_of=lambda _: (0, 1 << 62),
            ),
            clock=clock,
            events=BrokerEvents(),
            when_routed=lambda work: work(),
        )
        self.router = Router(self.handlers.routes())
        self.fake: TalkingConnection
        self.connection: Connection
        self.fake, self.connection = talking(5)

    def feed(self, *requests: bytes) -> list[Frame]:
        """Processes one socket read of requests; returns the responses in the order they were sent."""
        self.fake.sent.clear()
        immediate = []
        frames: list[Frame] = []
        for found in FrameDecoder().requests(b"".join(requests), self.sends_max):
            if isinstance(found, Frame):
                frames.append(found)
            elif not self.handlers.accept(found, self.connection):
                frames += found.frames()
            while frames:
                answer = self.router.dispatch(frames.pop(0), self.connection)
                if answer is not None:
                    immediate.append(answer)
        self.handlers.append_pending()
        return FrameDecoder().feed(b"".join((*immediate, *self.fake.sent)))

    def records(self) -> list[Record]:
        return [decode_record(raw) for raw in self.world.store.scan(0)]


@pytest.fixture(params=[True, False], ids=["together", "one by one"])
def sender(tmp_path: Path, request: pytest.FixtureRequest) -> Sender:
    return Sender(tmp_path, together=request.param)


def send(
    opaque: int = 1,
    *,
    topic: str = "T",
    queue_id: int = 1,
    properties: str = f"UNIQ_KEY\x01{KEY}\x02WAIT\x01true\x02",
    body: bytes = b"body",
    code: int = 310,
    batch: bool = False,
    **fields: str,
) -> bytes:
    header = {
        "a": "group",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1794773001075",
        "h": "7",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "true" if batch else "false",
    } | fields
    return encode_request(code, opaque, header, body, SerializeType.ROCKETMQ)


def test_first_and_later_sends_are_stored_alike(sender: Sender) -> None:
    for opaque in range(3):  # the first takes the general path, the others the plain one
        (answer,) = sender.feed(send(opaque))
        assert (answer.code, answer.opaque) == (0, opaque)
        assert answer.ext_fields["queueOffset"] == str(opaque)
    first, *others = sender.records()
    assert first.topic == "T"
    assert first.queue_id == 1
    assert first.flag == 7
    assert first.property_map() == {
        "UNIQ_KEY": KEY,
        "WAIT": "true",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }
    for other in others:
        assert other.property_map() == first.property_map()
        assert (other.born_host, other.body, other.sys_flag) == (first.born_host, first.body, first.sys_flag)


@pytest.mark.parametrize(
    ("extra", "stored"),
    [
        ("DELAY\x013\x02", {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "1"}),
        ("MSG_REGION\x01other\x02", {"MSG_REGION": "DefaultRegion"}),
        ("POP_CK\x01handle\x02a\x01b\x02", {"a": "b"}),
        ("empty\x01\x02a\x01b\x02", {"a": "b"}),
        ("TAGS\x01A", {"TAGS": "A"}),
    ],
)
def test_unusual_properties_are_seen_although_the_producer_was_ordinary_before(
    sender: Sender, extra: str, stored: dict[str, str]
) -> None:
    sender.feed(send(), send())
    (answer,) = sender.feed(send(properties=f"UNIQ_KEY\x01{KEY}\x02WAIT\x01true\x02{extra}"))
    assert answer.code == 0
    record = sender.records()[-1]
    properties = record.property_map()
    assert properties.items() >= stored.items()
    assert "POP_CK" not in properties
    assert record.topic == ("SCHEDULE_TOPIC_XXXX" if "DELAY" in stored else "T")
    assert answer.ext_fields["queueId"] == "1", "the queue that was asked for, wherever it waits"


@pytest.mark.parametrize(
    "key", ["short", "x" * 33, f"{KEY[:30]}\x02A", "", f"{KEY[:5]}\x02DELAY\x013\x02{KEY[:18]}"]
)
def test_odd_unique_keys_are_read_as_the_property_parser_reads_them(sender: Sender, key: str) -> None:
    sender.feed(send(), send())
    sender.feed(send(properties=f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02"))
    record = sender.records()[-1]
    assert record.topic == ("SCHEDULE_TOPIC_XXXX" if "DELAY" in key else "T")
    assert record.unique_key, "the broker makes one where the producer did not"


def test_all_sends_of_a_read_are_appended_and_answered_together(sender: Sender) -> None:
    answers = sender.feed(*(send(opaque, queue_id=opaque % 4) for opaque in range(8)))
    assert [answer.opaque for answer in answers] == list(range(8))
    assert [record.queue_id for record in sender.records()] == [0, 1, 2, 3] * 2


def test_refused_send_stores_nothing_and_does_not_harm_its_neighbours(sender: Sender) -> None:
    big = b"x" * (4 * 1024 * 1024 + 1)
    answers = sender.feed(
        send(1), send(2, body=big), send(3, queue_id=77), send(4, topic="no such%topic!"), send(5)
    )
    codes = {answer.opaque: answer.code for answer in answers}
    assert codes == {
        1: 0,
        2: ResponseCode.MESSAGE_ILLEGAL,
        3: ResponseCode.INVALID_PARAMETER,
        4: ResponseCode.INVALID_PARAMETER,
        5: 0,
    }
    assert len(sender.records()) == 2


def test_oneway_sends_are_stored_and_never_answered(sender: Sender) -> None:
    (frame,) = FrameDecoder().feed(send())
    oneway = encode_oneway(310, 1, frame.ext_fields, b"body", SerializeType.ROCKETMQ)
    bad = encode_oneway(310, 2, frame.ext_fields | {"e": "99"}, b"body", SerializeType.ROCKETMQ)
    assert sender.feed(oneway, bad) == []
    assert len(sender.records()) == 1


def test_batch_becomes_one_record_each_with_its_own_properties(sender: Sender) -> None:
    body = encode_batch([(1, b"a", b"KEYS\x01k1\x02"), (2, b"b", b"KEYS\x01k2\x02")])
    (answer,) = sender.feed(send(code=320, batch=True, body=body))
    assert answer.code == 0
    assert answer.ext_fields["msgId"].count(",") == 1
    assert [(r.flag, r.body, r.properties) for r in sender.records()] == [
        (1, b"a", b"KEYS\x01k1\x02"),
        (2, b"b", b"KEYS\x01k2\x02"),
    ]


def test_broken_batch_is_refused_whole(sender: Sender) -> None:
    body = encode_batch([(1, b"a", b""), (2, b"b", b"")])[:-1]
    (answer,) = sender.feed(send(code=320, batch=True, body=body))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert sender.records() == []


@pytest.mark.parametrize(
    ("stall_ms", "prefix"), [(250, "[TIMEOUT_CLEAN_QUEUE]"), (1500, "[PCBUSY_CLEAN_QUEUE]")]
)
def test_what_waited_for_a_stalled_append_is_refused_and_nothing_later(
    sender: Sender, stall_ms: float, prefix: str
) -> None:
    async def run() -> None:
        sender.feed(send(), send())
        stalled, _ = talking(6)
        sender.handlers.checks.appended_in(stall_ms, [stalled])
        (refused,) = sender.feed(send())
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert refused.remark is not None
        assert refused.remark.startswith(prefix)
        await asyncio.sleep(0)
        (refused,) = sender.feed(send())
        assert refused.code == ResponseCode.SYSTEM_BUSY, "read in the turn after the append ended"
        await asyncio.sleep(0)
        (answer,) = sender.feed(send())
        assert answer.code == 0

    asyncio.run(run())


def test_a_lone_sender_is_not_refused_for_its_own_stalled_append(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = sender.puts.append_sends

    def slow(turn: Sequence[Sends]) -> PutSends:
        sender.world.clock.advance(400)
        return append(turn)

    monkeypatch.setattr(sender.puts, "append_sends", slow)

    async def run() -> list[int]:
        return [sender.feed(send())[0].code for _ in range(3)]

    assert asyncio.run(run()) == [0, 0, 0]


def test_a_send_that_waited_too_long_for_its_turn_is_refused(sender: Sender) -> None:
    sender.fake.waited_s = 0.15
    assert sender.feed(send())[0].code == 0
    sender.fake.waited_s = 0.25
    (refused,) = sender.feed(send())
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert refused.remark is not None
    assert refused.remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while")
    assert refused.remark.endswith("period in queue: 250ms")
    object.__setattr__(sender.world.config, "fast_failure_enabled", False)
    assert sender.feed(send())[0].code == 0


def test_slave_takes_no_sends(tmp_path: Path) -> None:
    from orbitmq.broker.config import BrokerRole

    sender = Sender(tmp_path, role=BrokerRole.SLAVE, broker_id=1)
    (answer,) = sender.feed(send())
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark is not None
    assert answer.remark.startswith("[REJECTREQUEST]")


def test_changed_topic_is_checked_again(sender: Sender) -> None:
    sender.feed(send(queue_id=3), send(queue_id=3))
    sender.world.topic("T", queues=2)
    (answer,) = sender.feed(send(queue_id=3))
    assert answer.code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_bug_while_storing_is_answered_and_does_not_reach_the_next_read(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, batch: bool
) -> None:
    body = encode_batch([(0, b"x", b"")]) if batch else b"body"

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(sender.world.store, "append_sends", broken)
        answers = sender.feed(send(1, body=body, batch=batch), send(2, body=body, batch=batch))
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 1), (2, 1)]
    assert all("ZeroDivisionError" in (answer.remark or "") for answer in answers)
    assert "sends not finished" in caplog.text
    assert [answer.code for answer in sender.feed(send(3, body=body, batch=batch))] == [0]
    assert len(sender.records()) == 1


def test_a_message_of_an_orderly_group_goes_to_its_dead_letters_at_once(sender: Sender) -> None:
    """Clients of 4.x send it back with a count at the limit, not above it. Seen with Apache: a group that holds locks
    consumes in order, and sends back only messages that exceeded their retries.
    """
    sender.world.groups.update(SubscriptionGroupConfig(group_name="G"))
    retry = {"topic": "%RETRY%G", "queue_id": 0, "properties": "DELAY\x013\x02UNIQ_KEY\x01k\x02"}
    counts = {"j": "2", "l": "2"}
    sender.feed(send(**retry, **counts))  # type: ignore[arg-type]  # several types by name
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
    sender.handlers.locks.lock("G", "client", [queue])
    sender.feed(send(**retry, **counts))  # type: ignore[arg-type]  # several types by name
    again, dead = sender.records()
    assert (again.topic, dead.topic, dead.queue_id) == ("SCHEDULE_TOPIC_XXXX", "%DLQ%G", 0)
    assert "DELAY" not in dead.property_map()


def test_a_lite_topic_of_an_apache_store_takes_no_messages(sender: Sender) -> None:
    sender.world.topics.update(TopicConfig(topic_name="Lite", attributes={"message.type": "LITE"}))
    (answer,) = sender.feed(send(topic="Lite"))
    assert answer.code == 13
    assert answer.remark == "topic Lite has the type LITE, and lite topics are not served by this broker"
    assert sender.records() == []


def test_a_queue_id_below_zero_is_spread_over_the_queues(sender: Sender) -> None:
    """Row F04."""
    answers = sender.feed(*(send(opaque, queue_id=-1) for opaque in range(200)))
    assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}
    stored = [record.queue_id for record in sender.records()]
    assert set(stored) == {0, 1, 2, 3}
    assert [int(answer.ext_fields["queueId"]) for answer in answers] == stored


@pytest.mark.parametrize(
    ("flushed", "code"), [(True, ResponseCode.SUCCESS), (False, ResponseCode.FLUSH_DISK_TIMEOUT)]
)
def test_a_send_is_answered_with_what_became_of_its_flush(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, flushed: bool, code: ResponseCode
) -> None:
    """Row G13: under SYNC_FLUSH the response tells the producer that its message may not be on disk."""
    waiting: list[tuple[int, Callable[[bool], None]]] = []
    store = sender.world.store
    object.__setattr__(store.config, "flush_mode", FlushMode.SYNC)
    monkeypatch.setattr(store, "when_flushed", lambda log_end, done: waiting.append((log_end, done)))
    assert sender.feed(send(1), send(2)) == []
    [(log_end, done)] = waiting
    assert log_end == store.max_log_offset
    done(flushed)
    answers = FrameDecoder().feed(b"".join(sender.fake.sent))
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, code), (2, code)]
    assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0", "1"], "stored in any case"


@pytest.mark.parametrize("topic", ["SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX"])
def test_topics_that_only_the_broker_writes_are_refused(sender: Sender, topic: str) -> None:
    assert sender.feed(send(topic=topic, queue_id=0))[0].code == ResponseCode.NO_PERMISSION
    assert sender.records() == []


def test_topic_with_several_tags_marks_its_messages(sender: Sender) -> None:
    topics = sender.world.topics
    multiple = TopicConfig(topic_name="M", topic_filter_type=TopicFilterType.MULTI_TAG)
    topics.update(multiple)
    assert [answer.code for answer in sender.feed(send(topic="M"), send(topic="T"))] == [0, 0]
    flags = {record.topic: bool(record.sys_flag & SysFlag.MULTI_TAGS) for record in sender.records()}
    assert flags == {"M": True, "T": False}


def test_ordered_topic_of_a_broker_without_the_right_to_write_is_refused(sender: Sender) -> None:
    sender.world.topics.update(TopicConfig(topic_name="O", order=True))
    object.__setattr__(sender.world.config, "permission", 4)
    answers = sender.feed(send(topic="O"), send(topic="T"))
    assert {answer.code for answer in answers} == {0, ResponseCode.NO_PERMISSION}
    assert [record.topic for record in sender.records()] == ["T"]


def test_too_large_body_is_refused_with_the_limit(sender: Sender) -> None:
    limit = sender.world.store.config.message_bytes_max
    (refused,) = sender.feed(send(body=b"x" * (limit + 1)))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"over limit {limit} bytes" in (refused.remark or "")

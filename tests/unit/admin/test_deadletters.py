"""Dead letters: which are listed, resent and marked, and what a resent message keeps of them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.admin.scripted import Scripted

from orbitmq.admin import deadletters as dead
from orbitmq.admin.deadletters import DONE_TOPIC, RESENT_PROPERTY, DeadLetter
from orbitmq.admin.errors import AdminError
from orbitmq.admin.messages import MessageView
from orbitmq.client import Message
from orbitmq.errors import NoMessage, OrbitError, TopicNotFound
from orbitmq.record.reasons import REASON


def view(number: int = 1, body: str = "x", **properties: str) -> MessageView:
    values: dict[str, Any] = {
        field.encode_name: 0 for field in msgspec.structs.fields(MessageView) if field.name != "body_cut"
    }
    texts = ("brokerName", "topic", "tags", "keys", "bornHost", "storeHost")
    values |= dict.fromkeys(texts, "")
    values |= {"messageId": f"m{number}", "offsetMsgId": f"o{number}", "storeTimestamp": number, "flag": 5}
    values |= {"properties": properties, "body": body, "tags": "red", "keys": "k1"}
    values["bodyBase64"] = base64.b64encode(body.encode()).decode()
    return msgspec.convert(values, MessageView)


def letter(number: int = 1, origin: str = "orders", **properties: str) -> DeadLetter:
    return DeadLetter(message=view(number, **properties), origin_topic=origin, tries=3, done="")


class _Topics:
    """What ``read_topic`` finds, by topic; a topic that is missing does not exist."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: dict[str, list[MessageView]] = {}
        monkeypatch.setattr(dead, "read_topic", self.read)

    async def read(self, admin: object, plan: Any) -> AsyncIterator[Any]:
        if plan.topic not in self.messages:
            raise TopicNotFound(plan.topic)
        for message in self.messages[plan.topic]:
            yield SimpleNamespace(messages=[message])

    def mark(self, *ids: str, group: str = "g", done: str = "resent") -> None:
        body = json.dumps({"group": group, "done": done, "ids": ids})
        self.messages.setdefault(DONE_TOPIC, []).append(view(body=body))


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> _Topics:
    return _Topics(monkeypatch)


def found(**wanted: Any) -> list[str]:
    async def run() -> list[str]:
        return [one.message.message_id async for one in dead.each_dead_letter(Scripted(), "g", **wanted)]

    return asyncio.run(run())


def test_open_letters_are_those_without_a_mark_of_their_own_group(topics: _Topics) -> None:
    topics.messages["%DLQ%g"] = [view(number) for number in (1, 2, 3)]
    assert found() == ["m1", "m2", "m3"], "nothing was ever marked"
    topics.mark("o1")
    topics.mark("o2", group="another group with the same hash")
    assert found() == ["m2", "m3"]
    assert found(with_done=True) == ["m1", "m2", "m3"]


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "3", '{"group": "g"}', '{"group": "g", "ids": 3, "done": "x"}']
)
def test_foreign_message_in_the_topic_of_marks_is_ignored(topics: _Topics, body: str) -> None:
    topics.messages = {"%DLQ%g": [view(1)], DONE_TOPIC: [view(body=body)]}
    assert found() == ["m1"]


def test_letters_are_chosen_by_either_id_by_text_and_by_reason(topics: _Topics) -> None:
    topics.messages["%DLQ%g"] = [
        view(1, "one"),
        view(2, "two", **{REASON: "ValueError: No price"}),
        view(3, "three", colour="TWO"),
    ]
    assert found(ids=["m1", "o3"]) == ["m1", "m3"]
    assert found(text="two") == found(text="tWo")
    assert "m2" in found(text="two")
    assert found(reason="no PRICE") == ["m2"]
    assert found(ids=["m1"], reason="price") == []


def test_reasons_are_counted_by_type_and_place(topics: _Topics) -> None:
    at = "(shop.py:7 in book)"
    reasons = [f"ValueError: no price {at}", f"ValueError: no name {at}", "closed", "", ""]
    topics.messages["%DLQ%g"] = [view(n, **{REASON: text}) for n, text in enumerate(reasons, 1)]
    rows = asyncio.run(dead.dead_reasons(Scripted(), "g"))
    assert [(row.reason, row.count, row.newest) for row in rows.reasons] == [
        ("", 2, 5),
        (f"ValueError {at}", 2, 2),
        ("closed", 1, 3),
    ]
    assert rows.reasons[1].example == reasons[0]


def test_further_reasons_are_counted_together(topics: _Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "_REASONS_MAX", 2)
    topics.messages["%DLQ%g"] = [view(n, **{REASON: text}) for n, text in enumerate("abcda", 1)]
    rows = asyncio.run(dead.dead_reasons(Scripted(), "g"))
    assert ([(row.reason, row.count) for row in rows.reasons], rows.more) == ([("a", 2), ("b", 1)], 2)


def test_letters_with_a_reason_are_the_newest_first(topics: _Topics) -> None:
    topics.messages["%DLQ%g"] = [view(n, **{REASON: "closed"}) for n in range(1, 6)]
    page = asyncio.run(dead.dead_letters_with_reason(Scripted(), "g", "closed", count=2))
    assert ([one.message.message_id for one in page.letters], page.available) == (["m5", "m4"], 5)


class _Producer:
    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.fails: set[str] = set()

    async def send(self, message: Message) -> Any:
        if message.topic in self.fails:
            raise OrbitError(f"no route to {message.topic}")
        self.sent.append(message)
        return SimpleNamespace(message_id=f"new{len(self.sent)}")

    def marks(self) -> list[dict[str, Any]]:
        return [json.loads(one.body) for one in self.sent if one.topic == DONE_TOPIC]


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> _Producer:
    made = _Producer()

    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[_Producer]:
        yield made

    async def no_topic(*_: object) -> None:
        return None

    monkeypatch.setattr(dead, "open_producer", opened)
    monkeypatch.setattr(dead, "_make_done_topic", no_topic)
    return made


def test_resent_message_keeps_what_its_sender_set_and_names_its_dead_letter(producer: _Producer) -> None:
    source = letter(1, colour="red", UNIQ_KEY="u", DELAY="3", __SHARDINGKEY="s", **{REASON: "closed"})
    asyncio.run(dead.resend_one(producer, source))  # type: ignore[arg-type]  # has what is used of it
    [sent] = producer.sent
    assert (sent.topic, sent.body, sent.tags, sent.keys) == ("orders", b"x", "red", "k1")
    assert (sent.flag, sent.shard_key) == (5, "s")
    assert sent.properties == {"colour": "red", RESENT_PROPERTY: "o1"}


def test_letter_without_an_origin_needs_a_topic(producer: _Producer) -> None:
    with pytest.raises(AdminError, match="name a topic"):
        asyncio.run(dead.resend_one(producer, letter(origin="")))  # type: ignore[arg-type]
    asyncio.run(dead.resend_one(producer, letter(origin=""), topic="T", body=b"new"))  # type: ignore[arg-type]
    assert [(one.topic, one.body) for one in producer.sent] == [("T", b"new")]


def resend(letters: list[DeadLetter], stop_after: int = 99, rate: float = 1e9) -> list[str]:
    async def run() -> list[str]:
        done = []
        steps = dead.resend_paced(Scripted(), "g", letters, per_second=rate)
        async for _, fresh in steps:
            done.append(fresh)
            if len(done) == stop_after:
                break
        await steps.aclose()  # type: ignore[attr-defined]  # a generator
        return done

    return asyncio.run(run())


def test_only_letters_that_were_sent_are_marked(producer: _Producer) -> None:
    producer.fails = {"gone"}
    assert resend([letter(1), letter(2, "gone"), letter(3)]) == ["new1", "!no route to gone", "new2"]
    assert producer.marks() == [{"group": "g", "done": "resent", "ids": ["o1", "o3"]}]


def test_resend_that_is_stopped_marks_what_was_sent_until_then(producer: _Producer) -> None:
    assert resend([letter(1), letter(2), letter(3)], stop_after=2) == ["new1", "new2"]
    assert producer.marks() == [{"group": "g", "done": "resent", "ids": ["o1", "o2"]}]


@pytest.mark.parametrize("rate", [0, -1.0])
def test_rate_that_would_never_send_is_refused(producer: _Producer, rate: float) -> None:
    with pytest.raises(AdminError, match="greater than zero"):
        resend([letter()], rate=rate)
    assert producer.sent == []


def test_marks_are_split_into_messages_of_a_bounded_size(producer: _Producer) -> None:
    ids = [f"o{number}" for number in range(1_001)]
    asyncio.run(dead.mark_done(Scripted(), "g", ids, "dropped"))
    marks = producer.marks()
    assert [len(one["ids"]) for one in marks] == [500, 500, 1]
    assert [one for mark in marks for one in mark["ids"]] == ids
    assert len({one.tags for one in producer.sent}) == 1


def test_shortened_letter_is_read_again_and_must_be_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def by_offset(_: object, queue: Any, offset: int) -> MessageView:
        assert queue.topic == "%DLQ%g"
        return view(1, "the whole body")

    monkeypatch.setattr(dead, "by_offset", by_offset)
    whole = asyncio.run(dead.whole_letter(Scripted(), "g", dead.reference(letter(1))))
    assert whole.message.body == "the whole body"
    with pytest.raises(NoMessage, match="no longer at offset"):
        asyncio.run(dead.whole_letter(Scripted(), "g", dead.reference(letter(2))))

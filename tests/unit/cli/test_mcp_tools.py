"""``orbitmq mcp``: the tools an assistant gets, what their answers hold, and failures that stay failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from mcp.server.mcpserver.exceptions import ToolError
from tests.unit.admin.scripted import NS, Scripted

from orbitmq.admin.browse import MessagePage
from orbitmq.admin.deadletters import DeadLetter, DeadLetters
from orbitmq.admin.messages import MessageView
from orbitmq.cli import mcp_server
from orbitmq.cli.mcp_server import BODY_CHARACTERS_MAX, COUNT_MAX, make_server
from orbitmq.codes import ResponseCode
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import TopicList

READING = {
    "overview",
    "topics",
    "topic",
    "lag",
    "group_members",
    "messages",
    "message_life",
    "dead_letters",
    "doctor",
}
CHANGING = {"create_topic", "reset_offset", "resend_dead_letter"}


def view(body: bytes, message_id: str = "id") -> MessageView:
    values: dict[str, Any] = {
        field.encode_name: 0 for field in msgspec.structs.fields(MessageView) if field.name != "body_cut"
    }
    texts = ("messageId", "offsetMsgId", "brokerName", "topic", "tags", "keys", "bornHost", "storeHost")
    values |= dict.fromkeys(texts, "") | {"messageId": message_id, "properties": {}}
    values |= {"body": body.decode() if body.isascii() else None, "bodyBase64": "/w=="}
    return msgspec.convert(values, MessageView)


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    made = Scripted()
    monkeypatch.setattr(mcp_server, "open_admin", lambda settings, _: made)
    return made


def tools(*, hide_bodies: bool = False) -> mcp_server._Tools:
    return mcp_server._Tools({"namesrv_addr": NS}, hide_bodies=hide_bodies)


def told(work: Any) -> str:
    with pytest.raises(ToolError) as failed:
        asyncio.run(work)
    return str(failed.value)


@pytest.mark.parametrize("allow_changes", [False, True])
def test_tools_that_change_something_are_offered_only_on_request(allow_changes: bool) -> None:
    listed = asyncio.run(make_server({}, allow_changes=allow_changes).list_tools())
    hints = {tool.name: tool.annotations.read_only_hint for tool in listed if tool.annotations}
    assert {name for name, reads in hints.items() if reads} == READING
    assert {name for name, reads in hints.items() if not reads} == (CHANGING if allow_changes else set())


def test_topics_are_narrowed_down_counted_and_bounded(admin: Scripted) -> None:
    admin.topics("TBW102", *(f"Order{number:03}" for number in range(150)), "Other")
    admin.answers[RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS] = lambda _: TopicList(
        topic_list=["TBW102"]
    ).encode()
    found = asyncio.run(tools().topics("ORDER"))
    assert (len(found["topics"]), found["total"]) == (COUNT_MAX, 150)
    assert asyncio.run(tools().topics("tbw"))["total"] == 0
    assert asyncio.run(tools().topics("tbw", with_system=True))["topics"] == ["TBW102"]


def test_refusal_of_a_broker_is_told_with_what_to_do(admin: Scripted) -> None:
    admin.topics("Orders", "%RETRY%billing")
    admin.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: int(ResponseCode.TOPIC_NOT_EXIST)
    text = told(tools().topic("Order"))
    assert text.startswith("as scripted (code 17)")
    assert "Did you mean Orders?" in text


@pytest.mark.parametrize(("count", "asked"), [(10, 10), (0, 1), (-5, 1), (10_000, COUNT_MAX)])
def test_messages_are_bounded_in_number_and_size(
    admin: Scripted, monkeypatch: pytest.MonkeyPatch, count: int, asked: int
) -> None:
    counts: list[int] = []

    async def browse(_: object, wanted: object, *, count: int) -> MessagePage:
        counts.append(count)
        views = [view(b"x" * (BODY_CHARACTERS_MAX + 1)), view(b"\xff"), view(b"short")]
        return MessagePage(messages=views, cursor="", scanned=3, available=3)

    monkeypatch.setattr(mcp_server, "browse", browse)
    found = asyncio.run(tools().messages("Orders", count=count))["messages"]
    assert counts == [asked]
    assert [(len(one["body"]), one["bodyCut"]) for one in found] == [
        (BODY_CHARACTERS_MAX, True),
        (len("base64:/w=="), False),
        (5, False),
    ]
    hidden = asyncio.run(tools(hide_bodies=True).messages("Orders"))["messages"]
    assert not any(key in one for one in hidden for key in ("body", "bodyCut"))


def test_time_that_cannot_be_read_is_told_before_anything_is_asked(admin: Scripted) -> None:
    assert "noon" in told(tools().messages("Orders", since="noon"))
    assert "noon" in told(tools().reset_offset("g", "Orders", "noon"))
    assert admin.asked == []


def letter(message_id: str, done: str = "") -> DeadLetter:
    return DeadLetter(message=view(b"x", message_id), origin_topic="Orders", tries=3, done=done)


def test_dead_letters_tell_where_they_came_from(admin: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dead_letters(_: object, group: str, *, text: str, count: int) -> DeadLetters:
        assert (group, text, count) == ("billing", "x", COUNT_MAX)
        return DeadLetters(letters=[letter("id")], cursor="", scanned=1, available=7)

    monkeypatch.setattr("orbitmq.admin.deadletters.dead_letters", dead_letters)
    found = asyncio.run(tools().dead_letters("billing", "x", 1_000))
    assert found["available"] == 7
    assert (found["letters"][0]["originTopic"], found["letters"][0]["tries"]) == ("Orders", 3)


def _resend(monkeypatch: pytest.MonkeyPatch, letters: list[DeadLetter], outcome: str) -> list[str]:
    sent: list[str] = []

    async def each(_: object, group: str, *, ids: list[str]) -> AsyncIterator[DeadLetter]:
        for one in letters:
            yield one

    async def resend(
        _: object, group: str, chosen: list[DeadLetter]
    ) -> AsyncIterator[tuple[DeadLetter, str]]:
        for one in chosen:
            sent.append(one.message.message_id)
            yield one, outcome

    monkeypatch.setattr("orbitmq.admin.deadletters.each_dead_letter", each)
    monkeypatch.setattr("orbitmq.admin.deadletters.resend_paced", resend)
    return sent


def test_one_dead_letter_is_sent_once(admin: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = _resend(monkeypatch, [letter("one"), letter("two")], "fresh")
    assert asyncio.run(tools().resend_dead_letter("billing", "one")) == {"sent": ["fresh"]}
    assert sent == ["one"]


def test_dead_letter_that_was_not_sent_is_a_failure(admin: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    _resend(monkeypatch, [letter("one")], "!the broker is down")
    assert told(tools().resend_dead_letter("billing", "one")) == "not sent: the broker is down"
    _resend(monkeypatch, [], "fresh")
    assert "no open dead letter one" in told(tools().resend_dead_letter("billing", "one"))

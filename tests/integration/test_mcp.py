"""``orbitmq mcp`` with the official client: what an assistant sees, and that it can change nothing by default."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest
from mcp import Client, StdioServerParameters

from orbitmq import Message
from orbitmq.cli.mcp_server import BODY_CHARACTERS_MAX, make_server
from orbitmq.sync import Producer
from orbitmq.testing import RunningBroker, run_broker

pytestmark = pytest.mark.slow

READING: Final = {
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
CHANGING: Final = {"create_topic", "reset_offset", "resend_dead_letter"}


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        running.create_topic("Orders", queue_count=2)
        yield running


def call(broker: RunningBroker, name: str, arguments: dict[str, Any], **options: bool) -> Any:
    async def run() -> Any:
        server = make_server({"namesrv_addr": broker.name_server}, **options)
        async with Client(server) as client:
            return await client.call_tool(name, arguments)

    return asyncio.run(run())


def answer(broker: RunningBroker, name: str, arguments: dict[str, Any], **options: bool) -> dict[str, Any]:
    result = call(broker, name, arguments, **options)
    assert not result.is_error, result.content
    found: dict[str, Any] = result.structured_content
    return found


def send(broker: RunningBroker, *bodies: str) -> list[str]:
    with Producer("shop", broker.name_server) as producer:
        return [producer.send(Message("Orders", body, keys="k", tags="paid")).message_id for body in bodies]


def test_command_serves_the_official_client_over_its_standard_streams(broker: RunningBroker) -> None:
    async def run() -> tuple[set[str], list[bool | None], dict[str, Any]]:
        arguments = ["-m", "orbitmq.cli.main", "mcp", "-n", broker.name_server]
        async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:
            listed = (await client.list_tools()).tools
            found = await client.call_tool("topics", {})
            hints = [tool.annotations.read_only_hint if tool.annotations else None for tool in listed]
            content: dict[str, Any] = found.structured_content or {}
            return {tool.name for tool in listed}, hints, content

    names, hints, found = asyncio.run(run())
    assert names == READING, "by default there is no tool that changes anything"
    assert all(hints)
    assert found == {"topics": ["Orders"], "total": 1}


def test_message_is_found_and_its_life_is_told(broker: RunningBroker) -> None:
    (message_id,) = send(broker, "x" * 5_000)
    page = answer(broker, "messages", {"topic": "Orders", "text": "xxx", "since": "-15m"})
    (message,) = page["messages"]
    assert message["messageId"] == message_id
    assert (len(message["body"]), message["bodyCut"]) == (BODY_CHARACTERS_MAX, True)
    life = answer(broker, "message_life", {"message_id": message_id, "topic": "Orders"})
    assert life["topic"] == "Orders"
    assert [event["kind"] for event in life["events"]]
    hidden = answer(broker, "messages", {"topic": "Orders"}, hide_bodies=True)
    assert all("body" not in one for one in hidden["messages"])


@pytest.mark.parametrize(
    ("name", "arguments", "key"),
    [
        ("overview", {}, "brokers"),
        ("topic", {"topic": "Orders"}, "queues"),
        ("lag", {}, "groups"),
        ("dead_letters", {}, "groups"),
        ("doctor", {"topic": "Orders"}, "findings"),
    ],
)
def test_tool_answers(name: str, arguments: dict[str, str], key: str, broker: RunningBroker) -> None:
    assert key in answer(broker, name, arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("topic", {"topic": "Order"}, "Did you mean Orders?"),
        ("messages", {"topic": "Orders", "since": "yesterday"}, "is not a time"),
        ("group_members", {"group": "nobody"}, "there is no consumer group"),
    ],
)
def test_failure_says_what_to_do(
    name: str, arguments: dict[str, str], text: str, broker: RunningBroker
) -> None:
    result = call(broker, name, arguments)
    assert result.is_error
    assert text in result.content[0].text


def test_changes_need_to_be_allowed(broker: RunningBroker) -> None:
    made = answer(
        broker,
        "create_topic",
        {"topic": "Made", "cluster": "DefaultCluster", "queues": 3},
        allow_changes=True,
    )
    assert "topic Made stored" in made["changes"][0]["action"]
    assert len(answer(broker, "topic", {"topic": "Made"})["queues"]) == 3
    refused = call(broker, "create_topic", {"topic": "Other", "cluster": "DefaultCluster"})
    assert refused.is_error
    assert "Other" not in answer(broker, "topics", {})["topics"]

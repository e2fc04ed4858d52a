"""``orbitmq dlq``: dead letters from the command line, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.waiting import until_async

from orbitmq.admin.messages import MessageView
from orbitmq.cli.dlq import dlq_commands
from orbitmq.client import ConsumeFromWhere, PushConsumer, ReceivedMessage, RetryLater
from orbitmq.client.message import Message
from orbitmq.client.sync import Producer
from orbitmq.testing import RunningBroker, run_broker

pytestmark = pytest.mark.slow

LETTERS = 4


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    """Yields a broker with dead letters of a group: payments 0 to 3, dead-lettered after two attempts."""
    with run_broker(messageDelayLevel="1s 1s 1s 1s") as running:
        asyncio.run(give_up(running.name_server))
        yield running


async def give_up(name_server: str) -> None:
    tries: list[int] = []

    def fail(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        if message.keys == ["p-0"]:
            raise RetryLater("the bank is closed", delay_level=1)
        raise ValueError(f"cannot book {message.text()}")

    with Producer("shop", name_server) as producer:
        for number in range(LETTERS):
            producer.send(
                Message(
                    "payments",
                    f"payment {number}",
                    tags="card",
                    keys=f"p-{number}",
                    properties={"colour": "red"},
                )
            )
    consumer = PushConsumer("billing", name_server, from_where=ConsumeFromWhere.FIRST_OFFSET, reconsume_max=1)
    consumer.subscribe("payments", "*", fail)
    from orbitmq.admin import Admin
    from orbitmq.admin.deadletters import dead_groups

    async with consumer, Admin(name_server) as admin:

        async def all_dead() -> bool:
            return sum(group.count for group in (await dead_groups(admin)).groups) >= LETTERS

        await until_async(all_dead, f"{LETTERS} dead letters")


def dlq(broker: RunningBroker, *words: str, answer: str | None = None, code: int = 0) -> Result:
    result = CliRunner().invoke(dlq_commands, ["-n", broker.name_server, *words], input=answer)
    assert result.exit_code == code, (words, result.output, result.exception)
    return result


def open_ids(broker: RunningBroker) -> dict[str, str]:
    """Returns the message ids of open dead letters by key."""
    page = json.loads(dlq(broker, "--json", "list", "billing").output)
    return {one["message"]["keys"]: one["message"]["messageId"] for one in page["letters"]}


def messages_of(broker: RunningBroker, topic: str) -> list[MessageView]:
    from orbitmq.admin import Admin
    from orbitmq.admin.reading import ReadPlan, read_topic

    async def read() -> list[MessageView]:
        async with Admin(broker.name_server) as admin:
            return [
                message
                async for part in read_topic(admin, ReadPlan(topic=topic))
                for message in part.messages
            ]

    return asyncio.run(read())


def bodies_of(broker: RunningBroker, topic: str) -> list[str]:
    return [message.body or "" for message in messages_of(broker, topic)]


def test_dead_letters_are_listed_shown_resent_dropped_and_exported(
    broker: RunningBroker, tmp_path: Path
) -> None:
    listed = dlq(broker, "list").output
    assert "billing" in listed
    assert str(LETTERS) in listed
    lines = [line for line in dlq(broker, "list", "billing").output.splitlines() if line[0] != " "]
    assert len(lines) == LETTERS
    assert all("tries=2  from=payments  open  payment" in line for line in lines), lines
    assert len(dlq(broker, "list", "billing", "--text", "payment 2").output.splitlines()) == 2

    ids = open_ids(broker)
    shown = json.loads(dlq(broker, "show", "billing", ids["p-1"]).output)
    assert shown["originTopic"] == "payments"
    assert shown["message"]["body"] == "payment 1"
    dlq(broker, "show", "billing", "0" * 32, code=1)

    dry = dlq(broker, "resend", "billing", ids["p-1"], "--dry-run").output
    assert f"{ids['p-1']} would go to payments" in dry
    assert "nothing was sent" in dry
    assert len(open_ids(broker)) == LETTERS
    dlq(broker, "resend", "billing", code=2)  # which?
    assert "1 sent, 0 failed" in dlq(broker, "resend", "billing", ids["p-1"]).output
    assert "1 sent" in dlq(broker, "resend", "billing", "--text", "payment 2", "--to", "repaired").output
    assert bodies_of(broker, "repaired") == ["payment 2"]
    assert sorted(bodies_of(broker, "payments")).count("payment 1") == 2
    assert set(open_ids(broker)) == {"p-0", "p-3"}

    dlq(broker, "drop", "billing", ids["p-0"], answer="n\n", code=1)
    assert set(open_ids(broker)) == {"p-0", "p-3"}
    assert "1 dropped" in dlq(broker, "drop", "billing", ids["p-0"], answer="y\n").output
    assert set(open_ids(broker)) == {"p-3"}

    dlq(broker, "export", "billing", "-o", str(tmp_path / "open.ndjson"))
    exported = [json.loads(line) for line in (tmp_path / "open.ndjson").read_text().splitlines()]
    assert [one["message"]["keys"] for one in exported] == ["p-3"]
    everything = dlq(broker, "export", "billing", "--all").output.splitlines()
    assert sorted(json.loads(line)["done"] for line in everything) == ["", "dropped", "resent", "resent"]

    assert "1 dropped" in dlq(broker, "drop", "billing", "--all", "--yes").output
    assert "nothing to drop" in dlq(broker, "drop", "billing", "--all", "--yes").output
    assert open_ids(broker) == {}


def test_resent_letter_keeps_what_its_sender_gave_it(broker: RunningBroker) -> None:
    ids = open_ids(broker)
    dlq(broker, "resend", "billing", "--all", "--to", "again", "--rate", "1000")
    from orbitmq.admin import Admin
    from orbitmq.admin.reading import ReadPlan, read_topic

    async def read() -> list[tuple[str, str, str | None]]:
        async with Admin(broker.name_server) as admin:
            return [
                (message.keys, message.tags, message.properties.get("colour"))
                async for part in read_topic(admin, ReadPlan(topic="again"))
                for message in part.messages
            ]

    assert sorted(asyncio.run(read())) == [(key, "card", "red") for key in sorted(ids)]


def test_group_without_dead_letters_and_cluster_that_is_away_are_said_so() -> None:
    with run_broker() as empty:
        assert "no group has dead letters" in dlq(empty, "list").output
        for words in (("list", "nobody"), ("export", "nobody"), ("drop", "nobody", "--all", "--yes")):
            result = dlq(empty, *words)
            assert (result.stdout, result.stderr) == ("", "the group has no dead letters\n")
    for line in ("-n 127.0.0.1:1 list", "list -n 127.0.0.1:1"):
        gone = CliRunner().invoke(dlq_commands, line.split())
        assert gone.exit_code == 1
        assert "127.0.0.1:1" in gone.output + gone.stderr


def test_dead_letters_are_filtered_and_grouped_by_their_reason(broker: RunningBroker) -> None:
    listed = dlq(broker, "list", "billing").output
    assert "RetryLater: the bank is closed (integration/test_dlq_command.py:" in listed
    assert "ValueError: cannot book payment 3 (integration/test_dlq_command.py:" in listed
    shown = json.loads(dlq(broker, "show", "billing", open_ids(broker)["p-1"]).output)
    assert shown["reason"].startswith("ValueError: cannot book payment 1 (")
    grouped = json.loads(dlq(broker, "--json", "list", "billing", "--by-reason").output)["reasons"]
    assert [row["count"] for row in grouped] == [3, 1]
    assert grouped[0]["reason"].startswith("ValueError (integration/test_dlq_command.py:")
    lines = dlq(broker, "list", "billing", "--by-reason").output.splitlines()
    assert lines[0].split()[0] == "3"
    assert "for example: ValueError: cannot book payment" in lines[1]
    assert "4 dead letters; nothing" in dlq(broker, "resend", "billing", "--all", "--dry-run").output
    only = dlq(broker, "resend", "billing", "--reason", "BANK is", "--dry-run").output
    assert "1 dead letter; nothing was sent" in only
    assert "--reason TEXT" in dlq(broker, "drop", "billing", "--yes", code=2).output
    dlq(broker, "resend", "billing", "--reason", "bank")
    (again,) = [one for one in messages_of(broker, "payments") if "ORBITMQ_RESENT_FROM" in one.properties]
    assert "RETRY_REASON" not in again.properties

"""``orbitmq topic``, ``group``, ``message`` and ``top`` against a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from orbitmq import ConsumeFromWhere, Message
from orbitmq.cli.main import main
from orbitmq.sync import Producer, PushConsumer
from orbitmq.testing import RunningBroker, run_broker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


def run(broker: RunningBroker, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "-n", broker.name_server])


def ok(broker: RunningBroker, *arguments: str) -> Any:
    """Returns the JSON that a command prints."""
    done = run(broker, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def send(broker: RunningBroker, topic: str, count: int) -> list[str]:
    """Sends messages to the queues in turn; returns their ids."""
    with Producer("senders", broker.name_server) as producer:
        return [
            producer.send(Message(topic, f"body {number}", keys=f"key-{number}")).message_id
            for number in range(count)
        ]


def consume(broker: RunningBroker, group: str, topic: str, count: int) -> None:
    consumer = PushConsumer(group, broker.name_server, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe(topic)
    with consumer:
        received = iter(consumer)
        for _ in range(count):
            next(received)


def test_topic_is_created_described_altered_and_deleted(broker: RunningBroker) -> None:
    ok(broker, "topic", "create", "Made", "-q", "2", "--attributes", "+message.type=FIFO")
    send(broker, "Made", 4)
    found = ok(broker, "topic", "describe", "Made")
    assert (found["messageCount"], len(found["queues"])) == (4, 2)
    again = run(broker, "topic", "create", "Made")
    assert again.exit_code == 1
    assert "topic Made exists; `orbitmq topic alter Made` changes it" in again.output
    ok(broker, "topic", "alter", "Made", "--read-queues", "3")
    config = ok(broker, "topic", "describe", "Made")["brokers"][0]["config"]
    assert (config["readQueueNums"], config["writeQueueNums"], config["perm"]) == (3, 2, 6)
    assert config["attributes"] == {"message.type": "FIFO"}
    ok(broker, "topic", "alter", "Made", "--permission", "read")
    assert ok(broker, "topic", "describe", "Made")["brokers"][0]["config"]["readQueueNums"] == 3
    assert "Permission" in run(broker, "topic", "describe", "Made").output
    ok(broker, "topic", "delete", "Made")
    assert "Made" not in ok(broker, "topic", "list")["topics"]


def test_topic_list_shows_system_topics_only_when_asked(broker: RunningBroker) -> None:
    ok(broker, "topic", "create", "Mine")
    shown = run(broker, "topic", "list").output.splitlines()
    assert "Mine" in shown
    assert "SCHEDULE_TOPIC_XXXX" not in shown
    assert {"Mine", "SCHEDULE_TOPIC_XXXX"} <= set(run(broker, "topic", "list", "-a").output.splitlines())


def test_misspelt_topic_is_answered_with_near_names(broker: RunningBroker) -> None:
    ok(broker, "topic", "create", "Orders")
    done = run(broker, "topic", "alter", "Ordrs", "-q", "3")
    assert done.exit_code == 4
    assert "Did you mean Orders?" in done.output


def test_altering_without_a_setting_is_refused(broker: RunningBroker) -> None:
    ok(broker, "topic", "create", "Kept")
    done = run(broker, "topic", "alter", "Kept")
    assert (done.exit_code, "nothing to change" in done.output) == (1, True)


def test_reset_is_shown_before_it_is_done_and_lag_follows(broker: RunningBroker) -> None:
    ok(broker, "topic", "create", "Moves", "-q", "2")
    send(broker, "Moves", 6)
    consume(broker, "movers", "Moves", 6)
    assert ok(broker, "group", "lag", "movers", "-t", "Moves")["lagTotal"] == 0
    planned = ok(broker, "group", "reset", "movers", "-t", "Moves", "--to", "earliest", "--dry-run")
    assert (planned["dryRun"], planned["again"], planned["skipped"]) == (True, 6, 0)
    assert ok(broker, "group", "lag", "movers", "-t", "Moves")["lagTotal"] == 0
    shown = run(broker, "group", "reset", "movers", "-t", "Moves", "--to", "earliest", "--dry-run")
    assert "6 messages would be delivered again\nNothing was changed (--dry-run)" in shown.output
    done = ok(broker, "group", "reset", "movers", "-t", "Moves", "--to", "earliest")
    assert (done["dryRun"], done["again"]) == (False, 6)
    assert ok(broker, "group", "lag", "movers", "-t", "Moves")["lagTotal"] == 6
    one = ok(broker, "group", "reset", "movers", "-t", "Moves", "-q", "broker-a:1", "--shift", "2")
    assert [(move["queueId"], move["now"], move["then"]) for move in one["queues"]] == [(1, 0, 2)]
    assert ok(broker, "group", "lag", "movers", "-t", "Moves")["lagTotal"] == 4


@pytest.mark.parametrize("places", [(), ("--to", "latest", "--offset", "3")])
def test_reset_needs_exactly_one_place(broker: RunningBroker, places: tuple[str, ...]) -> None:
    done = run(broker, "group", "reset", "movers", "-t", "Moves", *places)
    assert done.exit_code == 2
    assert "one of --to, --offset and --shift" in done.output


def test_group_is_listed_and_described_and_an_unknown_one_refused(broker: RunningBroker) -> None:
    ok(broker, "topic", "create", "Read")
    send(broker, "Read", 1)
    consume(broker, "readers", "Read", 1)
    assert "readers" in {row["group"] for row in ok(broker, "group", "list")["groups"]}
    found = ok(broker, "group", "describe", "readers")
    assert (found["connection"], found["progress"]["lagTotal"]) == (None, 0)
    assert "No member is online." in run(broker, "group", "describe", "readers").output
    unknown = run(broker, "group", "describe", "raeders")
    assert (unknown.exit_code, "Did you mean readers?" in unknown.output) == (4, True)


def test_message_is_found_by_key_and_shown_by_id(broker: RunningBroker) -> None:
    ok(broker, "topic", "create", "Stored")
    ids = send(broker, "Stored", 3)
    found = ok(broker, "message", "find", "Stored", "--key", "key-1")
    assert [row["messageId"] for row in found["messages"]] == [ids[1]]
    shown = run(broker, "message", "get", "Stored", ids[1])
    assert shown.exit_code == 0
    assert "Message Body:        body 1" in shown.output
    missing = run(broker, "message", "get", "Stored", "0" * 32)
    assert missing.exit_code == 4


def test_top_ends_after_the_rounds_it_was_given(broker: RunningBroker) -> None:
    done = run(broker, "top", "--count", "2", "--interval", "0.05", "--json")
    assert done.exit_code == 0, done.output
    first, second = map(json.loads, done.stdout.splitlines())
    assert [row["brokerName"] for row in first["brokers"]] == ["broker-a"]
    assert second["timestamp"] > first["timestamp"]
    assert "Finished/s" in run(broker, "top", "--count", "1").output

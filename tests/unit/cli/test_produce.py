"""``orbitmq produce``: messages built from lines, what is refused, and how failures are reported."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from orbitmq.cli import messages as module
from orbitmq.cli.messages import moment
from orbitmq.client import Message, NoRouteError, SendResult
from orbitmq.errors import OrbitError

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


class _Producer:
    """Keeps what is sent; fails with ``failure``."""

    sent: list[Message]
    failure: OrbitError | None
    servers: str

    def __init__(self, group: str, servers: str) -> None:
        type(self).servers = servers

    async def __aenter__(self) -> _Producer:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def send(self, message: Message) -> SendResult:
        if self.failure is not None:
            raise self.failure
        self.sent.append(message)
        return None  # type: ignore[return-value]  # printed only with --json


@pytest.fixture(autouse=True)
def producer(monkeypatch: pytest.MonkeyPatch) -> type[_Producer]:
    _Producer.sent, _Producer.failure = [], None
    monkeypatch.setattr(module, "Producer", _Producer)
    return _Producer


def run(*arguments: str) -> Result:
    return CliRunner().invoke(module.produce_command, ["orders", "-n", "ns:9876", *arguments])


def test_each_body_is_a_message_with_the_attributes_of_the_options(producer: type[_Producer]) -> None:
    done = run("one", "two", "--tags", "red", "-k", "a", "-k", "b", "-p", "colour=blue=green")
    assert (done.exit_code, done.stderr) == (0, "2 messages sent to orders\n")
    assert producer.servers == "ns:9876"
    assert [one.body for one in producer.sent] == [b"one", b"two"]
    first = producer.sent[0]
    assert (first.topic, first.tags, first.keys) == ("orders", "red", ["a", "b"])
    assert first.properties == {"colour": "blue=green"}


def test_text_before_the_separator_is_one_more_key(producer: type[_Producer]) -> None:
    assert run("k1:a:b", "-K", ":", "-k", "common").exit_code == 0
    [one] = producer.sent
    assert (one.keys, one.body) == (["common", "k1"], b"a:b")


@pytest.mark.parametrize("line", ["nothing", ":body", "key:"])
def test_line_without_key_or_body_stops_the_command(producer: type[_Producer], line: str) -> None:
    done = run("k:first", line, "k:later", "-K", ":")
    assert (done.exit_code, "a line is not KEY:BODY" in done.stderr) == (1, True)
    assert len(producer.sent) == 1


def test_line_of_json_overrides_the_options(producer: type[_Producer]) -> None:
    line = {"body": "x", "keys": "own", "tags": "blue", "properties": {"a": "2"}, "offset": 7}
    plain = {"body": "y"}
    options = ("--format", "json", "--tags", "red", "-k", "common", "-p", "a=1", "-p", "b=1")
    assert run(json.dumps(line), json.dumps(plain), *options).exit_code == 0
    first, second = producer.sent
    assert (first.body, first.tags, first.keys) == (b"x", "blue", ["own", "common"])
    assert first.properties == {"a": "2", "b": "1"}
    assert (second.tags, second.keys, second.properties) == ("red", ["common"], {"a": "1", "b": "1"})


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"body": 1}', '{"body": "x", "keys": 3}'])
def test_line_that_is_no_message_is_shown_and_stops_the_command(producer: type[_Producer], line: str) -> None:
    done = run(line, "--format", "json")
    assert (done.exit_code, "a line is not a message in JSON" in done.stderr) == (1, True)
    assert producer.sent == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("x", "-p", "novalue"),
        ("x", "-p", "a=1", "-p", "a=2"),
        ("x", ""),
        ("x", "-K", ""),
        ("{}", "-K", ":", "--format", "json"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    producer: type[_Producer], arguments: tuple[str, ...]
) -> None:
    assert run(*arguments).exit_code == 2
    assert producer.sent == []


def test_missing_topic_has_its_own_exit_code_and_a_suggestion(
    producer: type[_Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def topics(_: object) -> list[str]:
        return ["Orders", "payments"]

    monkeypatch.setattr("orbitmq.cli.messages.ClientConnection.topics", topics)
    producer.failure = NoRouteError("no route to topic order")
    done = CliRunner().invoke(module.produce_command, ["order", "x", "-n", "ns:9876"])
    assert done.exit_code == 4
    first, second, *_ = done.stderr.splitlines()
    assert first.startswith("orbitmq: no route to topic order")
    assert second == "  Did you mean Orders?"


def test_other_failures_exit_with_one(producer: type[_Producer]) -> None:
    producer.failure = OrbitError("it broke")
    done = run("x")
    assert (done.exit_code, done.stderr) == (1, "orbitmq: it broke\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "first"),
        ("last", "last"),
        ("-15m", NOW - timedelta(minutes=15)),
        ("-2d", NOW - timedelta(days=2)),
        ("2026-01-31T10:00:00+00:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_start_is_a_word_a_time_or_a_time_ago(text: str, expected: Any) -> None:
    assert moment(text, NOW) == expected


def test_start_without_a_zone_is_local_time() -> None:
    found = moment("2026-01-31T10:00:00", NOW)
    assert found.tzinfo is not None
    assert found == datetime(2026, 1, 31, 10).astimezone()


@pytest.mark.parametrize("text", ["", "noon", "-15x", "-m", "-99999999999d", "2026-13-01"])
def test_start_that_is_none_of_these_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        moment(text, NOW)

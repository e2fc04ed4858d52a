"""Small parts of the client that need no server: signing, queue choice, options, headers, errors, trace records."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.messages import QUEUE, received

from orbitmq.client.consume.handlers import ConsumeContext, Handler, Outcome
from orbitmq.client.errors import SendFailed, add_hint
from orbitmq.client.message import Message, Reply, SendResult, SendStatus, TransactionState
from orbitmq.client.net.routes import split_name_servers
from orbitmq.client.net.signing import sign
from orbitmq.client.options import (
    ConsumerOptions,
    Credentials,
    LitePullOptions,
    ProducerOptions,
    PushOptions,
    build_options,
)
from orbitmq.client.produce.queue_picker import QueuePicker, select_by_hash
from orbitmq.client.settings import ConsumerSettings, LitePullSettings, ProducerSettings, PushSettings
from orbitmq.client.trace import (
    consume_after_record,
    consume_before_record,
    end_transaction_record,
    send_record,
)
from orbitmq.errors import ConfigError, RecordError, TopicNotFound
from orbitmq.model.route import MessageQueue
from orbitmq.record.properties import encode_properties
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.testing.manual_clock import ManualClock

QUEUES = [
    MessageQueue(topic="T", broker_name=name, queue_id=number) for name in ("a", "b") for number in range(2)
]


def test_signature_is_that_of_the_java_client() -> None:
    fields = {
        "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0",
        "i": "TAGS\x01TagA\x02", "j": "0", "k": "false", "m": "false", "n": "b",
    }  # fmt: skip
    signed = sign(fields, b"hi", Credentials("ak", "sk12345678"))
    assert signed["Signature"] == "Bv0W0JeeUSPMhU82T6LRfLSrm3M="
    assert "Signature" not in fields
    assert "sk12345678" not in repr(Credentials("ak", "sk12345678"))


@pytest.mark.parametrize(
    ("key", "queue_id"), [("TagA", 2598919 % 4), ("polygenelubricants", 2**31 % 4), (7, 3)]
)
def test_hash_selector_chooses_as_java_does(key: str | int, queue_id: int) -> None:
    assert select_by_hash(QUEUES, key) is QUEUES[queue_id]


def test_picker_goes_round_and_avoids_the_broker_that_failed() -> None:
    picker = QueuePicker(ManualClock().now_ms, avoid_slow=False)
    assert {picker.pick(QUEUES, None).sort_key for _ in range(4)} == {queue.sort_key for queue in QUEUES}
    assert {picker.pick(QUEUES, "a").broker_name for _ in range(8)} == {"b"}
    assert picker.pick(QUEUES[:2], "a").broker_name == "a", "better the same broker than none"


def test_picker_leaves_slow_brokers_alone_for_a_while() -> None:
    clock = ManualClock()
    picker = QueuePicker(clock.now_ms, avoid_slow=True)
    picker.report("a", 600)
    assert {picker.pick(QUEUES, None).broker_name for _ in range(8)} == {"b"}
    picker.report("b", 0, failed=True)
    assert picker.isolated() == {"a", "b"}
    assert picker.pick(QUEUES, None) in QUEUES, "all isolated: some queue nevertheless"
    clock.advance(2001)
    assert picker.isolated() == {"b"}
    assert {picker.pick(QUEUES, None).broker_name for _ in range(8)} == {"a"}


def test_options_refuse_unknown_names_and_values_out_of_range() -> None:
    with pytest.raises(ConfigError, match=r"no such setting: retrys .did you mean retries"):
        build_options(ProducerOptions, None, {"retrys": 3})
    with pytest.raises(ConfigError, match="workers is 0; 1 to 1000 is accepted"):
        PushOptions(workers=0)
    wrong: Any
    for wrong in (1.5, "5", True, None):
        with pytest.raises(ConfigError, match=f"max_in_flight is {wrong!r}; a whole number is accepted"):
            ProducerOptions(max_in_flight=wrong)
    wrong = "3"
    with pytest.raises(ConfigError, match="send_timeout_s is '3'; a number is accepted"):
        ProducerOptions(send_timeout_s=wrong)
    assert ProducerOptions(send_timeout_s=3).send_timeout_s == 3
    base = ProducerOptions(retries=1)
    assert build_options(ProducerOptions, base, {}) is base
    assert build_options(ProducerOptions, base, {"send_timeout_s": 9.0}) == ProducerOptions(
        retries=1, send_timeout_s=9.0
    )


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (ProducerSettings, ProducerOptions),
        (ConsumerSettings, ConsumerOptions),
        (PushSettings, PushOptions),
        (LitePullSettings, LitePullOptions),
    ],
)
def test_keyword_arguments_are_the_options(arguments: type, options: Any) -> None:
    declared = get_type_hints(arguments)
    assert declared == {
        name: kind
        for name, kind in get_type_hints(options).items()
        if name in {field.name for field in dataclasses.fields(options)}
    }


def test_message_properties_hold_what_was_asked_for() -> None:
    message = Message(
        "T",
        "x",
        tags="t",
        keys=["a", "b"],
        properties={"p": "1"},
        delay_level=3,
        shard_key="s",
        wait_stored=False,
    )
    assert message.property_pairs() == {
        "p": "1", "KEYS": "a b", "TAGS": "t", "__SHARDINGKEY": "s", "DELAY": "3", "WAIT": "false",
    }  # fmt: skip
    with pytest.raises(RecordError, match="'TAGS' is reserved"):
        Message("T", "x", properties={"TAGS": "t"}).property_pairs()


def test_received_message_shows_the_topic_it_was_sent_to() -> None:
    plain, again = received(0), received(1, topic="%RETRY%g", RETRY_TOPIC="T", TAGS="a", KEYS="k1 k2")
    assert (plain.topic, again.topic, again.record.topic) == ("T", "T", "%RETRY%g")
    assert (again.tags, again.keys, again.get("none")) == ("a", ["k1", "k2"], None)
    assert plain.message_id == plain.offset_message_id == "0A00000100002A9F0000000000000000"


def test_errors_say_what_to_do() -> None:
    error = add_hint(TopicNotFound("no topic T"))
    assert "autoCreateTopicEnable" in error.__notes__[0]
    assert (error.response_code, error.retriable) == (17, True)
    assert add_hint(error).__notes__ == error.__notes__, "once is enough"
    assert SendFailed("x", code=10002, attempts=3).retriable


def test_handler_outcomes() -> None:
    def fails(message: object) -> None:
        raise ValueError("no")

    assert Handler(fails, None).run_blocking([received(0)]).done == 0
    assert Handler(lambda message: None, None).run_blocking([received(0)]) == Outcome()


class Odd(BaseException):
    """Not an ``Exception``, like pytest's own."""


@pytest.mark.parametrize("kind", [Odd, SystemExit, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt])
def test_whatever_a_plain_function_raises_is_a_failure(kind: type[BaseException]) -> None:
    def handle(message: object) -> None:
        raise kind("no")

    outcome = Handler(handle, None).run_blocking([received(0)])
    assert outcome.done == 0
    assert type(outcome.error) is kind


@pytest.mark.parametrize("kind", [Odd, SystemExit, asyncio.CancelledError])
def test_whatever_a_coroutine_raises_is_a_failure(kind: type[BaseException]) -> None:
    async def handle(message: object) -> None:
        raise kind("no")

    outcome = asyncio.run(Handler(handle, None).run([received(0)], TaskOwner("test")))
    assert outcome.done == 0
    assert type(outcome.error) is kind


def test_interrupt_and_the_end_of_the_loop_go_through_a_handler() -> None:
    async def handle(message: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(Handler(handle, None).run([received(0)], TaskOwner("test")))

    async def wait(message: object) -> None:
        await asyncio.sleep(0)

    running = Handler(wait, None).run([received(0)], TaskOwner("test"))
    running.send(None)
    running.close()  # RuntimeError if it were treated as a failure of the handler


def test_name_servers_may_be_separated_by_either_sign() -> None:
    assert sorted(split_name_servers(" a:1; b:2,c:3;")) == ["a:1", "b:2", "c:3"]


def test_trace_records_have_the_fields_of_the_java_client() -> None:
    result = SendResult(SendStatus.OK, "ID", QUEUE, 5, "OFFSETID", "TX", "DefaultRegion")
    message = Message("T", "four", tags="tag", keys=["k1", "k2"])
    record = send_record("g", message, result, address="1.2.3.4:5", now_ms=7, cost_ms=3)
    assert (
        record.text
        == "\x01".join(
            [
                "Pub",
                "7",
                "DefaultRegion",
                "g",
                "T",
                "ID",
                "tag",
                "k1 k2",
                "1.2.3.4:5",
                "4",
                "3",
                "0",
                "OFFSETID",
                "true",
            ]
        )
        + "\x02"
    )
    assert record.keys == {"ID", "k1", "k2"}
    end = end_transaction_record(
        "g", message, result, TransactionState.ROLLBACK, address="h", now_ms=7, from_check=False
    )
    assert end.text.split("\x01")[-3:] == ["TX", "ROLLBACK_MESSAGE", "false\x02"]
    context = ConsumeContext(
        "g", [received(0, KEYS="k", UNIQ_KEY="U", MSG_REGION="R")], success=True, started_ms=10
    )
    assert (
        consume_before_record(context, "g", "REQ").text
        == "SubBefore\x0110\x01R\x01g\x01REQ\x01U\x010\x01k\x02"
    )
    after = consume_after_record(context, "g", "REQ", now_ms=14).text
    assert after == "SubAfter\x01REQ\x01U\x014\x01true\x01k\x010\x0114\x01g\x02"


def test_plain_handler_that_returns_an_awaitable_has_not_consumed() -> None:
    async def handle(message: object) -> None:
        raise AssertionError("never awaited")

    outcome = Handler(lambda message: handle(message), None).run_blocking([received(0)])
    assert outcome.done == 0
    assert "async def" in str(outcome.error)


@given(
    keys=st.one_of(st.text(), st.lists(st.text().filter(lambda key: " " not in key), max_size=3)),
    tags=st.text(),
    wait=st.booleans(),
    properties=st.dictionaries(st.sampled_from(["p", "größe"]), st.text(min_size=1), max_size=1),
)
def test_short_way_to_encode_properties_gives_what_the_long_way_gives(
    keys: str | list[str], tags: str, wait: bool, properties: dict[str, str]
) -> None:
    message = Message("T", "x", tags=tags, keys=keys, wait_stored=wait, properties=properties)
    short = message.plain_properties("ID")
    if short is None:
        return
    assert short == encode_properties(message.property_pairs() | {"UNIQ_KEY": "ID"})


def test_short_way_takes_what_is_common_and_leaves_the_rest() -> None:
    assert Message("T", "x", tags="a", keys=["k", "l"]).plain_properties("ID") is not None
    for message in (
        Message("T", "x", delay_level=1),
        Message("T", "x", delay_ms=1),
        Message("T", "x", deliver_at_ms=1),
        Message("T", "x", shard_key="s"),
        Message("T", "x", wait_stored=False),
        Message("T", "x", properties={"a": "b"}),
        Message("T", "x", tags="\x02"),
        Message("T", "x", keys="k" * 40_000),
        Message("T", "x", tags="\ud800"),
        Reply("T", "x"),
    ):
        assert message.plain_properties("ID") is None

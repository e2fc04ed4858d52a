"""Apache's JSON dialect: what is read, refused and written."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import msgspec
import pytest
from tests.golden import data

from orbitmq.errors import BodyError
from orbitmq.wire import javajson
from orbitmq.wire.bodies import ConsumerOffsets, DelayOffsets, SubscriptionGroupWrapper, TopicConfigWrapper
from orbitmq.wire.javajson import ObjectMap

CONFIG = data.APACHE / "config"


class Queue(msgspec.Struct, frozen=True, rename="camel"):
    broker_name: str
    queue_id: int
    topic: str


class Colour(StrEnum):
    RED = "red"


class Table(msgspec.Struct, rename="camel", omit_defaults=True):
    by_id: dict[int, str] = {}
    offset_table: ObjectMap[Queue, int] = msgspec.field(default_factory=ObjectMap)
    count: int = 7
    note: str | None = None
    raw: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


QUEUE = '{"brokerName":"b","queueId":0,"topic":"T"}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", {}),
        ("[1,2.5,true,null]", [1, 2.5, True, None]),
        ('{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        ('{ -1 : "a" ,\n\t12\t:"b"}', {"-1": "a", "12": "b"}),
        ('{"x":{0:{1:2}}}', {"x": {"0": {"1": 2}}}),
        ('{"0":"quoted"}', {"0": "quoted"}),
        ("{" + QUEUE + ":5}", {QUEUE: 5}),
        ("{" + QUEUE + ":5," + QUEUE.replace("0", "1") + " : [6]}", {QUEUE: 5, QUEUE.replace("0", "1"): [6]}),
        ('[{"a":1},{"b":2},{3:4}]', [{"a": 1}, {"b": 2}, {"3": 4}]),
        ('{"text":"{0:1},{\\"a\\":{}}:,1:\\\\",0:1}', {"text": '{0:1},{"a":{}}:,1:\\', "0": 1}),
        ('{0:"é😀\\u00e9"}', {"0": "é😀é"}),
    ],
)
def test_loads_reads_standard_and_peculiar_keys(text: str, expected: Any) -> None:
    assert javajson.loads(text.encode()) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "nul",
        "{0:}",
        "{0:1",
        "{0:1}}",
        "{a:1}",
        "{1.5:1}",
        "{null:1}",
        '{"a":1,}',
        "{{}:}",
        '{{"a":{"b":1}}:2}',
        "[1,2:3]",
        '"unterminated',
        '{"a":"\\x"}',
        "1e999",
        "[" + "9" * 5000 + "]",
    ],
)
def test_loads_of_broken_text_raises_body_error(text: str) -> None:
    with pytest.raises(BodyError):
        javajson.loads(text.encode())


@pytest.mark.parametrize(
    "data", [b"\xff", b'"\xff"', b'{"\xff":1}', b'{{"\xff":1}:1}', b"{0:'\xff'}", b'"\xed\xa0\x80"']
)
def test_loads_of_text_that_is_not_utf8_raises_body_error(data: bytes) -> None:
    with pytest.raises(BodyError):
        javajson.loads(data)


@pytest.mark.parametrize("unit", ["[", '{"a":', "{0:", "{", "[{", "{" + QUEUE + ":"])
def test_deep_nesting_raises_body_error(unit: str) -> None:
    for wanted in (Any, Table):
        with pytest.raises(BodyError):
            javajson.decode(unit.encode() * 30_000, wanted)


def test_body_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(BodyError, match="longer than"):
        javajson.loads(b" " * (javajson.BODY_BYTES_MAX + 1))


@pytest.mark.slow
def test_too_many_bare_keys_are_refused() -> None:
    with pytest.raises(BodyError, match="more than 1000000"):
        javajson.loads(b"{0:0," * 1_000_001)


def test_standard_text_is_returned_as_it_is() -> None:
    text = b'{"a":[{"b":1},{"c":2}]}'
    assert javajson.standardize(text) is text


def test_typed_read_of_every_peculiarity() -> None:
    text = '{"byId":{0:"a","1":"b"},"offsetTable":{' + QUEUE + ':"5"},"count":null,"later":[1]}'
    assert javajson.decode(text.encode(), Table) == Table(
        by_id={0: "a", 1: "b"}, offset_table=ObjectMap({Queue("b", 0, "T"): 5})
    )


def test_typed_read_names_the_bad_member() -> None:
    with pytest.raises(BodyError, match=r"Table.*\$\.byId"):
        javajson.decode(b'{"byId":{0:1}}', Table)


@pytest.mark.parametrize(
    "key", ['"text"', '{"brokerName":"b"}', "0", '{"brokerName":0,"queueId":0,"topic":"T"}']
)
def test_object_map_with_another_key_raises_body_error(key: str) -> None:
    with pytest.raises(BodyError):
        javajson.decode(b'{"offsetTable":{%s:1}}' % key.encode(), Table)


def test_null_for_a_member_means_absent_even_beside_peculiar_keys() -> None:
    assert javajson.decode(b'{"offsetTable":null,"byId":{0:"a"}}', Table) == Table(by_id={0: "a"})


def test_encode_writes_bare_and_object_keys_and_no_nulls() -> None:
    table = Table(by_id={0: "a", -1: "é"}, offset_table=ObjectMap({Queue("b", 0, "T"): 5}))
    assert javajson.encode(table).decode() == '{"byId":{0:"a",-1:"é"},"offsetTable":{' + QUEUE + ":5}}"
    assert javajson.decode(javajson.encode(table), Table) == table


def test_encode_standard_writes_quoted_keys_in_ascii() -> None:
    text = javajson.encode_standard(Table(by_id={0: "é"}, offset_table=ObjectMap({Queue("b", 0, "T"): 5})))
    assert json.loads(text) == {"byId": {"0": "é"}, "offsetTable": {QUEUE: 5}}
    assert text.isascii()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (float("nan"), "null"),
        (float("inf"), "null"),
        (0.0, "0.0"),
        (Colour.RED, '"red"'),
        ((1, 2), "[1,2]"),
        (frozenset({3}), "[3]"),
        ([], "[]"),
        ({}, "{}"),
        (Table(), '{"offsetTable":{}}'),  # left out: plain defaults and empty dict, list, set
        (Table(raw=msgspec.Raw(b'{"x":1}')), '{"offsetTable":{},"raw":{"x":1}}'),
        ('\x00\x01\x1f\n"\\/\u2028', '"\\u0000\\u0001\\u001f\\n\\"\\\\/\u2028"'),
    ],
)
def test_encode_of_single_values(value: Any, text: str) -> None:
    assert javajson.encode(value).decode() == text


def test_encode_of_half_a_surrogate_pair_gives_a_question_mark() -> None:
    assert javajson.encode("\ud800") == b'"?"'


def test_encode_of_a_value_without_json_form_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="object"):
        javajson.encode(object())


def test_encode_of_a_value_nested_too_deeply_raises_body_error() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(BodyError):
        javajson.encode(value)
    while value:  # take it apart: the garbage collector would recurse, too
        value = value.pop()


def integer_keys(value: Any) -> Any:
    """Converts keys to integers: ``loads`` returns every key as text; in these files a key of digits is always an
    integer.
    """
    if isinstance(value, dict):
        return {int(key) if key.isdigit() else key: integer_keys(item) for key, item in value.items()}
    if isinstance(value, list):
        return [integer_keys(item) for item in value]
    return value


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.json")), ids=lambda path: path.name)
def test_recorded_config_file_is_rewritten_byte_for_byte(path: Any) -> None:
    text = path.read_bytes()
    assert javajson.encode_pretty(integer_keys(javajson.loads(text))) == text


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("topics.json", TopicConfigWrapper),
        ("subscriptionGroup.json", SubscriptionGroupWrapper),
        ("consumerOffset.json", ConsumerOffsets),
        ("delayOffset.json", DelayOffsets),
    ],
)
def test_recorded_config_file_is_rewritten_byte_for_byte_through_its_type(
    name: str, wanted: type[Any]
) -> None:
    text = (CONFIG / name).read_bytes()
    assert javajson.encode_pretty(javajson.decode(text, wanted)) == text

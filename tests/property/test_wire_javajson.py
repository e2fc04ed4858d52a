"""The JSON dialect, whatever the values: round trips, agreement with standard JSON, only the declared error."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.errors import BodyError
from orbitmq.model.route import MessageQueue
from orbitmq.wire import javajson
from orbitmq.wire.javajson import ObjectMap

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TRICKY_TEXT = TEXT | st.lists(st.sampled_from(list('{}[],:"\\ 01\t\n'))).map("".join)
SCALARS = st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | TRICKY_TEXT
STANDARD = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TRICKY_TEXT, inner, max_size=4),
    max_leaves=20,
)
QUEUES = st.builds(MessageQueue, broker_name=TRICKY_TEXT, queue_id=INT64, topic=TRICKY_TEXT)
DIALECT = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TRICKY_TEXT, inner, max_size=4)
        | st.dictionaries(INT64, inner, max_size=4)
        | st.dictionaries(QUEUES, inner, max_size=4)
    ),
    max_leaves=20,
)


class Tables(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    by_id: dict[int, dict[int, str]] = {}
    by_queue: ObjectMap[MessageQueue, list[int]] = msgspec.field(default_factory=ObjectMap)
    by_name: dict[str, ObjectMap[MessageQueue, int]] | None = None
    text: str | None = None


def object_maps(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(QUEUES, values, max_size=4).map(ObjectMap)


TABLES = st.builds(
    Tables,
    by_id=st.dictionaries(INT64, st.dictionaries(INT64, TRICKY_TEXT, max_size=3), max_size=3),
    by_queue=object_maps(st.lists(INT64, max_size=3)),
    by_name=st.none() | st.dictionaries(TRICKY_TEXT, object_maps(INT64), max_size=3),
    text=st.none() | TRICKY_TEXT,
)


def standard_keys(value: Any) -> Any:
    """The value as ``loads`` gives it: every key is text, an object's own compact text for an object."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else javajson.encode(key).decode(): standard_keys(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [standard_keys(item) for item in value]
    return value


@given(STANDARD, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_standard_json_reads_as_json_does_and_needs_no_change(
    value: Any, indent: Any, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert javajson.standardize(text) is text
    assert javajson.loads(text) == value


@given(STANDARD)
def test_values_with_text_keys_are_written_as_standard_json(value: Any) -> None:
    for write in (javajson.encode, javajson.encode_standard, javajson.encode_pretty):
        assert json.loads(write(value)) == value


@given(DIALECT)
def test_every_form_reads_back(value: Any) -> None:
    expected = standard_keys(value)
    assert javajson.loads(javajson.encode(value)) == expected
    assert javajson.loads(javajson.encode_pretty(value)) == expected
    assert json.loads(javajson.encode_standard(value)) == expected


@given(DIALECT)
def test_a_standardized_text_needs_no_second_pass(value: Any) -> None:
    once = javajson.standardize(javajson.encode(value))
    assert javajson.standardize(once) is once
    assert json.loads(once) == standard_keys(value)


@given(TABLES)
def test_typed_tables_read_back(tables: Tables) -> None:
    for write in (javajson.encode, javajson.encode_standard, javajson.encode_pretty):
        assert javajson.decode(write(tables), Tables) == tables


@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from(
            [b"{", b"}", b"[", b"]", b":", b",", b'"', b"\\", b"0", b"-", b"a", b" ", b"null", b"\xc3"]
        )
    ).map(b"".join)
)
@settings(max_examples=400)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for wanted in (Any, Tables, list[int]):
        try:
            value = javajson.decode(data, wanted)
        except BodyError:
            continue
        assert javajson.decode(javajson.encode(value), wanted) == value

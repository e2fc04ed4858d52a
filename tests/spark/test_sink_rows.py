"""Rows become batch entries in columns; what comes out must be what a client would have sent, row by row."""

from __future__ import annotations

import string
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from orbitmq.client.produce.queue_picker import select_by_hash
from orbitmq.codes import Property
from orbitmq.errors import ConfigError, MessageIllegal
from orbitmq.model.route import MessageQueue
from orbitmq.record.batch import split_batch
from orbitmq.record.ids import parse_unique_key
from orbitmq.record.properties import decode_properties
from orbitmq.spark.sink import place as placing
from orbitmq.spark.sink import rows as encoding
from orbitmq.spark.sink.plan import plan_sink
from orbitmq.spark.sink.rows import RowKeys, encode_rows, key_prefix, split_by_size

KEYS = RowKeys(key_prefix("query", 7, 0))
BODY_MAX = 4 * 1024 * 1024
SCHEMA = pa.schema(
    [
        ("body", pa.binary()),
        ("keys", pa.list_(pa.string())),
        ("tags", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("sharding_key", pa.string()),
    ]
)
TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(min_size=1, max_size=40),
            "keys": st.none() | st.lists(st.text(string.ascii_letters, min_size=1, max_size=4), max_size=3),
            "tags": st.none() | TEXT,
            "properties": st.none()
            | st.dictionaries(
                TEXT.filter(bool) | st.sampled_from(list(Property)), st.none() | TEXT, max_size=4
            ),
            "sharding_key": st.none() | TEXT,
        }
    ),
    min_size=1,
    max_size=12,
)
RESERVED = frozenset(Property) - {
    Property.TRACE_CONTEXT,
    Property.INNER_MULTI_DISPATCH,
    Property.CHECK_IMMUNITY_TIME_IN_SECONDS,
}


def batch_of(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def expected(row: dict[str, Any], key: str) -> tuple[bytes, dict[str, str]]:
    pairs = {
        name: value for name, value in (row["properties"] or {}).items() if value and name not in RESERVED
    }
    if row["keys"]:
        pairs["KEYS"] = " ".join(row["keys"])
    if row["tags"]:
        pairs["TAGS"] = row["tags"]
    if row["sharding_key"]:
        pairs["__SHARDINGKEY"] = row["sharding_key"]
    pairs["UNIQ_KEY"] = key
    return row["body"], pairs


def sent(encoded: encoding.EncodedRows) -> list[tuple[bytes, dict[str, str]]]:
    data, offsets = encoded.entries()
    entries = split_batch(bytes(data[offsets[0] : offsets[-1]]))
    assert np.diff(offsets).tolist() == encoded.entry_sizes.tolist()
    return [(body, decode_properties(properties)) for _, body, properties in entries]


@settings(deadline=None, max_examples=60)
@given(ROWS, st.integers(0, 2**31), st.integers(0, 3))
def test_rows_encoded_as_columns_equal_messages_encoded_one_by_one(
    rows: list[dict[str, Any]], first_row: int, cut: int
) -> None:
    cut = min(cut, len(rows) - 1)
    # A slice has offsets of its own in every column, and Spark hands out slices.
    batch = batch_of(rows).slice(cut)
    encoded = encode_rows(batch, first_row, KEYS, BODY_MAX)
    found = sent(encoded)
    keys = [properties["UNIQ_KEY"] for _, properties in found]
    assert found == [expected(row, key) for row, key in zip(rows[cut:], keys, strict=True)]
    assert len(set(keys)) == len(keys)
    assert [decode_properties(text) for text in encoded.properties()] == [pairs for _, pairs in found]
    backwards = np.arange(len(encoded))[::-1].copy()
    assert sent(encoded.take(backwards)) == found[::-1]


def test_unique_key_of_a_row_is_the_same_in_every_attempt_and_looks_like_a_clients() -> None:
    rows = [{"body": b"x"} for _ in range(70_000)]
    batch = batch_of(rows, pa.schema([("body", pa.binary())]))
    whole = [properties["UNIQ_KEY"] for _, properties in sent(encode_rows(batch, 0, KEYS, BODY_MAX))]
    assert len(set(whole)) == 70_000
    # Another attempt may get its rows in batches of other sizes.
    pieces = [
        properties["UNIQ_KEY"]
        for start in range(0, 70_000, 17_500)
        for _, properties in sent(encode_rows(batch.slice(start, 17_500), start, KEYS, BODY_MAX))
    ]
    assert pieces == whole
    parsed = parse_unique_key(whole[69_999])
    assert parsed.since_month_ms == 0, "tools begin their search at this time of the month"
    assert parsed.counter == 69_999 & 0xFFFF
    others = [key_prefix("query", 8, 0), key_prefix("query", 7, 1), key_prefix("other", 7, 0)]
    assert len({key_prefix("query", 7, 0), *others}) == 4


def test_unique_key_column_is_sent_as_it_is() -> None:
    schema = pa.schema([("body", pa.string()), ("id", pa.string())])
    encoded = encode_rows(batch_of([{"body": "text", "id": "order-17"}], schema), 0, "id", BODY_MAX)
    assert sent(encoded) == [(b"text", {"UNIQ_KEY": "order-17"})]


@pytest.mark.parametrize("nullable", [True, False])
def test_list_of_keys_is_joined_whatever_spark_says_of_its_elements(nullable: bool) -> None:
    kind = pa.list_(pa.field("element", pa.string(), nullable=nullable))
    rows: list[dict[str, Any]] = [{"body": b"x", "keys": ["a", "b"]}, {"body": b"y", "keys": None}]
    if nullable:
        rows.append({"body": b"z", "keys": [None, "c", None]})
    schema = pa.schema([("body", pa.binary()), ("keys", kind)])
    found = sent(encode_rows(batch_of(rows, schema), 0, KEYS, BODY_MAX))
    assert [pairs.get("KEYS") for _, pairs in found] == ["a b", None, "c"][: len(rows)]


def test_properties_keep_keys_and_tags_unless_a_column_says_them() -> None:
    schema = pa.schema([("body", pa.binary()), ("properties", pa.map_(pa.string(), pa.string()))])
    row = {"body": b"x", "properties": {"KEYS": "k", "TAGS": "t", "CLUSTER": "c", "mine": "m"}}
    ((_, pairs),) = sent(encode_rows(batch_of([row], schema), 0, KEYS, BODY_MAX))
    assert pairs.keys() == {"KEYS", "TAGS", "mine", "UNIQ_KEY"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"body": None}, "has no body"),
        ({"body": b""}, "has an empty body"),
        ({"body": b"x" * 101}, r"has a body over 100 bytes \(maxMessageBytes\)"),
        ({"tags": "a\x02b"}, r"has a separator \(0x02\) in column 'tags'"),
        ({"keys": ["a\x02"]}, "in column 'keys'"),
        ({"properties": {"a\x01": "v"}}, "has a property with an empty name or a separator"),
        ({"properties": {"": "v"}}, "has a property with an empty name or a separator"),
        ({"properties": {"a": "\x02"}}, "has a property with an empty name or a separator"),
        ({"properties": {"a": "v" * 40_000}}, "has properties over 32767 bytes"),
    ],
)
def test_row_that_is_no_message_is_refused_with_its_number(change: dict[str, Any], problem: str) -> None:
    good = {"body": b"x", "properties": {"a": "b", "c": "d"}}
    with pytest.raises(MessageIllegal, match="row 1002 .*" + problem):
        encode_rows(batch_of([good, good, good | change, good]), 1000, KEYS, 100)


def test_piece_of_a_large_batch_holds_every_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "PIECE_BYTES", 1000)
    batch = batch_of([{"body": bytes([row]) * 100} for row in range(100)], pa.schema([("body", pa.binary())]))
    pieces = list(split_by_size(batch))
    assert len(pieces) > 5
    assert [start for start, _ in pieces][:2] == [0, pieces[0][1].num_rows]
    assert pa.Table.from_batches([piece for _, piece in pieces]).to_pylist() == batch.to_pylist()
    assert list(split_by_size(batch.slice(0, 0))) == []


class FakeClient:
    """Knows the queues and nothing else."""

    def __init__(self, queues: list[MessageQueue]) -> None:
        self._queues = queues
        self.sender = self

    def wire_topic(self, topic: str) -> str:
        return topic

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._queues


class FakeSession:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[bytes], MessageQueue | None]] = []
        self.singles: list[tuple[str, bytes, dict[str, str], MessageQueue | None]] = []

    def batch(
        self, topic: str, entries: bytes, rows: int, body_bytes: int, queue: MessageQueue | None
    ) -> None:
        bodies = [body for _, body, _ in split_batch(entries)]
        assert (rows, body_bytes) == (len(bodies), sum(map(len, bodies)))
        self.batches.append((topic, bodies, queue))

    def single(self, topic: str, body: bytes, properties: bytes, queue: MessageQueue | None) -> None:
        self.singles.append((topic, body, decode_properties(properties), queue))


QUEUES = [
    MessageQueue(topic="T", broker_name=name, queue_id=queue) for name in ("a", "b") for queue in range(3)
]


def place(
    rows: list[dict[str, Any]],
    fields: list[tuple[str, pa.DataType]],
    *,
    broker: str | None = None,
    batch_bytes: int = 1000,
) -> FakeSession:
    session = FakeSession()
    sender: Any = placing.RowSender
    batch = batch_of(rows, pa.schema([("body", pa.binary()), *fields]))
    sender(FakeClient(QUEUES), session, "T", broker, batch_bytes).send(encode_rows(batch, 0, KEYS, BODY_MAX))
    return session


def test_rows_without_a_place_fill_requests_up_to_their_size() -> None:
    session = place([{"body": b"%03d" % row} for row in range(100)], [])
    assert [body for _, bodies, _ in session.batches for body in bodies] == [b"%03d" % i for i in range(100)]
    assert all(queue is None for _, _, queue in session.batches)
    assert {len(bodies) for _, bodies, _ in session.batches[:-1]} == {1000 // (22 + 3 + 42)}


def test_sharding_key_chooses_the_queue_every_client_chooses_and_keeps_order() -> None:
    rows: list[dict[str, Any]] = [
        {"body": b"%d" % row, "sharding_key": f"user-{row % 7}"} for row in range(70)
    ]
    rows.append({"body": b"free", "sharding_key": None})
    session = place(rows, [("sharding_key", pa.string())])
    for row in rows[:-1]:
        wanted = select_by_hash(QUEUES, str(row["sharding_key"]))
        assert any(row["body"] in bodies and queue == wanted for _, bodies, queue in session.batches)
    for queue in QUEUES:
        numbers = [int(body) for _, bodies, at in session.batches if at == queue for body in bodies]
        assert numbers == sorted(numbers)
    assert [bodies for _, bodies, queue in session.batches if queue is None] == [[b"free"]]


def test_queue_id_goes_to_that_queue_of_the_broker_named() -> None:
    fields = [("queue_id", pa.int32()), ("broker", pa.string())]
    rows: list[dict[str, Any]] = [
        {"body": b"a2", "queue_id": 2, "broker": "a"},
        {"body": b"b0", "queue_id": 0, "broker": None},
        {"body": b"bx", "queue_id": None, "broker": "b"},
        {"body": b"b0 too", "queue_id": 0, "broker": "b"},
    ]
    session = place(rows, fields, broker="b")
    found = {body: queue for _, bodies, queue in session.batches for body in bodies}
    assert found[b"a2"] == QUEUES[2]
    assert found[b"b0"] == found[b"b0 too"] == QUEUES[3]
    free = found[b"bx"]
    assert free is not None
    assert free.broker_name == "b"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"queue_id": 1}, "wants queue 1 of topic T, which brokers a, b have: add a column 'broker'"),
        ({"queue_id": 3, "broker": "a"}, "wants queue 3 on broker a of topic T; it has a/0, a/1"),
        ({"broker": "c"}, "wants a queue on broker c of topic T"),
        ({"topic": ""}, "has no topic"),
        ({"delay_level": 1, "deliver_at": 5}, "has both delay_level and deliver_at"),
        ({"delay_level": -1}, "has delay_level -1; 0 is"),
        ({"deliver_at": -5}, "has deliver_at -5 ms, before 1970"),
    ],
)
def test_place_that_does_not_exist_is_refused(row: dict[str, Any], problem: str) -> None:
    fields = [
        ("topic", pa.string()),
        ("queue_id", pa.int64()),
        ("broker", pa.string()),
        ("delay_level", pa.int32()),
        ("deliver_at", pa.int64()),
    ]
    with pytest.raises(MessageIllegal, match=problem):
        place([{"body": b"x", **row}], [field for field in fields if field[0] in row])


def test_delayed_and_long_rows_go_alone_and_in_their_place() -> None:
    due = datetime(2030, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)
    rows: list[dict[str, Any]] = [
        {"body": b"one", "queue_id": 0},
        {"body": b"long" * 300, "queue_id": 0},
        {"body": b"two", "queue_id": 0},
        {"body": b"level", "queue_id": 0, "delay_level": 3},
        {"body": b"timed", "queue_id": 0, "deliver_at": due},
    ]
    fields = [
        ("queue_id", pa.int32()),
        ("delay_level", pa.int32()),
        ("deliver_at", pa.timestamp("us", tz="UTC")),
    ]
    session = place(rows, fields, broker="a")
    assert [(bodies, queue) for _, bodies, queue in session.batches] == [
        ([b"one"], QUEUES[0]),
        ([b"two"], QUEUES[0]),
    ]
    assert [body for _, body, _, _ in session.singles] == [b"long" * 300, b"level", b"timed"]
    assert session.singles[1][2]["DELAY"] == "3"
    assert session.singles[2][2]["TIMER_DELIVER_MS"] == str(int(due.timestamp() * 1000))


def test_topic_column_sends_each_row_to_its_topic_and_the_rest_to_the_option() -> None:
    rows = [{"body": b"%d" % row, "topic": [None, "U", "V"][row % 3]} for row in range(30)]
    session = place(rows, [("topic", pa.string())])
    by_topic: dict[str, list[int]] = {}
    for topic, bodies, _ in session.batches:
        by_topic.setdefault(topic, []).extend(int(body) for body in bodies)
    assert by_topic == {"T": list(range(0, 30, 3)), "U": list(range(1, 30, 3)), "V": list(range(2, 30, 3))}


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ({"value": StringType()}, {"topic": "T"}, "column 'value' has no meaning for a message"),
        ({"body": IntegerType()}, {"topic": "T"}, "column 'body' is int; it must be binary or string"),
        ({"tags": StringType()}, {"topic": "T"}, "the frame has no column 'body'"),
        ({"body": BinaryType()}, {}, "give the option 'topic' or a column 'topic'"),
        ({"body": BinaryType()}, {"topic": "T", "uniqueKeyColumn": "id"}, "uniqueKeyColumn names 'id'"),
        ({"body": BinaryType()}, {"topic": "T", "batchByte": "1"}, "did you mean 'batchBytes'"),
        ({"body": BinaryType()}, {"topic": "T", "inFlight": "0"}, "'inFlight' is 0; 1 to"),
        ({"body": BinaryType(), "keys": ArrayType(IntegerType())}, {"topic": "T"}, "string or array<string>"),
        (
            {"body": BinaryType(), "properties": MapType(StringType(), IntegerType())},
            {"topic": "T"},
            "it must be map<string,string>",
        ),
        (
            {"body": BinaryType(), "queue_id": IntegerType(), "sharding_key": StringType()},
            {"topic": "T"},
            "both queue_id and sharding_key",
        ),
    ],
)
def test_frame_or_option_that_cannot_be_used_is_explained(
    columns: dict[str, DataType], options: dict[str, str], problem: str
) -> None:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises(ConfigError, match=problem):
        plan_sink({"namesrvAddr": "127.0.0.1:1", **options}, schema, streaming=False)


def test_batch_has_a_name_of_its_own_and_a_stream_that_of_its_query() -> None:
    schema = StructType([StructField("body", BinaryType())])
    options = {"namesrvaddr": "127.0.0.1:1", "topic": "T"}
    first, second = (plan_sink(options, schema, streaming=False).scope for _ in range(2))
    assert first != second
    assert plan_sink(options, schema, streaming=True).scope == ""
    assert plan_sink({**options, "uniquekeyscope": "mine"}, schema, streaming=False).scope == "mine"


def test_sharding_key_may_be_a_number() -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"body": b"x", "sharding_key": 7}, {"body": b"y", "sharding_key": None}]
    )
    [first, second] = sent(encoding.encode_rows(batch, 0, encoding.RowKeys(b"0" * 16), 1000))
    assert first[1]["__SHARDINGKEY"] == "7"
    assert "__SHARDINGKEY" not in second[1]

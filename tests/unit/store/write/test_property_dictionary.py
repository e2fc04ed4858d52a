"""Texts by number: a queue read through an expression gives the same with and without them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.store.support import decoded, message, open_store

from orbitmq.filter import compile_selector
from orbitmq.filter.compiler import Selector
from orbitmq.record.batch import encode_batch
from orbitmq.record.properties import without_unique_key
from orbitmq.store.errors import StoreError
from orbitmq.store.message_store import MessageStore
from orbitmq.store.queues.consume_queue import ConsumeQueue
from orbitmq.store.types import ReadStatus
from orbitmq.store.write import property_dictionary as text_numbers
from orbitmq.store.write.property_dictionary import TextColumn
from orbitmq.testing.faulty_fs import FaultyFileSystem

EXPRESSIONS = [
    "a = 1",
    "a > 1 AND b IS NOT NULL",
    "a IS NULL",
    "b = 'x' OR a = 3",
    "UNIQ_KEY IS NOT NULL",
    "UNIQ_KEY ENDSWITH '5'",
]
TOPIC = "TopicA"


def key(number: int) -> bytes:
    return b"UNIQ_KEY\x01%032X\x02" % number


def queue_of(store: MessageStore, queue_id: int = 0) -> ConsumeQueue:
    return store._parts.queues.by_key[TOPIC, queue_id]


def read_all(
    store: MessageStore, predicate: Callable[[memoryview], bool], *, max_count: int = 5, max_bytes: int = 4000
) -> list[tuple[int, bytes]]:
    """Queue offset and body of all that match, read as a consumer does."""
    found: list[tuple[int, bytes]] = []
    offset = 0
    while offset < store.max_offset(TOPIC, 0):
        result = store.read(TOPIC, 0, offset, max_count, max_bytes=max_bytes, predicate=predicate)
        assert offset < result.next_offset <= store.max_offset(TOPIC, 0)
        records = decoded(result.slices)
        assert result.count == len(records) <= max_count
        assert result.size_bytes == sum(len(piece) for piece in result.slices)
        assert result.status is (ReadStatus.FOUND if records else ReadStatus.NO_MATCHED_MESSAGE)
        assert all(offset <= record.queue_offset < result.next_offset for record in records)
        found += [(record.queue_offset, record.body) for record in records]
        offset = result.next_offset
    return found


def by_record(selector: Selector) -> Callable[[memoryview], bool]:
    """Without anything a store could use to judge otherwise."""
    return lambda record: selector.matches(record)


@pytest.mark.parametrize(
    ("text", "before", "behind"),
    [
        (b"", b"", b""),
        (b"a\x011\x02", b"a\x011\x02", b""),
        (b"a\x011\x02" + key(1) + b"b\x012", b"a\x011", b"b\x012"),
        (b"a\x011\x02" + key(1)[:-1], b"a\x011", b""),
        (key(1) + b"a\x011\x02", b"UNIQ_KEY\x01", b"a\x011\x02"),
        (key(1), b"UNIQ_KEY\x01", b""),
        (b"xUNIQ_KEY\x015\x02a\x011\x02", b"xUNIQ_KEY\x015\x02a\x011\x02", b""),
    ],
)
def test_unique_key_is_left_out_wherever_it_stands(text: bytes, before: bytes, behind: bytes) -> None:
    assert without_unique_key(text) == (before, behind)


PAIRS = st.sampled_from(
    [b"a\x011\x02", b"a\x012\x02", b"a\x013\x02", b"b\x01x\x02", b"b\x01\x02", b"c\x01\x00\x02"]
)
TEXTS = st.lists(PAIRS, max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("append"), TEXTS, st.integers(0, 3)),
    st.tuples(st.just("batch"), TEXTS, st.integers(0, 3)),
    st.tuples(st.just("row"), TEXTS, st.integers(2, 6)),
    st.tuples(st.just("entries"), TEXTS, st.integers(0, 3)),
    st.tuples(st.just("refused"), TEXTS, st.integers(0, 3)),
    st.tuples(st.just("truncate"), st.just([]), st.integers(0, 12)),
    st.tuples(st.just("read"), st.just([]), st.integers(0, 5)),
    st.tuples(st.just("delete"), st.just([]), st.just(0)),
)


class Writer:
    """Does the steps; every message has a unique key of its own, at a place that varies."""

    def __init__(self) -> None:
        self.store = open_store(FaultyFileSystem(), segment_bytes=1 << 16, message_bytes_max=200)
        self.number = 0
        self.used = 0

    def text(self, pairs: list[bytes], place: int) -> bytes:
        self.number += 1
        return b"".join([*pairs[:place], key(self.number), *pairs[place:]])

    def entries(self, texts: list[bytes]) -> None:
        data = encode_batch((0, b"%05d" % (self.number + at), text) for at, text in enumerate(texts))
        template = message(body=data, properties=b"")
        if self.store.append_entries(template) is None:
            self.store.append_batch([message(properties=text) for text in texts])

    def do(self, step: str, pairs: list[bytes], value: int) -> None:
        store = self.store
        if step == "append":
            store.append(message(self.number, properties=self.text(pairs, value)))
        elif step == "batch":
            store.append_batch(
                [
                    message(self.number, queue_id=at % 2, properties=self.text(pairs[at:], value))
                    for at in range(3)
                ]
            )
        elif step == "row":
            self.entries([self.text(pairs, 0) for _ in range(value)])
        elif step == "entries":
            self.entries([self.text(pairs[at:], value) for at in range(3)])
        elif step == "refused":
            good = message(self.number, properties=self.text(pairs, value))
            with pytest.raises(StoreError):
                store.append_batch([good, message(body=b"x" * 201)])
        elif step == "truncate" and value < store.max_offset(TOPIC, 0):
            store.truncate(store.log_offset_at(TOPIC, 0, value))
        elif step == "delete":
            store.delete_topic(TOPIC)
        elif step == "read" and (TOPIC, 0) in store._parts.queues.by_key:
            selector = compile_selector(EXPRESSIONS[value])
            column = queue_of(store).texts
            self.used += column is not None and column.end == store.max_offset(TOPIC, 0) > column.first
            for max_bytes in (100, 4000):
                assert read_all(store, selector, max_bytes=max_bytes) == read_all(
                    store, by_record(selector), max_bytes=max_bytes
                )


@given(st.lists(STEPS, max_size=40))
@settings(max_examples=150)
def test_whatever_happens_to_a_queue_expressions_select_what_they_select_without_numbers(
    steps: list[tuple[str, list[bytes], int]],
) -> None:
    writer = Writer()
    for step, pairs, value in steps:
        writer.do(step, list(pairs), value)
    for at in range(len(EXPRESSIONS)):
        writer.do("read", [], at)


def test_messages_that_come_while_a_reader_waits_are_judged_by_number() -> None:
    writer = Writer()
    store, selector = writer.store, compile_selector("a = 1")
    writer.do("append", [], 0)
    assert store.read(TOPIC, 0, 1, 32, predicate=selector).status is ReadStatus.OFFSET_OVERFLOW_ONE
    judged: list[bytes] = []

    class Counting:
        expression = "counted"
        ignores_unique_key = True

        def matches_properties(self, text: bytes) -> bool:
            judged.append(text)
            return selector.matches_properties(text)

        def __call__(self, record: memoryview) -> bool:
            raise AssertionError("no record is looked at")

    for _ in range(5):
        for step in ("append", "batch", "row", "entries"):
            writer.do(step, [b"a\x011\x02", b"b\x01x\x02"], 2)
    column = queue_of(store).texts
    assert column is not None
    assert (column.first, column.end) == (1, store.max_offset(TOPIC, 0))
    for _ in range(3):
        found = store.read(TOPIC, 0, 1, 32, predicate=Counting())
        assert found.count == 5 * (1 + 1 + 2 + 1), "of a batch of three one goes elsewhere, one or two lack a"
    assert len(judged) == len({without_unique_key(text) for text in judged}) <= 6, "each text once"


def test_reader_far_behind_or_asking_for_the_unique_key_gets_no_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_numbers, "COLUMN_LENGTH_MAX", 8)
    writer = Writer()
    for _ in range(10):
        writer.do("append", [b"a\x011\x02"], 0)
    assert writer.store.read(TOPIC, 0, 0, 3, predicate=compile_selector("a = 1")).count == 3
    assert queue_of(writer.store).texts is None
    assert writer.store.read(TOPIC, 0, 5, 3, predicate=compile_selector("UNIQ_KEY IS NOT NULL")).count == 3
    assert queue_of(writer.store).texts is None
    assert writer.store.read(TOPIC, 0, 5, 3, predicate=compile_selector("a = 1")).count == 3
    assert queue_of(writer.store).texts is not None


def test_column_is_bounded_and_ends_when_nobody_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_numbers, "COLUMN_LENGTH_MAX", 8)
    writer = Writer()
    selector = compile_selector("a = 1")
    writer.do("append", [], 0)
    writer.store.read(TOPIC, 0, 1, 32, predicate=selector)
    column = queue_of(writer.store).texts
    assert isinstance(column, TextColumn)
    for _ in range(9):
        writer.do("append", [b"a\x011\x02"], 0)
    assert (column.first, column.end) == (5, 10), "the newer half"
    assert writer.store.read(TOPIC, 0, 5, 32, predicate=selector).count == 5
    for _ in range(4):
        writer.do("append", [b"a\x011\x02"], 0)
    assert column.end == 14
    for _ in range(9):
        writer.do("append", [b"a\x011\x02"], 0)
    assert column.end < 0, "unread since it was halved"
    assert read_all(writer.store, selector) == read_all(writer.store, by_record(selector))
    assert queue_of(writer.store).texts is not column


@pytest.mark.parametrize("limit", ["TEXTS_MAX", "TEXTS_BYTES_MAX"])
def test_texts_that_do_not_repeat_are_given_up_for_a_while(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(text_numbers, limit, 4 if limit == "TEXTS_MAX" else 1000)
    monkeypatch.setattr(text_numbers, "REFUSALS_MAX", 6)
    writer = Writer()
    store, selector = writer.store, compile_selector("order >= 5")
    store.append_batch([message(queue_id=0), message(queue_id=1)])
    for queue_id in (0, 1):
        store.read(TOPIC, queue_id, 1, 32, predicate=selector)
    other = queue_of(store, 1).texts
    assert other is not None
    store.append(message(queue_id=1, properties=b"order\x0150\x02"))
    assert other.end == 2
    for number in range(10):
        writer.do("append", [b"order\x01%d\x02" % number], 0)
    assert store.read(TOPIC, 1, 1, 32, predicate=selector).count == 1, (
        "its texts went with those of the topic"
    )
    for _ in range(8):
        assert [body for _, body in read_all(store, selector)] == [b"body %d" % n for n in range(5, 10)]
    assert queue_of(store).texts is not None, "tried again"


def test_queues_and_topics_with_columns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_numbers, "COLUMNS_MAX", 3)
    monkeypatch.setattr(text_numbers, "TOPICS_MAX", 2)
    monkeypatch.setattr(text_numbers, "EXPRESSIONS_MAX", 2)
    store = open_store(FaultyFileSystem(), segment_bytes=1 << 16)
    names = [f"Topic{number}" for number in range(5)]
    for name in names:
        store.append(message(topic=name))
        store.read(name, 0, 1, 32, predicate=compile_selector("a = 1"))
        store.append(message(topic=name, properties=b"a\x011\x02"))
    queues = [store._parts.queues.by_key[name, 0] for name in names]
    assert [queue.texts is not None for queue in queues] == [False, False, True, True, True]
    assert len(store._reader._texts._by_topic) == 2
    for number in range(5):
        found = store.read(names[-1], 0, 1, 32, predicate=compile_selector(f"a = {number}"))
        assert found.count == (number == 1)
        column = queues[-1].texts
        assert column is not None
        assert len(column.texts._judged) <= 2


@pytest.mark.parametrize("step", ["refused", "truncate", "delete"])
def test_what_takes_units_back_drops_the_column_at_once(step: str) -> None:
    writer = Writer()
    for _ in range(3):
        writer.do("append", [b"a\x011\x02"], 0)
    queue = queue_of(writer.store)
    writer.store.read(TOPIC, 0, 3, 32, predicate=compile_selector("a = 1"))
    writer.do("append", [b"a\x011\x02"], 0)
    assert queue.texts is not None
    writer.do(step, [], 2)
    assert queue.texts is None


def test_units_that_come_without_their_texts_end_a_column() -> None:
    """As on a broker that follows a master for a while."""
    writer = Writer()
    store, selector = writer.store, compile_selector("a = 1")
    writer.do("append", [b"a\x011\x02"], 0)
    store.read(TOPIC, 0, 1, 32, predicate=selector)
    writer.do("append", [b"a\x011\x02"], 0)
    queue = queue_of(store)
    unit = queue.unit(0)
    assert unit is not None
    queue.append(*unit)
    writer.do("append", [b"a\x012\x02"], 0)
    assert store.read(TOPIC, 0, 0, 32, predicate=selector).count == 3


@pytest.mark.parametrize("max_count", [1, 2, 3, 32])
def test_records_that_are_gone_hide_none_behind_them(max_count: int) -> None:
    writer = Writer()
    store, selector = writer.store, compile_selector("a = 1")
    writer.do("append", [], 0)
    store.read(TOPIC, 0, 1, 32, predicate=selector)
    for number in range(12):
        writer.do("append", [b"a\x01%d\x02" % (1 + number % 2)], 0)
    column = queue_of(store).texts
    assert column is not None
    store._log.damaged = [(store.log_offset_at(TOPIC, 0, 1), store.log_offset_at(TOPIC, 0, 6))]
    offset, seen = 1, []
    while offset < 13:
        found = store.read(TOPIC, 0, offset, max_count, predicate=selector)
        assert found.next_offset > offset
        seen += [record.queue_offset for record in decoded(found.slices)]
        offset = found.next_offset
    assert seen == [7, 9, 11]
    assert queue_of(store).texts is column

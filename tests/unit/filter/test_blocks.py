"""Many records judged at once must be judged as each alone is, whatever was remembered before."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.unit.filter.test_sql92 import ACCEPTED, MESSAGES, record_of, shown, text_of

from orbitmq.filter import Selector, compile_selector
from orbitmq.filter.verdict_cache import ANSWERS_MAX, LONG_PAUSE_BLOCKS, PAUSE_BLOCKS, SEARCHED_BYTES_MAX

BASE = 1 << 33


def key(number: int) -> bytes:
    return b"UNIQ_KEY\x017F000001000018B4AAC2%012X\x02" % number


def select(selector: Selector, records: Sequence[bytes | memoryview], count_max: int = 1000) -> list[int]:
    sizes = [len(record) for record in records]
    log_offsets = [BASE + sum(sizes[:at]) for at in range(len(sizes))]
    return selector.select_block(b"".join(records), log_offsets, sizes, BASE, count_max)


def one_by_one(selector: Selector, records: Sequence[bytes | memoryview]) -> list[int]:
    return [at for at, record in enumerate(records) if selector.matches(memoryview(record))]


@pytest.mark.parametrize("case", ACCEPTED, ids=shown)
def test_block_selects_what_apache_selected(case: dict[str, object]) -> None:
    selector = compile_selector(str(case["expression"]))
    texts = [text_of(properties) for properties in MESSAGES]
    # The second and third time answers are remembered; the unique key stands before, behind and not at all.
    for turn in range(2 * PAUSE_BLOCKS):
        forms = [
            [record_of(text + key(100 * turn + n)) for n, text in enumerate(texts)],
            [record_of(key(100 * turn + n) + text) for n, text in enumerate(texts)],
            [record_of(text) for text in texts],
            [record_of((text + key(turn))[:-1]) for text in texts],
        ]
        for records in forms[turn % 4 :: 4] if turn >= 8 else forms:
            assert select(selector, records) == case["selected"]


@pytest.mark.parametrize("key_first", [False, True])
def test_messages_that_differ_in_their_unique_key_alone_are_judged_once(key_first: bool) -> None:
    selector = compile_selector(f"a = 5 AND b IS NULL OR c = 'key first {key_first}'")  # one of its own
    for turn in range(20):
        texts = [(key(20 * turn + n), b"a\x01%d\x02" % (n % 7)) for n in range(20)]
        records = [record_of(b"".join(text if key_first else reversed(text))) for text in texts]
        assert select(selector, records) == [5, 12, 19]
    remembering = selector.select_block
    assert (remembering._count, remembering._pause) == (7, 0)  # type: ignore[attr-defined]  # looked into


def test_block_stops_when_it_has_enough() -> None:
    selector = compile_selector("a >= 10")
    records = [record_of(b"a\x01%d\x02" % (9 + n % 2) + key(n)) for n in range(40)]
    for _ in range(3 * PAUSE_BLOCKS):
        assert select(selector, records, 3) == [1, 3, 5]
        assert select(selector, records) == list(range(1, 40, 2))


HOST_V6 = b"\0" * 15 + b"\x01\0\0\x2a\x9f"
BIG = b"x" * SEARCHED_BYTES_MAX
ODD_RECORDS = {
    "IPv6 hosts": record_of(b"a\x01x\x02" + key(1), host=HOST_V6),
    "long topic": record_of(b"a\x01x\x02" + key(1), topic="T" * 200),
    "large": record_of(b"a\x01x\x02b\x01" + BIG + b"\x02"),
    "large, another": record_of(b"a\x01y\x02b\x01" + BIG + b"\x02"),
    "value inside another": record_of(b"b\x01a\x01x\x02"),
    "name inside another": record_of(b"ba\x01x\x02"),
    "twice, the last counts": record_of(b"a\x01x\x02a\x01y\x02"),
    "twice, the last counts, it is the one": record_of(b"a\x01y\x02a\x01x\x02"),
    "no end": record_of(b"a\x01x"),
    "key twice": record_of(key(1) + b"a\x01x\x02" + key(2)),
    "key of another length": record_of(b"UNIQ_KEY\x01k\x02a\x01x\x02" + b"b" * 32 + b"\x02"),
    "longer name of the key": record_of(b"MY" + key(1) + b"a\x01x\x02"),
    "nothing": record_of(b""),
}


@pytest.mark.parametrize(
    "expression",
    [
        "a = 'x'",
        "a IS NULL",
        "a = 'x' AND b IS NULL",
        "a IS NOT NULL OR b = 'y'",
        "UNIQ_KEY = 'k'",
        "MYUNIQ_KEY IS NULL",
    ],
)
def test_odd_records_are_judged_as_each_alone_is(expression: str) -> None:
    selector = compile_selector(expression)
    records = list(ODD_RECORDS.values())
    expected = one_by_one(selector, records)
    assert 0 < len(expected) < len(records)
    for _ in range(3 * PAUSE_BLOCKS):
        assert select(selector, records) == expected


def test_large_records_are_judged_as_each_alone_is() -> None:
    selector = compile_selector("a = 'x' AND b > 5")
    names = [
        b"a\x01%b\x02b\x01%d\x02c\x01" % (b"xy"[n % 2 : n % 2 + 1], n) + BIG + b"\x02" for n in range(20)
    ]
    for turn in range(3 * PAUSE_BLOCKS):
        records = [record_of(text + key(turn)) for text in names]
        assert select(selector, records) == one_by_one(selector, records) == list(range(6, 20, 2))


def test_unique_key_that_is_asked_for_is_not_forgotten() -> None:
    selector = compile_selector("UNIQ_KEY = '7F000001000018B4AAC2000000000002'")
    for _ in range(3 * PAUSE_BLOCKS):
        assert select(selector, [record_of(key(n) + b"a\x01x\x02") for n in range(4)]) == [2]


@pytest.mark.parametrize("expression", ["a = 5 OR TRUE", "a IS NULL", "(a = 5) = (TRUE)"])
def test_damaged_record_is_passed_over_and_the_others_are_judged(expression: str) -> None:
    selector = compile_selector(expression)
    whole = bytes(record_of(b"b\x015\x02" + key(1)))
    expected = [0, 2] if selector.matches(memoryview(whole)) else []
    for size in (
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\x80\x00\x00\x00",
        b"\x00\x00\x01\x00",
        b"\x00\x01\x00\x00",
    ):
        damaged = whole[:84] + size + whole[88:]
        for _ in range(3 * PAUSE_BLOCKS):
            assert select(selector, [whole, damaged, whole]) == expected
    assert select(selector, [whole, whole[:50]]) == expected[:1]


def test_texts_that_never_repeat_are_judged_right_and_do_not_pile_up() -> None:
    selector = compile_selector("number >= 100")
    remembering = selector.select_block
    most = paused = 0
    for turn in range(4 * LONG_PAUSE_BLOCKS):
        first = 64 * turn
        records = [
            record_of(b"number\x01%d\x02" % (n % 200) + b"order\x01%d\x02" % n)
            for n in range(first, first + 64, 8)
        ]
        assert select(selector, records) == [
            at for at, n in enumerate(range(first, first + 64, 8)) if n % 200 >= 100
        ]
        most = max(most, remembering._count)  # type: ignore[attr-defined]  # looked into
        paused += remembering._pause > 0  # type: ignore[attr-defined]  # looked into
    assert 0 < most <= ANSWERS_MAX
    assert paused > 3 * LONG_PAUSE_BLOCKS

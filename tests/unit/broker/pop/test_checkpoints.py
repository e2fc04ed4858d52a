"""The table of checkpoints: acknowledgements, due checkpoints, and the part of the log still needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.broker.pop.checkpoints import Checkpoint, CheckpointTable
from orbitmq.broker.pop.receipts import (
    Receipt,
    format_receipt,
    order_counts_entries,
    parse_receipt,
    topic_kind,
)
from orbitmq.broker.pop.revive_records import (
    decode_acks,
    decode_checkpoint,
)
from orbitmq.errors import BodyError, ServerError
from orbitmq.kernel import ack_bodies, checkpoint_bodies


def checkpoint(
    start: int = 0, offsets: Sequence[int] = range(3), *, pop_ms: int = 1_000, place: int = 0
) -> Checkpoint:
    return Checkpoint("T", "G", 0, start, pop_ms, 500, 2, offsets, revive_offset=place)


def test_checkpoint_with_all_acknowledged_is_kept_until_the_log_has_it() -> None:
    table = CheckpointTable()
    one = checkpoint(place=7)
    table.add(one)
    assert [table.ack(one.key, offset) for offset in (1, 1, 9, 0, 2)] == [True, False, False, True, True]
    assert len(table) == 0
    assert table.floor(2) == 7  # a crash now must find the record
    (waiting,) = table.take_unwritten()
    assert waiting.unwritten == 0b111
    table.written(waiting)
    assert table.floor(2) is None
    assert table.in_flight("T", "G", 0) == 0


def test_checkpoint_due_is_taken_once_and_acknowledged_ones_are_skipped() -> None:
    table = CheckpointTable()
    early, late = checkpoint(place=0), checkpoint(10, range(10, 12), pop_ms=5_000, place=1)
    for one in (late, early):
        table.add(one)
    assert table.next_due_ms() == 1_500
    for offset in early.offsets:
        table.ack(early.key, offset)
    assert table.next_due_ms() == 5_500
    assert table.take_due(5_499, 10) == []
    assert table.take_due(5_500, 10) == [late]
    assert table.take_due(9_999, 10) == []
    table.postpone(late, 4_000)
    assert table.next_due_ms() == 9_500


def test_rewritten_checkpoint_moves_the_floor_and_keeps_what_is_acknowledged() -> None:
    table = CheckpointTable()
    old, new = checkpoint(place=3), checkpoint(10, range(10, 12), place=4)
    table.add(old)
    table.add(new)
    table.ack(old.key, 1)
    table.rewritten(old, 50, 2_000)
    assert table.floor(2) == 4
    assert table.take_unwritten() == []
    again = decode_checkpoint(checkpoint_bodies([old], "broker-a")[0], 2, 50)
    assert again.open_offsets() == [0, 2]
    assert again.key == old.key


@given(
    diffs=st.sets(st.integers(0, 200), min_size=1, max_size=32),
    start=st.integers(0, 2**62),
    acked=st.integers(0, 2**32 - 1),
)
def test_checkpoint_record_reads_back_as_it_was(diffs: set[int], start: int, acked: int) -> None:
    offsets = [start + diff for diff in sorted(diffs)]
    one = Checkpoint("T é", 'G"', 3, start, 123, 456, 1, offsets, acked & (1 << len(offsets)) - 1)
    again = decode_checkpoint(checkpoint_bodies([one], "broker-a")[0], 1, 9)
    assert (again.key, list(again.offsets), again.acked) == (one.key, offsets, one.acked)
    [(count, body)] = ack_bodies([(one, one.all_bits)], "broker-a")
    assert decode_acks(body) == (one.key, offsets)
    assert count == len(offsets)


def test_records_of_apache_are_read() -> None:
    text = (
        b'{"bm":0,"bn":"broker-a","c":"G_popA","d":[0,1,2,3,4],"it":15000,"n":5,"pt":1794814711833,"q":0,'
        b'"reviveTime":1794814726833,"ro":0,"so":0,"sp":false,"t":"PopGoldA"}'
    )
    one = decode_checkpoint(text, 0, 0)
    assert (one.topic, one.group, list(one.offsets), one.due_ms) == (
        "PopGoldA",
        "G_popA",
        [0, 1, 2, 3, 4],
        1794814726833,
    )
    assert checkpoint_bodies([one], "broker-a") == [text]
    for bad in (b"", b"{}", b"[]", b'{"t":1}', text[:-1], text.replace(b"[0,1", b"[-1,1")):
        with pytest.raises(BodyError):
            decode_checkpoint(bad, 0, 0)


def test_receipt_reads_back_and_what_a_proxy_appends_is_ignored() -> None:
    receipt = Receipt(5, 1794814731195, 15000, 7, "0")
    text = format_receipt(receipt, "broker-a", 0, 8)
    assert text == "5 1794814731195 15000 7 0 broker-a 0 8"
    assert parse_receipt(text) == parse_receipt(text + " 46315") == receipt
    for bad in ("", "1 2", "a b c d e f g h", "1_0 2 3 4 0 b 0 0", "٣ 2 3 4 0 b 0 0"):
        with pytest.raises(ServerError):
            parse_receipt(bad)


def test_kinds_and_order_counts_are_those_recorded() -> None:
    assert [topic_kind(name) for name in ("T", "%RETRY%G_T", "%RETRY%G+T", "a+b")] == ["0", "1", "2", "0"]
    assert order_counts_entries("0", 0, [0, 1], {}) == "0 0 0"
    assert order_counts_entries("0", 0, [2, 3, 4], {2: 1}) == "0 qo0%2 1;0 0 0"
    assert order_counts_entries("0", 0, [2, 3], {2: 2, 3: 1}) == "0 qo0%2 2;0 qo0%3 1;0 0 1"

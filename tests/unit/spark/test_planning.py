"""What to read next: arithmetic on values."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.errors import ConfigError
from orbitmq.spark.options import EARLIEST, LATEST
from orbitmq.spark.source.planning import (
    DataLossError,
    LostRange,
    QueueKey,
    QueueRange,
    as_offsets,
    from_offsets,
    grouped_ranges,
    limit_offsets,
    missing_ranges,
    ranges_between,
    resolve_offsets,
    split_ranges,
)

A, B, C = QueueKey("t", "a", 0), QueueKey("t", "a", 10), QueueKey("u", "b", 2)


def test_offsets_have_one_spelling_whatever_the_order_they_come_in() -> None:
    one, other = as_offsets({A: 1, B: 2, C: 3}), as_offsets({C: 3, B: 2, A: 1})
    assert json.dumps(one) == json.dumps(other) == '{"t": {"a": {"0": 1, "10": 2}}, "u": {"b": {"2": 3}}}'
    assert from_offsets(json.loads(json.dumps(one))) == {A: 1, B: 2, C: 3}


def test_a_checkpoint_of_the_first_release_is_read() -> None:
    # Written by Spark for a query of 0.1: the last line of a file in checkpoint/offsets.
    golden = Path(__file__).parents[2] / "golden" / "spark" / "checkpoint-offsets-0.1"
    offsets = from_offsets(json.loads(golden.read_text().splitlines()[-1]))
    assert offsets == {QueueKey("t1", "broker-a", queue): 75 for queue in range(4)}


@pytest.mark.parametrize("nested", [{"version": 2}, {"t": 1}, {"t": {"a": 3}}, {"t": {"a": {"x": 1}}}])
def test_a_checkpoint_of_another_format_is_refused(nested: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        from_offsets(nested)


def test_offsets_of_an_option_are_resolved_for_all_queues() -> None:
    low, high = {A: 5, B: 0, C: 2}, {A: 50, B: 9, C: 2}
    assert resolve_offsets("startingOffsets", EARLIEST, low, high) == low
    assert resolve_offsets("startingOffsets", LATEST, low, high) == high
    given_json = {"t": {"a": {"0": 20, "10": LATEST}}}
    assert resolve_offsets("startingOffsets", given_json, low, high) == {A: 20, B: 9, C: 2}
    assert resolve_offsets("endingOffsets", {"t": {"a": {"0": 20}}}, low, high) == {A: 20, B: 9, C: 2}
    with pytest.raises(ConfigError, match="t/a/3, which does not exist"):
        resolve_offsets("startingOffsets", {"t": {"a": {"3": 20}}}, low, high)
    with pytest.raises(ConfigError, match="51 of queue t/a/0, which ends at 50"):
        resolve_offsets("startingOffsets", {"t": {"a": {"0": 51}}}, low, high)


def test_ranges_begin_where_the_last_ended_and_name_what_expired() -> None:
    plan = ranges_between({A: 5, B: 7}, {A: 10, B: 7, C: 4}, {A: 8, B: 0, C: 1})
    assert plan.ranges == [QueueRange(A, 8, 10), QueueRange(C, 1, 4)]
    assert plan.lost == [LostRange(A, 5, 8)]


def test_a_range_that_expired_as_a_whole_is_lost_up_to_its_end() -> None:
    plan = ranges_between({A: 5}, {A: 10}, {A: 100})
    assert (plan.ranges, plan.lost) == ([], [LostRange(A, 5, 10)])


def test_a_queue_that_cannot_be_asked_keeps_its_range() -> None:
    plan = ranges_between({A: 5}, {A: 10}, {})
    assert (plan.ranges, plan.lost) == ([QueueRange(A, 5, 10)], [])


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 50)),
    st.one_of(st.none(), st.integers(1, 300)),
)
def test_splitting_loses_nothing_and_obeys_its_bounds(
    sizes: list[int], partitions_min: int | None, records_max: int | None
) -> None:
    ranges = [QueueRange(QueueKey("t", "a", n), 7, 7 + size) for n, size in enumerate(sizes)]
    pieces = split_ranges(ranges, partitions_min, records_max)
    covered = [(piece.queue, offset) for piece in pieces for offset in range(piece.start, piece.end)]
    assert covered == [(piece.queue, offset) for piece in ranges for offset in range(piece.start, piece.end)]
    assert all(piece.end > piece.start for piece in pieces)
    assert len(pieces) >= min(partitions_min or 0, sum(sizes))
    if records_max is not None:
        assert all(piece.end - piece.start <= records_max for piece in pieces)
    if partitions_min is None and records_max is None:
        assert len(pieces) == sum(size > 0 for size in sizes)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=8), st.integers(1, 5_000))
def test_a_limit_is_shared_in_proportion_to_the_backlog(backlog: list[int], most: int) -> None:
    queues = [QueueKey("t", "a", n) for n in range(len(backlog))]
    start = dict.fromkeys(queues, 3)
    end = {queue: 3 + size for queue, size in zip(queues, backlog, strict=True)}
    limited = limit_offsets(start, end, most)
    total = sum(backlog)
    taken = [limited[queue] - 3 for queue in queues]
    assert sum(taken) == min(most, total)
    assert all(0 <= part <= size for part, size in zip(taken, backlog, strict=True))
    if total > most:
        assert all(abs(part - size * most / total) < 1 for part, size in zip(taken, backlog, strict=True))


def test_a_queue_whose_end_went_back_goes_back_with_it() -> None:
    assert limit_offsets({A: 10, B: 0}, {A: 4, B: 100}, 5) == {A: 4, B: 5}


def test_missing_ranges_are_what_no_offset_covers() -> None:
    assert missing_ranges(A, [5, 6, 9], 3, 12) == [
        LostRange(A, 3, 5),
        LostRange(A, 7, 9),
        LostRange(A, 10, 12),
    ]
    assert missing_ranges(A, [3, 4], 3, 5) == []


def test_an_error_of_data_loss_names_the_ranges_and_survives_pickling() -> None:
    error = DataLossError([LostRange(A, 5, 8), LostRange(C, 1, None)])
    assert "t/a/0: 5 to 8; u/b/2: 1 to ?" in str(error)
    again = pickle.loads(pickle.dumps(error))  # our own bytes: Spark pickles errors of workers
    assert str(again) == str(error)
    assert again.lost == error.lost
    many = DataLossError([LostRange(QueueKey("t", "a", n), 0, 1) for n in range(500)])
    assert "and 400 more" in str(many)


def test_few_ranges_are_a_task_each() -> None:
    ranges = [QueueRange(QueueKey("t", "a", n), 0, 5) for n in range(10)]
    assert grouped_ranges(ranges, 10, None) == [[one] for one in ranges]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50)), min_size=1, max_size=200),
    st.integers(1, 30),
    st.none() | st.integers(50, 80),
)
def test_many_ranges_share_tasks_within_bounds(
    sizes: list[tuple[str, int]], most: int, records_max: int | None
) -> None:
    ranges = [QueueRange(QueueKey("t", broker, n), 7, 7 + size) for n, (broker, size) in enumerate(sizes)]
    groups = grouped_ranges(ranges, most, records_max)
    assert sorted(piece for group in groups for piece in group) == sorted(ranges), "each once"
    assert all(len({piece.queue.broker for piece in group}) == 1 for group in groups)
    assert all(group == sorted(group) for group in groups)
    if len(ranges) > most:
        bound = -(-2 * sum(size for _, size in sizes) // most)
        for group in groups:
            count = sum(piece.end - piece.start for piece in group)
            assert len(group) == 1 or count <= min(bound, records_max or bound)
        if records_max is None:
            assert len(groups) <= most + 2

"""Raw stores with damage: exactly the damaged records are left out, and it is said what they were."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
from tests.spark.test_store_files import (
    SEGMENT_BYTES,
    Log,
    change,
    numbers,
    planned,
    read,
    record,
    write_log,
)

from orbitmq.errors import CorruptionError, RecordError
from orbitmq.spark.store.files import list_segments
from orbitmq.spark.store.stream import end_of_log


def hit(log: Log, start: int, end: int) -> list[int]:
    """The numbers of the records that any byte between two log offsets belongs to."""
    spans = zip(log.offsets, log.offsets[1:], strict=False)
    return [number for number, (begin, stop) in enumerate(spans) if begin < end and stop > start]


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("block_bytes", [0, 700])
def test_damage_anywhere_costs_exactly_the_records_it_hits(
    tmp_path: Path, block_bytes: int, remote: bool, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(35)
    for number in range(25):
        root = tmp_path / str(number)
        log = write_log(root, [b"x" * chance.randrange(10, 300) for _ in range(60)])
        start = chance.randrange(log.end - 700)
        end = start + chance.randrange(1, 300)
        if start // SEGMENT_BYTES != (end - 1) // SEGMENT_BYTES:
            continue
        change(log, start, b"\xff" * (end - start))
        lost = hit(log, start, end)
        with caplog.at_level(logging.WARNING):
            found = numbers(read(root, block_bytes=block_bytes, remote=remote, fail_on_data_loss=False))
        # A topic or property that became other text has no checksum of its own: the record is delivered.
        assert set(range(60)) - set(found) <= set(lost), (start, end)
        assert found == sorted(set(found))
        if len(lost) > 1:
            assert set(lost[1:]).isdisjoint(found), "their headers are gone"


def test_what_was_left_out_is_told_with_place_bytes_and_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = write_log(tmp_path, [b"x" * 100] * 60)
    change(log, log.offsets[3] + 4, b"\xff" * (log.offsets[5] - log.offsets[3]))
    with caplog.at_level(logging.WARNING):
        assert numbers(read(tmp_path, fail_on_data_loss=False)) == [0, 1, 2, *range(6, 60)]
    [told] = [line.getMessage() for line in caplog.records if "damaged records" in line.getMessage()]
    assert "rows_at_least=3" in told
    assert f"bytes={log.offsets[6] - log.offsets[3]}" in told
    assert f"log_offsets={log.offsets[3]} to {log.offsets[6]}" in told


def test_the_strict_error_names_the_offset(tmp_path: Path) -> None:
    for place, data in ((0, b"\xff" * 30), (28, b"\xff\xff"), (83, b"\xff" * 4), (100, b"\x00\xff")):
        root = tmp_path / str(place)
        log = write_log(root, [b"x" * 100] * 60)
        change(log, log.offsets[7] + place, data)
        for until in (0, log.end):
            with pytest.raises((CorruptionError, RecordError), match=f"log offset {log.offsets[7]}\\b"):
                planned(root, until)


def test_a_wrong_size_hides_none_of_the_records_behind_it(tmp_path: Path) -> None:
    log = write_log(tmp_path, [b"x" * 100] * 60)
    size = log.offsets[10] - log.offsets[7]
    for wrong in (size, size + 1, 100, 2000, 2**31 - 1, 0):
        change(log, log.offsets[7], wrong.to_bytes(4, "big"))
        assert numbers(read(tmp_path, fail_on_data_loss=False)) == [n for n in range(60) if n != 7]


def test_the_first_record_of_a_segment_is_not_the_segment(tmp_path: Path) -> None:
    log = write_log(tmp_path, [b"x" * 100] * 60)
    firsts = [number for number, offset in enumerate(log.offsets[:-1]) if offset % SEGMENT_BYTES == 0]
    assert len(firsts) >= 3
    for number in firsts:
        change(log, log.offsets[number], b"\xff" * 20)
    kept = [number for number in range(60) if number not in firsts]
    assert numbers(read(tmp_path, fail_on_data_loss=False)) == kept
    with pytest.raises(CorruptionError, match="does not begin with a record of log offset 0"):
        read(tmp_path)


def test_records_of_an_earlier_life_behind_the_end_stay_dead(tmp_path: Path) -> None:
    """A log that was cut by recovery and written again: older records stand behind its end, in their old places."""
    log = write_log(tmp_path, [b"x" * 100] * 10)
    at = log.offsets[4]
    young = record(3604, at, b"y" * 99)
    change(log, at, young)
    for remote in (False, True):
        assert numbers(read(tmp_path, remote=remote)) == [0, 1, 2, 3, 3604]
    assert end_of_log(list_segments(str(tmp_path)), 0) == at + len(young)


def test_a_stream_goes_on_behind_damage(tmp_path: Path) -> None:
    log = write_log(tmp_path, [b"x" * 100] * 60)
    change(log, log.offsets[7], b"\xff" * 30)
    change(log, log.offsets[55], b"\xff" * 30)
    assert end_of_log(list_segments(str(tmp_path)), 0) == log.end
    assert end_of_log(list_segments(str(tmp_path)), log.offsets[55], log.end) == log.end

"""The filter behind queue extension bitmaps. Positions were computed by Apache's own BloomFilter (5.5.0)."""

from __future__ import annotations

import pytest

from orbitmq.store.queues.bloom import BloomFilter, murmur3_64

LONG = "a-very-long-consumer-group-name-of-more-than-32#TopicTest"


@pytest.mark.parametrize(
    ("error_percent", "name_count", "sizes", "positions"),
    [
        (
            20,
            32,
            (3, 112),
            {
                "GroupA#TopicA": [29, 107, 11],
                "": [0, 0, 0],
                "g#t": [22, 87, 58],
                LONG: [90, 64, 75],
                "группа#T": [103, 101, 61],
            },
        ),
        (
            10,
            128,
            (4, 616),
            {
                "GroupA#TopicA": [309, 611, 11, 293],
                LONG: [202, 8, 523, 422],
                "группа#T": [495, 605, 453, 280],
            },
        ),
        (
            1,
            1,
            (7, 16),
            {"GroupA#TopicA": [13, 11, 11, 13, 6, 0, 8], "g#t": [6, 7, 10, 12, 1, 15, 2]},
        ),
        (99, 3, (1, 8), {"GroupA#TopicA": [5], "g#t": [6]}),
        (50, 1000, (1, 1448), {"GroupA#TopicA": [1445], LONG: [1002]}),
    ],
)
def test_filter_sizes_and_positions_are_apaches(
    error_percent: int, name_count: int, sizes: tuple[int, int], positions: dict[str, list[int]]
) -> None:
    bloom = BloomFilter.sized(error_percent, name_count)
    assert (bloom.hash_count, bloom.bit_count) == sizes
    for name, expected in positions.items():
        assert bloom.positions(name) == expected


def test_marked_bits_are_apaches_bytes() -> None:
    bloom = BloomFilter.sized()
    bitmap = bytearray(bloom.byte_count)
    bloom.mark(bitmap, bloom.positions("GroupA#TopicA"))
    assert bitmap.hex() == "0008002000000000000000000008"
    assert bloom.hits(bytes(bitmap), bloom.positions("GroupA#TopicA"))
    assert not bloom.hits(bytes(bitmap), bloom.positions("g#t"))


def test_bitmap_of_another_size_hits_because_it_tells_nothing() -> None:
    bloom = BloomFilter.sized()
    assert bloom.hits(b"", bloom.positions("g#t"))
    assert bloom.hits(b"\0" * 8, bloom.positions("g#t"))


@pytest.mark.parametrize(("error_percent", "name_count"), [(0, 1), (100, 1), (20, 0)])
def test_impossible_filter_is_refused(error_percent: int, name_count: int) -> None:
    with pytest.raises(ValueError, match="cannot be built"):
        BloomFilter.sized(error_percent, name_count)


def test_murmur_of_every_tail_length_differs() -> None:
    assert len({murmur3_64(b"x" * size) for size in range(40)}) == 40

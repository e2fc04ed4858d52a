"""Properties of many messages as columns, on both kernels."""

from __future__ import annotations

from array import array
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.apache.kernels import Kernel, load

ROWS = (
    b"UNIQ_KEY\x01u1\x02KEYS\x01a b\x02TAGS\x01t\x02",
    b"",
    b"KEYS\x01old\x02x\x01y\x02KEYS\x01new\x02",
    b"KEYS\x01kept\x02KEYS\x01\x02\x01nameless\x02alone\x02",
    b"TAGS\x01open\x01end",
)


def packed(rows: tuple[bytes, ...] | list[bytes]) -> tuple[bytes, bytes]:
    return b"".join(rows), array("i", accumulate(map(len, rows), initial=0)).tobytes()


def parts(ends: bytes, values: bytes) -> list[bytes]:
    return [values[start:end] for start, end in pairwise(array("i", ends))]


def test_values_of_a_name_are_those_of_its_last_pair_that_is_not_empty(kernel: Kernel) -> None:
    keys, tags, none = kernel.property_values(*packed(ROWS), [b"KEYS", b"TAGS", b"none"])
    assert parts(*keys) == [b"a b", b"", b"new", b"kept", b""]
    assert parts(*tags) == [b"t", b"", b"", b"", b"open\x01end"]
    assert parts(*none) == [b""] * 5
    assert kernel.property_values(*packed(ROWS), []) == []
    assert kernel.property_values(*packed([]), [b"KEYS"]) == [(bytes(4), b"")]


def test_pairs_keep_the_last_of_a_name_in_its_place(kernel: Kernel) -> None:
    pair_ends, name_ends, names, value_ends, values = kernel.property_pairs(*packed(ROWS))
    assert list(array("i", pair_ends)) == [0, 3, 3, 5, 6, 7]
    assert parts(name_ends, names) == [b"UNIQ_KEY", b"KEYS", b"TAGS", b"x", b"KEYS", b"KEYS", b"TAGS"]
    assert parts(value_ends, values) == [b"u1", b"a b", b"t", b"y", b"new", b"kept", b"open\x01end"]


def test_many_pairs_of_one_name_leave_the_last(kernel: Kernel) -> None:
    row = b"".join(b"n%d\x01%d\x02" % (number % 3, number) for number in range(10_000))
    pair_ends, name_ends, names, value_ends, values = kernel.property_pairs(*packed([row]))
    assert list(array("i", pair_ends)) == [0, 3]
    assert parts(name_ends, names) == [b"n1", b"n2", b"n0"]
    assert parts(value_ends, values) == [b"9997", b"9998", b"9999"]


@pytest.mark.parametrize("ends", [[0, 4], [-1, 2], [0, 3, 2], [0, 2**31 - 1]])
def test_ends_outside_of_the_texts_are_refused(kernel: Kernel, ends: list[int]) -> None:
    for call in (kernel.property_pairs, lambda *texts: kernel.property_values(*texts, [b"KEYS"])):
        with pytest.raises(ValueError, match="text"):
            call(b"abc", array("i", ends).tobytes())
        for cut in (b"", bytes(3)):
            with pytest.raises(ValueError, match="cut short"):
                call(b"abc", cut)


@pytest.mark.parametrize("name", [b"", b"\x01", b"a\x02"])
def test_names_no_property_can_have_are_refused(kernel: Kernel, name: bytes) -> None:
    with pytest.raises(ValueError, match="name"):
        kernel.property_values(*packed(ROWS), [b"KEYS", name])


@given(
    rows=st.lists(
        st.lists(st.sampled_from([b"\x01", b"\x02", b"a", b"bb", b"\xff"]), max_size=60).map(b"".join)
    )
)
def test_any_texts_make_the_same_columns_in_both(rows: list[bytes]) -> None:
    plain, fast = load("plain"), load("fast")
    texts = packed(rows)
    assert fast.property_pairs(*texts) == plain.property_pairs(*texts)
    names = [b"a", b"bb", b"aa"]
    assert fast.property_values(*texts, names) == plain.property_values(*texts, names)

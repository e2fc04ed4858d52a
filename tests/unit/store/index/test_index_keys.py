"""Keys of a record and their hashes."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from orbitmq.kernel import KEYS, KEYS_AND_TAG, hash_keys
from orbitmq.kernel.layout import INDEX_KEY
from orbitmq.record.hashing import index_hash, java_hash
from orbitmq.store.index.index_keys import index_keys

CLIENT = "7F0000010000764C12A3"
names = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "xKEYS", "KEYSx", "AUNIQ_KEY", "TAGS2", "p"])
values = st.one_of(
    st.integers(0, 16**12 - 1).map(lambda number: f"{CLIENT}{number:012X}"),
    st.tuples(st.integers(0, 16**10), st.sampled_from(["x", " ", "", "é"])).map(
        lambda pair: f"{CLIENT}{pair[0]:011X}{pair[1]}"
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=12),
)
pairs = st.lists(st.tuples(names, values), max_size=6)


def text_of(properties: list[tuple[str, str]], *, terminated: bool = True) -> bytes:
    raw = "".join(f"{name}\x01{value}\x02" for name, value in properties).encode()
    return raw if terminated else raw.removesuffix(b"\x02")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["T", "Тема", "x" * 200]), pairs, st.booleans()), max_size=8),
    st.booleans(),
)
@example([("T", [("UNIQ_KEY", CLIENT + "4D8F3A000001"), ("TAGS", "a")], True)] * 2, True)
@example([("T", [("p", "1"), ("UNIQ_KEY", CLIENT + "4D8F3A000001")], True)] * 2, True)
@example([("T", [("p", "1"), ("UNIQ_KEY", CLIENT + "4D8F3A000001X")], True)] * 2, True)
@example([("T", [("p", "1"), ("UNIQ_KEY", CLIENT + "4D8F3A000001X")], False)] * 2, True)
@example([("T", [("p", "1"), ("UNIQ_KEY", CLIENT + "4D8F3A00000")], True)] * 2, True)
@example([("T", [("p", "1"), ("UNIQ_KEY", CLIENT + "4D8F3A000001"), ("UNIQ_KEY", "x")], True)] * 2, True)
@example([("T", [("p", "1"), ("UNIQ_KEY", CLIENT + "4D8F3A00000z")], True)] * 2, True)
def test_hash_keys_gives_the_hashes_of_the_key_texts(
    records: list[tuple[str, list[tuple[str, str]], bool]], tags: bool
) -> None:
    batch = [
        (topic, text_of(properties, terminated=terminated), 0, 10 * n, n)
        for n, (topic, properties, terminated) in enumerate(records)
    ]
    expected = [
        (index_hash(java_hash(key)), log_offset, store_ms)
        for topic, raw, sys_flag, log_offset, store_ms in batch
        for key in index_keys(topic, raw, sys_flag, tags=tags)
    ]
    found = hash_keys(batch, KEYS_AND_TAG if tags else KEYS)
    assert list(INDEX_KEY.iter_unpack(found)) == expected


def test_keys_come_in_apaches_order() -> None:
    raw = text_of([("TAGS", "red"), ("KEYS", "a  b "), ("UNIQ_KEY", "u")])
    assert index_keys("T", raw, 0) == ["T#u", "T#a", "T#b", "T#T#red"]
    assert index_keys("T", raw, 0, tags=False) == ["T#u", "T#a", "T#b"]


def test_rolled_back_message_has_no_keys_but_prepared_and_committed_ones_do() -> None:
    raw = text_of([("UNIQ_KEY", "u")])
    for sys_flag, count in [(0, 1), (0x4, 1), (0x8, 1), (0xC, 0), (0xC | 1, 0)]:
        assert len(index_keys("T", raw, sys_flag)) == count
        assert len(hash_keys([("T", raw, sys_flag, 0, 0)], KEYS)) == count * INDEX_KEY.size

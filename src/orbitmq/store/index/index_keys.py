"""From a record's properties to the key hashes an index file stores. Pure.

Keys of a record, in this order: ``topic#UNIQ_KEY``, ``topic#key`` for every word of KEYS, and since 5.5
``topic#T#tag``.
``index_keys`` says so in words; ``KeyHasher`` computes the same for many records at once, and fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from orbitmq.record.hashing import extend_hash, index_hash, java_hash
from orbitmq.record.properties import find_property
from orbitmq.store.index.index_file import IndexPut
from orbitmq.store.write.equal_sized_batch import KEY_TAIL_BYTES, EvenRow

__all__ = ["UNIQUE_KEY_ONLY", "KeyHasher", "Pending", "index_keys"]

Pending: TypeAlias = tuple[str, bytes, int, int, int]
"""Topic, property text, system flag, log offset, store time in ms: one appended record."""
UNIQUE_KEY_ONLY: Final = 1 << 32
"""Added to the system flag, beyond its 32 bits, of a record that is known to have neither KEYS nor TAGS."""

ROLLBACK: Final = 0xC
"""Both transaction bits: a rolled back message gets no index entry."""
MEMO_MAX: Final = 4096
MEMO_TEXT_MAX: Final = 64
"""Both bound what outsiders can make us remember."""

UNIQUE_KEY_BYTES: Final = 32
CLIENT_PART: Final = 20
"""A unique key is 20 characters that a client process never changes, then time and counter in hex."""
COUNTER_PART: Final = UNIQUE_KEY_BYTES - CLIENT_PART

# The characters of the counter part lie within 48..78 ('0'..'N'), so code - 48 is a digit of base 31 and one int()
# evaluates Java's polynomial; see record/hashing.py for the general case. Any other byte becomes '!', which int()
# refuses.
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
_HEX_TO_31: Final = bytes(_DIGITS[code - 48] if 48 <= code <= 78 else 0x21 for code in range(256))
_SHIFT: Final = 31**COUNTER_PART
_ALL_48: Final = 48 * (_SHIFT - 1) // 30

_TAIL_SHIFT: Final = 31**KEY_TAIL_BYTES
_TAILS: Final = {
    bytes((first, second, third)): 961 * first + 31 * second + third
    for first in b"0123456789ABCDEF"
    for second in b"0123456789ABCDEF"
    for third in b"0123456789ABCDEF"
}
"""The share of a unique key's last digits in its hash."""
_TAIL_MAX: Final = max(_TAILS.values())


def index_keys(topic: str, properties: bytes, sys_flag: int, *, tags: bool = True) -> list[str]:
    """The key texts a record is indexed under, in order."""
    keys: list[str] = []
    if sys_flag & ROLLBACK == ROLLBACK:
        return keys
    unique = find_property(properties, b"UNIQ_KEY")
    words = find_property(properties, b"KEYS")
    tag = find_property(properties, b"TAGS") if tags else None
    if unique is not None:
        keys.append(f"{topic}#{unique.decode('utf-8', 'replace')}")
    if words is not None:
        keys += [f"{topic}#{word}" for word in words.decode("utf-8", "replace").split(" ") if word]
    if tag is not None:
        keys.append(f"{topic}#T#{tag.decode('utf-8', 'replace')}")
    return keys


class _Topic:
    """What is remembered of a topic: hashes of key beginnings and of whole tags."""

    __slots__ = ("clients", "prefix", "tags")

    def __init__(self, name: str) -> None:
        self.prefix = java_hash(name + "#")
        self.clients: dict[bytes, int] = {}
        self.tags: dict[bytes, int] = {}


class KeyHasher:
    """Hashing text costs more than all the rest of an index entry, so beginnings are remembered."""

    def __init__(self, *, tags: bool) -> None:
        self._with_tags = tags
        self._topics: dict[str, _Topic] = {}
        self._memo_count = 0

    def entries(self, records: Sequence[Pending]) -> list[IndexPut]:
        """Index entries of records, in order."""
        out: list[IndexPut] = []
        add = out.append
        topics, with_tags = self._topics, self._with_tags
        # Hot: once per message (0.8 us with a unique key alone). The ordinary unique key, whose client is known, is
        # read in place; whatever is odd about it (another length, no end, other characters) shows as an exception
        # or an unknown client, and goes the long way.
        for topic, properties, sys_flag, log_offset, store_ms in records:
            if sys_flag & 0xC == 0xC:
                continue
            known = topics.get(topic) or self._learn_topic(topic)
            start = properties.rfind(b"\x02UNIQ_KEY\x01") + 10
            try:
                hashed = known.clients[properties[start : start + 20]] + int(
                    properties[start + 20 : start + 32].translate(_HEX_TO_31), 31
                )
                if properties[start + 32] != 2:
                    raise ValueError
            except (KeyError, ValueError, IndexError):
                unique = find_property(properties, b"UNIQ_KEY")
                if unique is not None:
                    add((self._unique_key_hash(topic, known, unique), log_offset, store_ms))
            else:
                hashed &= 0xFFFFFFFF
                # abs() of Java's signed number, and 0 for its smallest one.
                if hashed >= 0x80000000:
                    hashed = (0x100000000 - hashed) & 0x7FFFFFFF
                add((hashed, log_offset, store_ms))

            if sys_flag >= 0x100000000:
                continue
            # Most messages have no KEYS, and a tag behind another property that was seen before: read in place.
            if properties.find(b"KEYS\x01") < 0:
                if not with_tags:
                    continue
                start = properties.rfind(b"\x02TAGS\x01") + 6
                if start >= 6 and (end := properties.find(b"\x02", start)) > 0:
                    tag_hash = known.tags.get(properties[start:end])
                    if tag_hash is not None:
                        add((tag_hash, log_offset, store_ms))
                        continue
                elif properties.find(b"TAGS\x01") < 0:
                    continue
            for hashed in self._keys_and_tag(topic, known, properties):
                add((hashed, log_offset, store_ms))
        return out

    def row(self, topic: str, row: EvenRow) -> tuple[Sequence[int], Sequence[int]]:
        """Hashes and log offsets of the index entries of a batch, in order."""
        known = self._topics.get(topic) or self._learn_topic(topic)
        unique = self._unique_key_hashes(topic, known, row)
        properties = row.properties
        if b"KEYS\x01" not in properties and b"TAGS\x01" not in properties:
            return unique, row.log_offsets
        shared = self._keys_and_tag(topic, known, properties)
        each = 1 + len(shared)
        hashes, log_offsets = [0] * (each * len(unique)), [0] * (each * len(unique))
        hashes[0::each] = unique
        log_offsets[0::each] = row.log_offsets
        for at, hashed in enumerate(shared, 1):
            hashes[at::each] = [hashed] * len(unique)
            log_offsets[at::each] = row.log_offsets
        return hashes, log_offsets

    def _unique_key_hashes(self, topic: str, known: _Topic, row: EvenRow) -> list[int]:
        heads, tails = row.key_heads, row.key_tails
        head = heads[0]
        if head.isascii() and heads.count(head) == len(heads):
            base = extend_hash(known.prefix, head) * _TAIL_SHIFT & 0xFFFFFFFF
            try:
                # Hot: once per message of a batch. Nothing is carried into the sign, as good as always.
                if base < 0x80000000 - _TAIL_MAX:
                    return [base + tail for tail in map(_TAILS.__getitem__, tails)]
                if 0x80000000 < base < 0x100000000 - _TAIL_MAX:
                    base = 0x100000000 - base
                    return [base - tail for tail in map(_TAILS.__getitem__, tails)]
            except KeyError:
                pass
        return [self._key_hash(topic, known, head + tail) for head, tail in zip(heads, tails, strict=True)]

    def _keys_and_tag(self, topic: str, known: _Topic, properties: bytes) -> list[int]:
        hashes: list[int] = []
        words = find_property(properties, b"KEYS")
        if words is not None:
            key_hash = self._key_hash
            hashes = [key_hash(topic, known, word) for word in words.split(b" ") if word]
        if self._with_tags:
            tag = find_property(properties, b"TAGS")
            if tag is not None:
                tag_hash = known.tags.get(tag)
                hashes.append(self._learn_tag(topic, known, tag) if tag_hash is None else tag_hash)
        return hashes

    @staticmethod
    def _key_hash(topic: str, known: _Topic, key: bytes) -> int:
        if key.isascii():
            return index_hash(extend_hash(known.prefix, key))
        return index_hash(java_hash(f"{topic}#{key.decode('utf-8', 'replace')}"))

    def _learn_topic(self, name: str) -> _Topic:
        self._count_memo()
        return self._topics.setdefault(name, _Topic(name))

    def _unique_key_hash(self, topic: str, known: _Topic, key: bytes) -> int:
        """Also remembers the client part, for the next key of that client."""
        if len(key) == UNIQUE_KEY_BYTES and key.isascii():
            self._count_memo()
            part = key[:CLIENT_PART]
            known.clients[part] = (extend_hash(known.prefix, part) * _SHIFT + _ALL_48) & 0xFFFFFFFF
        return self._key_hash(topic, known, key)

    def _learn_tag(self, topic: str, known: _Topic, tag: bytes) -> int:
        value = self._key_hash(topic, known, b"T#" + tag)
        if len(tag) <= MEMO_TEXT_MAX:
            self._count_memo()
            known.tags[tag] = value
        return value

    def _count_memo(self) -> None:
        """Bound all memories together: tags and client names come from outside."""
        self._memo_count += 1
        if self._memo_count > MEMO_MAX:
            self._topics.clear()
            self._memo_count = 1

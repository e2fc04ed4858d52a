"""The keys a record is indexed under, as text; ``orbitmq.kernel`` computes their hashes.

In this order: ``topic#UNIQ_KEY``, ``topic#key`` for every word of KEYS, and since 5.5 ``topic#T#tag``.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from orbitmq.record.properties import find_property

__all__ = ["IndexedRecord", "index_keys"]

IndexedRecord: TypeAlias = tuple[str, bytes, int, int, int]
"""Topic, property text, system flag, log offset and store time in ms of one stored record."""

ROLLBACK: Final = 0xC
"""Both transaction bits: a rolled-back message is not indexed."""


def index_keys(topic: str, properties: bytes, sys_flag: int, *, tags: bool = True) -> list[str]:
    """Returns the texts of the keys that a record is indexed under, in order."""
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

"""Turns index keys into the entries of an index file (Apache: ``IndexFile.putKey``)."""

from __future__ import annotations

from sys import byteorder

from orbitmq.kernel.layout import INDEX_ENTRY, INDEX_KEY

__all__ = ["link_keys"]

NUMBER_MAX = 0x7FFFFFFF


def link_keys(slots: memoryview, keys: bytes, first: int, begin_ms: int) -> tuple[bytes, int]:
    """Returns the entries of these keys, numbered from ``first``, and the number of their slots that were empty
    before.

    ``slots`` is a writable view of the file's slots as 32-bit numbers (format ``i``, big-endian on any machine). Each
    slot gets the number of its newest entry. ``keys`` is a sequence of ``INDEX_KEY``. Times are counted from
    ``begin_ms`` or, in a file without entries (``first`` is 1), from the first key. A slot with an invalid number is
    treated as empty. Raises ``ValueError`` without slots, for a partial key, or for numbers beyond 32 bits.
    """
    count, rest = divmod(len(keys), INDEX_KEY.size)
    if not slots or rest or not 1 <= first <= NUMBER_MAX - count:
        raise ValueError("these keys cannot be linked")
    entries: list[bytes] = []
    used = 0
    for number, (hashed, log_offset, store_ms) in enumerate(INDEX_KEY.iter_unpack(keys), first):
        slot = hashed % len(slots)
        previous = _swapped(slots[slot])
        if not 0 < previous < number:
            previous = 0
            used += 1
        # Written as one number, so that a process killed here does not leave half of it.
        slots[slot] = _swapped(number)
        seconds = max(store_ms - begin_ms, 0) // 1000 if begin_ms > 0 else 0
        entries.append(INDEX_ENTRY.pack(hashed, log_offset, min(seconds, NUMBER_MAX), previous))
        if number == 1:
            begin_ms = store_ms
    return b"".join(entries), used


def _swapped(number: int) -> int:
    """Convert a number between native and big-endian byte order."""
    return int.from_bytes(number.to_bytes(4, "big", signed=True), byteorder, signed=True)

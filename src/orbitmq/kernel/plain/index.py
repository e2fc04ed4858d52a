"""Index keys to the entries of an index file (Apache: ``IndexFile.putKey``)."""

from __future__ import annotations

from sys import byteorder

from orbitmq.kernel.layout import INDEX_ENTRY, INDEX_KEY

__all__ = ["link_keys"]

NUMBER_MAX = 0x7FFFFFFF


def link_keys(slots: memoryview, keys: bytes, first: int, begin_ms: int) -> tuple[bytes, int]:
    """The entries of these keys, the first with number ``first``, and how many of their slots were empty before.

    ``slots`` are those of the file, as a writable view of 32-bit numbers (format ``i``, big-endian whatever the
    machine): each gets the number of the newest entry in it. ``keys`` is a row of ``INDEX_KEY``. Times count from
    ``begin_ms``; of a file without entries (``first`` is 1) from the first key on. A slot that leads nowhere is taken
    as empty. Raises ``ValueError`` without slots, for half a key, or for numbers beyond 32 bits.
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
        # As a whole number: a process killed here leaves no half of one.
        slots[slot] = _swapped(number)
        seconds = max(store_ms - begin_ms, 0) // 1000 if begin_ms > 0 else 0
        entries.append(INDEX_ENTRY.pack(hashed, log_offset, min(seconds, NUMBER_MAX), previous))
        if number == 1:
            begin_ms = store_ms
    return b"".join(entries), used


def _swapped(number: int) -> int:
    """A number of the machine as a big-endian one, or back."""
    return int.from_bytes(number.to_bytes(4, "big", signed=True), byteorder, signed=True)

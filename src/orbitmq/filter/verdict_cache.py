"""Answers of an expression, remembered by property text.

Messages of one producer differ in their unique key and in the few values that matter to it, so the same property
text, but for the unique key, comes again and again. Finding the answer by that text takes 0.4 us however long the
expression is; working it out takes 0.5 to 1.2 us. Where texts do not repeat (every message has an order number in it)
remembering is given up for a while, which costs a few percent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final

from orbitmq.record.layout import FIXED_V4, MAGIC_V1
from orbitmq.record.properties import UNIQUE_KEY_PAIR, without_unique_key

__all__ = ["BlockSelect", "RememberingSelect"]

BlockSelect = Callable[[bytes, Sequence[int], Sequence[int], int, int], list[int]]
"""Judges many records at once. Arguments: a piece of the log, log offsets and sizes of records in it, the log offset
of the piece, and how many are wanted. Gives the places of the first that many which match."""

SEARCHED_BYTES_MAX: Final = 2048
"""Records that are larger on average are not searched as a whole for what a match must contain: that would cost more
than looking for their properties."""
ANSWERS_MAX: Final = 4096
TEXT_BYTES_MAX: Final = 1024
"""Both bound what outsiders can make us remember."""
PAUSE_BLOCKS: Final = 8
LONG_PAUSE_BLOCKS: Final = 512

_HEAD: Final = Struct(">4xI28xi44xi")
assert _HEAD.size == FIXED_V4.size


class RememberingSelect:
    """A ``BlockSelect`` for an expression that does not name the unique key."""

    def __init__(
        self, work_out: BlockSelect, matches_properties: Callable[[bytes], bool], needle: bytes
    ) -> None:
        """``needle``: what every record that matches contains, where that is known."""
        self._work_out = work_out
        self._matches_properties = matches_properties
        self._needle = needle
        self._answers: dict[bytes, dict[bytes, bool]] = {}
        self._count = 0
        self._pause = 0

    def __call__(
        self, block: bytes, log_offsets: Sequence[int], sizes: Sequence[int], base: int, count_max: int
    ) -> list[int]:
        if self._pause:
            self._pause -= 1
            return self._work_out(block, log_offsets, sizes, base, count_max)
        found: list[int] = []
        needle = self._needle if len(block) <= SEARCHED_BYTES_MAX * len(sizes) else b""
        answers, unpack, find = self._answers, _HEAD.unpack_from, block.find
        looked = missed = 0
        hit = -1  # where the needle is found next
        # Hot: once per message of a filtered queue.
        for at, (start, size) in enumerate(zip(log_offsets, sizes, strict=True)):
            start -= base
            end = start + size
            if needle:
                if hit < start:
                    hit = find(needle, start)
                    if hit < 0:
                        break
                if hit >= end:
                    continue
            looked += 1
            try:
                magic, sys_flag, body_size = unpack(block, start)
                topic = start + 88 + body_size
                text = topic + 3 + block[topic]
            except (struct_error, IndexError):
                continue  # damaged
            if magic != MAGIC_V1 or sys_flag & 0x30:
                if self._work_out(block, (start + base,), (size,), base, 1):
                    found.append(at)
            elif not start < text <= end:
                continue  # damaged
            else:
                before, has_key, rest = block[text:end].partition(UNIQUE_KEY_PAIR)
                _, _, behind = rest.partition(b"\x02")
                if not has_key:
                    before, behind = without_unique_key(before)
                try:
                    if not answers[before][behind]:
                        continue
                except KeyError:
                    missed += 1
                    if not self._learn(before, behind, block[text:end]):
                        continue
                found.append(at)
            if len(found) == count_max:
                break
        if 4 * missed > looked:
            self._rest(missed)
        return found

    def _learn(self, before: bytes, behind: bytes, text: bytes) -> bool:
        answer = self._matches_properties(text)
        if len(text) <= TEXT_BYTES_MAX and self._count < ANSWERS_MAX:
            self._answers.setdefault(before, {})[behind] = answer
            self._count += 1
        return answer

    def _rest(self, missed: int) -> None:
        """Most texts were new: go on without memory for a while."""
        self._pause = PAUSE_BLOCKS
        if self._count >= ANSWERS_MAX:
            self._answers.clear()
            self._count = 0
            self._pause = LONG_PAUSE_BLOCKS

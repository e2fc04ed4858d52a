"""Property texts of a queue's newest messages as numbers, for those who read it through an expression.

The messages of one producer differ in their unique key and in a few values, so the same property text, but for the
unique key, comes again and again. While somebody reads a queue by SQL92, every append to it notes the number of its
message's text (0.2 us). A read then judges each text once, and each message by its number, however many groups read:
0.13 us a message where one in ten matches, and 0.8 from the log. What a column does not hold is looked at in the log.

Invariants
1. A column is used only while ``end`` is the end of its queue. Whatever takes units of a queue back drops its column;
   whatever adds units without noting their texts leaves it short, for good.
2. Columns, texts and their bytes are bounded. A topic whose texts do not repeat is left alone for a while.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

from orbitmq.record.layout import HOLE_BYTES
from orbitmq.record.properties import UNIQUE_KEY_PAIR, without_unique_key

if TYPE_CHECKING:
    from orbitmq.store.queues.consume_queue import ConsumeQueue

__all__ = ["TextColumn", "TextColumns", "TextPredicate"]

COLUMN_LENGTH_MAX: Final = 1 << 17
COLUMNS_MAX: Final = 128
"""Of two bytes for each message: 32 MiB at most."""
TOPICS_MAX: Final = 32
TEXTS_MAX: Final = 4096
TEXTS_BYTES_MAX: Final = 1 << 20
TEXT_OVERHEAD_BYTES: Final = 250
EXPRESSIONS_MAX: Final = 64
REFUSALS_MAX: Final = 4096
"""So many reads later, texts that did not repeat are tried again."""


class TextPredicate(Protocol):
    """A predicate on records that looks at nothing but their properties."""

    expression: str
    matches_properties: Callable[[bytes], bool]
    ignores_unique_key: bool


class _Texts:
    """The texts of one topic."""

    __slots__ = ("_bytes", "_judged", "_numbers", "_texts", "full", "refused")

    def __init__(self) -> None:
        self._numbers: dict[bytes, dict[bytes, int]] = {}
        self._texts: list[bytes] = []
        self._judged: dict[str, bytearray] = {}
        self._bytes = 0
        self.full = False
        self.refused = 0

    def number(self, text: bytes) -> int:
        """The number of a text; -1 when there are too many already."""
        # Hot: once per message of a queue that is read through an expression.
        before, found, rest = text.partition(UNIQUE_KEY_PAIR)
        behind = rest.partition(b"\x02")[2]
        if not found:
            before, behind = without_unique_key(text)
        try:
            return self._numbers[before][behind]
        except KeyError:
            return self._new(before, behind, text)

    def _new(self, before: bytes, behind: bytes, text: bytes) -> int:
        self._bytes += len(text) + TEXT_OVERHEAD_BYTES
        # What the log may not hold as it is given is not worth a rule of its own here.
        odd = len(text) >= HOLE_BYTES or text[-1:] == b"\0"
        if self.full or odd or len(self._texts) >= TEXTS_MAX or self._bytes > TEXTS_BYTES_MAX:
            self.full = True
            self._numbers.clear()
            self._texts.clear()
            self._judged.clear()
            return -1
        number = len(self._texts)
        self._texts.append(text)
        self._numbers.setdefault(before, {})[behind] = number
        return number

    def verdicts(self, predicate: TextPredicate) -> bytearray:
        """1 or 0 by number."""
        verdicts = self._judged.get(predicate.expression)
        if verdicts is None:
            if len(self._judged) >= EXPRESSIONS_MAX:
                self._judged.clear()
            verdicts = self._judged[predicate.expression] = bytearray()
        if len(verdicts) < len(self._texts):
            verdicts += bytes(map(predicate.matches_properties, self._texts[len(verdicts) :]))
        return verdicts


class TextColumn:
    """The numbers of the texts of a queue's newest messages. Fed by the appender."""

    __slots__ = ("_numbers", "first", "texts", "was_read")

    def __init__(self, first: int, texts: _Texts) -> None:
        self.first = first
        """Queue offset of the first."""
        self.texts = texts
        self.was_read = True
        self._numbers: array[int] = array("H")

    @property
    def end(self) -> int:
        """Queue offset behind the last."""
        return self.first + len(self._numbers)

    def add(self, text: bytes, count: int = 1) -> None:
        """Note the text of the next message, or of the next few that differ in their unique key alone."""
        number = self.texts.number(text)
        if number < 0:
            self._end()
        elif count == 1:
            self._numbers.append(number)
        else:
            self._numbers.extend([number] * count)
        if len(self._numbers) > COLUMN_LENGTH_MAX:
            self._trim()

    def between(self, start: int, end: int) -> array[int]:
        """Numbers by queue offset."""
        self.was_read = True
        return self._numbers[start - self.first : end - self.first]

    def _trim(self) -> None:
        if not self.was_read:
            self._end()
            return
        self.was_read = False
        half = len(self._numbers) // 2
        del self._numbers[:half]
        self.first += half

    def _end(self) -> None:
        """Nobody reads it, or texts do not repeat: it never fits its queue again."""
        del self._numbers[:]
        self.first = -(1 << 62)


class TextColumns:
    """The columns of a store, made when a queue is read through an expression near its end."""

    def __init__(self) -> None:
        self._by_topic: OrderedDict[str, _Texts] = OrderedDict()
        self._queues: OrderedDict[ConsumeQueue, None] = OrderedDict()

    def verdicts(
        self, queue: ConsumeQueue, predicate: object, start: int, end: int
    ) -> tuple[array[int], bytearray] | None:
        """Numbers of the texts of messages by queue offset, and verdicts by number. None: not known."""
        if not getattr(predicate, "ignores_unique_key", False):
            return None
        column = queue.texts
        if column is None or column.end != queue.max_offset or column.texts.full:
            if queue.max_offset - start <= COLUMN_LENGTH_MAX:
                self._make(queue)
            return None
        if start < column.first:
            return None
        return column.between(start, end), column.texts.verdicts(cast(TextPredicate, predicate))

    def _make(self, queue: ConsumeQueue) -> None:
        queue.texts = None
        texts = self._by_topic.get(queue.topic)
        if texts is not None and texts.full:
            texts.refused += 1
            if texts.refused <= REFUSALS_MAX:
                return
            texts = None
        if texts is None:
            texts = self._by_topic[queue.topic] = _Texts()
            if len(self._by_topic) > TOPICS_MAX:
                self._by_topic.popitem(last=False)
        queue.texts = TextColumn(queue.max_offset, texts)
        self._queues[queue] = None
        self._queues.move_to_end(queue)
        if len(self._queues) > COLUMNS_MAX:
            self._queues.popitem(last=False)[0].texts = None

"""Pops served together: messages are handed out to each in turn, then one append stores all checkpoints.

Until that append succeeds, only the order locks have changed. Positions move only within the round, so a pop
continues where an earlier pop of the same round ended. Nothing may be awaited during a round, and no answer may be
sent before ``store`` has returned.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.broker.pop.checkpoints import Checkpoint
from orbitmq.broker.pop.receipts import Receipt, format_receipt, order_counts_entries, topic_kind
from orbitmq.codes import Property
from orbitmq.errors import BrokerError, RecordError
from orbitmq.kernel import Filter, Piece, PopPart
from orbitmq.kernel.layout import INT, QUEUE_OFFSET, SLICE
from orbitmq.record.codec import decode_record, encode_record
from orbitmq.record.properties import set_property
from orbitmq.store.errors import StoreError
from orbitmq.store.types import ReadResult, ReadStatus

if TYPE_CHECKING:
    from orbitmq.broker.pop.service import PopService

__all__ = ["Handout", "PopQuestion", "PopRound"]

logger = logging.getLogger(__name__)

_SCANS_MAX: Final = 16
"""Maximum reads of one queue in one pop while a filter rejects everything."""
_FOUND: Final = ReadStatus.FOUND
_NO_MATCH: Final = ReadStatus.NO_MATCHED_MESSAGE
_PASSED_OVER: Final = frozenset({_NO_MATCH, ReadStatus.MESSAGE_WAS_REMOVING})
"""Statuses of a read that found nothing to hand out and is continued after the messages it covered."""
_CORRECTED: Final = frozenset(
    {
        ReadStatus.OFFSET_TOO_SMALL,
        ReadStatus.OFFSET_OVERFLOW_BADLY,
        ReadStatus.OFFSET_FOUND_NULL,
        ReadStatus.NO_MATCHED_LOGIC_QUEUE,
        ReadStatus.NO_MESSAGE_IN_QUEUE,
    }
)
_POP_CK: Final = Property.POP_CK.encode()


class PopQuestion(msgspec.Struct, frozen=True, gc=False):
    """A validated pop request."""

    topic: str
    group: str
    queue_ids: Sequence[int]
    """The queues to read, in this order."""
    max_count: int
    invisible_ms: int
    from_newest: bool
    selection: Filter | None
    ordered: bool = False
    attempt_id: str | None = None
    retry_topics: Sequence[str] = ()
    retries_first: bool = False


class Handout(msgspec.Struct, gc=False):
    """The result of a pop."""

    pop_time_ms: int
    revive_queue_id: int
    parts: list[PopPart] = []
    order_counts: list[str] = []
    pieces: list[Piece] = []
    count: int = 0
    size_bytes: int = 0
    rest: int = 0
    unseen: bool = False
    """Whether the filter rejected everything read so far and more messages follow."""
    has_checkpoints: bool = False
    """Whether the messages may be sent only after ``PopRound.store`` has returned."""


class _Place(msgspec.Struct, gc=False, eq=False):
    """A topic that stores messages, and a group."""

    topic: str
    group: str
    kind: int
    committed: dict[int, int]
    """Positions by queue id, except for queues whose position must be looked up."""
    moved: dict[int, int]
    """Positions that changed in this round."""


class _Taken(msgspec.Struct, gc=False, eq=False):
    """The messages that one pop takes from one queue."""

    place: _Place
    queue_id: int
    start: int
    offsets: Sequence[int]
    result: ReadResult


class PopRound:
    """One round of pops; see the module for its rules."""

    def __init__(self, service: PopService) -> None:
        self._service = service
        self._table = service.log.table
        self._reads = service.store.reader.reads()
        self._queues = service.store.reader.queues
        self._places: dict[tuple[str, str], _Place] = {}
        self._retries: dict[tuple[str, str], list[tuple[_Place, int]]] = {}
        """Existing pop retry topics and their number of queues, by topic and group."""
        self._checkpoints: list[Checkpoint] = []
        self._moves: list[tuple[_Place, int, int]] = []
        """Positions moved by the current pop: place, queue id and offset."""
        self._has_threshold = service.config.pop_threshold_enabled
        self.now_ms: Final = service.clock.now_ms()

    @property
    def is_full(self) -> bool:
        """Whether the limit of open checkpoints is reached, so that no more messages are handed out."""
        return len(self._table) + len(self._checkpoints) >= self._service.config.pop_checkpoints_max

    def hand_out(self, question: PopQuestion) -> Handout:
        """Hand messages out to one pop. Raises ``BrokerError`` with the pop's positions unmoved."""
        handout = Handout(self.now_ms, self._service.next_revive_queue(ordered=question.ordered))
        taken: list[_Taken] = []
        self._moves = []
        if question.retries_first:
            self._take_retries(question, handout, taken)
        place = self._place(question.topic, question.group)
        for queue_id in question.queue_ids:
            if question.ordered:
                self._take_ordered(question, place, queue_id, handout, taken)
            else:
                self._take_queue(question, place, queue_id, question.selection, handout, taken)
        if question.retry_topics and not question.retries_first:
            self._take_retries(question, handout, taken)
        for moved, queue_id, offset in self._moves:
            moved.moved[queue_id] = offset
        if taken:
            if not question.ordered:
                self._add_checkpoints(question, handout, taken)
            self._fill(question, handout, taken)
        return handout

    def store(self) -> None:
        """Store the checkpoints, then move the groups' offsets. Raises ``BrokerError`` if the store refuses them. In
        that case the messages of a handout with checkpoints must not be sent."""
        service, checkpoints = self._service, self._checkpoints
        if checkpoints:
            try:
                service.log.write(checkpoints, self.now_ms)
            except StoreError as error:
                raise BrokerError(error.remark, code=error.code) from None
            service.note_handed_out(checkpoints)
        for place in self._places.values():
            if place.moved:
                self._commit(place)

    def _commit(self, place: _Place) -> None:
        offsets, again = self._service.offsets, 0
        committed = offsets.committed.get(f"{place.topic}@{place.group}", {})
        for queue_id, offset in place.moved.items():
            if committed.get(queue_id, offset) < offset:
                committed[queue_id] = offset
                again += 1
            else:
                offsets.commit("pop", place.group, place.topic, queue_id, offset)
        if again:
            offsets.committed_again(again)

    # -- taking ----------------------------------------------------------------------------------------

    def _place(self, topic: str, group: str) -> _Place:
        place = self._places.get((topic, group))
        if place is None:
            offsets, key = self._service.offsets, f"{topic}@{group}"
            committed = {} if offsets.has_resets(key) else offsets.committed.get(key, {})
            place = _Place(topic, group, int(topic_kind(topic)), committed, {})
            self._places[topic, group] = place
        return place

    def _position(self, place: _Place, queue_id: int, *, from_newest: bool) -> int:
        offset = place.moved.get(queue_id)
        if offset is None:
            offset = place.committed.get(queue_id)
            if offset is None:
                offset = self._service.position(place.group, place.topic, queue_id, from_newest=from_newest)
        return offset

    def _take_retries(self, question: PopQuestion, handout: Handout, taken: list[_Taken]) -> None:
        key = (question.topic, question.group)
        places = self._retries.get(key)
        if places is None:
            configs = self._service.topics.configs
            places = self._retries[key] = [
                (self._place(name, question.group), configs[name].read_queue_nums)
                for name in question.retry_topics
                if name in configs
            ]
        for place, queue_count in places:
            for queue_id in range(queue_count):
                self._take_queue(question, place, queue_id, None, handout, taken)

    def _take_queue(
        self,
        question: PopQuestion,
        place: _Place,
        queue_id: int,
        selection: Filter | None,
        handout: Handout,
        taken: list[_Taken],
    ) -> None:
        # Hot: runs for each queue of a topic.
        start = self._position(place, queue_id, from_newest=question.from_newest)
        queue = self._queues.get((place.topic, queue_id))
        high = 0 if queue is None else queue.max_offset
        if start == high:
            return
        count = question.max_count - handout.count
        if count <= 0 or (
            self._has_threshold and self._service.is_over_threshold(place.topic, place.group, queue_id)
        ):
            handout.rest += max(0, high - start)
            return
        result, start = self._read(place, queue_id, start, selection, count)
        if result.max_offset > result.next_offset:
            handout.rest += result.max_offset - result.next_offset
        if result.status is not _FOUND:
            handout.unseen |= result.status is _NO_MATCH and result.next_offset < result.max_offset
            return
        self._moves.append((place, queue_id, result.next_offset))
        handout.count += result.count
        taken.append(_Taken(place, queue_id, start, _queue_offsets(result, start), result))

    def _take_ordered(
        self, question: PopQuestion, place: _Place, queue_id: int, handout: Handout, taken: list[_Taken]
    ) -> None:
        service = self._service
        topic, group = question.topic, question.group
        start = self._position(place, queue_id, from_newest=question.from_newest)
        if service.blocks(topic, group, queue_id, question.attempt_id, self.now_ms):
            return
        count = question.max_count - handout.count
        if count <= 0:
            handout.rest += max(0, service.store.max_offset(topic, queue_id) - start)
            return
        result, start = self._read(place, queue_id, start, question.selection, count)
        handout.rest += max(0, result.max_offset - result.next_offset)
        if result.status is not _FOUND:
            return
        offsets = _queue_offsets(result, start)
        lock = service.locks.hand_out(
            (topic, group, queue_id), question.attempt_id, self.now_ms, question.invisible_ms, offsets
        )
        handout.order_counts.append(order_counts_entries(str(place.kind), queue_id, offsets, lock.counts))
        handout.count += result.count
        taken.append(_Taken(place, queue_id, start, offsets, result))

    def _read(
        self, place: _Place, queue_id: int, start: int, selection: Filter | None, count: int
    ) -> tuple[ReadResult, int]:
        """Read from a position, advancing past messages that the filter rejects. Returns the last read's result and
        start offset."""
        corrected = False
        for _ in range(_SCANS_MAX):
            result = self._reads.read(place.topic, queue_id, start, count, selection)
            status = result.status
            if status is _FOUND:
                break
            if status in _CORRECTED and not corrected and result.next_offset != start:
                corrected = True
            elif status not in _PASSED_OVER:
                break
            start = result.next_offset
            self._moves.append((place, queue_id, start))
            if start >= result.max_offset and status in _PASSED_OVER:
                break
        return result, start

    # -- handing out -----------------------------------------------------------------------------------

    def _add_checkpoints(self, question: PopQuestion, handout: Handout, taken: list[_Taken]) -> None:
        group, invisible_ms, revive_queue_id = question.group, question.invisible_ms, handout.revive_queue_id
        checkpoints = [
            Checkpoint(
                one.place.topic,
                group,
                one.queue_id,
                one.start,
                handout.pop_time_ms,
                invisible_ms,
                revive_queue_id,
                one.offsets,
            )
            for one in taken
        ]
        while self._table.knows_any(checkpoints):
            # After a reset the same position can be popped twice in one millisecond, so move the pop time.
            handout.pop_time_ms += 1
            for checkpoint in checkpoints:
                checkpoint.pop_time_ms = handout.pop_time_ms
        handout.has_checkpoints = True
        self._checkpoints += checkpoints

    def _fill(self, question: PopQuestion, handout: Handout, taken: list[_Taken]) -> None:
        stats = self._service.stats
        as_stored = self._service.config.pop_actual_retry_topic
        for one in taken:
            place, result = one.place, one.result
            handout.parts.append((place.kind, one.queue_id, one.start, one.offsets))
            handout.size_bytes += result.size_bytes
            if as_stored or place.topic == question.topic:
                handout.pieces += result.pieces
            else:
                handout.pieces += self._as_requested(question, handout, one)
            stats.get(question.group, place.topic, one.queue_id, result.count, result.size_bytes)

    def _as_requested(self, question: PopQuestion, handout: Handout, one: _Taken) -> list[Piece]:
        """Returns redelivered messages under the requested topic. Their receipts contain the actual position."""
        receipt = Receipt(
            one.start,
            handout.pop_time_ms,
            question.invisible_ms,
            handout.revive_queue_id,
            str(one.place.kind),
        )
        broker_name = self._service.config.broker_name
        rewritten = [
            _under_topic(raw, question.topic, receipt, broker_name) for raw in _records(one.result.slices)
        ]
        return [(raw, SLICE.pack(0, len(raw))) for raw in rewritten]


def _under_topic(raw: memoryview, topic: str, receipt: Receipt, broker_name: str) -> bytes:
    try:
        # The body is not decompressed, because it is sent as stored.
        record = decode_record(raw)
        text = format_receipt(receipt, broker_name, record.queue_id, record.queue_offset)
        record.topic = topic
        record.properties = set_property(record.properties, _POP_CK, text.encode())
        return encode_record(
            record,
            record.queue_offset,
            record.log_offset,
            record.store_timestamp_ms,
            record.store_host,
        )
    except RecordError as error:
        logger.warning("redelivered message sent as stored topic=%s reason=%s", topic, error)
        return bytes(raw)


def _records(slices: Sequence[memoryview]) -> list[memoryview]:
    """Splits slices into single records, because adjacent records may share a slice."""
    found: list[memoryview] = []
    for piece in slices:
        position = 0
        while position < len(piece):
            (size,) = INT.unpack_from(piece, position)
            found.append(piece[position : position + size])
            position += size
    return found


def _queue_offsets(result: ReadResult, start: int) -> Sequence[int]:
    if result.count == result.next_offset - start:
        return range(start, result.next_offset)
    return [QUEUE_OFFSET.unpack_from(raw)[0] for raw in _records(result.slices)]

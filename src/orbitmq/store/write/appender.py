"""The append path: turns messages into records, queue units and index keys (Apache: ``CommitLog.asyncPutMessage``).

Order within an append: assign queue offsets and encode the messages (``orbitmq.kernel``), write the log with one
``pwrite``, then add queue units and index keys. Nothing else changes before the log write, so a refused write needs
no undo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from orbitmq.codes import SysFlag
from orbitmq.errors import RecordError
from orbitmq.kernel import NO_KEYS, Sends, encode_records, encode_sends, queues_of_sends
from orbitmq.kernel.layout import BLANK_BYTES, PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX_V1
from orbitmq.record.property_crc import reserve, seal
from orbitmq.runtime.clock import Clock
from orbitmq.store.components import StoreParts
from orbitmq.store.errors import (
    BadMessage,
    MessageTooLarge,
    PropertiesTooLarge,
    StoreError,
    StoreUnavailable,
)
from orbitmq.store.queues.consume_queue import TAIL_BYTES_MAX, ConsumeQueue
from orbitmq.store.types import Appended, Arrival, NewMessage, PutSends

__all__ = ["Appender"]

_max_offset = attrgetter("max_offset")
_body_bytes_max = attrgetter("body_bytes_max")
_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)


def _messages(turn: Sequence[Sends]) -> list[NewMessage]:
    """Returns the messages of all sends, those of a batch one by one. Raises ``RecordError``."""
    return [NewMessage(*message) for sends in turn for message in sends.messages()]


class Appender:
    """Appends messages to the log."""

    def __init__(
        self,
        parts: StoreParts,
        clock: Clock,
        store_host: bytes,
        *,
        prepare_segment: Callable[[], None],
        write_failed: Callable[[OSError | StoreUnavailable], None],
        cut_back: Callable[[int], None],
        arrived: Sequence[Arrival] = (),
    ) -> None:
        self.refusal = ""
        """Why appends are currently refused; empty when they are not."""
        self._parts = parts
        self._segment_bytes = parts.config.segment_bytes
        self._long_topic_allowed = parts.config.long_topic_allowed
        self._log = parts.log
        self._queues = parts.queues
        self._by_key = parts.queues.by_key
        self._index = parts.index
        self._with_keys = NO_KEYS if parts.index is None else parts.index.with_keys
        self._code = parts.dispatcher.code
        self._with_crc = parts.config.property_crc_enabled
        self._now_ms = clock.now_ms
        self._host = store_host
        self._prepare_segment = prepare_segment
        self._write_failed = write_failed
        self._cut_back = cut_back
        self._arrived = arrived

    def refuse(self, reason: str) -> None:
        """Refuse appends for this reason. An empty reason accepts them again."""
        self.refusal = reason

    def append(self, message: NewMessage) -> Appended:
        """See ``MessageStore.append``."""
        return self.append_batch((message,))[0]

    def append_batch(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """See ``MessageStore.append_batch``."""
        if self.refusal:
            raise StoreUnavailable(self.refusal)
        if not messages:
            return []
        if self._with_crc:
            messages = [one._replace(properties=reserve(one.properties)) for one in messages]
        store_ms = max(self._now_ms(), self._log.last_store_ms)
        bytes_max = self._parts.config.message_bytes_max
        numbers: dict[ConsumeQueue, int] = {}
        slots: list[int] = []
        try:
            for message in messages:
                if len(message[2]) > bytes_max:
                    raise self._too_large(len(message[2]))
                queue = self._by_key.get(message[:2]) or self._create_queue(message[0], message[1])
                slots.append(numbers.setdefault(queue, len(numbers)))
            encode = partial(encode_records, messages, slots)
            encoded = self._encoded(encode, numbers, store_ms, is_divisible=len(messages) > 1)
        except (RecordError, TypeError) as error:
            raise self._illegal(messages, error) from error
        if encoded is None:
            return self._append_one_by_one(messages)
        records, log_offsets, queue_offsets, units, keys = encoded
        self._store(records, numbers, units, keys, store_ms, lambda: messages)
        ends = [*log_offsets[1:], self._log.end]
        return [
            Appended(start, end - start, queue_offset, store_ms)
            for start, end, queue_offset in zip(log_offsets, ends, queue_offsets, strict=True)
        ]

    def append_sends(self, turn: Sequence[Sends]) -> PutSends:
        """See ``MessageStore.append_sends``."""
        # Hot path: once per turn of the event loop, and the loops once per queue.
        if self.refusal:
            raise StoreUnavailable(self.refusal)
        if self._with_crc:
            return self._append_flat(turn)
        store_ms = max(self._now_ms(), self._log.last_store_ms)
        by_key = self._by_key
        largest = max(map(_body_bytes_max, turn))
        if largest > self._parts.config.message_bytes_max:
            raise self._too_large(largest)
        try:
            places = queues_of_sends(turn)
            queues = [by_key.get(place) or self._create_queue(*place) for place in places]
            many = len(turn) > 1 or len(turn[0]) > 1 or turn[0].is_batch
            encoded = self._encoded(partial(encode_sends, turn), queues, store_ms, is_divisible=many)
        except (RecordError, TypeError) as error:
            _messages(turn)  # raises RecordError for a body that is not a batch
            raise BadMessage(f"the message cannot be stored: {error}") from error
        if encoded is None:
            return [(places[0], self._append_split(turn))]
        records, units, keys, counts = encoded
        self._store(records, queues, units, keys, store_ms, lambda: _messages(turn))
        return list(zip(places, counts, strict=True))

    def _append_split(self, turn: Sequence[Sends]) -> tuple[int, int, int]:
        """Store a single batch that is larger than a segment, message by message. Raises ``MessageTooLarge`` if there
        is more than one send; the caller can then try each one on its own."""
        if len(turn) > 1 or len(turn[0]) > 1:
            count = sum(map(len, turn))
            raise MessageTooLarge(f"{count} sends do not fit a log segment together")
        appended = self._append_one_by_one(_messages(turn))
        turn[0].stored_at([each.log_offset for each in appended], appended[0].queue_offset)
        return len(appended), sum(each.size for each in appended), 1

    def _append_flat(self, turn: Sequence[Sends]) -> PutSends:
        """Like ``append_sends``, but encodes every entry of a batch as a separate message. Each ``Sends`` must
        contain a single send."""
        parts = [_messages((sends,)) for sends in turn]
        appended = iter(self.append_batch([message for part in parts for message in part]))
        stored: PutSends = []
        for sends, part in zip(turn, parts, strict=True):
            where = [next(appended) for _ in part]
            sends.stored_at([each.log_offset for each in where], where[0].queue_offset)
            stored.append((part[0][:2], (len(where), sum(each.size for each in where), 1)))
        return stored

    # Internals.
    def _encoded(
        self,
        encode: Callable[[list[int], int, int, bytes, int], Any],
        queues: Iterable[ConsumeQueue],
        store_ms: int,
        *,
        is_divisible: bool,
    ) -> Any:
        """Encode everything that an append writes, for the current end of the log. Returns None if it does not fit a
        segment but its messages may fit one by one."""
        log = self._log
        next_offsets = list(map(_max_offset, queues))
        encoded = encode(next_offsets, log.end, store_ms, self._host, self._with_keys)
        size = len(encoded[0])
        if log.end + size > log.room_end:
            # Everything moves to the next segment, like a batch that does not fit in Apache.
            if size + BLANK_BYTES > self._segment_bytes and is_divisible:
                return None
            self._roll(size)
            encoded = encode(next_offsets, log.end, store_ms, self._host, self._with_keys)
        return (seal(encoded[0]), *encoded[1:]) if self._with_crc else encoded

    def _store(
        self,
        records: bytes,
        queues: Iterable[ConsumeQueue],
        units: Iterable[bytes],
        keys: bytes,
        store_ms: int,
        messages: Callable[[], Sequence[NewMessage]],
    ) -> None:
        """Write the records, then their queue units and index keys, and notify waiting readers."""
        log = self._log
        try:
            log.write(records)
        except StoreUnavailable as error:
            self._write_failed(error)
            raise
        log.last_store_ms = store_ms
        full: list[ConsumeQueue] = []
        for queue, own_units in zip(queues, units, strict=True):
            if queue.has_own_codes:
                own_units = self._recoded(queue, own_units, messages(), store_ms)
            queue.extend(own_units)
            if len(queue.tail) >= TAIL_BYTES_MAX:
                full.append(queue)
        if self._index is not None:
            self._index.put_keys(keys)
        if log.end > log.prepare_at:
            self._prepare_segment()
        for queue in full:
            self.write_tail(queue)
        self.announce(queues)

    def _recoded(
        self, queue: ConsumeQueue, units: bytes, messages: Sequence[NewMessage], store_ms: int
    ) -> bytes:
        """Returns a queue's units with its own codes in place of tag codes."""
        place = (queue.topic, queue.queue_id)
        own = [one for one in messages if one[:2] == place and not one.sys_flag & _PREPARED]
        return queue.recoded(units, [self._code(queue, one.properties, store_ms) for one in own])

    def announce(self, queues: Iterable[ConsumeQueue]) -> None:
        """Notify waiting readers of new messages in these queues."""
        for queue in queues:
            for subscriber in self._arrived:
                subscriber(queue.topic, queue.queue_id)

    def _too_large(self, body_bytes: int) -> StoreError:
        limit = self._parts.config.message_bytes_max
        return MessageTooLarge(f"the message body has {body_bytes} bytes, at most {limit} are allowed")

    def _append_one_by_one(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Append a batch that is larger than a segment. This is still atomic: the log is cut back on failure."""
        start = self._log.end
        arrived, self._arrived = self._arrived, ()
        try:
            results = [self.append(message) for message in messages]
        except StoreError:
            if self._log.end > start:
                self._cut_back(start)
            raise
        finally:
            self._arrived = arrived
        for topic, queue_id in dict.fromkeys((message.topic, message.queue_id) for message in messages):
            for subscriber in arrived:
                subscriber(topic, queue_id)
        return results

    def _create_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        if not self._long_topic_allowed and len(topic.encode("utf-8", "replace")) > TOPIC_BYTES_MAX_V1:
            raise MessageTooLarge(f"the topic has more than {TOPIC_BYTES_MAX_V1} bytes")
        return self._queues.create(topic, queue_id)

    def _illegal(self, messages: Sequence[NewMessage], error: Exception) -> StoreError:
        if any(len(message[3]) > PROPERTIES_BYTES_MAX for message in messages):
            return PropertiesTooLarge(str(error))
        return BadMessage(f"the message cannot be stored: {error}")

    def _roll(self, size: int) -> None:
        if size + BLANK_BYTES > self._segment_bytes:
            raise MessageTooLarge(f"a record of {size} bytes does not fit a log segment")
        try:
            self._log.roll()
        except StoreUnavailable as error:
            self._write_failed(error)
            raise

    def write_tail(self, queue: ConsumeQueue) -> None:
        """Write a queue's tail to its file. After a failure, appends are refused until the tail can be written."""
        try:
            queue.write_tail()
        except OSError as error:
            # The message is stored; only its unit waits in memory.
            self._write_failed(error)

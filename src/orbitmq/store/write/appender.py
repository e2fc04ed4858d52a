"""The append path: turns messages into records, queue units and index keys (Apache: ``CommitLog.asyncPutMessage``).

Order within an append: assign queue offsets and encode the messages (``orbitmq.kernel``), write the log with one
``pwrite``, then add queue units and index keys. Nothing else changes before the log write, so a refused write needs
no undo.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import Any

from orbitmq.errors import RecordError
from orbitmq.kernel import NO_KEYS, encode_records, encode_sends
from orbitmq.kernel.layout import BLANK_BYTES, PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX_V1
from orbitmq.record.batch import split_batch
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
from orbitmq.store.types import Appended, AppendedSend, Arrival, NewMessage

__all__ = ["Appender"]

_first = itemgetter(0)
_max_offset = attrgetter("max_offset")


class Appender:
    """Appends to the log."""

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
        """Refuse appends for this reason; empty accepts them again."""
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
            encoded = self._encoded(encode_records, messages, slots, numbers, store_ms)
        except (RecordError, TypeError) as error:
            raise self._illegal(messages, error) from error
        if encoded is None:
            return self._append_one_by_one(messages)
        self._store(messages, slots, numbers, encoded, store_ms)
        _, log_offsets, queue_offsets, _, _ = encoded
        ends = [*log_offsets[1:], self._log.end]
        return [
            Appended(start, end - start, queue_offset, store_ms)
            for start, end, queue_offset in zip(log_offsets, ends, queue_offsets, strict=True)
        ]

    def append_sends(self, messages: Sequence[NewMessage], batches: Sequence[bool]) -> list[AppendedSend]:
        """See ``MessageStore.append_sends``."""
        if self.refusal:
            raise StoreUnavailable(self.refusal)
        if self._with_crc:
            return self._append_flat(messages, batches)
        store_ms = max(self._now_ms(), self._log.last_store_ms)
        bytes_max = self._parts.config.message_bytes_max
        numbers: dict[ConsumeQueue, int] = {}
        slots: list[int] = []
        try:
            for message, is_batch in zip(messages, batches, strict=True):
                queue = self._by_key.get(message[:2]) or self._create_queue(message[0], message[1])
                if len(message[2]) > bytes_max or (is_batch and queue.has_own_codes):
                    return self._append_lone_batch(messages, batches, self._too_large(len(message[2])))
                number = numbers.setdefault(queue, len(numbers))
                slots.append(~number if is_batch else number)
            encoded = self._encoded(encode_sends, messages, slots, numbers, store_ms)
        except (RecordError, TypeError) as error:
            return self._append_lone_batch(messages, batches, self._illegal(messages, error))
        if encoded is None:
            too_large = MessageTooLarge(f"{len(messages)} sends do not fit a log segment together")
            return self._append_lone_batch(messages, batches, too_large)
        self._store(messages, slots, numbers, encoded, store_ms)
        _, log_offsets, queue_offsets, _, _ = encoded
        bounds = list(map(_first, log_offsets))
        bounds.append(self._log.end)
        return list(map(AppendedSend, log_offsets, bounds[1:], queue_offsets, repeat(store_ms)))

    def _append_lone_batch(
        self, messages: Sequence[NewMessage], batches: Sequence[bool], error: StoreError
    ) -> list[AppendedSend]:
        """Store a lone batch message by message because it cannot be stored in one piece; otherwise raises
        ``error``."""
        if len(messages) > 1 or not batches[0]:
            raise error
        return [self._append_split(messages[0])]

    def _append_split(self, template: NewMessage) -> AppendedSend:
        """Store a batch as separate messages. Raises ``RecordError`` for a body that is not a batch."""
        return _as_send(self.append_batch(_entries(template)))

    def _append_flat(self, messages: Sequence[NewMessage], batches: Sequence[bool]) -> list[AppendedSend]:
        """Like ``append_sends``, with every entry of a batch encoded as a message of its own."""
        parts: list[list[NewMessage]] = []
        for message, is_batch in zip(messages, batches, strict=True):
            try:
                parts.append(_entries(message) if is_batch else [message])
            except RecordError as error:
                if len(messages) == 1:
                    raise
                raise self._illegal(messages, error) from error
        appended = iter(self.append_batch([message for part in parts for message in part]))
        return [_as_send([next(appended) for _ in part]) for part in parts]

    # Internals.
    def _encoded(
        self,
        encode: Callable[..., Any],
        messages: Sequence[NewMessage],
        slots: list[int],
        numbers: dict[ConsumeQueue, int],
        store_ms: int,
    ) -> Any:
        """Encode everything an append writes, for the current end of the log; None when it does not fit a segment."""
        log = self._log
        next_offsets = list(map(_max_offset, numbers))
        encoded = encode(messages, slots, next_offsets, log.end, store_ms, self._host, self._with_keys)
        size = len(encoded[0])
        if log.end + size > log.room_end:
            # Everything moves to the next segment, like a batch that does not fit in Apache.
            if size + BLANK_BYTES > self._segment_bytes and (len(messages) > 1 or slots[0] < 0):
                return None
            self._roll(size)
            encoded = encode(messages, slots, next_offsets, log.end, store_ms, self._host, self._with_keys)
        return (seal(encoded[0]), *encoded[1:]) if self._with_crc else encoded

    def _store(
        self,
        messages: Sequence[NewMessage],
        slots: list[int],
        numbers: dict[ConsumeQueue, int],
        encoded: Any,
        store_ms: int,
    ) -> None:
        """Write the records, then their queue units and index keys, and notify waiting readers."""
        records, _, _, units, keys = encoded
        log = self._log
        try:
            log.write(records)
        except StoreUnavailable as error:
            self._write_failed(error)
            raise
        log.last_store_ms = store_ms
        for queue, own_units in zip(numbers, units, strict=True):
            if queue.has_own_codes:
                number = numbers[queue]
                own = [message[3] for message, slot in zip(messages, slots, strict=True) if slot == number]
                codes = [self._code(queue, properties, store_ms) for properties in own]
                own_units = queue.recoded(own_units, codes)
            queue.extend(own_units)
        if self._index is not None:
            self._index.put_keys(keys)
        if log.end > log.prepare_at:
            self._prepare_segment()
        for queue in numbers:
            if len(queue.tail) >= TAIL_BYTES_MAX:
                self.write_tail(queue)
        self.announce(numbers)

    def announce(self, queues: Iterable[ConsumeQueue]) -> None:
        """Notify waiting readers of new messages in these queues."""
        for queue in queues:
            for subscriber in self._arrived:
                subscriber(queue.topic, queue.queue_id)

    def _too_large(self, body_bytes: int) -> StoreError:
        limit = self._parts.config.message_bytes_max
        return MessageTooLarge(f"the message body has {body_bytes} bytes, at most {limit} are allowed")

    def _append_one_by_one(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """Append a batch larger than a segment, still all or nothing: the log is cut back on failure."""
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
        """Write a tail to its file; a refusal stops further appends until it can be written."""
        try:
            queue.write_tail()
        except OSError as error:
            # The message is stored; only its unit waits in memory.
            self._write_failed(error)


def _entries(batch: NewMessage) -> list[NewMessage]:
    """Returns the messages of a batch. Raises ``RecordError`` for a body that is not one."""
    return [
        batch._replace(flag=flag, body=body, properties=properties)
        for flag, body, properties in split_batch(batch.body)
    ]


def _as_send(appended: Sequence[Appended]) -> AppendedSend:
    last = appended[-1]
    return AppendedSend(
        [each.log_offset for each in appended],
        last.log_offset + last.size,
        appended[0].queue_offset,
        appended[0].store_timestamp_ms,
    )

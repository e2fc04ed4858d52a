"""The append path: messages in, records, queue units and index notes out (Apache: ``CommitLog.asyncPutMessage``).

Order within an append: number the messages, encode, write the log with one ``pwrite``, then units and index. Units of
a batch enter the tails before the write, which nobody can see since nothing else runs meanwhile, and are taken back
if it fails.

This is the hottest code of a broker. Measured on one core: every Python call costs 0.05 to 0.1 us, so what happens
once per message is written out in place: the encoding of the common record (``record.codec.encode_record`` remains
the definition, and takes every uncommon one), the search for the tag, ``ConsumeQueue.append``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Final
from zlib import crc32

from msgspec.structs import astuple

from orbitmq.codes import Property
from orbitmq.errors import RecordError
from orbitmq.record.codec import encode_record
from orbitmq.record.hashing import tags_code
from orbitmq.record.layout import (
    BATCH_ENTRY,
    BLANK_BYTES,
    CRC_MASK,
    FIXED_V4,
    HOLE_BYTES,
    HOST_V4_BYTES,
    LENGTH_16,
    MAGIC_V1,
    PROPERTIES_BYTES_MAX,
    TOPIC_BYTES_MAX_V1,
)
from orbitmq.record.properties import find_property
from orbitmq.runtime.clock import Clock
from orbitmq.store.components import StoreParts
from orbitmq.store.errors import (
    BadMessage,
    MessageTooLarge,
    PropertiesTooLarge,
    StoreError,
    StoreUnavailable,
)
from orbitmq.store.index.index_keys import UNIQUE_KEY_ONLY
from orbitmq.store.index.index_service import BUILD_COUNT
from orbitmq.store.layout import UNIT
from orbitmq.store.queues.consume_queue import TAIL_BYTES_MAX, ConsumeQueue
from orbitmq.store.types import Appended, AppendedBatch, NewMessage
from orbitmq.store.write.equal_sized_batch import EvenRows

__all__ = ["Appender"]

_TAGS: Final = Property.TAGS.encode()
_TAG_NAME: Final = b"TAGS\x01"
_TAG_NEEDLE: Final = b"\x02TAGS\x01"
_TAG_NEEDLE_BYTES: Final = len(_TAG_NEEDLE)
_FIXED_BYTES: Final = FIXED_V4.size + LENGTH_16.size
_NO_HOSTS_V6: Final = ~0x30
_ZERO: Final = b"\0"
_HOLE: Final = bytes(HOLE_BYTES)
_ENTRY_BYTES: Final = BATCH_ENTRY.size
# A record's fixed part in two: what differs between the messages of a batch, and what they share. The size of the
# body, the last field of it, stands before the body in a batch entry as well.
_RECORD_HEAD: Final = Struct(">iIIiiqq")
_RECORD_SHARED: Final = Struct(">iq8sq8siq")
assert _RECORD_HEAD.size + _RECORD_SHARED.size + 4 == FIXED_V4.size
_LENGTHS: Final = tuple(LENGTH_16.pack(size) for size in range(HOLE_BYTES))
"""The size field of ordinary properties; looking it up takes half the time of packing it."""

Noted = tuple[str, bytes, int, int, int]


class Appender:
    """Writes at the end of the log. ``refusal`` is set by the store when no write may happen."""

    def __init__(
        self,
        parts: StoreParts,
        clock: Clock,
        store_host: bytes,
        *,
        prepare_segment: Callable[[], None],
        write_failed: Callable[[OSError | None], None],
        cut_back: Callable[[int], None],
    ) -> None:
        self.refusal = ""
        """Why appends are refused now; empty when they are not. The only thing the hot path looks at."""
        self.on_arrival: Callable[[str, int], None] | None = None
        self.message_bytes_max = parts.config.message_bytes_max
        self._segment_bytes = parts.config.segment_bytes
        self._long_topic_allowed = parts.config.long_topic_allowed
        self._log = parts.log
        self._queues = parts.queues
        self._by_key = parts.queues.by_key
        self._index = parts.index
        self._pending: list[Noted] = parts.index.pending if parts.index is not None else []
        self._code = parts.dispatcher.code
        self._now_ms = clock.now_ms
        self._host = store_host
        self._host_is_v4 = len(store_host) == HOST_V4_BYTES
        self._prepare_segment = prepare_segment
        self._write_failed = write_failed
        self._cut_back = cut_back
        self._even_rows = EvenRows()

    def append(self, message: NewMessage) -> Appended:
        """See ``MessageStore.append``."""
        if self.refusal:
            raise StoreUnavailable(self.refusal)
        topic = message.topic
        queue_id = message.queue_id
        queue = self._by_key.get((topic, queue_id))
        if queue is None:
            queue = self._create_queue(topic, queue_id)
        log = self._log
        store_ms = self._now_ms()
        if store_ms < log.last_store_ms:
            store_ms = log.last_store_ms
        sys_flag = message.sys_flag
        # A prepared or rolled back message (0x4, 0xC) has no number and no unit.
        queue_offset = 0 if sys_flag & 4 else queue.max_offset
        log_offset = log.end
        try:
            if len(message.body) > self.message_bytes_max:
                raise self._too_large(message)
            record = encode_record(message, queue_offset, log_offset, store_ms, self._host)
            size = len(record)
            if log_offset + size > log.room_end:
                self._roll(size)
                log_offset = log.end
                record = encode_record(message, queue_offset, log_offset, store_ms, self._host)
            log.write(record)
        except (RecordError, TypeError) as error:
            raise self._illegal([message], error) from error
        except StoreUnavailable:
            self._write_failed(None)
            raise
        log.last_store_ms = store_ms
        properties = message.properties
        if not sys_flag & 4:
            if queue.has_own_codes:
                tag_code = self._code(queue, properties, store_ms)
            else:
                at = properties.rfind(_TAG_NEEDLE)
                if (
                    at >= 0
                    and (end := properties.find(b"\x02", at + _TAG_NEEDLE_BYTES)) > at + _TAG_NEEDLE_BYTES
                ):
                    tag_code = tags_code(properties[at + _TAG_NEEDLE_BYTES : end])
                elif _TAG_NAME in properties:
                    tag_code = tags_code(find_property(properties, _TAGS))
                else:
                    tag_code = 0
            tail = queue.tail
            tail += UNIT.pack(log_offset, size, tag_code)
            queue.max_offset = queue_offset + 1
            queue.log_end = log_offset + size
            if len(tail) >= TAIL_BYTES_MAX:
                self.write_tail(queue)
        if self._index is not None:
            pending = self._pending
            pending.append((topic, properties, sys_flag, log_offset, store_ms))
            if len(pending) >= BUILD_COUNT:
                self._index.build()
        if log_offset > log.prepare_at:
            self._prepare_segment()
        if self.on_arrival is not None:
            self.on_arrival(topic, queue_id)
        return Appended(log_offset, size, queue_offset, store_ms)

    def append_batch(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """See ``MessageStore.append_batch``."""
        if self.refusal:
            raise StoreUnavailable(self.refusal)
        if not messages:
            return []
        log = self._log
        store_ms = self._now_ms()
        if store_ms < log.last_store_ms:
            store_ms = log.last_store_ms
        touched: list[ConsumeQueue] = []
        try:
            chunks, results, noted = self._encode(messages, store_ms, touched)
            data = b"".join(chunks)
            if log.end + len(data) > log.room_end:
                # Everything moves to the next segment, as Apache does with a batch that does not fit.
                self._undo(touched)
                if len(data) + BLANK_BYTES > self._segment_bytes:
                    return self._append_one_by_one(messages)
                self._roll(len(data))
                chunks, results, noted = self._encode(messages, store_ms, touched)
                data = b"".join(chunks)
            log.write(data)
        except (RecordError, TypeError, struct_error) as error:
            self._undo(touched)
            raise self._illegal(messages, error) from error
        except StoreError as error:
            self._undo(touched)
            if isinstance(error, StoreUnavailable):
                self._write_failed(None)
            raise
        log.last_store_ms = store_ms
        if self._index is not None:
            pending = self._pending
            pending += noted
            if len(pending) >= BUILD_COUNT:
                self._index.build()
        if log.end > log.prepare_at:
            self._prepare_segment()
        arrived = dict.fromkeys(touched)
        for queue in arrived:
            if len(queue.tail) >= TAIL_BYTES_MAX:
                self.write_tail(queue)
        if self.on_arrival is not None:
            for queue in arrived:
                self.on_arrival(queue.topic, queue.queue_id)
        return results

    def _encode(
        self, messages: Sequence[NewMessage], store_ms: int, touched: list[ConsumeQueue]
    ) -> tuple[list[bytes], list[Appended], list[Noted]]:
        """Bytes for the end of the log, their units already in the tails; ``touched`` tells what to undo."""
        by_key, host, host_is_v4, body_max = (
            self._by_key,
            self._host,
            self._host_is_v4,
            self.message_bytes_max,
        )
        pack_unit, pack_fixed, log_offset = UNIT.pack, FIXED_V4.pack, self._log.end
        chunks: list[bytes] = []
        results: list[Appended] = []
        noted: list[Noted] = []
        for message in messages:
            topic, queue_id, body, properties, born_ms, born_host, flag, sys_flag, times, prepared = astuple(
                message
            )
            queue = by_key.get((topic, queue_id))
            if queue is None:
                queue = self._create_queue(topic, queue_id)
            queue_offset = 0 if sys_flag & 4 else queue.max_offset
            body_size, properties_size, topic_field = len(body), len(properties), queue.topic_field
            if body_size > body_max:
                raise self._too_large(message)
            as_it_is = properties_size < HOLE_BYTES and properties[-1:] != _ZERO
            if as_it_is and host_is_v4 and len(born_host) == 8 and topic_field:
                size = _FIXED_BYTES + body_size + len(topic_field) + properties_size
                # fmt: off
                chunks += (
                    pack_fixed(
                        size, MAGIC_V1, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, log_offset,
                        sys_flag & _NO_HOSTS_V6, born_ms, born_host, store_ms, host, times, prepared, body_size,
                    ),
                    body, topic_field, _LENGTHS[properties_size], properties,
                )
                # fmt: on
            else:
                record = encode_record(message, queue_offset, log_offset, store_ms, host)
                size = len(record)
                chunks.append(record)
            if not sys_flag & 4:
                if queue.has_own_codes:
                    tag_code = self._code(queue, properties, store_ms)
                else:
                    at = properties.rfind(_TAG_NEEDLE) + _TAG_NEEDLE_BYTES
                    if at >= _TAG_NEEDLE_BYTES and (end := properties.find(b"\x02", at)) > at:
                        tag_code = tags_code(properties[at:end])
                    elif _TAG_NAME in properties:
                        tag_code = tags_code(find_property(properties, _TAGS))
                    else:
                        tag_code = 0
                queue.tail += pack_unit(log_offset, size, tag_code)
                queue.max_offset = queue_offset + 1
                queue.log_end = log_offset + size
                touched.append(queue)
            noted.append((topic, properties, sys_flag, log_offset, store_ms))
            results.append(Appended(log_offset, size, queue_offset, store_ms))
            log_offset += size
        return chunks, results, noted

    def append_entries(self, template: NewMessage) -> AppendedBatch | None:
        """See ``MessageStore.append_entries``."""
        if self.refusal:
            raise StoreUnavailable(self.refusal)
        topic, queue_id, data, _, born_ms, born_host, _, sys_flag, times, prepared = astuple(template)
        queue = self._by_key.get((topic, queue_id))
        if queue is None:
            queue = self._create_queue(topic, queue_id)
        if (
            sys_flag & 4
            or queue.has_own_codes
            or not self._host_is_v4
            or len(born_host) != HOST_V4_BYTES
            or not queue.topic_field
        ):
            return None
        log = self._log
        store_ms = self._now_ms()
        if store_ms < log.last_store_ms:
            store_ms = log.last_store_ms
        try:
            shared = _RECORD_SHARED.pack(
                sys_flag & _NO_HOSTS_V6, born_ms, born_host, store_ms, self._host, times, prepared
            )
            row = self._even_rows.encode(data, queue, log.end, shared, self.message_bytes_max)
            if row is not None:
                records, units, log_offsets = row.records, row.units, row.log_offsets
            else:
                chunks, unit_list, noted = self._encode_entries(data, queue, (sys_flag, store_ms, shared))
                if not chunks:
                    return None
                records, units, log_offsets = (
                    b"".join(chunks),
                    b"".join(unit_list),
                    [note[3] for note in noted],
                )
        except struct_error as error:
            raise self._illegal([template], error) from error
        if log.end + len(records) > log.room_end:
            return None
        try:
            log.write(records)
        except StoreUnavailable:
            self._write_failed(None)
            raise
        log.last_store_ms = store_ms
        first = queue.max_offset
        queue.tail += units
        queue.max_offset = first + len(log_offsets)
        queue.log_end = log.end
        if len(queue.tail) >= TAIL_BYTES_MAX:
            self.write_tail(queue)
        if self._index is not None:
            if row is not None:
                self._index.put_row(topic, row, sys_flag, store_ms)
            else:
                pending = self._pending
                pending += noted
                if len(pending) >= BUILD_COUNT:
                    self._index.build()
        if log.end > log.prepare_at:
            self._prepare_segment()
        if self.on_arrival is not None:
            self.on_arrival(topic, queue_id)
        return AppendedBatch(log_offsets, log.end, first, store_ms)

    def _encode_entries(
        self, data: bytes, queue: ConsumeQueue, shared_values: tuple[int, int, bytes]
    ) -> tuple[list[bytes], list[bytes], list[Noted]]:
        """Records, queue units and index notes of the entries of a batch body. Nothing at all when an entry needs
        the general way. Raises ``RecordError`` for a body that is no batch."""
        sys_flag, store_ms, shared = shared_values
        topic, queue_id, topic_field = queue.topic, queue.queue_id, queue.topic_field
        unpack, pack_head, pack_unit = BATCH_ENTRY.unpack_from, _RECORD_HEAD.pack, UNIT.pack
        chunks: list[bytes] = []
        units: list[bytes] = []
        noted: list[Noted] = []
        queue_offset, log_offset, around = queue.max_offset, self._log.end, _FIXED_BYTES + len(topic_field)
        position, end = 0, len(data)
        # One search through all of it spares three in each message.
        tagged = _TAG_NAME in data
        if not tagged and b"KEYS\x01" not in data and sys_flag >= 0:
            sys_flag += UNIQUE_KEY_ONLY
        # Hot: two thirds of what a message of a batch costs. Body and properties are copied with the size that
        # stands before them, which record and entry have in common.
        while position < end:
            try:
                entry_size, _, _, flag, body_size = unpack(data, position)
            except struct_error:
                raise RecordError(f"batch entry {len(units)}: {end - position} bytes are too few") from None
            start = position + _ENTRY_BYTES
            body_end = start + body_size
            position += entry_size
            if body_size < 0 or body_end + 2 > position or position > end:
                raise RecordError(
                    f"batch entry {len(units)}: a size of {entry_size} with a body of {body_size} is wrong"
                )
            properties = data[body_end + 2 : position]
            properties_size = len(properties)
            if (data[body_end] << 8 | data[body_end + 1]) != properties_size:
                raise RecordError(f"batch entry {len(units)}: its properties do not end with it")
            odd = (properties_size >= HOLE_BYTES and _HOLE in properties) or properties[-1:] == _ZERO
            if odd or properties_size > PROPERTIES_BYTES_MAX or body_size > self.message_bytes_max:
                return [], [], []
            size = around + body_size + properties_size
            chunks += (
                pack_head(
                    size,
                    MAGIC_V1,
                    crc32(data[start:body_end]) & CRC_MASK,
                    queue_id,
                    flag,
                    queue_offset,
                    log_offset,
                ),
                shared,
                data[start - 4 : body_end],
                topic_field,
                data[body_end:position],
            )
            if not tagged:
                tag_code = 0
            else:
                at = properties.rfind(_TAG_NEEDLE) + _TAG_NEEDLE_BYTES
                if at >= _TAG_NEEDLE_BYTES and (tag_end := properties.find(b"\x02", at)) > at:
                    tag_code = tags_code(properties[at:tag_end])
                else:
                    tag_code = tags_code(find_property(properties, _TAGS))
            units.append(pack_unit(log_offset, size, tag_code))
            noted.append((topic, properties, sys_flag, log_offset, store_ms))
            queue_offset += 1
            log_offset += size
        return chunks, units, noted

    # What is rare.
    def _undo(self, touched: list[ConsumeQueue]) -> None:
        for queue in reversed(touched):
            queue.drop_last()
        touched.clear()

    def _append_one_by_one(self, messages: Sequence[NewMessage]) -> list[Appended]:
        """A batch larger than a segment: still all or nothing, by cutting the log back on failure."""
        start = self._log.end
        arrival, self.on_arrival = self.on_arrival, None
        try:
            results = [self.append(message) for message in messages]
        except StoreError:
            if self._log.end > start:
                self._cut_back(start)
            raise
        finally:
            self.on_arrival = arrival
        if arrival is not None:
            for topic, queue_id in dict.fromkeys((message.topic, message.queue_id) for message in messages):
                arrival(topic, queue_id)
        return results

    def _create_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        if not self._long_topic_allowed and len(topic.encode("utf-8", "replace")) > TOPIC_BYTES_MAX_V1:
            raise MessageTooLarge(f"the topic has more than {TOPIC_BYTES_MAX_V1} bytes")
        return self._queues.create(topic, queue_id)

    def _too_large(self, message: NewMessage) -> MessageTooLarge:
        return MessageTooLarge(
            f"the message body has {len(message.body)} bytes, at most {self.message_bytes_max} are allowed"
        )

    def _illegal(self, messages: Sequence[NewMessage], error: Exception) -> StoreError:
        if any(len(message.properties) > PROPERTIES_BYTES_MAX for message in messages):
            return PropertiesTooLarge(str(error))
        return BadMessage(f"the message cannot be stored: {error}")

    def _roll(self, size: int) -> None:
        if size + BLANK_BYTES > self._segment_bytes:
            raise MessageTooLarge(f"a record of {size} bytes does not fit a log segment")
        self._log.roll()

    def write_tail(self, queue: ConsumeQueue) -> None:
        """Put a tail into its file; a refusal stops further appends until it can be written."""
        try:
            queue.write_tail()
        except OSError as error:
            # The message is stored; only its unit waits in memory.
            self._write_failed(error)

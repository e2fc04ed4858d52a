"""Converts messages to records, queue units and index keys, and back."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from struct import error as struct_error
from typing import Final, NamedTuple, TypeAlias

from orbitmq.errors import RecordError
from orbitmq.kernel.layout import (
    BATCH_ENTRY,
    BLANK,
    BLANK_BYTES,
    BORN_V6,
    FIXED,
    HOLE_BYTES,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    INDEX_KEY,
    INT,
    LENGTH_16,
    LONG,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    STORE_V6,
    SYS_FLAG_AT,
    TOPIC_BYTES_MAX,
    TOPIC_BYTES_MAX_V1,
    UNIT,
)
from orbitmq.kernel.plain.hashes import body_crc, java_hash_bytes

__all__ = [
    "KEYS",
    "KEYS_AND_TAG",
    "NO_KEYS",
    "Message",
    "dispatch_records",
    "encode_record",
    "encode_records",
    "find_property",
    "hash_keys",
    "record_starts",
    "tag_code",
    "walk_records",
]

NO_KEYS, KEYS, KEYS_AND_TAG = 0, 1, 2
"""Selects the index keys; tags are indexed since Apache 5.5."""
PREPARED: Final = 0x4
"""Set in a transaction's prepared and rolled-back messages, which are not in any queue."""
ROLLED_BACK: Final = 0xC
"""Both transaction bits; such a message has no index entry either."""


class Message(NamedTuple):
    """A message to be stored. The kernel takes any tuple of these fields in this order."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    """Property text, ready to store."""
    born_timestamp_ms: int
    born_host: bytes
    """Address and port: 8 bytes (IPv4) or 20 (IPv6)."""
    flag: int = 0
    sys_flag: int = 0
    """The host bits (0x10, 0x20) are set from the lengths of the addresses."""
    reconsume_times: int = 0
    prepared_offset: int = 0


Encoded: TypeAlias = tuple[bytes, list[int], list[int], list[bytes], bytes]
"""The concatenated records; each message's log offset and queue offset; queue units by slot; ``INDEX_KEY`` keys."""

Walked: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, int, int, bytes, bytes]
"""One whole record: position, size, magic, body CRC, queue id, queue offset, log offset, sys flag, store time, body
position, body size, topic, properties. Positions are in the walked data."""

Dispatched: TypeAlias = tuple[list[tuple[bytes, int, int, bytes]], int, int, int, bytes]
"""Per queue: topic, queue id, queue offset of its first message, units. Then the number of records, the newest store
time, the position after the last record, and the index keys (``INDEX_KEY``)."""


def encode_records(
    messages: Sequence[tuple[str, int, bytes, bytes, int, bytes, int, int, int, int]],
    slots: Sequence[int],
    next_offsets: Sequence[int],
    log_offset: int,
    store_ms: int,
    store_host: bytes,
    with_keys: int,
) -> Encoded:
    """Encode everything needed to store messages from ``log_offset`` on.

    ``slots`` assigns each message to a queue, ``next_offsets`` holds each queue's next offset. Raises ``RecordError``
    for a message that cannot be stored: one without a body, with an empty or too long topic, with properties beyond
    32,767 bytes, with a host that is not 8 or 20 bytes long, with numbers that do not fit their field, or with an
    unknown slot.
    """
    try:
        return _encode_all(messages, slots, next_offsets, log_offset, store_ms, store_host, with_keys)
    except (struct_error, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise RecordError(f"the message cannot be stored: {error}") from error


def _encode_all(
    messages: Sequence[tuple[str, int, bytes, bytes, int, bytes, int, int, int, int]],
    slots: Sequence[int],
    next_offsets: Sequence[int],
    log_offset: int,
    store_ms: int,
    store_host: bytes,
    with_keys: int,
) -> Encoded:
    for number in (*next_offsets, log_offset, store_ms):
        LONG.pack(number)
    _host_bit(store_host, STORE_V6)
    next_offsets = list(next_offsets)
    records: list[bytes] = []
    log_offsets: list[int] = []
    queue_offsets: list[int] = []
    units: list[list[bytes]] = [[] for _ in next_offsets]
    keys: list[bytes] = []
    for message, slot in zip(messages, slots, strict=True):
        sys_flag = message[7]
        if not 0 <= slot < len(next_offsets):
            raise RecordError(f"there is no slot {slot}")
        in_queue = not sys_flag & PREPARED
        queue_offset = next_offsets[slot] if in_queue else 0
        record = _encode(message, queue_offset, log_offset, store_ms, store_host)
        records.append(record)
        log_offsets.append(log_offset)
        queue_offsets.append(queue_offset)
        values = _values(bytes(message[3]))
        if in_queue:
            units[slot].append(UNIT.pack(log_offset, len(record), _tag_code(values)))
            next_offsets[slot] += 1
        for hashed in _key_hashes(message[0].encode(), values, sys_flag, with_keys):
            keys.append(INDEX_KEY.pack(hashed, log_offset, store_ms))
        log_offset += len(record)
    return (
        b"".join(records),
        log_offsets,
        queue_offsets,
        [b"".join(each) for each in units],
        b"".join(keys),
    )


def encode_record(
    message: tuple[str, int, bytes, bytes, int, bytes, int, int, int, int],
    queue_offset: int,
    log_offset: int,
    store_ms: int,
    store_host: bytes,
) -> bytes:
    """Encode one record. It gets the given queue offset, whatever its flags. Raises ``RecordError``."""
    try:
        return _encode(message, queue_offset, log_offset, store_ms, store_host)
    except (struct_error, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise RecordError(f"the message cannot be stored: {error}") from error


def _encode(
    message: tuple[str, int, bytes, bytes, int, bytes, int, int, int, int],
    queue_offset: int,
    log_offset: int,
    store_ms: int,
    store_host: bytes,
) -> bytes:
    topic, queue_id, body, properties, born_ms, born_host, flag, sys_flag, times, prepared = message
    if body is None:
        raise RecordError("the message has no body")
    host_bits = _host_bit(born_host, BORN_V6) | _host_bit(store_host, STORE_V6)
    layout = FIXED[host_bits]
    name = topic.encode()
    if not name or 0 in name:
        raise RecordError("the topic is empty" if not name else "the topic contains a zero byte")
    if len(name) > TOPIC_BYTES_MAX:
        raise RecordError(f"the topic has {len(name)} bytes, at most {TOPIC_BYTES_MAX} are allowed")
    is_long = len(name) > TOPIC_BYTES_MAX_V1
    topic_field = (LENGTH_16.pack(len(name)) if is_long else bytes((len(name),))) + name
    properties = _storable(properties)
    fixed = layout.pack(
        layout.size + len(body) + len(topic_field) + LENGTH_16.size + len(properties),
        MAGIC_V2 if is_long else MAGIC_V1,
        body_crc(body),
        queue_id,
        flag,
        queue_offset,
        log_offset,
        sys_flag & ~(BORN_V6 | STORE_V6) | host_bits,
        born_ms,
        born_host,
        store_ms,
        store_host,
        times,
        prepared,
        len(body),
    )
    return b"".join((fixed, body, topic_field, LENGTH_16.pack(len(properties)), properties))


def _host_bit(host: bytes, bit: int) -> int:
    """Returns ``bit``, the system flag for an IPv6 host, if the host is that long; otherwise 0. Raises
    ``RecordError`` for a host of another length."""
    if len(host) not in (HOST_V4_BYTES, HOST_V6_BYTES):
        raise RecordError(f"a host takes {HOST_V4_BYTES} or {HOST_V6_BYTES} bytes, not {len(host)}")
    return bit if len(host) == HOST_V6_BYTES else 0


def _storable(properties: bytes) -> bytes:
    """Returns the property text in a form that is safe to store.

    A scan treats zeros at the end of a record, or a sector of zeros inside it, as a write that never reached the
    disk. So text that ends with a zero gets the terminator that senders of 4.9 omit, which changes no property, and a
    sector of zeros in a value is refused.
    """
    if properties and not properties[-1]:
        properties += b"\x02"
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise RecordError(
            f"properties have {len(properties)} bytes, at most {PROPERTIES_BYTES_MAX} are allowed"
        )
    if bytes(HOLE_BYTES) in properties:
        raise RecordError(f"properties contain {HOLE_BYTES} zero bytes in a row")
    return properties


def split_entries(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Returns flag, body and properties of each entry of a batch body. Raises ``RecordError`` unless the body ends
    exactly with its last entry."""
    if not data:
        raise RecordError("the batch is empty")
    entries: list[tuple[int, bytes, bytes]] = []
    position = 0
    while position < len(data):
        if len(data) - position < BATCH_ENTRY.size:
            raise RecordError(f"batch entry {len(entries)}: {len(data) - position} bytes are too few")
        size, _, _, flag, body_size = BATCH_ENTRY.unpack_from(data, position)
        start = position + BATCH_ENTRY.size
        body_end, position = start + body_size, position + size
        if body_size < 0 or body_end + 2 > position or position > len(data):
            raise RecordError(
                f"batch entry {len(entries)}: a size of {size} with a body of {body_size} is wrong"
            )
        if int.from_bytes(data[body_end : body_end + 2], "big") != position - body_end - 2:
            raise RecordError(f"batch entry {len(entries)}: its properties do not end with it")
        entries.append((flag, data[start:body_end], data[body_end + 2 : position]))
    return entries


def _values(properties: bytes) -> dict[bytes, bytes]:
    """Returns values by name. If several pairs have the same name, the last non-empty value counts."""
    pairs = [pair.partition(b"\x01") for pair in properties.split(b"\x02")]
    return {name: value for name, _, value in pairs if value}


def find_property(properties: bytes, name: bytes) -> bytes | None:
    """Returns the value of the last non-empty pair with that name; None if there is none."""
    return _values(properties).get(name) if name in properties else None


def tag_code(properties: bytes) -> int:
    """Returns the tag code of a message's queue unit: the hash of its tag, or 0 if it has none."""
    return _tag_code(_values(properties))


def _tag_code(values: dict[bytes, bytes]) -> int:
    return java_hash_bytes(values.get(b"TAGS", b""))


def _key_hashes(topic: bytes, values: dict[bytes, bytes], sys_flag: int, with_keys: int) -> list[int]:
    """Returns the hashes of ``topic#UNIQ_KEY``, ``topic#key`` for each word of KEYS, and ``topic#T#tag``, in
    order."""
    keys: list[bytes] = []
    if with_keys == NO_KEYS or sys_flag & ROLLED_BACK == ROLLED_BACK:
        return []
    if b"UNIQ_KEY" in values:
        keys.append(values[b"UNIQ_KEY"])
    keys += [word for word in values.get(b"KEYS", b"").split(b" ") if word]
    if with_keys == KEYS_AND_TAG and b"TAGS" in values:
        keys.append(b"T#" + values[b"TAGS"])
    hashes = [java_hash_bytes(topic + b"#" + key) for key in keys]
    # The absolute value, and 0 where that overflows in Java.
    return [0 if hashed == -0x80000000 else abs(hashed) for hashed in hashes]


def hash_keys(records: Sequence[tuple[str, bytes, int, int, int]], with_keys: int) -> bytes:
    """Returns the index keys of stored records (``INDEX_KEY``).

    A record is a tuple of topic, properties, system flag, log offset and store time.
    """
    return b"".join(
        INDEX_KEY.pack(hashed, log_offset, store_ms)
        for topic, properties, sys_flag, log_offset, store_ms in records
        for hashed in _key_hashes(topic.encode("utf-8", "replace"), _values(properties), sys_flag, with_keys)
    )


def record_starts(data: bytes | bytearray | memoryview, start: int, end: int) -> tuple[bytes, int]:
    """Returns the starts of the records in ``data[start:end]``, as native signed 64-bit numbers, and the end of the
    last record.

    Checks only size and magic, for callers that check the rest themselves. Stops at the first position without a
    record whose size lets it end by ``end``. Raises ``OverflowError`` for a negative position.
    """
    if start < 0 or end < 0:
        raise OverflowError("a position is negative")
    view = memoryview(data)
    end = min(end, len(view))
    found = array("q")
    position, last, unpack = start, end - RECORD_BYTES_MIN, SIZE_AND_MAGIC.unpack_from
    while position <= last:
        size, magic = unpack(view, position)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or not RECORD_BYTES_MIN <= size <= end - position:
            break
        found.append(position)
        position += size
    return found.tobytes(), position


def walk_records(
    data: bytes, start: int, end: int, check_crc: bool, log_base: int | None
) -> tuple[list[Walked], int]:
    """Returns the whole records from ``start`` on, and the position after the last one.

    A record must be completely inside ``data[start:end]``. If ``log_base`` (the log offset of position 0) is given,
    the record must contain its own log offset. With ``check_crc`` its body must match its checksum.
    """
    return _walk(data, start, end, check_crc, log_base, sys.maxsize)


def _walk(
    data: bytes, start: int, end: int, check_crc: bool, log_base: int | None, count_max: int
) -> tuple[list[Walked], int]:
    walked: list[Walked] = []
    position = start
    while len(walked) < count_max:
        record = record_at(data, position, min(end, len(data)), check_crc, log_base)
        if record is None:
            break
        walked.append(record)
        position += record[1]
    return walked, position


def record_at(data: bytes, position: int, end: int, check_crc: bool, log_base: int | None) -> Walked | None:
    """Returns the whole record at a position, according to the rules of ``walk_records``; None if there is none."""
    if position < 0 or position > end - RECORD_BYTES_MIN:
        return None
    (sys_flag,) = INT.unpack_from(data, position + SYS_FLAG_AT)
    layout = FIXED[sys_flag & (BORN_V6 | STORE_V6)]
    if position + layout.size > end:
        return None
    fields = layout.unpack_from(data, position)
    size, magic, crc, queue_id, _, queue_offset, log_offset, sys_flag, _, _, stored_ms = fields[:11]
    body_start, record_end = position + layout.size, position + size
    body_end = body_start + fields[14]
    if fields[14] < 0 or body_end + 3 > record_end or record_end > end:
        return None
    if magic not in (MAGIC_V1, MAGIC_V2):
        return None
    topic_start = body_end + (1 if magic == MAGIC_V1 else 2)
    topic_end = topic_start + int.from_bytes(data[body_end:topic_start], "big")
    properties_start = topic_end + 2
    if properties_start > record_end:
        return None
    if int.from_bytes(data[topic_end:properties_start], "big") != record_end - properties_start:
        return None
    if log_base is not None and log_offset != log_base + position:
        return None
    if check_crc and body_crc(data[body_start:body_end]) != crc:
        return None
    topic, properties = data[topic_start:topic_end], data[properties_start:record_end]
    is_open = (properties or topic).endswith(b"\0")
    if is_open and _is_torn(data, record_end, end, (record_end + (log_base or 0)) % HOLE_BYTES == 0):
        return None
    if bytes(HOLE_BYTES) in properties:
        return None
    return (
        *(position, size, magic, crc, queue_id, queue_offset, log_offset, sys_flag, stored_ms),
        *(body_start, fields[14], topic, properties),
    )


def _is_torn(data: bytes, record_end: int, end: int, at_sector_end: bool) -> bool:
    """Whether a record with consistent sizes, but with text that ends in a zero, was written only partly.

    The checksum covers only the body, so a power failure after the body was written leaves zeros in place of topic
    and properties. We never store text that ends with a zero, but Apache does if a client sends it. So such a record
    is accepted if another one follows directly, unless it ends at a sector boundary, because then the zeros may be a
    lost sector.
    """
    if record_end == end:
        return False
    if at_sector_end or record_end + BLANK_BYTES > end:
        return True
    return BLANK.unpack_from(data, record_end)[1] not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)


def dispatch_records(
    data: bytes, start: int, end: int, check_crc: bool, log_base: int, with_keys: int, count_max: int
) -> Dispatched | None:
    """Returns the queue units and index keys of up to ``count_max`` whole records from ``start`` on, in bulk.

    Returns None when the offsets of a queue's messages are not consecutive. Only a record-by-record scan can then
    tell what happened.
    """
    if count_max < 0:
        raise OverflowError("count must not be negative")
    walked, position = _walk(data, start, end, check_crc, log_base, count_max)
    queues: dict[tuple[bytes, int], tuple[int, list[bytes]]] = {}
    keys: list[bytes] = []
    newest_ms = 0
    for (
        _,
        size,
        _,
        _,
        queue_id,
        queue_offset,
        log_offset,
        sys_flag,
        stored_ms,
        *_,
        topic,
        properties,
    ) in walked:
        newest_ms = max(newest_ms, stored_ms)
        values = _values(properties)
        for hashed in _key_hashes(topic, values, sys_flag, with_keys):
            keys.append(INDEX_KEY.pack(hashed, log_offset, stored_ms))
        if sys_flag & PREPARED:
            continue
        first, units = queues.setdefault((topic, queue_id), (queue_offset, []))
        if queue_offset != first + len(units):
            return None
        units.append(UNIT.pack(log_offset, size, _tag_code(values)))
    return (
        [(topic, queue_id, first, b"".join(units)) for (topic, queue_id), (first, units) in queues.items()],
        len(walked),
        newest_ms,
        position,
        b"".join(keys),
    )

"""Encodes and decodes messages (Apache: ``MessageExtEncoder`` and ``MessageDecoder``).

Two rules shape this module. A stored record is written once per message, so ``encode_record`` packs the whole fixed
part with one ``struct`` call and joins the rest, without a builder or validation beyond what packing does. And
whatever bytes a socket or a disk delivers, the decoders raise only ``RecordError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import error as struct_error
from typing import Final, Protocol
from zlib import crc32

import msgspec

from orbitmq.codes import COMPRESSION_MASK, SysFlag
from orbitmq.errors import RecordError
from orbitmq.kernel import encode_record as kernel_encode_record
from orbitmq.kernel import record_values
from orbitmq.kernel.layout import (
    BLANK,
    CRC_MASK,
    FIXED,
    FIXED_V4,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
)
from orbitmq.record.compression import decompress_body
from orbitmq.record.ids import offset_message_id
from orbitmq.record.properties import decode_properties, find_property

__all__ = [
    "Encodable",
    "Record",
    "decode_record",
    "decode_records",
    "encode_record",
    "encode_records",
    "record_size",
]

_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)
_HOSTS_V6: Final = _BORN_V6 | _STORE_V6
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_unpack_v4: Final = FIXED_V4.unpack_from

# 88 bytes of fixed part and two bytes of properties size; the topic's size travels with the topic.


class Encodable(Protocol):
    """The attributes of a message to be stored. ``Record`` and the store's class for new messages both have them."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def properties(self) -> bytes:
        """The raw property text."""

    @property
    def born_timestamp_ms(self) -> int: ...
    @property
    def born_host(self) -> bytes:
        """The sender's address and port in 8 or 20 bytes (``hosts.py``)."""

    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int:
        """The system flag. The encoder sets its two host bits from the lengths of the hosts."""

    @property
    def reconsume_times(self) -> int: ...
    @property
    def prepared_offset(self) -> int: ...


class Record(msgspec.Struct, gc=False):
    """A decoded message. ``properties`` and the hosts stay raw, because most readers need only a few of them."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    born_timestamp_ms: int
    born_host: bytes
    flag: int
    sys_flag: int
    reconsume_times: int
    prepared_offset: int
    queue_offset: int
    log_offset: int
    store_timestamp_ms: int
    store_host: bytes
    body_crc: int
    magic: int
    size: int
    """Bytes of the stored record, whatever size ``body`` was decompressed to."""

    def find(self, name: bytes) -> bytes | None:
        """Returns one property, without parsing the others; None if the record does not have it."""
        return find_property(self.properties, name)

    def property_map(self) -> dict[str, str]:
        """Returns all properties. They are decoded again on every call."""
        return decode_properties(self.properties)

    @property
    def offset_message_id(self) -> str:
        """The id by which a broker finds the record. It contains the store host and the log offset."""
        return offset_message_id(self.store_host, self.log_offset)

    @property
    def unique_key(self) -> str | None:
        """The id that the sending client gave the message; None if it did not."""
        value = find_property(self.properties, b"UNIQ_KEY")
        return None if value is None else value.decode("utf-8", "replace")


@lru_cache(maxsize=8192)
def _topic_text(data: bytes) -> str:
    """Returns the text of a topic field. Cached, so that all records of a topic share one ``str``."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RecordError("the topic is not UTF-8") from None


def encode_record(
    message: Encodable, queue_offset: int, log_offset: int, store_timestamp_ms: int, store_host: bytes
) -> bytes:
    """Returns the record to store: V1, or V2 if the topic is longer than 127 bytes.

    Raises ``RecordError`` for a missing body, an empty or too long topic, properties beyond 32,767 bytes, a host that
    is not 8 or 20 bytes long, and numbers that do not fit their field.
    """
    return kernel_encode_record(_fields(message), queue_offset, log_offset, store_timestamp_ms, store_host)


def _fields(message: Encodable) -> tuple[str, int, bytes, bytes, int, bytes, int, int, int, int]:
    return (
        message.topic,
        message.queue_id,
        message.body,
        message.properties,
        message.born_timestamp_ms,
        message.born_host,
        message.flag,
        message.sys_flag,
        message.reconsume_times,
        message.prepared_offset,
    )


def encode_records(
    messages: Sequence[Encodable],
    queue_offsets: Sequence[int],
    log_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
) -> list[bytes]:
    """Encode consecutive records from ``log_offset`` on. Raises like ``encode_record``."""
    encoded: list[bytes] = []
    append = encoded.append
    for message, queue_offset in zip(messages, queue_offsets, strict=True):
        record = encode_record(message, queue_offset, log_offset, store_timestamp_ms, store_host)
        log_offset += len(record)
        append(record)
    return encoded


def record_size(message: Encodable, store_host: bytes) -> int:
    """Returns the length of the record that ``encode_record`` will return. Raises like ``encode_record``."""
    return len(encode_record(message, 0, 0, 0, store_host))


def decode_record(
    buffer: bytes | bytearray | memoryview,
    offset: int = 0,
    *,
    check_crc: bool = True,
    decompress: bool = False,
) -> Record:
    """Returns the record that starts at ``offset``. Bytes after it are ignored.

    ``decompress`` inflates a compressed body and clears its two bits in ``sys_flag``, so that the message can be
    stored again as it is. Raises ``RecordError`` for anything that is not a whole record.
    """
    if type(buffer) is not bytes:
        buffer, offset = _copy_one(buffer, offset), 0
    try:
        # fmt: off
        (size, magic, stored_crc, queue_id, flag, queue_offset, log_offset, sys_flag,
         born_timestamp_ms, born_host, store_timestamp_ms, store_host,
         reconsume_times, prepared_offset, body_size) = _unpack_v4(buffer, offset)
        # fmt: on
    except struct_error:
        raise _too_short(len(buffer) - offset) from None
    position = offset + 88
    if sys_flag & _HOSTS_V6:
        layout = FIXED[sys_flag & _HOSTS_V6]
        try:
            (born_host, store_timestamp_ms, store_host, reconsume_times, prepared_offset, body_size) = (
                layout.unpack_from(buffer, offset)[9:]
            )
        except struct_error:
            raise RecordError(f"a record with IPv6 hosts needs {layout.size} bytes and more") from None
        position = offset + layout.size
    end = offset + size
    body_end = position + body_size
    # The topic size and one more byte must fit, so that the reads of the sizes below stay inside the buffer.
    if body_size < 0 or body_end + 3 > end or end > len(buffer):
        raise RecordError(_size_fault(size, magic, body_size, len(buffer) - offset))
    if magic == MAGIC_V1:
        topic_start = body_end + 1
        topic_end = topic_start + buffer[body_end]
    elif magic == MAGIC_V2:
        topic_start = body_end + 2
        topic_end = topic_start + (buffer[body_end] << 8 | buffer[body_end + 1])
    else:
        raise RecordError(_magic_fault(magic))
    properties_start = topic_end + 2
    if properties_start > end:
        raise RecordError(f"the topic ends {properties_start - end} bytes after the record")
    if (buffer[topic_end] << 8 | buffer[topic_end + 1]) != end - properties_start:
        raise RecordError(f"the properties do not end with the record of {size} bytes")
    body = buffer[position:body_end]
    if check_crc and crc32(body) & CRC_MASK != stored_crc:
        raise RecordError(f"body CRC is {crc32(body) & CRC_MASK:#010x}; the record has {stored_crc:#010x}")
    if decompress and sys_flag & _COMPRESSED:
        body = decompress_body(body, sys_flag)
        sys_flag &= ~(_COMPRESSED | COMPRESSION_MASK)
    # fmt: off
    return Record(
        _topic_text(buffer[topic_start:topic_end]), queue_id, body, buffer[properties_start:end],
        born_timestamp_ms, born_host, flag, sys_flag, reconsume_times, prepared_offset,
        queue_offset, log_offset, store_timestamp_ms, store_host, stored_crc, magic, size,
    )
    # fmt: on


def _copy_one(buffer: bytes | bytearray | memoryview, offset: int) -> bytes:
    """Returns a copy of the bytes of one record, so that its parts are slices of ``bytes``. The size is checked
    before copying."""
    available = len(buffer) - offset
    if offset < 0 or available < RECORD_BYTES_MIN:
        raise _too_short(available)
    size, magic = BLANK.unpack_from(buffer, offset)
    if magic not in (MAGIC_V1, MAGIC_V2) or size > available:
        raise RecordError(_size_fault(size, magic, 0, available))
    return bytes(buffer[offset : offset + size])


def decode_records(
    buffer: bytes | bytearray | memoryview, *, check_crc: bool = True, decompress: bool = False
) -> list[Record]:
    """Returns the consecutive records of a pull, pop or query response.

    A body that cannot be inflated stays compressed and keeps ``SysFlag.COMPRESSED``, so that one sender's mistake
    does not make the records after it unreadable.
    """
    data = buffer if type(buffer) is bytes else bytes(buffer)
    values = record_values(data, check_crc)
    if values is None:
        raise _first_fault(data, check_crc)
    records = [Record(*fields) for fields in values]
    if decompress:
        for record in records:
            if record.sys_flag & _COMPRESSED:
                try:
                    record.body = decompress_body(record.body, record.sys_flag)
                except RecordError:
                    continue
                record.sys_flag &= ~(_COMPRESSED | COMPRESSION_MASK)
    return records


def _first_fault(data: bytes, check_crc: bool) -> RecordError:
    """Returns the error in records that the kernel refused."""
    offset = 0
    try:
        while offset < len(data):
            offset += decode_record(data, offset, check_crc=check_crc).size
    except RecordError as error:
        return error
    raise AssertionError("the kernel refused records that can be decoded")


def _too_short(available: int) -> RecordError:
    return RecordError(f"a record needs at least {RECORD_BYTES_MIN} bytes, got {max(available, 0)}")


def _size_fault(size: int, magic: int, body_size: int, available: int) -> str:
    if magic not in (MAGIC_V1, MAGIC_V2):
        return _magic_fault(magic)
    if size > available:
        return f"the record has a size of {size} bytes, but only {available} are left"
    return f"a body of {body_size} bytes does not fit a record of {size}"


def _magic_fault(magic: int) -> str:
    if magic == MAGIC_BLANK:
        return "an end-of-segment marker is not a message"
    return f"magic {magic:#010x} is not that of a message"

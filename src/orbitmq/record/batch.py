"""Encodes and splits bodies that contain several messages (Apache: ``MessageDecoder.encodeMessages`` and
``decodeMessages``).

The body of a SEND_BATCH_MESSAGE is a sequence of entries; topic, queue and times come from the request header. The
broker splits it into ordinary records. On a topic of the batch queue type, one record keeps the sequence as its body,
with ``SysFlag.NEED_UNWRAP | INNER_BATCH``, and the consumer splits it (``unwrap``).
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import error as struct_error
from typing import Final, NamedTuple

import msgspec

from orbitmq.codes import SysFlag
from orbitmq.errors import RecordError
from orbitmq.kernel.layout import BATCH_ENTRY, LENGTH_16, PROPERTIES_BYTES_MAX
from orbitmq.record.codec import Record
from orbitmq.record.hashing import body_crc

__all__ = ["BatchEntry", "encode_batch", "is_inner_batch", "split_batch", "unwrap"]

_INNER: Final = int(SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH)
_INNER_OR_COMPRESSED: Final = _INNER | int(SysFlag.COMPRESSED)
_FIXED: Final = BATCH_ENTRY.size
_OVERHEAD: Final = BATCH_ENTRY.size + LENGTH_16.size
assert _OVERHEAD == 22


class BatchEntry(NamedTuple):
    """One message of a batch. ``properties`` is the raw text."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(entries: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Returns the body of a SEND_BATCH_MESSAGE. Each entry consists of a message's flag, body and raw properties.
    Raises ``RecordError`` for an entry that does not fit."""
    parts: list[bytes] = []
    for flag, body, properties in entries:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise RecordError(
                f"properties have {len(properties)} bytes, at most {PROPERTIES_BYTES_MAX} are allowed"
            )
        try:
            head = BATCH_ENTRY.pack(_OVERHEAD + len(body) + len(properties), 0, 0, flag, len(body))
        except struct_error as error:
            raise RecordError(f"a batch entry cannot be encoded: {error}") from None
        parts += (head, body, LENGTH_16.pack(len(properties)), properties)
    return b"".join(parts)


def split_batch(body: bytes | bytearray | memoryview) -> list[tuple[int, bytes, bytes]]:
    """Returns flag, body and raw properties of each entry, like ``BatchEntry`` but as plain tuples.

    Raises ``RecordError`` for an empty batch, and unless the body ends exactly with its last entry. An entry takes at
    least 22 bytes, so the length of the body limits the result.
    """
    data = body if type(body) is bytes else bytes(body)
    end = len(data)
    if not end:
        raise RecordError("the batch is empty")
    entries: list[tuple[int, bytes, bytes]] = []
    unpack = BATCH_ENTRY.unpack_from
    position = 0
    try:
        while position < end:
            size, _, _, flag, body_size = unpack(data, position)
            start = position + _FIXED
            body_end = start + body_size
            position += size
            # This also refuses an entry too small to advance past.
            if body_size < 0 or body_end + 2 > position or position > end:
                raise RecordError(
                    f"batch entry {len(entries)}: a size of {size} with a body of {body_size} is wrong"
                )
            if (data[body_end] << 8 | data[body_end + 1]) != position - body_end - 2:
                raise RecordError(f"batch entry {len(entries)}: its properties do not end with it")
            entries.append((flag, data[start:body_end], data[body_end + 2 : position]))
    except struct_error:
        raise RecordError(f"batch entry {len(entries)}: {end - position} bytes are too few") from None
    return entries


def is_inner_batch(sys_flag: int) -> bool:
    """Whether the body of a record contains several messages that can be split. A compressed body cannot be split."""
    return sys_flag & _INNER_OR_COMPRESSED == _INNER


def unwrap(record: Record) -> list[Record]:
    """Returns the messages inside a record, or the record itself if it contains just one.

    The record must have been decoded with ``decompress=True``. Message i of a batch has the queue offset of the batch
    plus i. Fields that entries do not have are taken from the record.
    """
    if not is_inner_batch(record.sys_flag):
        return [record]
    return [
        msgspec.structs.replace(
            record,
            flag=flag,
            body=body,
            properties=properties,
            queue_offset=record.queue_offset + index,
            sys_flag=record.sys_flag & ~_INNER,
            body_crc=body_crc(body),
        )
        for index, (flag, body, properties) in enumerate(split_batch(record.body))
    ]

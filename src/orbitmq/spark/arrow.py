"""Converts encoded records to an Arrow batch without creating a Python object per field.

A pull response or log segment holds consecutive records (``kernel/layout.py``). The fixed parts of all of them are
copied into one array of structures, whose columns numpy swaps to native byte order. Variable parts use a trick: a
buffer with increasing positions ``start0, end0, start1, end1, ...`` *is* an Arrow binary array whose even elements
are the wanted parts and whose odd elements are the gaps between them. Taking the even elements is one C loop of
memory copies. The kernel parses property texts.

Rows that need more work (a compressed body, text that is not UTF-8) are found by array operations and then handled
one by one. Either they are few, or the work itself (inflating) costs far more than the loop.

Whatever the input, the functions raise only ``RecordError``. Every position is checked against the buffer before
anything is read there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.codes import SysFlag
from orbitmq.errors import RecordError
from orbitmq.kernel import body_crcs, property_pairs, property_values, record_starts
from orbitmq.kernel.layout import (
    BORN_HOST_AT,
    FIXED_FIELDS,
    FIXED_V4,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    HOST_V6_MORE_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
)
from orbitmq.record.batch import unwrap
from orbitmq.record.codec import decode_record, encode_record
from orbitmq.record.compression import decompress_body
from orbitmq.record.hosts import host_text
from orbitmq.spark.schema import arrow_schema

__all__ = [
    "Positions",
    "Records",
    "decode_records",
    "expand_batches",
    "read_numbers",
    "scan_into",
    "scan_records",
]

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_BINARY: Final = pa.binary()
_SPAN_MAX: Final = 0x7FFF_FFFF
"""The longest buffer, counted from the first record, because positions in an Arrow binary array are 32 bits wide."""

_TYPES: Final = {"i": ">i4", "I": ">u4", "q": ">i8", "8s": "V8"}
_FIXED: Final = np.dtype(
    [
        (name, _TYPES[code])
        for name, code in zip(FIXED_FIELDS, re.findall(r"\d*[a-zA-Z]", FIXED_V4.format), strict=True)
    ]
)
assert _FIXED.itemsize == FIXED_V4.size, "persisted: the fixed part of every record"

_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)
_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_TIMESTAMP_MS_MAX: Final = 2**63 // 1000 - 1
_PROPERTY: Final = {"keys": b"KEYS", "tags": b"TAGS", "msg_id": b"UNIQ_KEY"}
"""Columns that hold the value of a single property."""
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def scan_records(buffer: bytes | bytearray | memoryview, start: int, end: int) -> Positions:
    """Returns where records begin in ``buffer[start:end]``; ``start`` must be the beginning of a record.

    Stops at the first place without a whole record: a marker, zeroes, a torn or truncated record, or ``end``. Raises
    nothing, because only the caller knows which of these to expect.
    """
    return np.frombuffer(record_starts(buffer, start, end)[0], np.int64)


def scan_into(starts: list[int], buffer: bytes | bytearray | memoryview, start: int, end: int) -> int:
    """Like ``scan_records``, but appends to a list and returns the position where the scan stopped. Use it for many
    small parts of a buffer."""
    found, position = record_starts(buffer, start, end)
    starts.extend(memoryview(found).cast("q"))
    return position


def decode_records(
    buffer: bytes | bytearray | memoryview,
    starts: Positions,
    *,
    broker: str | None,
    columns: Sequence[str],
    verify_crc: bool,
) -> pa.RecordBatch:
    """Decodes the records that begin at ``starts`` (increasing) into one batch with these ``columns``.

    ``broker`` fills the column of that name. Raises ``RecordError`` for anything that is not a whole record, and,
    with ``verify_crc``, for a body that does not match its checksum.
    """
    return Records(buffer, starts).batch(columns, broker=broker, verify_crc=verify_crc)


def read_numbers(buffer: bytes | bytearray | memoryview, starts: Positions, field: str) -> Positions:
    """Returns one number from the fixed part of each record. ``field`` must come before ``born_host``, because IPv6
    hosts shift all later fields.

    ``starts`` must come from ``scan_records``, because they are not checked against the buffer again.
    """
    dtype, offset = _FIXED.fields[field][:2]  # type: ignore[index]  # a structure has fields
    assert offset < BORN_HOST_AT, field
    count = len(buffer) - offset - dtype.itemsize + 1
    everywhere: Any = np.ndarray((count,), f"V{dtype.itemsize}", buffer, offset, (1,))
    numbers: Positions = everywhere[starts].view(dtype).astype(np.int64)
    return numbers


def expand_batches(buffer: bytes | bytearray | memoryview, starts: Positions) -> bytes:
    """Returns the same messages with batch records (topics of the batch queue type) expanded to one record per
    message."""
    records: list[bytes] = []
    for start in starts.tolist():
        for record in unwrap(decode_record(buffer, start, decompress=True)):
            stored = record.queue_offset, record.log_offset, record.store_timestamp_ms, record.store_host
            records.append(encode_record(record, *stored))
    return b"".join(records)


class Records:
    """Records parsed once, from which any number of batches with different columns can be created. ``starts`` must
    increase.

    Raises the same errors as ``decode_records``.
    """

    def __init__(self, buffer: bytes | bytearray | memoryview, starts: Positions) -> None:
        self._rows: _Rows | None = None
        if len(starts) == 0:
            return
        raw = np.frombuffer(buffer, np.uint8)
        first = int(starts[0])
        if first < 0 or int(starts[-1]) + RECORD_BYTES_MIN > len(raw):
            raise RecordError("a record begins outside of the buffer")
        if len(raw) > _SPAN_MAX:
            raw, starts = raw[first : first + _SPAN_MAX], starts - first
        self._rows = _Rows(raw, starts)

    def batch(self, columns: Sequence[str], *, broker: str | None, verify_crc: bool) -> pa.RecordBatch:
        """Returns a batch of all records with these columns."""
        schema = arrow_schema(columns)
        if self._rows is None:
            return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
        if verify_crc:
            self._rows.check_crc()
        self._rows.find_properties(columns)
        arrays = [self._rows.column(name, broker) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Rows:
    """The records of one buffer: the checked positions of all their parts, and a method that returns a column by
    name."""

    def __init__(self, raw: Bytes, starts: Positions) -> None:
        self._raw = raw
        self._starts = starts
        self._count = len(starts)
        fixed: Any = self._read(starts, _FIXED)
        self._fixed = fixed
        magic = fixed["magic"]
        is_v2 = magic == MAGIC_V2
        self._ends = ends = starts + fixed["size"]
        if not (is_v2 | (magic == MAGIC_V1)).all():
            raise RecordError("there is no record where one should begin: wrong magic")
        if (fixed["size"] < RECORD_BYTES_MIN).any() or int(ends.max()) > len(raw):
            raise RecordError("a record is longer than its buffer or shorter than a record can be")
        if (starts[1:] < ends[:-1]).any():
            raise RecordError("records overlap")
        self.sys_flag = fixed["sys_flag"].astype(np.int32)
        self._born_v6 = np.flatnonzero(self.sys_flag & _BORN_V6)
        self._store_v6 = np.flatnonzero(self.sys_flag & _STORE_V6)
        head_bytes: Any = FIXED_V4.size
        if len(self._born_v6) or len(self._store_v6):
            head_bytes = self._move_fields()
        self.body_start = starts + head_bytes
        self.body_end = body_end = self.body_start + fixed["body_size"]
        # The topic size and one more byte must fit, so that reading the sizes below cannot leave the buffer.
        if (fixed["body_size"] < 0).any() or (body_end + 3 > ends).any():
            raise RecordError("a body exceeds its record")
        topic_size = raw[body_end].astype(np.int64)
        self.topic_start = body_end + 1
        if is_v2.any():
            topic_size = np.where(is_v2, topic_size << 8 | raw[body_end + 1], topic_size)
            self.topic_start = body_end + 1 + is_v2
        self.topic_end = topic_end = self.topic_start + topic_size
        self.text_start = topic_end + 2
        if (self.text_start > ends).any():
            raise RecordError("a topic ends after its record")
        text_size = raw[topic_end].astype(np.int64) << 8 | raw[topic_end + 1]
        if (self.text_start + text_size != ends).any():
            raise RecordError("the properties do not end with their record")
        self._properties: _Properties | None = None
        self._topics: pa.Array | None = None

    def _read(self, positions: Positions, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Returns the value of ``dtype`` at each position. The positions must have been checked."""
        everywhere: Any = np.ndarray(
            (len(self._raw) - dtype.itemsize + 1,), np.dtype(f"V{dtype.itemsize}"), self._raw.data, 0, (1,)
        )
        values: npt.NDArray[Any] = everywhere[positions].view(dtype)
        return values

    def _move_fields(self) -> Positions:
        """Reads the fields after a 20-byte host again, from their shifted positions. Returns the size of each fixed
        part."""
        born = (self.sys_flag & _BORN_V6 != 0) * HOST_V6_MORE_BYTES
        store = (self.sys_flag & _STORE_V6 != 0) * HOST_V6_MORE_BYTES
        rows = np.flatnonzero(born | store)
        if (self._fixed["size"][rows] < RECORD_BYTES_MIN + born[rows] + store[rows]).any():
            raise RecordError("a record with IPv6 hosts is too short for them")
        for name in ("store_timestamp", "store_host", "reconsume_times", "prepared_offset", "body_size"):
            dtype, offset = _FIXED.fields[name][:2]  # type: ignore[index]  # a structure has fields
            shift = born if name in ("store_timestamp", "store_host") else born + store
            self._fixed[name][rows] = self._read(self._starts[rows] + offset + shift[rows], dtype)
        sizes: Positions = FIXED_V4.size + born + store
        return sizes

    def check_crc(self) -> None:
        """Raises ``RecordError`` unless every body matches its CRC."""
        ranges = np.empty(2 * self._count, np.int64)
        ranges[0::2] = self.body_start
        ranges[1::2] = self.body_end
        found = np.frombuffer(body_crcs(self._raw.data, ranges.tobytes()), np.uint32)
        wrong = np.flatnonzero(found != self._fixed["body_crc"])
        if len(wrong):
            row = int(wrong[0])
            raise RecordError(
                f"body CRC is {int(found[row]):#010x}, the record at log offset "
                f"{int(self._fixed['log_offset'][row])} says {int(self._fixed['body_crc'][row]):#010x}"
            )

    # -- columns ---------------------------------------------------------------------------------------

    def column(self, name: str, broker: str | None) -> pa.Array:
        """Returns the column with this name."""
        if name in ("queue_id", "reconsume_times", "flag"):
            return pa.array(self._fixed[name].astype(np.int32))
        if name == "sys_flag":
            return pa.array(self.sys_flag)
        if name in ("queue_offset", "log_offset"):
            return pa.array(self._fixed[name].astype(np.int64))
        if name in ("born_timestamp", "store_timestamp"):
            return _timestamps(self._fixed[name])
        if name == "topic":
            if self._topics is None:
                self._topics = _utf8(_slices(self._raw, self.topic_start, self.topic_end))
            return self._topics
        if name == "broker":
            return _repeated(broker, self._count)
        if name == "body":
            return self._bodies()
        if name == "born_host":
            return self._hosts("born_host", self._born_v6)
        if name == "store_host":
            return self._hosts("store_host", self._store_v6)
        if name == "msg_id":
            return self._message_ids()
        if name == "properties":
            return self.properties.map_array()
        return self.properties.values_of(_PROPERTY[name])[0]

    def find_properties(self, columns: Sequence[str]) -> None:
        """Finds the properties from which these columns are read, in a single pass."""
        names = [_PROPERTY[name] for name in columns if name in _PROPERTY]
        if names:
            self.properties.find(names)

    @property
    def properties(self) -> _Properties:
        if self._properties is None:
            self._properties = _Properties(_utf8_bytes(_slices(self._raw, self.text_start, self._ends)))
        return self._properties

    def _bodies(self) -> pa.Array:
        stored = _slices(self._raw, self.body_start, self.body_end)
        compressed = np.flatnonzero(self.sys_flag & _COMPRESSED)
        if not len(compressed):
            return stored
        inflated = [
            decompress_body(self._raw[a:b].tobytes(), flag)
            for a, b, flag in zip(
                self.body_start[compressed].tolist(),
                self.body_end[compressed].tolist(),
                self.sys_flag[compressed].tolist(),
                strict=True,
            )
        ]
        if sum(map(len, inflated)) + stored.nbytes > _SPAN_MAX:
            raise RecordError("the bodies of one batch inflate to more than 2 GiB: read fewer at once")
        return _patched(stored, compressed, pa.array(inflated, pa.binary()))

    def _hosts(self, name: str, v6_rows: npt.NDArray[np.intp]) -> pa.Array:
        packed = np.ascontiguousarray(self._fixed[name]).view(np.uint64)
        if (packed == packed[0]).all():
            texts = _repeated(host_text(packed[:1].tobytes()), self._count)
        else:
            encoded = pa.array(packed).dictionary_encode()
            known = [host_text(int(value).to_bytes(8, "little")) for value in encoded.dictionary.to_pylist()]
            texts = pa.array(known, pa.string()).take(encoded.indices)
        if not len(v6_rows):
            return texts
        positions = self._starts[v6_rows] + BORN_HOST_AT
        if name == "store_host":
            shift = (self.sys_flag[v6_rows] & _BORN_V6 != 0) * HOST_V6_MORE_BYTES
            positions = positions + (HOST_V4_BYTES + 8) + shift
        hosts = self._read(positions, np.dtype(f"V{HOST_V6_BYTES}"))
        return _patched(texts, v6_rows, pa.array([host_text(host.tobytes()) for host in hosts], pa.string()))

    def _message_ids(self) -> pa.Array:
        """Returns each record's unique key as set by the sender or, without one, the id by which a broker finds the
        record."""
        ids, found = self.properties.values_of(_PROPERTY["msg_id"])
        if found.all():
            return ids
        rows = np.flatnonzero(~found)
        packed = np.empty((len(rows), HOST_V4_BYTES + 8), np.uint8)
        packed[:, :HOST_V4_BYTES] = (
            np.ascontiguousarray(self._fixed["store_host"][rows]).view(np.uint8).reshape(-1, HOST_V4_BYTES)
        )
        packed[:, HOST_V4_BYTES:] = (
            np.ascontiguousarray(self._fixed["log_offset"][rows]).view(np.uint8).reshape(-1, 8)
        )
        ids = _patched(ids, rows, _hex_strings(packed))
        v6_rows = np.intersect1d(self._store_v6, rows)
        if len(v6_rows):
            shift = (self.sys_flag[v6_rows] & _BORN_V6 != 0) * HOST_V6_MORE_BYTES
            hosts = self._read(
                self._starts[v6_rows] + (BORN_HOST_AT + HOST_V4_BYTES + 8) + shift,
                np.dtype(f"V{HOST_V6_BYTES}"),
            )
            offsets = np.ascontiguousarray(self._fixed["log_offset"][v6_rows])
            whole = np.hstack(
                [
                    np.ascontiguousarray(hosts).view(np.uint8).reshape(-1, HOST_V6_BYTES),
                    offsets.view(np.uint8).reshape(-1, 8),
                ]
            )
            ids = _patched(ids, v6_rows, _hex_strings(whole))
        return ids


class _Properties:
    """The property texts of all rows."""

    def __init__(self, texts: pa.Array) -> None:
        _, ends, data = texts.buffers()
        self._ends = ends[: 4 * (len(texts) + 1)].to_pybytes()
        self._texts = data.to_pybytes() if data is not None else b""
        self._count = len(texts)
        self._values: dict[bytes, tuple[bytes, bytes]] = {}

    def find(self, names: Sequence[bytes]) -> None:
        """Finds several properties in one pass, so that ``values_of`` need not search for each of them."""
        self._values |= zip(names, property_values(self._texts, self._ends, names), strict=True)

    def values_of(self, name: bytes) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        """Returns the values of one property, null in rows without it, and a mask of the rows that have it."""
        if name not in self._values:
            self.find([name])
        ends, values = self._values[name]
        found = np.diff(np.frombuffer(ends, np.int32)) > 0
        valid = None if found.all() else pa.py_buffer(np.packbits(found, bitorder="little"))
        return _strings(ends, values, self._count, valid), found

    def map_array(self) -> pa.Array:
        """Returns all properties as a column with one map per row."""
        pair_ends, name_ends, names, value_ends, values = property_pairs(self._texts, self._ends)
        count = len(name_ends) // 4 - 1
        return pa.MapArray.from_arrays(
            pa.Array.from_buffers(pa.int32(), self._count + 1, [None, pa.py_buffer(pair_ends)]),
            _strings(name_ends, names, count),
            _strings(value_ends, values, count),
        )


def _strings(ends: bytes, values: bytes, count: int, valid: pa.Buffer | None = None) -> pa.Array:
    """Returns the matches found by the kernel as a string column."""
    return pa.Array.from_buffers(pa.string(), count, [valid, pa.py_buffer(ends), pa.py_buffer(values)])


def _slices(
    raw: Bytes,
    starts: Positions,
    ends: Positions,
    kind: pa.DataType = _BINARY,
    valid: npt.NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Returns the part of ``raw`` from each start to its end as a column. Positions must increase, as the module
    explains."""
    count = len(starts)
    if not count:
        return pa.array([], kind)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    parts = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(raw)])
    wanted = np.arange(0, 2 * count, 2)
    return parts.take(pa.array(wanted, mask=None if valid is None or valid.all() else ~valid))


def _utf8_bytes(parts: pa.Array) -> pa.Array:
    """Returns the same binary array with invalid UTF-8 replaced by U+FFFD, like Java."""
    buffers = parts.buffers()
    texts = pa.Array.from_buffers(pa.string(), len(parts), buffers, 0)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        fixed = [part.decode("utf-8", "replace").encode() for part in parts.to_pylist()]
        return pa.array(fixed, pa.binary())
    return parts


def _utf8(parts: pa.Array) -> pa.Array:
    """Returns a binary array without nulls as a string column."""
    clean = _utf8_bytes(parts)
    return pa.Array.from_buffers(pa.string(), len(clean), clean.buffers())


def _patched(column: pa.Array, rows: npt.NDArray[np.intp], replacements: pa.Array) -> pa.Array:
    """Returns ``column`` with the values of ``rows`` replaced."""
    indices = np.arange(len(column))
    indices[rows] = len(column) + np.arange(len(rows))
    return pa.concat_arrays([column, replacements]).take(pa.array(indices))


def _repeated(text: str | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if text is None else pa.repeat(pa.scalar(text, pa.string()), count)


def _timestamps(values: npt.NDArray[Any]) -> pa.Array:
    micros = np.clip(values.astype(np.int64), -_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX) * 1000
    return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(micros), [None, pa.py_buffer(micros)])


def _hex_strings(packed: Bytes) -> pa.Array:
    """Returns each row of bytes in upper-case hexadecimal."""
    count, width = packed.shape
    digits = np.empty((count, width, 2), np.uint8)
    digits[:, :, 0] = _HEX[packed >> 4]
    digits[:, :, 1] = _HEX[packed & 15]
    offsets = np.arange(count + 1, dtype=np.int32) * (2 * width)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(digits.reshape(-1))]
    )

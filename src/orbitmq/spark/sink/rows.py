"""Encodes rows as bodies of SEND_BATCH_MESSAGE, without creating a Python object per row.

Arrow joins binary columns row by row in C, so the parts of a batch entry (``kernel/layout.py``) are built as columns:
the fixed head with numpy, the body unchanged, and the properties as pairs of text. One join then returns a binary
column whose data buffer *is* the body of a request, for any range of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.compute as pc  # type: ignore[import-untyped]  # the same

from orbitmq.codes import Property
from orbitmq.errors import MessageIllegal
from orbitmq.kernel.layout import BATCH_ENTRY, LENGTH_16, PROPERTIES_BYTES_MAX

__all__ = ["EncodedRows", "RowKeys", "encode_rows", "key_prefix", "split_by_size"]

Indices = npt.NDArray[np.intp]

PIECE_BYTES: Final = 64 * 1024 * 1024
"""Rows are encoded in pieces of at most about this size (a single row may be larger)."""
_NAME_END: Final = b"\x01"
_PAIR_END: Final = b"\x02"
_NOTHING: Final = pa.scalar(b"", pa.binary())
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_ROWS_MAX: Final = 1 << 32

_FREE: Final = frozenset(
    {Property.TRACE_CONTEXT, Property.INNER_MULTI_DISPATCH, Property.CHECK_IMMUNITY_TIME_IN_SECONDS}
)
_OF_COLUMNS: Final = {"keys": Property.KEYS, "tags": Property.TAGS, "sharding_key": Property.SHARDING_KEY}


def key_prefix(*parts: object) -> bytes:
    """Returns the first 16 digits of the unique keys of a task, which are the same for every attempt."""
    text = "\0".join(str(part) for part in parts)
    return blake2b(text.encode(), digest_size=8).hexdigest().upper().encode()


class RowKeys:
    """Unique keys made of a prefix and the row number.

    They have 32 digits like those of other clients. Tools read digits 20 to 27 as the creation time, in milliseconds
    since the start of the month. Here they are zero, so tools search from the start of the month.
    """

    def __init__(self, prefix: bytes) -> None:
        assert len(prefix) == 16
        name = Property.UNIQUE_KEY.encode() + _NAME_END
        self._at = len(name)
        self._pair: Final = np.frombuffer(name + prefix + b"0" * 16 + _PAIR_END, np.uint8)

    def pairs(self, first_row: int, count: int) -> pa.BinaryArray:
        """Returns the unique key of each row as the text of a property."""
        if first_row + count > _ROWS_MAX:
            raise MessageIllegal(
                f"a task sends at most {_ROWS_MAX} rows: use more partitions (repartition) or uniqueKeyColumn"
            )
        rows = np.arange(first_row, first_row + count, dtype=np.uint32)
        text = np.empty((count, len(self._pair)), np.uint8)
        text[:] = self._pair
        for digit in range(8):
            at = self._at + (16 + digit if digit < 4 else 24 + digit)
            text[:, at] = _HEX[(rows >> np.uint32(28 - 4 * digit)) & np.uint32(15)]
        return _fixed_width(text)


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Encoded rows, ready to be sent. All columns have one element per row."""

    first_row: int
    bodies: pa.BinaryArray
    texts: tuple[pa.BinaryArray, ...]
    """The properties, in parts; the last part is the unique key."""
    text_sizes: npt.NDArray[np.int64]
    columns: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def body_sizes(self) -> npt.NDArray[np.int64]:
        """The size of each body in bytes."""
        return _lengths(self.bodies)

    @property
    def entry_sizes(self) -> npt.NDArray[np.int64]:
        """The size of each row in a batch, in bytes."""
        overhead = BATCH_ENTRY.size + LENGTH_16.size
        return _lengths(self.bodies) + self.text_sizes + overhead

    def take(self, rows: Indices) -> EncodedRows:
        """Returns the rows with these numbers, in this order."""
        chosen = pa.array(rows)
        return EncodedRows(
            self.first_row,
            self.bodies.take(chosen),
            tuple(text.take(chosen) for text in self.texts),
            self.text_sizes[rows],
            {name: column.take(chosen) for name, column in self.columns.items()},
        )

    def entries(self) -> tuple[memoryview, npt.NDArray[np.int64]]:
        """Returns consecutive batch entries, and the positions where they begin, followed by the end of the last
        one."""
        heads = np.zeros((len(self), BATCH_ENTRY.size // 4), ">i4")
        heads[:, 0] = self.entry_sizes
        heads[:, 4] = _lengths(self.bodies)
        lengths = np.empty((len(self), 1), ">i2")
        lengths[:, 0] = self.text_sizes
        joined = pc.binary_join_element_wise(
            _fixed_width(heads), self.bodies, _fixed_width(lengths), *self.texts, _NOTHING
        )
        return memoryview(joined.buffers()[2]), _offsets(joined)

    def unique_keys(self) -> list[str]:
        """Returns the unique key of each row."""
        name = len(Property.UNIQUE_KEY) + len(_NAME_END)
        return [pair[name : -len(_PAIR_END)].decode() for pair in self.texts[-1].to_pylist()]

    def properties(self) -> list[bytes]:
        """Returns the properties of each row, for messages that are sent one by one."""
        joined: list[bytes] = pc.binary_join_element_wise(*self.texts, _NOTHING, _NOTHING).to_pylist()
        return joined


def split_by_size(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields pieces of the batch, each with the number of its first row. A piece is small enough for several copies
    in memory."""
    count = batch.num_rows
    pieces = min(count, -(-batch.nbytes // PIECE_BYTES)) if count else 0
    for piece in range(pieces):
        start, end = count * piece // pieces, count * (piece + 1) // pieces
        yield start, batch.slice(start, end - start)


def encode_rows(
    batch: pa.RecordBatch, first_row: int, unique: RowKeys | str, body_bytes_max: int
) -> EncodedRows:
    """Returns the encoded rows. ``unique`` creates the unique keys, or names the column that contains them.

    Raises ``MessageIllegal`` with the row number for a row that cannot be a message.
    """
    columns = {name: batch.column(name) for name in batch.schema.names}
    bodies = _binary(columns.pop("body"))
    _refuse(bodies.is_null(), first_row, "has no body (null)")
    sizes = _lengths(bodies)
    _refuse(sizes == 0, first_row, "has an empty body, which no broker takes")
    _refuse(sizes > body_bytes_max, first_row, f"has a body over {body_bytes_max} bytes (maxMessageBytes)")
    texts: list[pa.BinaryArray] = []
    if "properties" in columns:
        texts.append(_map_text(columns.pop("properties"), first_row, frozenset(columns)))
    for name, prop in _OF_COLUMNS.items():
        if name in columns:
            column = columns[name] if name == "sharding_key" else columns.pop(name)
            texts.append(_pairs(prop, column, first_row, name))
    if isinstance(unique, str):
        column = columns.pop(unique)
        _refuse(_lengths(_binary(column)) <= 0, first_row, f"has no unique key in column {unique!r}")
        texts.append(_pairs(Property.UNIQUE_KEY, column, first_row, unique))
    else:
        texts.append(unique.pairs(first_row, len(bodies)))
    text_sizes = sum((_lengths(text) for text in texts), np.zeros(len(bodies), np.int64))
    _refuse(text_sizes > PROPERTIES_BYTES_MAX, first_row, f"has properties over {PROPERTIES_BYTES_MAX} bytes")
    return EncodedRows(first_row, bodies, tuple(texts), text_sizes, columns)


def _refuse(wrong: pa.Array | npt.NDArray[np.bool_], first_row: int, problem: str) -> None:
    rows = np.flatnonzero(np.asarray(wrong))
    if len(rows):
        raise MessageIllegal(f"row {first_row + int(rows[0])} of this partition {problem}")


def _binary(column: pa.Array) -> pa.BinaryArray:
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    """Returns the size of each value in bytes, 0 for null."""
    lengths: npt.NDArray[np.int64] = np.diff(_offsets(values))
    if values.null_count:
        lengths = np.where(np.asarray(values.is_valid()), lengths, 0)
    return lengths


def _offsets(values: pa.Array) -> npt.NDArray[np.int64]:
    if not len(values):
        return np.zeros(1, np.int64)
    raw = np.frombuffer(values.buffers()[1], np.int32)
    return raw[values.offset : values.offset + len(values) + 1].astype(np.int64)


def _fixed_width(rows: npt.NDArray[Any]) -> pa.BinaryArray:
    """Returns each row of a two-dimensional array as a binary value."""
    count = len(rows)
    width = rows.itemsize * rows.shape[1]
    offsets = np.arange(count + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows)])


def _pairs(prop: Property, column: pa.Array, first_row: int, name: str) -> pa.BinaryArray:
    """Returns ``name 0x01 value 0x02`` for each row, or an empty value if the row's value is null or empty."""
    if pa.types.is_list(column.type):
        column = _joined(column)
    values = _binary(column)
    _refuse(_contains(values, _PAIR_END), first_row, f"has a separator (0x02) in column {name!r}")
    joined = pc.binary_join_element_wise(
        pa.scalar(prop.encode() + _NAME_END), values, pa.scalar(_PAIR_END), _NOTHING
    )
    empty = _lengths(values) == 0
    return pc.if_else(pa.array(empty), _NOTHING, joined) if empty.any() else joined


def _joined(column: pa.Array) -> pa.Array:
    """Joins the texts of each list with spaces."""
    column = column.cast(pa.list_(pa.string()))  # the join does not support lists of non-nullable values
    if column.values.null_count:
        texts = [None if row is None else " ".join(filter(None, row)) for row in column.to_pylist()]
        return pa.array(texts, pa.string())
    return pc.binary_join(column, " ")


def _map_text(column: pa.Array, first_row: int, columns: frozenset[str]) -> pa.BinaryArray:
    """Returns all pairs of each row's map as one text.

    Names with a meaning in RocketMQ are left out, so that rows read from one topic can be written to another. Keys,
    tags and the sharding key are kept unless they have a column of their own.
    """
    names, values = _binary(column.keys), _binary(column.items)
    offsets = np.asarray(column.offsets)
    owned = {prop for name, prop in _OF_COLUMNS.items() if name not in columns}
    reserved = pa.array([prop.encode() for prop in Property if prop not in _FREE | owned], pa.binary())
    dropped = np.asarray(pc.is_in(names, value_set=reserved)) | (_lengths(values) == 0)
    wrong = _contains(names, _NAME_END) | _contains(names, _PAIR_END) | (_lengths(names) == 0)
    wrong |= _contains(values, _PAIR_END)
    if wrong.any():
        row = int(np.searchsorted(offsets, int(np.flatnonzero(wrong)[0]), side="right")) - 1
        raise MessageIllegal(
            f"row {first_row + row} of this partition has a property with an empty name or a separator (0x01, 0x02)"
        )
    pairs = pc.binary_join_element_wise(names, pa.scalar(_NAME_END), values, pa.scalar(_PAIR_END), _NOTHING)
    if dropped.any():
        pairs = pc.if_else(pa.array(dropped), _NOTHING, pairs)
    ends = _offsets(pairs)[offsets].astype(np.int32)
    text = pa.Array.from_buffers(
        pa.binary(), len(column), [None, pa.py_buffer(ends), pairs.buffers()[2] or pa.py_buffer(b"")]
    )
    return pc.if_else(column.is_valid(), text, _NOTHING) if column.null_count else text


def _contains(values: pa.Array, byte: bytes) -> npt.NDArray[np.bool_]:
    """Returns for each value whether it contains a byte."""
    found: Callable[..., Any] = pc.match_substring
    return np.asarray(found(values, byte.decode()).fill_null(False))

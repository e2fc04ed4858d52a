"""HTTP/2 header compression (RFC 7541): a decoder, and literals for encoding.

A header block of a gRPC call holds a dozen fields, most of them one-byte references into the table kept by both ends.
Values are decoded only when they are read, so a client's request id, which is Huffman-coded and different in each
call, never is. Responses do not use the table; their blocks are constants.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

__all__ = ["Field", "HeaderDecoder", "HpackError", "literal", "text"]

TABLE_BYTES_MAX: Final = 4096
"""The table size that we allow the peer. It is the default, so it need not be announced."""
_ENTRY_OVERHEAD: Final = 32

# Symbols by code length. The code is canonical: codes of one length are in symbol order, and each length continues
# the previous one.
_SYMBOLS_BY_LENGTH: Final = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\xe8\xe9",
    23: (
        b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4\xb6\xb7\xbc\xbf"
        b"\xc5\xe7\xef"
    ),
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: (
        b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f"
        b"\x7f\xdc\xf9"
    ),
    30: b"\n\r\x16",
}
_STATIC: Final = (
    ":authority", ":method GET", ":method POST", ":path /", ":path /index.html", ":scheme http", ":scheme https",
    ":status 200", ":status 204", ":status 206", ":status 304", ":status 400", ":status 404", ":status 500",
    "accept-charset", "accept-encoding gzip, deflate", "accept-language", "accept-ranges", "accept",
    "access-control-allow-origin", "age", "allow", "authorization", "cache-control", "content-disposition",
    "content-encoding", "content-language", "content-length", "content-location", "content-range", "content-type",
    "cookie", "date", "etag", "expect", "expires", "from", "host", "if-match", "if-modified-since", "if-none-match",
    "if-range", "if-unmodified-since", "last-modified", "link", "location", "max-forwards", "proxy-authenticate",
    "proxy-authorization", "range", "referer", "refresh", "retry-after", "server", "set-cookie",
    "strict-transport-security", "transfer-encoding", "user-agent", "vary", "via", "www-authenticate",
)  # fmt: skip

_END_CODE: Final = (30, (1 << 30) - 1)
"""Length and bits of the end-of-string code. The code is never sent, but its prefix pads the last byte."""

Field = tuple[str, bytes, bool]
"""A header's name, its raw value, and whether the value is Huffman-coded."""


class HpackError(Exception):
    """The block cannot be decoded. The tables of both ends now differ, so the connection is unusable."""


def _codes() -> dict[tuple[int, int], int]:
    codes: dict[tuple[int, int], int] = {}
    code = length_before = 0
    for length, symbols in _SYMBOLS_BY_LENGTH.items():
        code <<= length - length_before
        length_before = length
        for symbol in symbols:
            codes[length, code] = symbol
            code += 1
    return codes


_STATIC_FIELDS: Final[tuple[Field, ...]] = tuple(
    (name, value.encode(), False) for name, _, value in (entry.partition(" ") for entry in _STATIC)
)


def _prefixes() -> dict[tuple[int, int], int]:
    """Returns a number for each prefix of a code, by its length and bits."""
    prefixes = {(0, 0): 0}
    for length, code in (*_codes(), _END_CODE):
        for shorter in range(1, length):
            prefixes.setdefault((shorter, code >> (length - shorter)), len(prefixes))
    return prefixes


def _machine() -> list[tuple[bytes, int]]:
    """Returns the completed symbol and the next state for each state and half byte, at index ``state * 16 + half``.

    A state is a node of the code tree, with 0 as the root; there are 4096 entries. No code is shorter than five bits,
    so half a byte completes at most one symbol. -16 stands for "no such code".
    """
    codes = _codes()
    prefixes = _prefixes()
    machine: list[tuple[bytes, int]] = []
    for start_length, start_code in prefixes:
        for half in range(16):
            length, code, symbol, dead = start_length, start_code, b"", False
            for shift in (3, 2, 1, 0):
                length, code = length + 1, code << 1 | half >> shift & 1
                complete = codes.get((length, code))
                if complete is not None:
                    symbol, length, code = bytes((complete,)), 0, 0
                elif (length, code) not in prefixes:
                    dead = True
                    break
            machine.append((symbol, -16 if dead else prefixes[length, code] * 16))
    return machine


_MACHINE: Final = _machine()
_PADDED: Final = frozenset(
    state * 16 for state, (length, code) in enumerate(_prefixes()) if length < 8 and code == (1 << length) - 1
)
"""States in which a field may end. The rest of its last byte is then a prefix of the end-of-string code, all ones."""


def _unpack(data: bytes) -> bytes:
    """Decode a Huffman-coded value. Raises ``HpackError``."""
    state = 0
    parts: list[bytes] = []
    add = parts.append
    machine = _MACHINE
    for byte in data:
        symbol, state = machine[state + (byte >> 4)]
        if symbol:
            add(symbol)
        if state < 0:
            break
        symbol, state = machine[state + (byte & 15)]
        if symbol:
            add(symbol)
        if state < 0:
            break
    if state not in _PADDED:
        raise HpackError("invalid Huffman code in a header field")
    return b"".join(parts)


_unpack_again: Final = lru_cache(maxsize=1024)(_unpack)
"""Like ``_unpack``, but caches results, because values in a table are read by every call of a connection."""


def text(field: Field) -> str:
    """Returns the decoded value of a field. Raises ``HpackError``."""
    raw = field[1]
    if not field[2]:
        return raw.decode("utf-8", "replace")
    value = _unpack_again(raw) if len(raw) <= TABLE_BYTES_MAX else _unpack(raw)
    return value.decode("utf-8", "replace")


class HeaderDecoder:
    """Decodes the header blocks of one connection, in order. Any error must end the connection."""

    __slots__ = ("_bytes", "_limit", "_sizes", "_table", "kept_bytes")

    def __init__(self) -> None:
        self._table: list[Field] = []
        """The dynamic table, newest field last so that appending is cheap. Entry 62 is the last element."""
        self._sizes: list[int] = []
        self._bytes = 0
        self._limit = TABLE_BYTES_MAX
        self.kept_bytes = 0
        """Bytes that the fields of the last block hold, including fields of the table, because they outlive its
        entries.
        """

    def decode(self, block: bytes) -> dict[str, Field]:
        """Returns the fields by name. If a name repeats, the last field wins. Raises ``HpackError``."""
        fields: dict[str, Field] = {}
        position = 0
        end = len(block)
        self.kept_bytes = end
        table = self._table
        try:
            while position < end:
                first = block[position]
                if first & 0x80:
                    index = first & 0x7F
                    position += 1
                    if index == 0x7F:
                        index, position = _number(block, position, 0x7F)
                    field = _STATIC_FIELDS[index - 1] if 0 < index < 62 else self._entry(index)
                    fields[field[0]] = field
                    continue
                if first & 0xE0 == 0x20:
                    position = self._resize(block, position, bool(fields))
                    continue
                keep = first & 0x40
                mask = 0x3F if keep else 0x0F
                index = first & mask
                position += 1
                if index == mask:
                    index, position = _number(block, position, mask)
                if index:
                    name = (_STATIC_FIELDS[index - 1] if index < 62 else self._entry(index))[0]
                else:
                    raw, coded, position = _string(block, position)
                    name = (_unpack(raw) if coded else raw).decode("utf-8", "replace")
                raw, coded, position = _string(block, position)
                field = (name, raw, coded)
                fields[name] = field
                if keep:
                    # The table limit applies to the size of the decoded value.
                    size = len(name) + (len(_unpack_again(raw)) if coded else len(raw)) + _ENTRY_OVERHEAD
                    self._bytes += size
                    self._sizes.append(size)
                    table.append(field)
                    if self._bytes > self._limit:
                        self._evict()
        except IndexError:
            raise HpackError("header block ends within a field") from None
        return fields

    def _entry(self, index: int) -> Field:
        if not 62 <= index < 62 + len(self._table):
            raise HpackError(f"header index {index} is not in the table")
        self.kept_bytes += self._sizes[61 - index]
        return self._table[61 - index]

    def _resize(self, block: bytes, position: int, late: bool) -> int:
        limit, position = _number(block, position + 1, 0x1F, block[position] & 0x1F)
        if limit > TABLE_BYTES_MAX or late:
            raise HpackError(f"header table size out of range: {limit} bytes")
        self._limit = limit
        self._evict()
        return position

    def _evict(self) -> None:
        sizes = self._sizes
        count = 0
        while self._bytes > self._limit and count < len(sizes):
            self._bytes -= sizes[count]
            count += 1
        del self._table[:count]
        del sizes[:count]


def _number(block: bytes, position: int, mask: int, first: int | None = None) -> tuple[int, int]:
    """Decode a number that continues after its prefix (or, if ``first`` is given, may continue).

    Returns the number and the position after it.
    """
    if first is not None and first != mask:
        return first, position
    value = mask
    shift = 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise HpackError("a number in a header block is too large")


def _string(block: bytes, position: int) -> tuple[bytes, bool, int]:
    first = block[position]
    length = first & 0x7F
    position += 1
    if length == 0x7F:
        length, position = _number(block, position, 0x7F)
    end = position + length
    if end > len(block):
        raise HpackError("header field longer than its block")
    return block[position:end], bool(first & 0x80), end


def literal(name: str, value: str) -> bytes:
    """Encode a header field as a literal that is not added to the table."""
    return b"\x00" + _plain(name.encode()) + _plain(value.encode())


def _plain(data: bytes) -> bytes:
    if len(data) < 0x7F:
        return bytes((len(data),)) + data
    rest = len(data) - 0x7F
    out = bytearray(b"\x7f")
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out) + data

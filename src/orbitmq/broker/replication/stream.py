"""The bytes of the replication stream, both ways, without IO (Apache: DefaultHAConnection, DefaultHAClient).

A slave sends reports: 8 bytes, the end of its log, which is also where the next transfer starts. A member of a
failover group says before the first one who it is and which epoch's master it looks for, in 8 bytes with the sign bit
set, which no report can have; no other slave does, so both kinds can follow the same master. Where the stream is
protected (``replication.protection``) signed fields come before that: 8 bytes with the sign bit and their size, then
JSON.

A master sends transfers: the log offset (8 bytes), the size (4 bytes) and that many raw bytes of its log; size 0 is a
heartbeat. There is no prefix, no magic number and no checksum, so a reader can only judge by the numbers themselves.
Members of its failover group are also told two other things, as transfers of size 0 with a negative offset: up to
where the log is safe (the complement of that end), and that topics or groups have changed (the smallest number).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from orbitmq.errors import RemoteProtocolError

__all__ = [
    "TRANSFER_BYTES_MAX",
    "ReportReader",
    "TransferReader",
    "encode_greeting",
    "encode_hello",
    "encode_news",
    "encode_report",
    "encode_safe_end",
    "encode_transfer_head",
]

_REPORT: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">qi")
assert _REPORT.size == 8, "on the wire since 3.x, never change"
assert _HEAD.size == 12, "on the wire since 3.x, never change"

TRANSFER_BYTES_MAX: Final = (4 << 20) - _HEAD.size
"""An Apache slave reads into 4 MiB; a larger transfer would never be whole there."""


def encode_report(log_end: int) -> bytes:
    """A slave's report."""
    return _REPORT.pack(log_end)


_GREETING: Final = struct.Struct(">HHI")
_GREETING_SIGN: Final = 0x8000
_GREETING_MAGIC: Final = 0x4F4D


def encode_greeting(member: int, epoch: int) -> bytes:
    """The greeting of a member of a failover group."""
    assert 0 < member < _GREETING_SIGN, member
    return _GREETING.pack(_GREETING_SIGN | member, _GREETING_MAGIC, epoch)


HELLO_BYTES_MAX: Final = 4096


def encode_hello(fields: Mapping[str, str]) -> bytes:
    """A slave's login where the stream is protected."""
    body = msgspec.json.encode(fields)
    assert len(body) <= HELLO_BYTES_MAX, len(body)
    return _GREETING.pack(_GREETING_SIGN, _GREETING_MAGIC, len(body)) + body


def encode_transfer_head(log_offset: int, size: int) -> bytes:
    """What stands before ``size`` bytes of log; a heartbeat when that is 0."""
    return _HEAD.pack(log_offset, size)


def encode_safe_end(log_offset: int) -> bytes:
    """For members of a failover group: every one of the in-sync set has the log up to here."""
    return _HEAD.pack(~log_offset, 0)


_NEWS: Final = -(1 << 63)


def encode_news() -> bytes:
    """For members of a failover group: topics or groups of the master have changed."""
    return _HEAD.pack(_NEWS, 0)


class ReportReader:
    """Takes reports in pieces of any size."""

    __slots__ = ("_begun", "_rest", "greeting", "hello")

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False
        self.greeting: tuple[int, int] | None = None
        """Member and epoch, once a greeting has come."""
        self.hello = b""
        """JSON of the signed fields, once they have come."""

    def feed(self, data: bytes) -> int | None:
        """The newest whole report in what came so far; None when there is no new one. Older ones are of no use.

        Raises ``RemoteProtocolError`` for a number no log can end at.
        """
        data = self._rest + data
        while not self._begun and len(data) >= 8:
            sign, magic, number = _GREETING.unpack_from(data)
            if sign == _GREETING_SIGN and magic == _GREETING_MAGIC and not self.hello:
                if not 0 < number <= HELLO_BYTES_MAX:
                    raise RemoteProtocolError(f"a slave's greeting has {number} bytes")
                if len(data) < 8 + number:
                    self._rest = data
                    return None
                self.hello, data = data[8 : 8 + number], data[8 + number :]
                continue
            self._begun = True
            if sign > _GREETING_SIGN and magic == _GREETING_MAGIC:
                self.greeting = (sign & ~_GREETING_SIGN, number)
                data = data[8:]
        whole = len(data) & ~7
        self._rest = data[whole:]
        if not whole:
            return None
        log_end: int = _REPORT.unpack_from(data, whole - 8)[0]
        if log_end < 0:
            raise RemoteProtocolError(f"a slave reports the log end {log_end}")
        return log_end


class TransferReader:
    """Takes transfers in pieces of any size. Holds at most one transfer that is not whole."""

    __slots__ = ("_for_member", "_pieces", "_size", "has_news", "safe_end")

    def __init__(self, *, for_member: bool = False) -> None:
        """``for_member``: we follow as a member of a failover group, so the stream also says what is safe."""
        self._for_member = for_member
        self._pieces: list[bytes] = []
        self._size = 0
        self.safe_end = -1
        """The newest one that was told; -1 before that."""
        self.has_news = False
        """Tables of the master have changed. Who reads it resets it."""

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Log offset and bytes of each transfer that is whole now; a heartbeat has no bytes.

        Raises ``RemoteProtocolError`` for numbers no master sends; what came before them was given out.
        """
        self._pieces.append(data)
        self._size += len(data)
        if len(self._pieces) > 1 and self._size < self._wanted():
            return
        view = memoryview(data if len(self._pieces) == 1 else b"".join(self._pieces))
        self._pieces.clear()
        position = 0
        while len(view) - position >= _HEAD.size:
            log_offset, size = _HEAD.unpack_from(view, position)
            if log_offset < 0 and size == 0 and self._for_member:
                position += _HEAD.size
                if log_offset == _NEWS:
                    self.has_news = True
                else:
                    self.safe_end = ~log_offset
                continue
            if log_offset < 0 or not 0 <= size <= TRANSFER_BYTES_MAX:
                raise RemoteProtocolError(f"a transfer of {size} bytes at log offset {log_offset}")
            end = position + _HEAD.size + size
            if end > len(view):
                break
            yield log_offset, view[position + _HEAD.size : end]
            position = end
        if position < len(view):
            self._pieces.append(bytes(view[position:]))
        self._size = len(view) - position

    def _wanted(self) -> int:
        """How many bytes the first transfer has, as far as one can know: joining pieces before that is wasted."""
        first = self._pieces[0]
        if len(first) < _HEAD.size:
            return _HEAD.size
        size: int = _HEAD.unpack_from(first)[1]
        return _HEAD.size + max(0, min(size, TRANSFER_BYTES_MAX))

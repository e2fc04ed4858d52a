"""The wire format of the replication stream in both directions, without I/O (Apache: DefaultHAConnection,
DefaultHAClient).

A slave sends reports of 8 bytes: the end of its log, which is also where the next transfer starts. Before the first
report, a member of a failover group sends its number and the epoch whose master it expects, in 8 bytes with the sign
bit set, which no report can have. No other slave does so, so both kinds can follow the same master. On a protected
stream (``replication.protection``) signed fields come before that: 8 bytes with the sign bit and their size, then
JSON.

A master sends transfers: the log offset (8 bytes), the size (4 bytes) and that many raw bytes of its log. Size 0 is a
heartbeat. There is no prefix, magic number or checksum, so a reader can only validate the numbers themselves. Members
of its failover group also receive two other values, as transfers of size 0 with a negative offset: the safe end (as
its complement), and the news that topics or groups have changed (as the smallest number).
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
"""An Apache slave reads into 4 MiB, so it could never complete a larger transfer."""


def encode_report(log_end: int) -> bytes:
    """Encodes a slave's report."""
    return _REPORT.pack(log_end)


_GREETING: Final = struct.Struct(">HHI")
_GREETING_SIGN: Final = 0x8000
_GREETING_MAGIC: Final = 0x4F4D


def encode_greeting(member: int, epoch: int) -> bytes:
    """Encodes the greeting of a failover group's member."""
    assert 0 < member < _GREETING_SIGN, member
    return _GREETING.pack(_GREETING_SIGN | member, _GREETING_MAGIC, epoch)


HELLO_BYTES_MAX: Final = 4096


def encode_hello(fields: Mapping[str, str]) -> bytes:
    """Encodes a slave's login for a protected stream."""
    body = msgspec.json.encode(fields)
    assert len(body) <= HELLO_BYTES_MAX, len(body)
    return _GREETING.pack(_GREETING_SIGN, _GREETING_MAGIC, len(body)) + body


def encode_transfer_head(log_offset: int, size: int) -> bytes:
    """Encodes the header of ``size`` log bytes, or a heartbeat when ``size`` is 0."""
    return _HEAD.pack(log_offset, size)


def encode_safe_end(log_offset: int) -> bytes:
    """Encodes the safe end for a failover group's members: the whole in-sync set has the log up to here."""
    return _HEAD.pack(~log_offset, 0)


_NEWS: Final = -(1 << 63)


def encode_news() -> bytes:
    """Encodes the notification for a failover group's members that the master's topics or groups have changed."""
    return _HEAD.pack(_NEWS, 0)


class ReportReader:
    """Parses reports from chunks of any size."""

    __slots__ = ("_begun", "_rest", "greeting", "hello")

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False
        self.greeting: tuple[int, int] | None = None
        """Member and epoch, once a greeting has arrived."""
        self.hello = b""
        """JSON of the signed fields, once they have arrived."""

    def feed(self, data: bytes) -> int | None:
        """Returns the newest complete report, or None if there is no new one. Older reports are skipped.

        Raises ``RemoteProtocolError`` for an impossible log end.
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
    """Parses transfers from chunks of any size. Buffers at most one incomplete transfer."""

    __slots__ = ("_for_member", "_pieces", "_size", "has_news", "safe_end")

    def __init__(self, *, for_member: bool = False) -> None:
        """``for_member``: we follow as a member of a failover group, so the stream also carries the safe end."""
        self._for_member = for_member
        self._pieces: list[bytes] = []
        self._size = 0
        self.safe_end = -1
        """The newest safe end received; -1 before the first."""
        self.has_news = False
        """Whether the master's tables have changed since the last ``take_news``."""

    def take_news(self) -> bool:
        """Returns whether topics or groups have changed (``has_news``), and resets it."""
        has_news, self.has_news = self.has_news, False
        return has_news

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yields log offset and bytes of each transfer that is now complete. A heartbeat has no bytes.

        Raises ``RemoteProtocolError`` for numbers that no master sends, after yielding the transfers before them.
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
        """Returns the size of the first transfer, as far as it is known. Joining chunks before that many bytes have
        arrived is wasted work."""
        first = self._pieces[0]
        if len(first) < _HEAD.size:
            return _HEAD.size
        size: int = _HEAD.unpack_from(first)[1]
        return _HEAD.size + max(0, min(size, TRANSFER_BYTES_MAX))

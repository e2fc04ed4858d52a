"""The two ids of a message, both in upper-case hexadecimal (Apache: ``MessageClientIDSetter``, ``MessageDecoder``).

The unique key is created by the sending client and stays with every copy of the message. The offset id identifies one
stored record, by the broker's address and the log offset. Both have 32 digits with IPv4 and 56 with IPv6.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from struct import Struct
from typing import Final, NamedTuple

from orbitmq.errors import RecordError
from orbitmq.kernel.layout import HOST_V4_BYTES, HOST_V6_BYTES
from orbitmq.record.hosts import decode_host

__all__ = [
    "OffsetMessageId",
    "UniqueKey",
    "UniqueKeys",
    "offset_message_id",
    "parse_offset_message_id",
    "parse_unique_key",
]

_ADDRESS_V4: Final = 4
_ADDRESS_V6: Final = 16
_PREFIX: Final = Struct(">HI")  # low 16 bits of the process id, a constant of the process
_TAIL: Final = Struct(">IH")  # milliseconds since the month began, counter
_UNIQUE_KEY_REST: Final = _PREFIX.size + _TAIL.size
assert _ADDRESS_V4 + _UNIQUE_KEY_REST == 16, "clients recognise the id by its length"


class OffsetMessageId(NamedTuple):
    """The location of a record, as an offset id contains it."""

    address: str
    port: int
    log_offset: int


class UniqueKey(NamedTuple):
    """The parts of a unique key."""

    address: bytes
    process_id: int
    process_constant: int
    since_month_ms: int
    counter: int


def offset_message_id(store_host: bytes, log_offset: int) -> str:
    """Returns the offset id of a record stored by the broker at ``store_host`` (8 or 20 bytes)."""
    return f"{store_host.hex()}{log_offset & 0xFFFFFFFFFFFFFFFF:016x}".upper()


def parse_offset_message_id(text: str) -> OffsetMessageId:
    """Parse an offset id. Raises ``RecordError`` for other text. A unique key may be accepted, because both look
    alike."""
    data = _from_hex(text)
    if len(data) not in (HOST_V4_BYTES + 8, HOST_V6_BYTES + 8):
        raise RecordError(f"{text!r} is not a message id: it has {len(data)} bytes")
    address, port = decode_host(data[:-8])
    return OffsetMessageId(address, port, int.from_bytes(data[-8:], "big", signed=True))


def parse_unique_key(text: str) -> UniqueKey:
    """Parse a unique key. Raises ``RecordError`` for text of another form."""
    data = _from_hex(text)
    address_size = len(data) - _UNIQUE_KEY_REST
    if address_size not in (_ADDRESS_V4, _ADDRESS_V6):
        raise RecordError(f"{text!r} is not a unique key: it has {len(data)} bytes")
    process_id, constant = _PREFIX.unpack_from(data, address_size)
    since_month_ms, counter = _TAIL.unpack_from(data, address_size + _PREFIX.size)
    return UniqueKey(data[:address_size], process_id, constant, since_month_ms, counter)


class UniqueKeys:
    """Generates unique keys. The clock, the calendar and the process id are parameters.

    ``now_ms`` reads the wall clock. ``month_of`` returns the first and the last millisecond (end exclusive) of the
    local month of a time. After 65,536 keys in one millisecond keys repeat, like in Apache's clients. Thread-safe.
    """

    def __init__(
        self,
        *,
        address: bytes,
        process_id: int,
        process_constant: int,
        now_ms: Callable[[], int],
        month_of: Callable[[int], tuple[int, int]],
    ) -> None:
        if len(address) not in (_ADDRESS_V4, _ADDRESS_V6):
            raise RecordError(f"an address has 4 or 16 bytes, not {len(address)}")
        self._prefix: Final = (
            (address + _PREFIX.pack(process_id & 0xFFFF, process_constant & 0xFFFFFFFF)).hex().upper()
        )
        self._now_ms: Final = now_ms
        self._month_of: Final = month_of
        self._month_start_ms, self._month_end_ms = month_of(now_ms())
        self._counter: Final = count()
        self._stem = (-1, "")

    def next(self) -> str:
        """Returns a new key of 32 or 56 digits."""
        now_ms = self._now_ms()
        known_ms, stem = self._stem
        if known_ms != now_ms:  # all but the counter is the same for a millisecond, which sees dozens of keys
            stem = self._stem_at(now_ms)
        return f"{stem}{next(self._counter) & 0xFFFF:04X}"

    def _stem_at(self, now_ms: int) -> str:
        if now_ms >= self._month_end_ms:
            self._month_start_ms, self._month_end_ms = self._month_of(now_ms)
        # A clock set back to before the start of the month yields 0, like in Apache's client.
        since_ms = max(now_ms - self._month_start_ms, 0)
        stem = f"{self._prefix}{since_ms & 0xFFFFFFFF:08X}"
        self._stem = (now_ms, stem)
        return stem


def _from_hex(text: str) -> bytes:
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise RecordError(f"{text!r} is not hexadecimal") from None
    if len(data) * 2 != len(text):
        raise RecordError(f"{text!r} contains blanks")
    return data

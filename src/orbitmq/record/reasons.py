"""The property ``RETRY_REASON``: why a message is retried or was dead-lettered. An extension of this project."""

from __future__ import annotations

from typing import Final

from orbitmq.kernel.layout import PROPERTIES_BYTES_MAX

__all__ = ["REASON", "reason_bytes"]

REASON: Final = "RETRY_REASON"
_BYTES_MAX: Final = 1_024
_SPARE_BYTES: Final = 1_024
"""What a broker adds on the way to a retry topic: topic names, a delay level, flags."""


def reason_bytes(reason: str, properties_size: int) -> bytes:
    """Returns the value of the property, at most 1 KiB and without separators. Returns an empty value if a message
    whose other properties take ``properties_size`` bytes has no room for it."""
    value = reason.replace("\x01", " ").replace("\x02", " ").encode("utf-8", "replace")
    if len(value) > _BYTES_MAX:
        value = value[:_BYTES_MAX].decode("utf-8", "ignore").encode()
    if properties_size + len(REASON) + len(value) + _SPARE_BYTES > PROPERTIES_BYTES_MAX:
        return b""
    return value

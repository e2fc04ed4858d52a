"""The errors the store raises to refuse a request. Each class has the response code the broker answers with.

Corrupt bytes on our own disk raise ``orbitmq.errors.CorruptionError``, which is not a refusal and not part of this
hierarchy.
"""

from __future__ import annotations

from typing import ClassVar

from orbitmq.codes import ResponseCode
from orbitmq.errors import OrbitError

__all__ = [
    "BadAppend",
    "BadMessage",
    "BadQueueName",
    "MessageTooLarge",
    "PropertiesTooLarge",
    "StoreError",
    "StoreLocked",
    "StoreUnavailable",
]


class StoreError(OrbitError):
    """Base class of the store's refusals. Nothing was stored when one is raised."""

    code: ClassVar[int] = ResponseCode.SYSTEM_ERROR

    def __init__(self, remark: str) -> None:
        super().__init__(remark)
        self.remark = remark


class StoreUnavailable(StoreError):
    """The store currently accepts no writes, because the disk is full, or the store is closed, failed or read-only.
    The text states the reason."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE


class MessageTooLarge(StoreError):
    """The body, the whole record or the topic exceeds its limit."""

    code = ResponseCode.MESSAGE_ILLEGAL


class PropertiesTooLarge(StoreError):
    """The property text does not fit its 15-bit length."""

    code = ResponseCode.MESSAGE_ILLEGAL


class BadMessage(StoreError):
    """A field of the message cannot be stored."""

    code = ResponseCode.MESSAGE_ILLEGAL


class BadQueueName(StoreError):
    """The name cannot be used for a topic or queue on disk."""

    code = ResponseCode.MESSAGE_ILLEGAL


class BadAppend(StoreError):
    """Replicated bytes do not continue the log: wrong offset, or more than the segment can hold."""


class StoreLocked(StoreError):
    """Another process has this store open."""

"""What the store refuses. Each class has the response code the broker answers with.

Broken bytes on our own disk are ``orbitmq.errors.CorruptionError``; it is not a refusal and not in this tree.
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
    """Base of the store's refusals; nothing was stored when one is raised."""

    code: ClassVar[int] = ResponseCode.SYSTEM_ERROR

    def __init__(self, remark: str) -> None:
        super().__init__(remark)
        self.remark = remark


class StoreUnavailable(StoreError):
    """The store takes no writes now: disk full, closed, failed, or read only. The text says which."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE


class MessageTooLarge(StoreError):
    """The body or the whole record is over the configured limit, or the topic is."""

    code = ResponseCode.MESSAGE_ILLEGAL


class PropertiesTooLarge(StoreError):
    """The property text does not fit its 15-bit length."""

    code = ResponseCode.MESSAGE_ILLEGAL


class BadMessage(StoreError):
    """A field of the message cannot be stored."""

    code = ResponseCode.MESSAGE_ILLEGAL


class BadQueueName(StoreError):
    """No topic or queue can be called that on the disk."""

    code = ResponseCode.MESSAGE_ILLEGAL


class BadAppend(StoreError):
    """Replicated bytes do not continue the log: wrong offset, or more than the segment can take."""


class StoreLocked(StoreError):
    """Another process has this store open."""

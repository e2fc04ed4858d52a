"""Receipt handles, with which a client acknowledges a message or extends its invisibility (Apache: ReceiptHandle).

A handle has nine fields separated by single spaces: start offset of the pop, pop time, invisibility period, revive
queue, retry topic flag, broker, queue, queue offset and commit log offset. It is opaque to clients. With access
control a tenth field is a MAC over the others, the group and the topic (``HandleSeal``). The proxy acts on the
message with its own rights, so a client must not be able to forge a handle. Apache's proxies ignore that field.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from orbitmq.errors import ConfigError
from orbitmq.model.names import pop_retry_topic
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import Refused

__all__ = ["Handle", "HandleSeal", "parse_handle", "seal_keys"]

_FIELDS_MIN: Final = 8
_FIELDS_SEALED: Final = 10
_MAC_BYTES: Final = 16
_SECRET_LENGTH_MIN: Final = 16
_NUMBER_DIGITS_MAX: Final = 20


class Handle(msgspec.Struct, frozen=True, gc=False):
    """A parsed receipt handle."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    retry: str
    """"0" if the message is in the topic itself; "1" or "2" if it is in a retry topic of that version."""
    broker_name: str
    queue_id: int
    queue_offset: int
    log_offset: int | None

    @property
    def extra_info(self) -> str:
        """The first eight fields, as brokers expect them."""
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue_id} {self.retry} "
            f"{self.broker_name} {self.queue_id} {self.queue_offset}"
        )

    @property
    def text(self) -> str:
        extra = self.extra_info
        return extra if self.log_offset is None else f"{extra} {self.log_offset}"

    @property
    def visible_ms(self) -> int:
        """When the message becomes visible again, in milliseconds."""
        return self.pop_time_ms + self.invisible_ms

    def real_topic(self, topic: str, group: str) -> str:
        """Returns the topic that stores the message: ``topic`` or its retry topic."""
        if self.retry == "0":
            return topic
        return pop_retry_topic(topic, group, version_2=self.retry == "2")

    def changed(self, pop_time_ms: int, invisible_ms: int, revive_queue_id: int) -> Handle:
        """Returns the handle for the same message with a new pop time, invisibility period and revive queue."""
        return Handle(
            self.queue_offset,
            pop_time_ms,
            invisible_ms,
            revive_queue_id,
            self.retry,
            self.broker_name,
            self.queue_id,
            self.queue_offset,
            self.log_offset,
        )


def seal_keys(configured: str, inner_secret: str) -> tuple[bytes, ...]:
    """Returns the keys made from ``receiptHandleKey``, a list separated by commas.

    If it is empty, the key is derived from the secret with which all proxies of a cluster sign their own requests.
    Without such a secret there is no key. Raises ``ConfigError`` for a key that is too short.
    """
    secrets = [part.strip() for part in configured.split(",") if part.strip()]
    if any(len(secret) < _SECRET_LENGTH_MIN for secret in secrets):
        raise ConfigError(f"a key of receiptHandleKey has fewer than {_SECRET_LENGTH_MIN} characters")
    if not secrets and inner_secret:
        secrets = [inner_secret]
    return tuple(
        blake2b(secret.encode(), digest_size=32, person=b"receipt-handle").digest() for secret in secrets
    )


class HandleSeal:
    """Formats, seals and parses handles."""

    def __init__(self, keys: Sequence[bytes] = (), *, accepts_plain: bool = False) -> None:
        """The first key seals handles, and all keys are accepted. Without keys, handles are plain, like Apache's."""
        self._keys = tuple(keys)
        self._accepts_plain = accepts_plain or not keys

    def text(self, handle: Handle, group: str, topic: str) -> str:
        """Returns the handle in the form sent to a client of the group, sealed if there are keys."""
        if not self._keys:
            return handle.text
        text = f"{handle.extra_info} {-1 if handle.log_offset is None else handle.log_offset}"
        return f"{text} {_mac(self._keys[0], group, topic, text)}"

    def open(self, text: str, group: str, topic: str) -> tuple[Handle, bool]:
        """Returns the handle, and whether a proxy with one of our keys issued it for this group and topic.

        Raises ``Refused``.
        """
        handle = parse_handle(text)
        fields, _, mac = text.rpartition(" ")
        if self._keys and text.count(" ") == _FIELDS_SEALED - 1:
            given = mac.encode()
            for key in self._keys:
                if hmac.compare_digest(_mac(key, group, topic, fields).encode(), given):
                    return handle, True
            raise Refused(pb.INVALID_RECEIPT_HANDLE, "receipt handle is not one of this group and topic")
        if not self._accepts_plain:
            raise Refused(pb.INVALID_RECEIPT_HANDLE, "receipt handle is not sealed")
        return handle, False


def _mac(key: bytes, group: str, topic: str, text: str) -> str:
    content = f"{group}\n{topic}\n{text}".encode()
    digest = blake2b(content, digest_size=_MAC_BYTES, key=key).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def parse_handle(text: str) -> Handle:
    """Parse the text of a handle. Raises ``Refused`` with INTERNAL_SERVER_ERROR if it is invalid, like Apache's
    proxy.
    """
    parts = text.split(" ")
    if len(parts) < _FIELDS_MIN:
        raise Refused(pb.INTERNAL_SERVER_ERROR, f"Parse failed, dataList size {len(parts)}")
    try:
        return Handle(
            _number(parts[0]),
            _number(parts[1]),
            _number(parts[2]),
            _number(parts[3]),
            parts[4],
            parts[5],
            _number(parts[6]),
            _number(parts[7]),
            _log_offset(parts[8]) if len(parts) > _FIELDS_MIN else None,
        )
    except ValueError:
        raise Refused(pb.INTERNAL_SERVER_ERROR, "the receipt handle cannot be parsed") from None


def _log_offset(text: str) -> int | None:
    number = _number(text)
    return None if number < 0 else number


def _number(text: str) -> int:
    if len(text) > _NUMBER_DIGITS_MAX:
        raise ValueError
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError
    return number

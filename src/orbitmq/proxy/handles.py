"""Receipt handles: what a client gives back to acknowledge a message or to hide it longer (Apache: ReceiptHandle).

Nine fields with single spaces: where the pop began, when it was, for how long the message is hidden, the revive
queue, whether it came from a retry topic, broker, queue, offset, and the offset in the commit log. Opaque to
clients.
"""

from __future__ import annotations

from typing import Final

import msgspec

from orbitmq.model.names import pop_retry_topic
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import Refused

__all__ = ["Handle", "parse_handle"]

_FIELDS_MIN: Final = 8
_NUMBER_DIGITS_MAX: Final = 20


class Handle(msgspec.Struct, frozen=True, gc=False):
    """A receipt handle in its parts."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    retry: str
    """0: the topic itself, 1 and 2: its retry topic of version 1 or 2."""
    broker_name: str
    queue_id: int
    queue_offset: int
    log_offset: int | None

    @property
    def extra_info(self) -> str:
        """The first eight fields, as brokers know them."""
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
        """When the message is delivered again."""
        return self.pop_time_ms + self.invisible_ms

    def real_topic(self, topic: str, group: str) -> str:
        """The topic the message lies in."""
        if self.retry == "0":
            return topic
        return pop_retry_topic(topic, group, version_2=self.retry == "2")

    def changed(self, pop_time_ms: int, invisible_ms: int, revive_queue_id: int) -> Handle:
        """The handle after its time was changed."""
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


def parse_handle(text: str) -> Handle:
    """Raises ``Refused``, as Apache's proxy does with INTERNAL_SERVER_ERROR."""
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
            _number(parts[8]) if len(parts) > _FIELDS_MIN else None,
        )
    except ValueError:
        raise Refused(pb.INTERNAL_SERVER_ERROR, "the receipt handle cannot be parsed") from None


def _number(text: str) -> int:
    if len(text) > _NUMBER_DIGITS_MAX:
        raise ValueError
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError
    return number

"""Offsets in bulk (43, 45, 61, 220-223, 303, 308), and the checkpoint of the timer (60).

Corresponds to Apache's ConsumerOffsetSerializeWrapper, ResetOffsetBody, GetConsumerStatusBody,
QueryCorrectionOffsetBody, QueryConsumeTimeSpanBody, TimerMetrics, TimerCheckpoint.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from orbitmq.errors import BodyError
from orbitmq.model.data_version import DataVersion
from orbitmq.model.route import MessageQueue
from orbitmq.wire.bodies.base import Body, always
from orbitmq.wire.header import Int32, Int64
from orbitmq.wire.javajson import ObjectMap

__all__ = [
    "ConsumerOffsets",
    "ConsumerStatus",
    "CorrectionOffsets",
    "DelayOffsets",
    "MessageQueueOffset",
    "QueueTimeSpan",
    "QueueTimeSpans",
    "ResetOffset",
    "ResetOffsetForCpp",
    "TimerCheckPoint",
    "TimerMetric",
    "TimerMetrics",
]

_CHECK_POINT: Final = struct.Struct(">7q")
assert _CHECK_POINT.size == 56, "persisted: the file timercheck has the same bytes"


class ConsumerOffsets(Body, frozen=True, kw_only=True):
    """Answer to GET_ALL_CONSUMER_OFFSET (43), and the content of consumerOffset.json.

    The tables contain, for each key ``topic@group``, the offset of the next message to consume by queue id.
    """

    data_version: DataVersion | None = None
    group_topic_map: dict[str, list[str]] | None = None
    """Derived from ``offset_table``; written by 5.5, never read back."""
    offset_table: dict[str, dict[Int32, Int64]] = always(dict)
    pull_offset_table: dict[str, dict[Int32, Int64]] | None = None
    """The last pulled offsets; written by 5.5, never read back."""


class DelayOffsets(Body, frozen=True, kw_only=True):
    """Answer to GET_ALL_DELAY_OFFSET (45), and the content of delayOffset.json: the next offset by level."""

    data_version: DataVersion | None = None
    offset_table: dict[Int32, Int64] = always(dict)


class TimerMetric(Body, frozen=True, kw_only=True):
    count: Int64 = always(int)
    time_stamp: Int64 = always(int)


class TimerMetrics(Body, frozen=True, kw_only=True):
    """Answer to GET_TIMER_METRICS (61): the number of waiting messages by topic."""

    data_version: DataVersion = always(DataVersion)
    timing_count: dict[str, TimerMetric] = always(dict)


class TimerCheckPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to GET_TIMER_CHECK_POINT (60), which consists of seven int64 and is not JSON."""

    last_read_time_ms: int = 0
    timer_log_flush_offset: int = 0
    timer_queue_offset: int = 0
    master_timer_queue_offset: int = 0
    data_version: DataVersion = DataVersion()

    def encode(self) -> bytes:
        return _CHECK_POINT.pack(
            self.last_read_time_ms,
            self.timer_log_flush_offset,
            self.timer_queue_offset,
            self.master_timer_queue_offset,
            self.data_version.state_version,
            self.data_version.timestamp_ms,
            self.data_version.counter,
        )

    @classmethod
    def decode(cls, data: bytes) -> TimerCheckPoint:
        """Decode a checkpoint. Brokers of 5.0 send only the first four numbers. Raises ``BodyError``."""
        if len(data) == 32:
            data += bytes(24)
        if len(data) != _CHECK_POINT.size:
            raise BodyError(f"timer checkpoint of {len(data)} bytes, not {_CHECK_POINT.size}")
        read_ms, flush, queue, master_queue, state, timestamp_ms, counter = _CHECK_POINT.unpack(data)
        return cls(
            last_read_time_ms=read_ms,
            timer_log_flush_offset=flush,
            timer_queue_offset=queue,
            master_timer_queue_offset=master_queue,
            data_version=DataVersion(state_version=state, timestamp_ms=timestamp_ms, counter=counter),
        )


class ResetOffset(Body, frozen=True, kw_only=True):
    """Answer to INVOKE_BROKER_TO_RESET_OFFSET (222) and body of RESET_CONSUMER_CLIENT_OFFSET (220)."""

    offset_table: ObjectMap[MessageQueue, Int64] = always(ObjectMap)


class MessageQueueOffset(Body, frozen=True, kw_only=True):
    broker_name: str
    offset: Int64
    queue_id: Int32
    topic: str


class ResetOffsetForCpp(Body, frozen=True, kw_only=True):
    """Body of RESET_CONSUMER_CLIENT_OFFSET (220) if a C++ client requested the reset. It contains a list instead of a
    map."""

    offset_table: list[MessageQueueOffset] = always(list)


class ConsumerStatus(Body, frozen=True, kw_only=True):
    """Answer to 221 (``message_queue_table``) and 223 (``consumer_table``, by client id). Both contain offsets by
    queue."""

    consumer_table: dict[str, ObjectMap[MessageQueue, Int64]] = always(dict)
    message_queue_table: ObjectMap[MessageQueue, Int64] = always(ObjectMap)


class CorrectionOffsets(Body, frozen=True, kw_only=True):
    """Answer to QUERY_CORRECTION_OFFSET (308): offsets by queue id."""

    correction_offsets: dict[Int32, Int64] = always(dict)


class QueueTimeSpan(Body, frozen=True, kw_only=True):
    """The store times of a queue's messages in milliseconds. The ``_str`` members contain Java's texts of them and
    are never read."""

    consume_time_stamp: Int64 = always(int)
    consume_time_stamp_str: str | None = None
    delay_time: Int64 = always(int)
    max_time_stamp: Int64 = always(int)
    max_time_stamp_str: str | None = None
    message_queue: MessageQueue | None = None
    min_time_stamp: Int64 = always(int)
    min_time_stamp_str: str | None = None


class QueueTimeSpans(Body, frozen=True, kw_only=True):
    """Answer to QUERY_CONSUME_TIME_SPAN (303)."""

    consume_time_span_set: list[QueueTimeSpan] = always(list)

"""The pulls of Spark's readers: encodes requests, parses answers in place, and decides how many to keep in flight."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from orbitmq.codes import PullFlag, ResponseCode
from orbitmq.errors import FrameError, error_for_code
from orbitmq.model.subscription import SQL92, TAG
from orbitmq.requests import RequestCode
from orbitmq.spark.connections import DEFAULT_GROUP
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.pool import Link
from orbitmq.spark.source.planning import QueueKey
from orbitmq.wire.frame import FRAME_BYTES_MAX, encode_binary_fields, encode_binary_request
from orbitmq.wire.header import encode_ext
from orbitmq.wire.headers import PullMessageRequest
from orbitmq.wire.pulls import answer_head, read_pull_answer

__all__ = ["Answer", "Ask", "Pace", "PullWriter", "frame_size", "read_answer"]

_PULL_BYTES: Final = 1024 * 1024
"""The most bytes to request in one pull; the broker's own limit is usually lower."""
_IN_FLIGHT_BYTES: Final = 2 * 1024 * 1024
_WINDOW_MAX: Final = 128
_PROBE_EVERY: Final = 64
_PROBE_EVERY_MAX: Final = 4096

_PULL: Final = int(RequestCode.PULL_MESSAGE)
_NUMBERS: Final = b"%b\x00\x0bqueueOffset\x00\x00\x00%c%b\x00\x0amaxMsgNums\x00\x00\x00%c%b%b"
_PULL_CODES: Final = frozenset(
    int(code)
    for code in (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)


class Ask(NamedTuple):
    """A pull in flight."""

    opaque: int
    offset: int
    wanted: int
    """Number of messages requested."""

    @property
    def end(self) -> int:
        return self.offset + self.wanted


class Answer(NamedTuple):
    """The answer to a pull. Its records are between ``start`` and ``end`` of the buffer in which it was parsed."""

    code: int
    next_offset: int
    low: int
    """First offset of the queue."""
    high: int
    start: int
    end: int


class PullWriter:
    """Encodes the pulls of one queue. Only two numbers change from pull to pull, so the rest is encoded once, which
    saves 20 us per pull."""

    def __init__(self, options: SourceOptions, queue: QueueKey) -> None:
        self._signed = options.access.credentials is not None
        self._header = PullMessageRequest(
            consumer_group=options.group or DEFAULT_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=0,
            max_msg_nums=0,
            sys_flag=int(PullFlag.SUBSCRIPTION),
            subscription=options.sql or options.tags or "*",
            expression_type=SQL92 if options.sql is not None else TAG,
            max_msg_bytes=_PULL_BYTES,
        )
        names = list(fields := encode_ext(self._header))
        offset_at, count_at = names.index("queueOffset"), names.index("maxMsgNums")
        assert count_at == offset_at + 1, "the two numbers that change are neighbours"
        self._head = encode_binary_fields({name: fields[name] for name in names[:offset_at]})
        self._tail = encode_binary_fields({name: fields[name] for name in names[count_at + 1 :]})

    def write(self, link: Link, ask: Ask) -> bytes:
        if self._signed:  # the signature covers the numbers
            header = msgspec.structs.replace(self._header, queue_offset=ask.offset, max_msg_nums=ask.wanted)
            return link.encode(_PULL, header, b"", ask.opaque)
        offset, wanted = b"%d" % ask.offset, b"%d" % ask.wanted
        fields = _NUMBERS % (self._head, len(offset), offset, len(wanted), wanted, self._tail)
        return encode_binary_request(_PULL, ask.opaque, fields, b"")


class Pace:
    """Decides how many messages to request in one pull, and how many pulls to keep in flight.

    Brokers limit an answer by count (32 by default) and by bytes, and do not report the limits. So the first pull
    requests many messages, and later ones request as many as it returned. Occasionally a single pull requests more.
    This becomes rarer the more often it fails.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._usual = most
        self._learned = False
        self._until_probe = self._probe_every = _PROBE_EVERY
        self.window = 1

    def next_count(self) -> int:
        """Returns the number of messages that the next pull requests."""
        self._until_probe -= 1
        if self._until_probe or self._usual >= self._most:
            return self._usual
        self._until_probe = self._probe_every
        return min(self._usual * 2, self._most)

    def note(self, asked: int, came: int, answer_bytes: int) -> None:
        """Adapts to an answer that had ``came`` of the ``asked`` messages."""
        if not self._learned:
            self._learned = True
            self._usual = max(came, 1)
        elif asked > self._usual:  # a probe
            if came > self._usual:
                self._usual, self._probe_every = came, _PROBE_EVERY
            else:
                self._probe_every = min(self._probe_every * 2, _PROBE_EVERY_MAX)
        elif came < asked == self._usual:
            # Reduce gradually, because the last answer of a log file is short, too.
            self._usual = max(came, self._usual * 3 // 4, 1)
        self.window = min(max(_IN_FLIGHT_BYTES // max(answer_bytes, 1), 2), _WINDOW_MAX)


def frame_size(buffer: bytearray, at: int, filled: int) -> int:
    """Returns the size of the frame at a position, even if it is incomplete, or 0 if its length has not arrived yet.
    Raises ``FrameError``."""
    if filled - at < 4:
        return 0
    length = int.from_bytes(buffer[at : at + 4], "big")
    if not 4 <= length <= FRAME_BYTES_MAX:
        raise FrameError(f"frame length {length} is out of range")
    return 4 + length


def read_answer(buffer: bytearray, at: int, size: int) -> tuple[int, Answer | None]:
    """Returns the opaque and the answer of the complete frame at a position. The answer is None if the frame is a
    broker's request, which needs no reply.

    The body is not copied. Raises the ``BrokerError`` of a refusal, and ``FrameError``.
    """
    frame, body = answer_head(buffer, at, size)
    if not frame.is_response:
        return frame.opaque, None
    if frame.code not in _PULL_CODES:
        raise error_for_code(frame.code, frame.remark)
    fields = read_pull_answer(frame)
    return frame.opaque, Answer(
        frame.code, fields.next_begin_offset, fields.min_offset, fields.max_offset, body, at + size
    )

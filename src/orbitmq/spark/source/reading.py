"""Reads one partition from a broker into Arrow batches, on an executor.

Theory of operation. A broker limits the answer to a pull, by default to 32 messages, so a single pull at a time would
spend its time waiting. Queue offsets are dense: without a filter, the offsets of the next pulls are known in advance,
so many are kept in flight. An answer shorter than requested leaves a hole, which is requested immediately; answers
that arrive out of order are copied and wait. Rows are returned in queue order. With a filter, only the answer tells
where to continue, so one pull is in flight while the previous answer is decoded.

Invariants
1. ``_position`` is the next offset to return; everything before it was returned, filtered out, or reported as lost.
2. Outstanding pulls are in ``_asked`` in offset order and cover ``_position`` to ``_next`` without gaps.
3. Memory: one receive buffer, and at most a window of answers that arrived too early.
4. After a failure all outstanding pulls are dropped and requested again from ``_position``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.compute as pc  # type: ignore[import-untyped]  # the same

from orbitmq.codes import ResponseCode, SysFlag
from orbitmq.errors import ConnectionLostError, InvalidParameter, OrbitError, RecordError, TopicNotFound
from orbitmq.kernel.layout import QUEUE_OFFSET
from orbitmq.model.route import MASTER_ID
from orbitmq.model.subscription import subscribe_by_tags
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.arrow import (
    Positions,
    decode_records,
    expand_batches,
    read_numbers,
    scan_into,
    scan_records,
)
from orbitmq.spark.connections import replicas, server_client
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.pool import Link, borrow, give_back, is_passing, pause
from orbitmq.spark.source.planning import DataLossError, LostRange, QueueRange, loss_text, missing_ranges
from orbitmq.spark.source.pulls import Answer, Ask, Pace, PullWriter, frame_size, read_answer

__all__ = ["read_ranges"]

logger = logging.getLogger(__name__)

_INNER: Final = int(SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH)
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)

_BUFFER_BYTES: Final = 4 * 1024 * 1024
_RECEIVE_BYTES_MIN: Final = 256 * 1024
_BATCH_BYTES: Final = 1024 * 1024
"""Bytes decoded together, so that the fixed cost of a decode, about 0.5 ms, hardly matters."""

_Piece = tuple[bytes | bytearray, list[int]]
"""Records in a buffer, by start position."""


class _NotYet(OrbitError):
    """The broker does not have the requested messages now, perhaps because it is recovering."""


class _StartOver(OrbitError):
    """Outstanding pulls request offsets that do not exist, so pulls must restart from the current position."""


def read_ranges(
    options: SourceOptions,
    pieces: Sequence[QueueRange],
    address: str,
    columns: Sequence[str],
    *,
    from_master: bool = True,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[pa.RecordBatch]:
    """Yields the messages of several ranges of one broker, one range after the other.

    ``from_master`` tells whether the address is a master's, because only a master can determine that a message is
    missing. Raises ``DataLossError``, or the error that persisted for longer than ``retryTimeoutMs``.
    """
    buffer = bytearray(_BUFFER_BYTES)
    for piece in pieces:
        reader = _RangeReader(options, piece, address, columns, buffer, clock)
        reader.from_master = from_master
        try:
            yield from reader.batches()
        finally:
            reader.close()


class _RangeReader:
    def __init__(
        self,
        options: SourceOptions,
        piece: QueueRange,
        address: str,
        columns: Sequence[str],
        buffer: bytearray,
        clock: Clock,
    ) -> None:
        self._options = options
        self._queue, self._position, self._end = piece
        self._address = address
        self.from_master = True
        self._columns = list(columns)
        self._clock = clock
        self._filtered = options.tags is not None or options.sql is not None
        self._tags: list[str] | None = None
        if options.tags is not None:
            self._tags = sorted(subscribe_by_tags(self._queue.topic, options.tags).tags_set)
        self._writer = PullWriter(options, self._queue)
        self._pace = Pace(options.pull_batch_size)
        self._link: Link | None = None
        self._asked: deque[Ask] = deque()
        self._early: dict[int, tuple[Answer, bytes]] = {}
        self._next = self._position
        self._buffer = buffer
        self._filled = self._parsed = 0
        self._failing_since: float | None = None
        self._failures = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all rows in queue order."""
        while self._position < self._end:
            failure: OrbitError | None = None
            pieces: list[_Piece] = []
            try:
                self._gather(self._connected(), pieces)
            except OrbitError as error:
                failure = error
            # Also after a failure: what arrived before it is complete, and the position is after it.
            yield from self._decoded(pieces)
            if failure is not None:
                self._start_over(failure)

    def close(self) -> None:
        """Keeps the connection for the next task if nothing is outstanding on it."""
        if self._link is not None:
            if self._asked or self._parsed < self._filled:
                self._link.close()
            else:
                give_back(self._link, self._options.access)
            self._link = None

    # -- one round -------------------------------------------------------------------------------------

    def _gather(self, link: Link, pieces: list[_Piece]) -> None:
        """Receives about one batch of bytes while keeping pulls in flight."""
        left = self._filled - self._parsed
        self._buffer[:left] = self._buffer[self._parsed : self._filled]
        self._filled, self._parsed = left, 0
        gathered = 0
        self._ask_more(link)
        while gathered < _BATCH_BYTES and self._position < self._end:
            size = frame_size(self._buffer, self._parsed, self._filled)
            if size == 0 or self._parsed + size > self._filled:
                if not self._receive(link, size):
                    return  # decode first, to have room
                continue
            opaque, answer = read_answer(self._buffer, self._parsed, size)
            self._parsed += size
            if answer is None:
                continue
            gathered += size
            if self._asked[0].opaque == opaque:
                self._take(answer, self._buffer, pieces)
                while self._asked and self._asked[0].opaque in self._early:
                    answer, body = self._early.pop(self._asked[0].opaque)
                    self._take(answer, body, pieces)
                self._ask_more(link)
            elif any(ask.opaque == opaque for ask in self._asked):
                body = bytes(self._buffer[answer.start : answer.end])
                self._early[opaque] = (answer._replace(start=0, end=len(body)), body)

    def _receive(self, link: Link, frame_bytes: int) -> bool:
        """Receives more bytes into the buffer. Returns False if the buffer is full and must be decoded first."""
        room = len(self._buffer) - self._filled
        if room < _RECEIVE_BYTES_MIN and self._parsed:
            return False
        if self._parsed + frame_bytes > len(self._buffer):
            if self._parsed:
                return False
            self._buffer.extend(bytes(frame_bytes - len(self._buffer)))
        self._filled += link.receive(memoryview(self._buffer)[self._filled :])
        return True

    def _decoded(self, pieces: list[_Piece]) -> Iterator[pa.RecordBatch]:
        """Yields one batch decoded from all pieces, which are consecutive in the receive buffer or are separate
        copies."""
        columns = self._columns
        if self._tags is not None and "tags" not in columns:
            columns = [*columns, "tags"]
        for received, group in groupby(pieces, key=lambda piece: piece[0] is self._buffer):
            found = list(group)
            buffer, starts = (self._buffer, _positions(found)) if received else _joined(found)
            batch = decode_records(
                buffer,
                starts,
                broker=self._queue.broker,
                columns=columns,
                verify_crc=False,
            )
            if self._tags is not None:
                # Brokers compare only hashes of tags, so another tag with the same hash gets this far.
                wanted = pc.is_in(batch.column(columns.index("tags")), pa.array(self._tags, pa.string()))
                batch = batch.filter(wanted).select(self._columns)
            if batch.num_rows:
                yield batch

    # -- sending pulls ---------------------------------------------------------------------------------

    def _connected(self) -> Link:
        if self._link is None:
            timeout_s = self._options.pull_timeout_ms / 1000
            self._link = borrow(self._find_address(), self._options.access, timeout_s=timeout_s)
        return self._link

    def _find_address(self) -> str:
        """Returns the planned address or, after a failure, the broker's next server, cycling through master and
        slaves."""
        if not self._address or self._failures:
            client = server_client(self._options.access)
            topic, broker, _ = self._queue
            route = client.known_route(topic)
            servers = [] if route is None else replicas(route.broker(broker))
            if not servers:
                # A name server removes a broker and its topics while it is down.
                if client.run(lambda: client.is_deleted(topic, broker)):
                    raise TopicNotFound(f"broker {broker} has no topic {topic} any more")
                raise ConnectionLostError(f"no route names broker {broker} for topic {topic}")
            broker_id, self._address = servers[self._failures % len(servers)]
            self.from_master = broker_id == MASTER_ID
        return self._address

    def _ask_more(self, link: Link) -> None:
        """Keeps as many pulls in flight as the pace allows."""
        asks: list[Ask] = []
        if self._filtered:
            if not self._asked and self._position < self._end:
                asks.append(Ask(link.next_opaque(), self._position, self._pace.next_count()))
        else:
            room = self._pace.window - len(self._asked)
            if self._asked and room <= self._pace.window // 4:
                return  # wait for more, to send several with one system call
            while len(asks) < room and self._next < self._end:
                count = min(self._pace.next_count(), self._end - self._next)
                asks.append(Ask(link.next_opaque(), self._next, count))
                self._next += count
        if asks:
            self._asked.extend(asks)
            link.send(b"".join(self._writer.write(link, ask) for ask in asks))

    def _ask_rest(self, ask: Ask) -> None:
        """Requests the missing part of a short answer, ahead of all outstanding pulls."""
        if not self._asked:
            self._next = self._position
        elif ask.end > self._position and self._link is not None:
            rest = Ask(self._link.next_opaque(), self._position, ask.end - self._position)
            self._asked.appendleft(rest)
            self._link.send(self._writer.write(self._link, rest))

    # -- receiving answers -----------------------------------------------------------------------------

    def _take(self, answer: Answer, buffer: bytes | bytearray, pieces: list[_Piece]) -> None:
        """Processes the next answer in queue order, which may contain rows, a jump, or a reason to retry."""
        ask = self._asked.popleft()
        if answer.code == _MOVED:
            self._moved(answer)
        if answer.next_offset <= ask.offset:
            raise _NotYet(f"the broker has no message at offset {ask.offset} of queue {self._queue}")
        if not self._filtered:
            self._pace.note(ask.wanted, answer.next_offset - ask.offset, answer.end - answer.start)
        reached = min(max(answer.next_offset, self._position), self._end)
        if answer.code == _SUCCESS:
            self._rows(answer, reached, buffer, pieces)
        elif answer.code == int(ResponseCode.PULL_NOT_FOUND) or not self._filtered:
            self._report([LostRange(self._queue, self._position, reached)])
        self._position = reached
        self._failing_since, self._failures = None, 0
        if not self._filtered:
            self._ask_rest(ask)

    def _rows(self, answer: Answer, reached: int, buffer: bytes | bytearray, pieces: list[_Piece]) -> None:
        starts: list[int] = []
        if scan_into(starts, buffer, answer.start, answer.end) != answer.end or not starts:
            raise RecordError(f"{self._address} answered a pull with malformed records")
        # Nearly all answers are dense, which the first and last record show. An answer has 32 rows, and an array
        # operation per field of each answer would cost more than decoding them.
        dense = (
            len(starts) == reached - self._position
            and QUEUE_OFFSET.unpack_from(buffer, starts[0])[0] == self._position
            and QUEUE_OFFSET.unpack_from(buffer, starts[-1])[0] == reached - 1
        )
        if not dense:
            buffer, starts = self._wanted(buffer, np.array(starts, np.int64), reached)
        if starts:
            pieces.append((buffer, starts))

    def _wanted(
        self, buffer: bytes | bytearray, starts: Positions, reached: int
    ) -> tuple[bytes | bytearray, list[int]]:
        """Returns the buffer and the starts of the wanted rows, for an answer with gaps, repeats or shared records.
        Gaps are reported unless messages are filtered."""
        if (read_numbers(buffer, starts, "sys_flag") & _INNER).any():
            buffer = expand_batches(buffer, starts)
            starts = scan_records(buffer, 0, len(buffer))
        offsets = read_numbers(buffer, starts, "queue_offset")
        # A filter counts only matches and may look beyond the end.
        wanted = (offsets >= self._position) & (offsets < self._end)
        if not self._filtered:
            self._report(missing_ranges(self._queue, offsets[wanted].tolist(), self._position, reached))
        return buffer, starts[wanted].tolist()

    def _moved(self, answer: Answer) -> None:
        """Handles an answer saying that the offset is outside of the queue."""
        if self._position < answer.low:
            first = min(answer.low, self._end)
            self._report([LostRange(self._queue, self._position, first)])
            self._position = first
            raise _StartOver("the queue now begins later")
        # After its end: a broker lost its last messages in a restart, or is still recovering. Inside: an operator
        # reset the group's offset, which is answered once and concerns consumers only.
        raise _NotYet(
            f"offset {self._position} of queue {self._queue} is not there: it goes from {answer.low} to {answer.high}"
        )

    def _report(self, lost: Sequence[LostRange]) -> None:
        """Fails the query because of missing messages, or logs and skips them. Nothing else in this class does."""
        if not lost:
            return
        if not self.from_master:
            raise _NotYet(f"slave {self._address} lacks {loss_text(lost)}; its master may have it")
        if self._options.fail_on_data_loss:
            raise DataLossError(lost)
        logger.warning("messages lost before they were read ranges=%s", loss_text(lost))

    def _start_over(self, error: OrbitError) -> None:
        """Drops outstanding pulls, pauses if that helps, and resumes from the position. Raises the error if it is
        permanent."""
        if self._link is not None:
            self._link.close()
            self._link = None
        self._asked.clear()
        self._early.clear()
        self._next = self._position
        self._filled = self._parsed = 0
        if isinstance(error, _StartOver):
            return
        if isinstance(error, TopicNotFound) and self.from_master:
            self._give_up()
            return
        if isinstance(error, TopicNotFound | InvalidParameter) and not self.from_master:
            # A slave copies the topic table only periodically, so it receives messages of a new topic or queue first.
            error = _NotYet(f"slave {self._address} does not know queue {self._queue} yet")
        elif isinstance(error, InvalidParameter):
            # The topic has fewer queues than at planning time, or a new master has an outdated table.
            error = _NotYet(f"{self._address} has no queue {self._queue} now: {error}")
        if not is_passing(error) and not isinstance(error, _NotYet):
            raise error
        now = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            logger.info("read interrupted, retrying queue=%s error=%s", self._queue, error)
        if now - self._failing_since >= self._options.retry_timeout_ms / 1000:
            if not isinstance(error, _NotYet):
                raise error
            if not self.from_master:
                raise ConnectionLostError(str(error))
            self._give_up()
            return
        pause(self._failures)
        self._failures += 1

    def _give_up(self) -> None:
        """Reports the rest of the range as lost."""
        self._report([LostRange(self._queue, self._position, self._end)])
        self._position = self._end


def _positions(pieces: Iterable[_Piece]) -> Positions:
    return np.array(list(chain.from_iterable(starts for _, starts in pieces)), np.int64)


def _joined(pieces: list[_Piece]) -> tuple[bytes, Positions]:
    """Concatenates copied answers into one buffer."""
    ends = np.cumsum([len(buffer) for buffer, _ in pieces])
    starts = [
        np.array(found, np.int64) + int(end) - len(buffer)
        for (buffer, found), end in zip(pieces, ends, strict=True)
    ]
    return b"".join(buffer for buffer, _ in pieces), np.concatenate(starts)

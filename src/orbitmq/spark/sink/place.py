"""Assigns each encoded row to a topic, queue and request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.client.produce.queue_picker import select_by_hash
from orbitmq.codes import Property
from orbitmq.errors import MessageIllegal
from orbitmq.model.names import is_retry_topic
from orbitmq.model.route import MessageQueue
from orbitmq.spark.sink.rows import EncodedRows, Indices
from orbitmq.spark.sink.send import HalfRow, SendSession, SinkClient

__all__ = ["RowSender"]

ANYWHERE: Final = -1
NAMED_MAX: Final = 16
"""The most queues to name in an error."""


class RowSender:
    """Passes the rows of a task to its session."""

    def __init__(
        self,
        client: SinkClient,
        session: SendSession,
        topic: str | None,
        broker: str | None,
        batch_bytes: int,
        half: bytes = b"",
    ) -> None:
        """``half`` are properties for half messages. If they are set, rows are stored as half messages."""
        self._half = half
        self._client = client
        self._session = session
        self._topic = topic
        self._broker = broker
        self._batch_bytes = batch_bytes
        self._turn = 0

    def send(self, rows: EncodedRows) -> None:
        """Sends some rows. May wait until the session has room."""
        if not len(rows):
            return
        alone = self._alone(rows)
        if self._half:
            self._send_halves(rows)
            return
        for name, of_topic in self._by_topic(rows):
            topic = self._client.sender.wire_topic(name)
            single = np.ones(len(rows), np.bool_) if is_retry_topic(topic) else alone
            for queue, chosen in self._by_queue(rows, topic, of_topic):
                for part in _runs(chosen, single):
                    if single[part[0]]:
                        self._send_single(topic, rows.take(part), queue)
                    else:
                        whole = len(part) == len(rows)
                        self._send_batches(topic, rows if whole else rows.take(part), queue)

    def _alone(self, rows: EncodedRows) -> npt.NDArray[np.bool_]:
        """Returns which rows cannot be in a batch: delayed ones, and those that exceed the size of a batch."""
        alone = rows.entry_sizes > self._batch_bytes
        level, due = rows.columns.get("delay_level"), rows.columns.get("deliver_at")
        levels = np.zeros(len(rows), np.int64) if level is None else np.asarray(level.fill_null(0))
        leveled = levels > 0
        timed = np.zeros(len(rows), np.bool_) if due is None else np.asarray(due.is_valid())
        if (leveled & timed).any():
            row = rows.first_row + int(np.flatnonzero(leveled & timed)[0])
            raise MessageIllegal(f"row {row} of this partition has both delay_level and deliver_at")
        if (levels < 0).any():
            at = int(np.flatnonzero(levels < 0)[0])
            raise MessageIllegal(
                f"row {rows.first_row + at} of this partition has delay_level {levels[at]}; 0 is the lowest"
            )
        early = [(at, due_ms) for at, due_ms in enumerate(_numbers(rows, "deliver_at")) if (due_ms or 0) < 0]
        if due is not None and early:
            raise MessageIllegal(
                f"row {rows.first_row + early[0][0]} of this partition has deliver_at {early[0][1]} ms, before 1970"
            )
        return alone | leveled | timed

    def _by_topic(self, rows: EncodedRows) -> Iterator[tuple[str, Indices]]:
        column = rows.columns.get("topic")
        everything = np.arange(len(rows))
        if column is None:
            assert self._topic is not None
            yield self._topic, everything
            return
        encoded = column.dictionary_encode()
        codes = np.asarray(encoded.indices.fill_null(ANYWHERE))
        for code in np.unique(codes).tolist():
            chosen = np.flatnonzero(codes == code)
            topic = self._topic if code == ANYWHERE else encoded.dictionary[code].as_py()
            if not topic:
                row = rows.first_row + int(chosen[0])
                raise MessageIllegal(
                    f"row {row} of this partition has no topic, nor is there an option 'topic'"
                )
            yield topic, chosen

    def _by_queue(
        self, rows: EncodedRows, topic: str, chosen: Indices
    ) -> Iterator[tuple[MessageQueue | None, Indices]]:
        """Yields the rows of each queue, in their order. The queue is None for rows that may go to any queue."""
        placed = next((name for name in ("queue_id", "sharding_key") if name in rows.columns), None)
        if placed is None and self._broker is None and "broker" not in rows.columns:
            yield None, chosen
            return
        queues = self._client.queues(topic)
        targets = np.full(len(chosen), ANYWHERE)
        if placed == "sharding_key":
            targets = self._by_key(rows.columns["sharding_key"].take(pa.array(chosen)), queues)
        else:
            targets = self._by_number(rows, topic, chosen, queues)
        for target in np.unique(targets).tolist():
            yield None if target == ANYWHERE else queues[target], chosen[targets == target]

    def _by_key(self, keys: pa.Array, queues: Sequence[MessageQueue]) -> npt.NDArray[np.int64]:
        """Returns for each row the index of the queue that every official client would choose for its key, or
        ``ANYWHERE`` if it has no key."""
        allowed = [queue for queue in queues if self._broker in (None, queue.broker_name)]
        if not allowed:
            raise MessageIllegal(f"no queue of {queues[0].topic} is on broker {self._broker}")
        place = {queue: index for index, queue in enumerate(queues)}
        encoded = keys.cast(pa.string()).dictionary_encode()
        table = [
            place[select_by_hash(allowed, key)] if key else ANYWHERE for key in encoded.dictionary.to_pylist()
        ]
        codes = np.asarray(encoded.indices.fill_null(len(table)))
        targets: npt.NDArray[np.int64] = np.array([*table, ANYWHERE], np.int64)[codes]
        return targets

    def _by_number(
        self, rows: EncodedRows, topic: str, chosen: Indices, queues: Sequence[MessageQueue]
    ) -> npt.NDArray[np.int64]:
        """Returns for each row the index of the queue with its number, on the named broker or on the only one that
        has it.

        A row with only a broker gets any queue of that broker, and a row with neither gets ``ANYWHERE``.
        """
        picked = pa.array(chosen)
        numbers, number_codes = _coded(rows, "queue_id", picked)
        brokers, broker_codes = _coded(rows, "broker", picked)
        codes = number_codes * len(brokers) + broker_codes
        targets = np.empty(len(chosen), np.int64)
        for code in np.unique(codes).tolist():
            same = codes == code
            number, broker = numbers[code // len(brokers)], brokers[code % len(brokers)] or self._broker
            row = rows.first_row + int(chosen[int(same.argmax())])
            found = _find_queues(topic, queues, number, broker, row)
            if number is None and found:
                # Any queue of the broker will do, so the pieces of a task rotate over them.
                found = found[self._turn % len(found) :][:1]
                self._turn += 1
            targets[same] = found[0] if found else ANYWHERE
        return targets

    def _send_batches(self, topic: str, rows: EncodedRows, queue: MessageQueue | None) -> None:
        data, offsets = rows.entries()
        body_ends = np.concatenate(([0], np.cumsum(rows.body_sizes)))
        start, count = 0, len(rows)
        while start < count:
            end = int(np.searchsorted(offsets, offsets[start] + self._batch_bytes, side="right")) - 1
            end = min(max(end, start + 1), count)
            self._session.batch(
                topic,
                bytes(data[offsets[start] : offsets[end]]),
                end - start,
                int(body_ends[end] - body_ends[start]),
                queue,
            )
            start = end

    def _send_halves(self, rows: EncodedRows) -> None:
        """Sends one request per row, because brokers do not accept half messages in batches."""
        bodies, properties, keys = rows.bodies.to_pylist(), rows.properties(), rows.unique_keys()
        for name, of_topic in self._by_topic(rows):
            topic = self._client.sender.wire_topic(name)
            for queue, chosen in self._by_queue(rows, topic, of_topic):
                self._session.store_halves(
                    [
                        HalfRow(rows.first_row + at, bodies[at], properties[at] + self._half, keys[at])
                        for at in chosen.tolist()
                    ],
                    topic,
                    queue,
                )

    def _send_single(self, topic: str, rows: EncodedRows, queue: MessageQueue | None) -> None:
        levels = _numbers(rows, "delay_level")
        times = _numbers(rows, "deliver_at")
        bodies = rows.bodies.to_pylist()
        for body, text, level, due in zip(bodies, rows.properties(), levels, times, strict=True):
            properties = text
            if level:
                properties += f"{Property.DELAY}\x01{level}\x02".encode()
            if due is not None:
                properties += f"{Property.TIMER_DELIVER_MS}\x01{due}\x02".encode()
            self._session.single(topic, body, properties, queue)


def _find_queues(
    topic: str, queues: Sequence[MessageQueue], number: int | None, broker: str | None, row: int
) -> list[int]:
    """Returns the indices of the queues that match a row's queue number and broker; empty if it has neither.

    Raises ``MessageIllegal`` if no queue matches, or if several brokers have the numbered queue.
    """
    if number is None and broker is None:
        return []
    found = [
        index
        for index, queue in enumerate(queues)
        if number in (None, queue.queue_id) and broker in (None, queue.broker_name)
    ]
    wanted = "a queue" if number is None else f"queue {number}"
    where = wanted + (f" on broker {broker}" if broker else "")
    if not found:
        have = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in queues[:NAMED_MAX])
        raise MessageIllegal(f"row {row} of this partition wants {where} of topic {topic}; it has {have}")
    if number is not None and len(found) > 1:
        names = ", ".join(queues[index].broker_name for index in found[:NAMED_MAX])
        raise MessageIllegal(
            f"row {row} of this partition wants {where} of topic {topic}, which brokers {names} have: "
            f"add a column 'broker' or the option 'broker'"
        )
    return found


def _coded(rows: EncodedRows, name: str, picked: pa.Array) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """Returns a column's distinct values, with None last, and for each row the index of its value."""
    column = rows.columns.get(name)
    if column is None:
        return [None], np.zeros(len(picked), np.int64)
    encoded = column.take(picked).dictionary_encode()
    values = [*encoded.dictionary.to_pylist(), None]
    return values, np.asarray(encoded.indices.fill_null(len(values) - 1)).astype(np.int64)


def _runs(chosen: Indices, single: npt.NDArray[np.bool_]) -> Iterator[Indices]:
    """Yields runs of consecutive rows that are sent in the same way, alone or in a batch. Row order is preserved."""
    flags = single[chosen]
    cuts = np.flatnonzero(flags[1:] != flags[:-1]) + 1
    yield from (part for part in np.split(chosen, cuts) if len(part))


def _numbers(rows: EncodedRows, name: str) -> list[int | None]:
    column = rows.columns.get(name)
    if column is None:
        return [None] * len(rows)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
    numbers: list[int | None] = column.to_pylist()
    return numbers

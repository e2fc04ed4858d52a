"""``orbitmq consume``: prints stored messages, ordered by store time unless it follows new ones."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

import click

from orbitmq.cli.client_connection import ClientConnection, client_connection
from orbitmq.cli.messages import moment, run_client
from orbitmq.client import BodyMismatch, LitePullConsumer, ReceivedMessage
from orbitmq.errors import RequestTimeoutError
from orbitmq.model.route import MessageQueue

__all__ = ["TimeOrder", "consume_command", "template"]

_SILENT_S_MAX: Final = 30
_WAITING_MAX: Final = 1_000
"""Messages that a queue may hold back for older ones of other queues before it is paused."""
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


class _Wanted(NamedTuple):
    """Which messages to read."""

    topic: str
    begin: Any
    follow: bool
    count_max: int | None
    last: int | None
    offset: int | None
    queues: tuple[str, ...]
    expression: str


@click.command("consume")
@click.argument("topic")
@client_connection
@click.option("--follow", "-f", is_flag=True, help="Wait for more instead of ending when all is read.")
@click.option(
    "--from", "start", default="earliest", show_default=True, help="earliest, latest, ISO time, -15m."
)
@click.option("--queue", "-q", "queues", multiple=True, help="Only this queue: 0, or broker-a:0. Repeatable.")
@click.option("--offset", "-o", type=click.IntRange(0), help="Begin at this offset of each queue.")
@click.option(
    "--last", "-l", type=click.IntRange(1), help="Only this many of the newest; with -f, of each queue."
)
@click.option(
    "--format",
    "form",
    default="text",
    show_default=True,
    help="text, json, or a template: %v body, %k keys, %g tags, %p properties, %t topic, %b broker, %q queue, "
    "%o offset, %i id, %T store time.",
)
@click.option("--json", "in_json", is_flag=True, help="The same as --format json.")
@click.option("--count", "-c", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--expression", "-e", default="*", show_default=True, help="Tags: A || B.")
def consume_command(topic: str, connection: ClientConnection, form: str, in_json: bool, **given: Any) -> None:
    """Print the messages of TOPIC in the order they were stored; with --follow as they arrive.

    They are read as group orbitmq-consume, which is registered with the brokers and stores no offsets.
    """
    if sum((given["offset"] is not None, given["last"] is not None, given["start"] != "earliest")) > 1:
        raise click.UsageError("use only one of --from, --offset and --last")
    wanted = _Wanted(
        topic=topic,
        begin=moment(given["start"], datetime.now(UTC)),
        follow=given["follow"],
        count_max=given["count"],
        last=given["last"],
        offset=given["offset"],
        queues=given["queues"],
        expression=given["expression"],
    )
    show = template("json" if in_json else form)
    connection.export(os.environ)
    run_client(_print_all(wanted, connection.name_servers, show), connection, topic)


async def _print_all(wanted: _Wanted, name_servers: str, show: Callable[[ReceivedMessage], str]) -> None:
    async with LitePullConsumer("orbitmq-consume", name_servers, auto_commit=False) as consumer:
        reader = _Reader(consumer, wanted)
        await reader.seek()
        messages = reader.arriving() if wanted.follow else reader.by_time()
        newest: deque[str] = deque(maxlen=wanted.last)
        printed = 0
        async for message in messages:
            if wanted.last is not None and not wanted.follow:
                newest.append(show(message))
                continue
            click.echo(show(message))
            printed += 1
            if printed == wanted.count_max:
                return
        for line in list(newest)[: wanted.count_max]:
            click.echo(line)


class _Reader:
    """Reads the selected queues of a topic from their start positions."""

    def __init__(self, consumer: LitePullConsumer, wanted: _Wanted) -> None:
        self._consumer = consumer
        self._wanted = wanted
        self._ends: dict[MessageQueue, int] = {}
        self._position: dict[MessageQueue, int] = {}

    async def seek(self) -> None:
        """Find the queues and their ends, and move to the start positions."""
        wanted, consumer = self._wanted, self._consumer
        queues = _named(await consumer.fetch_queues(wanted.topic), wanted)
        await consumer.assign(queues, wanted.expression)
        for queue in queues:
            self._ends[queue] = end = await consumer.max_offset(queue)
            first = await consumer.min_offset(queue)
            if wanted.last is not None:
                begin = end - wanted.last
            elif wanted.offset is not None:
                begin = wanted.offset
            elif wanted.begin == "first":
                begin = first
            elif wanted.begin == "last":
                begin = end
            else:
                begin = await consumer.offset_at(queue, round(wanted.begin.timestamp() * 1000))
            self._position[queue] = min(max(begin, first), end)
            await consumer.seek(queue, self._position[queue])

    async def arriving(self) -> AsyncIterator[ReceivedMessage]:
        """Yields messages as they arrive, indefinitely."""
        while True:
            for message in await self._consumer.poll(1.0):
                yield message

    async def by_time(self) -> AsyncIterator[ReceivedMessage]:
        """Yields the messages stored before the command started, oldest first."""
        order = TimeOrder(queue for queue in self._ends if not self._done(queue, idle=False))
        paused: set[MessageQueue] = set()
        silent_s = 0
        while order.open:
            batch = await self._consumer.poll(1.0)
            for message in batch:
                self._position[message.queue] = message.queue_offset + 1
                if message.queue_offset < self._ends[message.queue]:
                    order.add(message)
            for queue in [queue for queue in order.open if self._done(queue, idle=not batch)]:
                order.finish(queue)
            for message in order.ready():
                yield message
            full = {queue for queue in order.open if order.waiting(queue) >= _WAITING_MAX}
            self._consumer.pause(full - paused)
            self._consumer.resume(paused - full)
            paused = full
            silent_s = 0 if batch else silent_s + 1
            if silent_s >= _SILENT_S_MAX:
                raise RequestTimeoutError(
                    f"no broker of topic {self._wanted.topic} answers, so not all messages were read"
                )

    def _done(self, queue: MessageQueue, *, idle: bool) -> bool:
        """Returns whether a queue has been read to its end.

        With ``idle``, messages that were fetched but not returned count as read, because they were filtered out.
        """
        end = self._ends[queue]
        return self._position[queue] >= end or (idle and self._consumer.fetched_until(queue) >= end)


class TimeOrder:
    """Merges queues by store time. The order of offsets within each queue is preserved.

    Messages of one broker with equal times are ordered by log offset.
    """

    def __init__(self, queues: Any) -> None:
        self._waiting: dict[MessageQueue, deque[ReceivedMessage]] = {queue: deque() for queue in queues}
        self.open: set[MessageQueue] = set(self._waiting)
        """Queues to which more messages may be added."""
        self._heads: list[tuple[int, str, int, MessageQueue]] = []
        """Store time, broker, log offset and queue of the oldest message of each non-empty queue."""

    def add(self, message: ReceivedMessage) -> None:
        """Add the next message of its queue."""
        waiting = self._waiting[message.queue]
        waiting.append(message)
        if len(waiting) == 1:
            self._push(message)

    def finish(self, queue: MessageQueue) -> None:
        """Declare that no more messages of a queue will be added."""
        self.open.discard(queue)

    def waiting(self, queue: MessageQueue) -> int:
        """Returns how many messages of a queue are held back."""
        return len(self._waiting[queue])

    def ready(self) -> list[ReceivedMessage]:
        """Returns the messages that precede all messages still to come."""
        found: list[ReceivedMessage] = []
        while self._heads and not any(not self._waiting[queue] for queue in self.open):
            *_, queue = heappop(self._heads)
            waiting = self._waiting[queue]
            found.append(waiting.popleft())
            if waiting:
                self._push(waiting[0])
        return found

    def _push(self, message: ReceivedMessage) -> None:
        queue = message.queue
        heappush(
            self._heads, (message.store_timestamp_ms, queue.broker_name, message.record.log_offset, queue)
        )


def _named(queues: list[MessageQueue], wanted: _Wanted) -> list[MessageQueue]:
    """Returns the queues that ``--queue`` names, or all if it is not given."""
    if not wanted.queues:
        return queues
    known = {name: queue for queue in queues for name in (f"{queue.broker_name}:{queue.queue_id}",)}
    found: list[MessageQueue] = []
    for name in wanted.queues:
        matches = [queue for full, queue in known.items() if name in (full, full.rpartition(":")[2])]
        if not matches:
            raise click.BadParameter(
                f"topic {wanted.topic} has no queue {name}; it has {', '.join(sorted(known))}"
            )
        found += (queue for queue in matches if queue not in found)
    return found


# -- output ------------------------------------------------------------------------------------------------


def template(form: str) -> Callable[[ReceivedMessage], str]:
    """Returns a formatter for messages. ``form`` is ``text``, ``json``, or a template with ``%`` fields."""
    if form == "text":
        return _body_text
    if form == "json":
        return lambda message: json.dumps(_shown(message))
    if "%" not in form:
        raise click.BadParameter(f"{form!r} is not text, json or a template such as '%k %v'")
    parts = re.split(r"(%.|\\.)", form, flags=re.DOTALL)
    unknown = [part for part in parts[1::2] if part[0] == "%" and part[1] not in _FIELDS]
    if unknown or (form.endswith("%") and not form.endswith("%%")):
        raise click.BadParameter(
            f"unknown field {(unknown or ['%'])[0]!r}; there are {' '.join('%' + f for f in _FIELDS)}"
        )

    def show(message: ReceivedMessage) -> str:
        return "".join(_part(part, message) for part in parts)

    return show


def _part(part: str, message: ReceivedMessage) -> str:
    if len(part) == 2 and part[0] == "%":
        return _FIELDS[part[1]](message)
    if len(part) == 2 and part[0] == "\\":
        return _ESCAPES.get(part[1], part)
    return part


def _body_text(message: ReceivedMessage) -> str:
    """Returns a body as text. Bytes that are not UTF-8 are replaced, and a body that cannot be decoded is shown raw,
    so that one bad message does not end the command."""
    try:
        body = message.body
    except BodyMismatch:
        body = message.record.body
    return body.decode("utf-8", "replace")


_FIELDS: Final[dict[str, Callable[[ReceivedMessage], str]]] = {
    "v": _body_text,
    "k": lambda message: " ".join(message.keys),
    "g": lambda message: message.tags,
    "p": lambda message: json.dumps(message.user_properties),
    "t": lambda message: message.topic,
    "b": lambda message: message.queue.broker_name,
    "q": lambda message: str(message.queue_id),
    "o": lambda message: str(message.queue_offset),
    "i": lambda message: message.message_id,
    "T": lambda message: message.stored_at.isoformat(timespec="milliseconds"),
    "%": lambda message: "%",
}


def _shown(message: ReceivedMessage) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "id": message.message_id,
        "born_at": message.born_at.isoformat(),
        "stored_at": message.stored_at.isoformat(),
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.user_properties,
        "body": _body_text(message),
    }

"""Dead letters: find, resend at a limited rate, drop and export them.

A broker cannot delete a single message. So resent and dropped dead letters are recorded in a separate topic of the
cluster, ``DONE_TOPIC``, and every console and command line sees the same state. A record is younger than its dead
letter, so it lives at least as long.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.admin.base import Result
from orbitmq.admin.browse import MessageFilter, browse
from orbitmq.admin.census import broker_places
from orbitmq.admin.errors import AdminError
from orbitmq.admin.messages import MessageView, body_bytes
from orbitmq.admin.previews import WHOLE, Preview
from orbitmq.admin.reading import ReadPlan, by_offset, read_topic
from orbitmq.admin.sending import open_producer
from orbitmq.admin.session import Admin
from orbitmq.admin.topics import new_topic, topic_names, topic_status, update_topic
from orbitmq.codes import Property
from orbitmq.errors import NoMessage, OrbitError, TopicNotFound
from orbitmq.model.names import dlq_topic, group_of, is_dlq_topic
from orbitmq.model.route import MessageQueue
from orbitmq.record.reasons import REASON

if TYPE_CHECKING:
    from orbitmq.client.produce.producer import Producer

__all__ = [
    "DONE_TOPIC",
    "DeadGroup",
    "DeadGroups",
    "DeadLetter",
    "DeadLetters",
    "DeadReason",
    "DeadReasons",
    "dead_groups",
    "dead_letters",
    "dead_letters_with_reason",
    "dead_reasons",
    "each_dead_letter",
    "mark_done",
    "origin_of",
    "own_properties",
    "reference",
    "resend_one",
    "resend_paced",
    "whole_letter",
]

DONE_TOPIC: Final = "orbitmq_dead_letters_done"
RESENT_PROPERTY: Final = "ORBITMQ_RESENT_FROM"
"""Property of a resent message: the offset id of its dead letter."""
_MARKS_PER_MESSAGE: Final = 500
_MARK_BYTES_MAX: Final = 128 * 1024
"""Limit of a record's body; ``_MARKS_PER_MESSAGE`` marks take less."""
_RESERVED: Final = frozenset(name.value for name in Property) | {REASON}
_REASONS_MAX: Final = 1_000
_EXCEPTION: Final = re.compile(r"(?P<type>[\w.<>]+): .* \((?P<place>[^()]+:\d+ in [^()]+)\)", re.DOTALL)


class DeadGroup(Result, kw_only=True):
    group: str
    count: int
    """All that the broker still has, including resent and dropped ones."""
    newest: int
    """When the newest was stored, in milliseconds; 0 if there is none."""


class DeadGroups(Result, kw_only=True):
    groups: list[DeadGroup]


class DeadLetter(Result, kw_only=True):
    message: MessageView
    origin_topic: str
    tries: int
    done: str
    """``resent``, ``dropped``, or empty."""
    reason: str = ""
    """Why the message was dead-lettered, if the client reported it."""


class DeadReason(Result, kw_only=True):
    """A group of dead letters with the same kind of reason."""

    reason: str
    """The exception's type and place, or the whole text; empty if the dead letters have no reason."""
    count: int
    example: str
    """The whole reason of one of the dead letters."""
    newest: int
    """When the newest dead letter was stored, in milliseconds."""


class DeadReasons(Result, kw_only=True):
    reasons: list[DeadReason]
    """The reasons, most frequent first."""
    more: int
    """How many dead letters have reasons beyond the first 1,000 found."""


class DeadLetters(Result, kw_only=True):
    letters: list[DeadLetter]
    cursor: str
    scanned: int
    available: int


def origin_of(message: MessageView) -> str:
    """Returns the topic a dead letter was originally sent to; empty if its record does not name it."""
    properties = message.properties
    return properties.get("DLQ_ORIGIN_TOPIC") or properties.get("RETRY_TOPIC") or ""


def own_properties(message: MessageView) -> dict[str, str]:
    """Returns the properties that the sender set, without system properties and those shown as fields."""
    return {key: value for key, value in message.properties.items() if key not in _RESERVED}


async def dead_groups(admin: Admin) -> DeadGroups:
    """Returns the groups that have a dead-letter topic, those with the most dead letters first."""
    rows = []
    for topic in (await topic_names(admin)).topics:
        if not is_dlq_topic(topic):
            continue
        try:
            status = await topic_status(admin, topic)
        except OrbitError:
            continue  # deleted meanwhile
        count = sum(queue.max_offset - queue.min_offset for queue in status.queues)
        newest = max((queue.last_update_timestamp for queue in status.queues), default=0)
        rows.append(DeadGroup(group=group_of(topic), count=count, newest=newest))
    rows.sort(key=lambda row: (-row.count, row.group))
    return DeadGroups(groups=rows)


def _mark_tag(group: str) -> str:
    # A group name may contain characters with a meaning in tag expressions.
    return hashlib.sha256(group.encode()).hexdigest()[:16]


async def done_marks(admin: Admin, group: str) -> dict[str, str]:
    """Returns ``resent`` or ``dropped`` by the offset id of each dead letter that was handled."""
    found: dict[str, str] = {}
    plan = ReadPlan(topic=DONE_TOPIC, expression=_mark_tag(group), read_bytes=_MARK_BYTES_MAX)
    try:
        async with aclosing(read_topic(admin, plan)) as slices:  # type: ignore[type-var]  # a generator
            async for part in slices:
                for message in part.messages:
                    found.update(_marks(message, group))
    except TopicNotFound:
        pass  # nothing was ever resent or dropped
    return found


def _marks(message: MessageView, group: str) -> dict[str, str]:
    try:
        mark = json.loads(message.body or "")
        if mark["group"] != group:
            return {}
        return {str(one): str(mark["done"]) for one in mark["ids"]}
    except (ValueError, KeyError, TypeError):
        return {}  # not ours


async def mark_done(admin: Admin, group: str, ids: Iterable[str], done: str) -> None:
    """Record that the dead letters with these offset ids were handled. ``done`` is ``resent`` or ``dropped``."""
    await _make_done_topic(admin)
    async with open_producer(admin, "orbitmq-dead-letters") as producer:
        await _send_marks(producer, group, list(ids), done)


async def _make_done_topic(admin: Admin) -> None:
    try:
        await admin.route(DONE_TOPIC)
    except TopicNotFound:
        for cluster in dict.fromkeys(place.cluster for place in await broker_places(admin)):
            config = new_topic(DONE_TOPIC, read=1, write=1, perm=None)
            await update_topic(admin, config, {}, broker=None, cluster=cluster)


async def _send_marks(producer: Producer, group: str, ids: list[str], done: str) -> None:
    from orbitmq.client.message import Message

    for start in range(0, len(ids), _MARKS_PER_MESSAGE):
        body = json.dumps({"group": group, "done": done, "ids": ids[start : start + _MARKS_PER_MESSAGE]})
        await producer.send(Message(DONE_TOPIC, body, tags=_mark_tag(group), keys=group))


def _letter(message: MessageView, marks: dict[str, str]) -> DeadLetter:
    return DeadLetter(
        message=message,
        origin_topic=origin_of(message),
        tries=message.reconsume_times,
        done=marks.get(message.offset_msg_id, ""),
        reason=message.properties.get(REASON, ""),
    )


def kind_of_reason(reason: str) -> str:
    """Returns the type and place of an exception without its text, which often names the message.

    Other reasons are returned unchanged.
    """
    found = _EXCEPTION.fullmatch(reason)
    return f"{found['type']} ({found['place']})" if found else reason


async def dead_reasons(
    admin: Admin, group: str, *, text: str = "", reason: str = "", with_done: bool = False
) -> DeadReasons:
    """Counts a group's dead letters by reason. Raises ``TopicNotFound`` if the group has none."""
    found: dict[str, DeadReason] = {}
    more = 0
    source = each_dead_letter(admin, group, text=text, reason=reason, with_done=with_done)
    async with aclosing(source) as letters:  # type: ignore[type-var]  # a generator
        async for letter in letters:
            kind, stored_ms = kind_of_reason(letter.reason), letter.message.store_timestamp
            known = found.get(kind)
            if known is None:
                if len(found) >= _REASONS_MAX:
                    more += 1
                    continue
                known = found[kind] = DeadReason(reason=kind, count=0, example=letter.reason, newest=0)
            known.count += 1
            known.newest = max(known.newest, stored_ms)
    return DeadReasons(reasons=sorted(found.values(), key=lambda one: (-one.count, one.reason)), more=more)


async def dead_letters(
    admin: Admin,
    group: str,
    *,
    text: str = "",
    with_done: bool = False,
    count: int = 50,
    cursor: str = "",
    preview: Preview = WHOLE,
) -> DeadLetters:
    """Returns a page of dead letters, newest first. Raises ``TopicNotFound`` if the group has none."""
    marks = await done_marks(admin, group)
    found: list[DeadLetter] = []
    scanned = available = 0
    wanted = MessageFilter(topic=dlq_topic(group), text=text, preview=preview)
    while True:
        page = await browse(admin, wanted, count=count - len(found), cursor=cursor)
        scanned += page.scanned
        available = available or page.available
        letters = [_letter(message, marks) for message in page.messages]
        found += (letter for letter in letters if with_done or not letter.done)
        cursor = page.cursor
        if not cursor or len(found) >= count or scanned > 5_000:
            return DeadLetters(letters=found, cursor=cursor, scanned=scanned, available=available)


async def dead_letters_with_reason(
    admin: Admin, group: str, reason: str, *, text: str = "", with_done: bool = False, count: int = 50
) -> DeadLetters:
    """Returns the ``count`` newest dead letters whose reason contains a text, newest first.

    Reads all dead letters of the group.
    """
    newest: deque[DeadLetter] = deque(maxlen=count)
    scanned = 0
    source = each_dead_letter(admin, group, text=text, reason=reason, with_done=with_done)
    async with aclosing(source) as letters:  # type: ignore[type-var]  # a generator
        async for letter in letters:
            scanned += 1
            newest.append(letter)
    return DeadLetters(letters=list(newest)[::-1], cursor="", scanned=scanned, available=scanned)


async def each_dead_letter(
    admin: Admin,
    group: str,
    *,
    ids: Iterable[str] = (),
    text: str = "",
    reason: str = "",
    with_done: bool = False,
    preview: Preview = WHOLE,
) -> AsyncIterator[DeadLetter]:
    """Yields dead letters, oldest first: those with the given unique or offset ids, or all that match the filters."""
    chosen = frozenset(ids)
    marks = await done_marks(admin, group)
    plan = ReadPlan(topic=dlq_topic(group), read_bytes=preview.read_bytes)
    async with aclosing(read_topic(admin, plan)) as slices:  # type: ignore[type-var]  # a generator
        async for part in slices:
            for message in part.messages:
                letter = _letter(message, marks)
                if letter.done and not with_done:
                    continue
                if chosen and not chosen & {message.message_id, message.offset_msg_id}:
                    continue
                for shown in preview.select([message], text=text, tags="*"):
                    found = _letter(shown, marks)  # its reason is masked like its properties
                    if not reason or reason.casefold() in found.reason.casefold():
                        yield found


def reference(letter: DeadLetter) -> DeadLetter:
    """Returns a dead letter without its body and properties, so that many of them fit into memory."""
    slim = msgspec.structs.replace(
        letter.message, properties={}, tags="", keys="", body=None, body_base64="", body_cut=True
    )
    return msgspec.structs.replace(letter, message=slim, reason="")


async def whole_letter(admin: Admin, group: str, letter: DeadLetter) -> DeadLetter:
    """Returns a dead letter with its complete message, read again if its body was truncated. Raises ``NoMessage``."""
    part = letter.message
    if not part.body_cut:
        return letter
    queue = MessageQueue(topic=dlq_topic(group), broker_name=part.broker_name, queue_id=part.queue_id)
    whole = await by_offset(admin, queue, part.queue_offset)
    if whole.offset_msg_id != part.offset_msg_id:
        raise NoMessage(f"dead letter {part.message_id} is no longer at offset {part.queue_offset}")
    return msgspec.structs.replace(letter, message=whole)


async def resend_one(
    producer: Producer, letter: DeadLetter, *, topic: str = "", body: bytes | None = None
) -> str:
    """Resend a dead letter to ``topic``, or to its original topic. Returns the id of the new message."""
    from orbitmq.client.message import Message

    message = letter.message
    target = topic or letter.origin_topic
    if not target:
        raise AdminError(f"dead letter {message.message_id} does not say where it came from; name a topic")
    properties = own_properties(message) | {RESENT_PROPERTY: message.offset_msg_id}
    fresh = Message(
        target,
        body_bytes(message) if body is None else body,
        tags=message.tags,
        keys=message.keys,
        properties=properties,
        shard_key=message.properties.get("__SHARDINGKEY", ""),
        flag=message.flag,
    )
    return (await producer.send(fresh)).message_id


async def resend_paced(
    admin: Admin, group: str, letters: list[DeadLetter], *, topic: str = "", per_second: float = 50.0
) -> AsyncIterator[tuple[DeadLetter, str]]:
    """Resend dead letters one after the other, at most ``per_second`` each second.

    Yields each dead letter with the id of the new message, or with ``!`` and the error. What was resent is recorded
    about once a second, so a process that dies causes at most that much to be repeated.
    """
    if per_second <= 0:
        raise AdminError("the rate must be greater than zero")
    await _make_done_topic(admin)
    clock = admin.clock
    async with open_producer(admin, "orbitmq-dead-letters") as producer:
        waiting: list[str] = []
        begin, noted = clock.monotonic(), clock.monotonic()
        try:
            for number, letter in enumerate(letters):
                pause_s = begin + number / per_second - clock.monotonic()
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
                try:
                    whole = await whole_letter(admin, group, letter)
                    fresh = await resend_one(producer, whole, topic=topic)
                    waiting.append(letter.message.offset_msg_id)
                except OrbitError as error:
                    fresh = f"!{error}"
                if waiting and clock.monotonic() - noted >= 1.0:
                    await _send_marks(producer, group, waiting, "resent")
                    waiting, noted = [], clock.monotonic()
                yield letter, fresh
        finally:
            if waiting:
                await _send_marks(producer, group, waiting, "resent")

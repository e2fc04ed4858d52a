"""Finds the delivery history of a message in the records that brokers have stored. Tracing is not needed.

The unique id of a message stays the same through delay, timer, half message, retry and dead letter, and each of those
records is indexed under the topic it was stored in. So the same query, sent for each of those topics, finds every
event. Whether a transaction was rolled back follows from the op topic; whether a group has consumed the message
follows from the group's offset.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

import msgspec

from orbitmq.admin.base import Result
from orbitmq.admin.brokers import config_of
from orbitmq.admin.census import BrokerPlace, broker_places, gather_bounded
from orbitmq.admin.groups import consume_stats, consumer_connection
from orbitmq.admin.ha import ha_status
from orbitmq.admin.messages import KeyQuery, MessageView, by_id, messages_by_key
from orbitmq.admin.reading import ReadPlan, read_topic
from orbitmq.admin.session import Admin
from orbitmq.admin.topics import groups_of_topic, topic_names
from orbitmq.admin.trace import Traces, message_trace
from orbitmq.errors import NoMessage, OrbitError
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.model.names import (
    HALF_OP_TOPIC,
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_CHECK_MAX_TIME_TOPIC,
    dlq_topic,
    group_of,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
    retry_topic,
)

__all__ = ["Consumption", "Event", "Life", "message_life"]

_TOPICS_MAX: Final = 500
"""Limit of topics to search for an id whose topic is unknown."""
_OPS_MAX: Final = 4_000
"""Limit of op topic messages to read when looking for the end of a transaction."""
_OP_BYTES_MAX: Final = 64 * 1024
"""Limit of the bytes to inflate from each op message."""


class Event(Result, kw_only=True):
    """An event in the history of a message."""

    at_ms: int
    kind: str
    """One of ``stored``, ``delayed``, ``timer``, ``half``, ``committed``, ``rolled-back``, ``recalled``, ``waiting``,
    ``retry``, ``dead``, ``resent`` and ``trace``.
    """
    title: str
    detail: str = ""
    until_ms: int | None = None
    """When the message leaves this state, in milliseconds, if known."""
    message: MessageView | None = None


class Consumption(Result, kw_only=True):
    """The state of the message in one group."""

    group: str
    state: str
    """One of ``consumed``, ``filtered``, ``not-yet``, ``retrying``, ``dead`` and ``unknown``."""
    detail: str = ""
    online: int = 0
    """Number of connected members."""


class Life(Result, kw_only=True):
    message_id: str
    topic: str
    message: MessageView
    """The record in its own topic, or the first record found."""
    state: str
    """The current state of the message, as a sentence."""
    events: list[Event]
    groups: list[Consumption]
    replication: list[str]
    traces: Traces | None = None
    notes: list[str]
    """What could not be determined, and the reason."""


async def message_life(
    admin: Admin, message_id: str, topic: str = "", *, read_bytes: int | None = None
) -> Life:
    """Returns all that the brokers have stored about a message. Raises ``NoMessage``.

    ``read_bytes`` limits how much of its body is read. The messages of the events have no body.
    """
    notes: list[str] = []
    records, origin = await _records(admin, message_id, topic, notes)
    if not records:
        where = f"topic {topic}" if topic else "any topic"
        raise NoMessage(f"no message of {where} has the id {message_id!r}; its index entry may have expired")
    records.sort(key=lambda one: (one.store_timestamp, one.commit_log_offset))
    unique = records[0].message_id
    delays = await _delays(admin, records)
    events = [event for record in records for event in _events(record, delays)]
    events += await _transaction(admin, records, origin, notes)
    in_topic = [one for one in records if one.topic == origin]
    groups = await _consumptions(admin, origin, in_topic, records, notes)
    traces = await _traces(admin, unique, notes)
    events.sort(key=lambda event: event.at_ms)
    shown = in_topic[0] if in_topic else records[0]
    try:
        read = await by_id(admin, shown.topic, shown.offset_msg_id, read_bytes=read_bytes)
        shown = msgspec.structs.replace(
            shown, body=read.body, body_base64=read.body_base64, body_cut=read.body_cut
        )
    except OrbitError as error:
        notes.append(f"the body could not be read: {error}")
    return Life(
        message_id=unique,
        topic=origin,
        message=shown,
        state=_state(records, in_topic, groups, events, admin.clock.now_ms()),
        events=events,
        groups=groups,
        replication=await _replication(admin, shown, notes),
        traces=traces,
        notes=notes,
    )


# -- finding the records -----------------------------------------------------------------------------------


def _origin(record: MessageView) -> str:
    """Returns the topic a message was originally sent to."""
    properties = record.properties
    for name in ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC"):
        if properties.get(name):
            return properties[name]
    if is_system_topic(record.topic):
        return properties.get("REAL_TOPIC") or record.topic
    return record.topic


async def _records(
    admin: Admin, message_id: str, topic: str, notes: list[str]
) -> tuple[list[MessageView], str]:
    """Returns every stored record of the message, and the topic it was originally sent to."""
    places = [place for place in await broker_places(admin) if place.is_master]
    origin, unique = topic, message_id
    try:
        # An offset id names the message's place; both kinds of id look alike.
        first = await by_id(admin, topic, message_id, read_bytes=0)
        origin, unique = _origin(first), first.message_id
    except OrbitError:
        first = None
    stations = [SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC]
    found = await _ask(admin, places, [*dict.fromkeys([origin] if origin else []), *stations], unique)
    if not origin and found:
        origin = _origin(found[0])
        found += await _ask(admin, places, [origin], unique)
    if not found and not topic:
        names = [one for one in (await topic_names(admin)).topics if not is_system_topic(one)]
        if len(names) > _TOPICS_MAX:
            notes.append(f"only {_TOPICS_MAX} of {len(names)} topics were searched; say the topic")
        found = await _ask(admin, places, sorted(names)[:_TOPICS_MAX], unique)
        origin = _origin(found[0]) if found else ""
    if is_retry_topic(origin) or is_dlq_topic(origin):
        origin = next(
            (o for o in map(_origin, found) if not is_retry_topic(o) and not is_dlq_topic(o)), origin
        )
    if first is not None:
        found.append(first)
    groups = {group_of(name) for one in found for name in _handed_back(one)}
    try:
        groups.update(await groups_of_topic(admin, origin) if origin else ())
    except OrbitError as error:
        notes.append(f"the groups of {origin} are unknown: {error}")
    derived = [name for group in sorted(groups) for name in (retry_topic(group), dlq_topic(group))]
    if origin:
        derived += (f"{retry_topic(group)}_{origin}" for group in sorted(groups))
    found += await _ask(admin, places, derived, unique)
    by_place = {(one.store_host, one.commit_log_offset): one for one in found}
    return list(by_place.values()), origin


def _handed_back(record: MessageView) -> list[str]:
    """Returns the retry and dead-letter topics that a record names."""
    names = (record.topic, record.properties.get("REAL_TOPIC", ""))
    return [name for name in names if is_retry_topic(name) or is_dlq_topic(name)]


async def _ask(admin: Admin, places: list[BrokerPlace], topics: list[str], unique: str) -> list[MessageView]:
    """Returns the records with this unique id in each of the topics, from every master."""
    if not places:
        return []

    async def one(topic: str) -> list[MessageView]:
        # Every broker has a topic with its own name, and so a route; system topics have none.
        found: list[MessageView] = []
        for place in places:
            query = KeyQuery(
                topic=topic, key=unique, unique=True, route_topic=place.broker_name, read_bytes=0
            )
            try:
                found += await messages_by_key(admin, query)
            except OrbitError:
                continue  # this broker does not have the topic
        return found

    answers = await gather_bounded(one, topics)
    return [record for answer in answers if isinstance(answer, list) for record in answer]


# -- telling what they mean --------------------------------------------------------------------------------


def _number(record: MessageView, name: str) -> int | None:
    text = record.properties.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else None


def _at(
    record: MessageView, *, kind: str, title: str, detail: str = "", until_ms: int | None = None
) -> Event:
    """Returns the event of a stored record."""
    return Event(
        at_ms=record.store_timestamp,
        kind=kind,
        title=title,
        detail=detail,
        until_ms=until_ms,
        message=record,
    )


async def _delays(admin: Admin, records: list[MessageView]) -> tuple[int, ...]:
    """Returns the delays, in milliseconds by level, of the broker on which the message waits at a level.

    Returns the default levels if none of the records waits or the broker's levels are unavailable.
    """
    for record in records:
        if record.topic == SCHEDULE_TOPIC:
            try:
                config = await config_of(admin, record.store_host)
                return DelayLevels(config["messageDelayLevel"]).delays_ms
            except (OrbitError, KeyError):
                break  # the levels every broker begins with
    return DelayLevels().delays_ms


def _events(record: MessageView, delays: tuple[int, ...]) -> list[Event]:
    where = f"{record.broker_name or record.store_host} queue {record.queue_id} offset {record.queue_offset}"
    real = record.properties.get("REAL_TOPIC", "")
    if record.topic == SCHEDULE_TOPIC:
        level = record.queue_id + 1
        until = record.store_timestamp + delays[level - 1] if level <= len(delays) else None
        if is_retry_topic(real):
            title = f"Handed back by group {group_of(real)}, waits for try {record.reconsume_times + 1}"
            return [_at(record, kind="waiting", title=title, detail=f"delay level {level}", until_ms=until)]
        if is_dlq_topic(real):
            return [
                _at(
                    record,
                    kind="waiting",
                    title="Retries exhausted, on its way to the dead letters",
                    until_ms=until,
                )
            ]
        title = f"Delayed at level {level}"
        return [_at(record, kind="delayed", title=title, detail=f"for {real}", until_ms=until)]
    if record.topic == TIMER_TOPIC:
        until = _number(record, "TIMER_OUT_MS") or _number(record, "TIMER_DELIVER_MS")
        if "TIMER_DEL_UNIQKEY" in record.properties:
            return [_at(record, kind="recalled", title="Recalled: will not be delivered")]
        title = (
            "Waits in the timer"
            if not is_retry_topic(real)
            else f"Waits for the next try of {group_of(real)}"
        )
        return [_at(record, kind="timer", title=title, detail=f"for {real}", until_ms=until)]
    if record.topic == HALF_TOPIC:
        checks = _number(record, "TRANSACTION_CHECK_TIMES")
        title = "Prepared in a transaction" if not checks else f"Transaction checked, {checks} so far"
        group = record.properties.get("PGROUP", "?")
        return [_at(record, kind="half", title=title, detail=f"producer group {group}")]
    if is_dlq_topic(record.topic):
        title = f"Dead letter of group {group_of(record.topic)}"
        return [
            _at(record, kind="dead", title=title, detail=f"after {record.reconsume_times} tries; {where}")
        ]
    if is_retry_topic(record.topic):
        title = f"Ready for try {record.reconsume_times + 1} of group {group_of(record.topic)}"
        return [_at(record, kind="retry", title=title, detail=where)]
    born = Event(
        at_ms=record.born_timestamp,
        kind="sent",
        title=f"Sent by {record.born_host}",
        detail=f"to {record.topic}",
    )
    if real and record.born_timestamp < record.store_timestamp - 1_000:
        return [born, _at(record, kind="stored", title=f"Due: moved to {record.topic}", detail=where)]
    return [born, _at(record, kind="stored", title=f"Stored in {record.topic}", detail=where)]


async def _transaction(
    admin: Admin, records: list[MessageView], origin: str, notes: list[str]
) -> list[Event]:
    """Returns the outcome of the transaction; empty if the message was not sent in one or the outcome is unknown."""
    halves = [one for one in records if one.topic == HALF_TOPIC]
    if not halves:
        return []
    committed = [one for one in records if one.topic == origin]
    if committed:
        at_ms = committed[0].store_timestamp
        return [
            Event(at_ms=at_ms, kind="committed", title="Transaction committed", detail=f"moved to {origin}")
        ]
    last = halves[-1]
    wanted = {str(half.queue_offset) for half in halves}
    plan = ReadPlan(
        topic=HALF_OP_TOPIC,
        queue_id=last.queue_id,
        broker_name=last.broker_name or None,
        begin_ms=halves[0].store_timestamp,
        count_max=_OPS_MAX,
        read_bytes=_OP_BYTES_MAX,
        route_topic=last.broker_name,
    )
    try:
        async with aclosing(read_topic(admin, plan)) as slices:  # type: ignore[type-var]  # a generator
            async for part in slices:
                for op in part.messages:
                    if wanted & set((op.body or "").split(",")):
                        return await _ended(admin, records, op)
    except OrbitError as error:
        notes.append(f"whether the transaction was rolled back is unknown: {error}")
    return []


async def _ended(admin: Admin, records: list[MessageView], op: MessageView) -> list[Event]:
    given_up = await _ask(
        admin,
        [place for place in await broker_places(admin) if place.is_master],
        [TRANSACTION_CHECK_MAX_TIME_TOPIC],
        records[0].message_id,
    )
    if given_up:
        title = "Abandoned: the producer answered none of the checks"
        return [Event(at_ms=given_up[0].store_timestamp, kind="rolled-back", title=title)]
    return [Event(at_ms=op.store_timestamp, kind="rolled-back", title="Transaction rolled back")]


async def _consumptions(
    admin: Admin, topic: str, in_topic: list[MessageView], records: list[MessageView], notes: list[str]
) -> list[Consumption]:
    if not in_topic:
        return []
    try:
        groups = await groups_of_topic(admin, topic)
    except OrbitError as error:
        notes.append(f"who consumes {topic} is unknown: {error}")
        return []
    answers = await gather_bounded(
        lambda group: _consumption(admin, group, in_topic, records), sorted(groups)
    )
    return [answer for answer in answers if isinstance(answer, Consumption)]


async def _consumption(
    admin: Admin, group: str, in_topic: list[MessageView], records: list[MessageView]
) -> Consumption:
    message = in_topic[-1]
    online, expression = 0, "*"
    try:
        connection = await consumer_connection(admin, group)
        online = len(connection.connections)
        expression = next(
            (s.sub_expression for s in connection.subscriptions if s.topic == message.topic), "*"
        )
        if connection.message_model == "BROADCASTING":
            return Consumption(
                group=group, state="unknown", detail="broadcast: members keep offsets", online=online
            )
    except OrbitError:
        pass  # no member is online; the offsets are still valid
    if any(one.topic == dlq_topic(group) for one in records):
        return Consumption(group=group, state="dead", detail="retries exhausted", online=online)
    again = [one for one in records if retry_topic(group) in (one.topic, one.properties.get("REAL_TOPIC"))]
    try:
        stats = await consume_stats(admin, group, message.topic)
    except OrbitError as error:
        return Consumption(group=group, state="unknown", detail=str(error), online=online)
    offsets = [
        offset.consumer_offset
        for queue, offset in stats.offset_table.items()
        if queue.topic == message.topic
        and queue.queue_id == message.queue_id
        and message.broker_name in ("", queue.broker_name)
    ]
    if not offsets:
        return Consumption(group=group, state="unknown", detail="has no offset in this queue", online=online)
    place = f"offset {offsets[0]:,} of the queue, the message is at {message.queue_offset:,}"
    if offsets[0] <= message.queue_offset:
        return Consumption(group=group, state="not-yet", detail=place, online=online)
    if again:
        tries = max(one.reconsume_times for one in again)
        return Consumption(group=group, state="retrying", detail=f"handed back {tries} times", online=online)
    wanted = {tag.strip() for tag in expression.split("||")}
    if "*" not in wanted and message.tags not in wanted:
        detail = f"the group subscribes to {expression}"
        return Consumption(group=group, state="filtered", detail=detail, online=online)
    return Consumption(group=group, state="consumed", detail=place, online=online)


async def _traces(admin: Admin, unique: str, notes: list[str]) -> Traces | None:
    try:
        return await message_trace(admin, unique)
    except OrbitError:
        notes.append("no trace records: the clients of this message do not trace, or tracing is off")
        return None


async def _replication(admin: Admin, message: MessageView, notes: list[str]) -> list[str]:
    """Returns a line for each slave that says whether it has the record."""
    try:
        statuses = await ha_status(admin, broker=message.store_host, cluster=None)
    except OrbitError as error:
        notes.append(f"replication is unknown: {error}")
        return []
    end = message.commit_log_offset + message.store_size
    return [
        _replica(slave.address, end - slave.slave_ack_offset)
        for status in statuses.brokers
        for slave in status.slaves
    ]


def _replica(address: str, missing: int) -> str:
    return f"{address} has it" if missing <= 0 else f"{address} is {missing:,} bytes before it"


def _state(
    records: list[MessageView],
    in_topic: list[MessageView],
    groups: list[Consumption],
    events: list[Event],
    now_ms: int,
) -> str:
    """Returns a sentence that says where the message is now."""
    kinds = {event.kind for event in events}
    dead = [record for record in records if is_dlq_topic(record.topic)]
    if dead:
        return f"Dead letter of group {group_of(dead[-1].topic)} after {dead[-1].reconsume_times} tries."
    waiting = [event for event in events if event.until_ms is not None and event.until_ms > now_ms]
    if not in_topic:
        for kind, text in (
            ("recalled", "Recalled before it was due."),
            ("rolled-back", "Rolled back: no consumer will see it."),
            ("half", "Prepared in a transaction that is still open."),
        ):
            if kind in kinds:
                return text
        return "Waits until it is due." if waiting else "Due, and about to be moved to its topic."
    if waiting:
        return "Waits for its next try."
    states = [group.state for group in groups]
    if not states:
        return "Stored; no group consumes its topic."
    done = sum(state in ("consumed", "filtered") for state in states)
    return f"Stored; {done} of {len(states)} groups are past it."

"""Messages of a topic: browse, tail, download, send and search."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from orbitmq.admin import AdminError
from orbitmq.admin import sending as admin_sending
from orbitmq.admin.base import Result
from orbitmq.admin.browse import MessageFilter, browse, matching, tail
from orbitmq.admin.deadletters import own_properties
from orbitmq.admin.messages import KeyQuery, MessageView, by_id, messages_by_key
from orbitmq.admin.previews import Preview
from orbitmq.admin.reading import by_offset
from orbitmq.client.message import Message
from orbitmq.console.masking import EXPORTED, LISTED, OPENED
from orbitmq.console.services import TAILS_MAX
from orbitmq.console.settings import Bodies, Role
from orbitmq.console.view import Action, Done, Form, Plan, View, as_json, link
from orbitmq.errors import OrbitError, RecordError, TopicNotFound
from orbitmq.model.delay_levels import DELAY_LEVELS_DEFAULT
from orbitmq.model.names import check_send_topic
from orbitmq.model.route import MessageQueue

__all__ = [
    "ACTIONS",
    "browse_page",
    "download",
    "json_lines",
    "parse_time",
    "row_of",
    "send_page",
    "tail_page",
    "tail_stream",
    "with_key",
]

_COUNT = 50
_DOWNLOAD_MAX = 1_000_000
_TAIL_QUIET_S = 15.0


def parse_time(text: str, offset_min: int = 0) -> int | None:
    """Returns a time in milliseconds, or None for an empty text. Raises ``AdminError``.

    The text is a number of milliseconds or a time such as ``2026-01-31T12:00``, in a zone ``offset_min`` minutes
    behind UTC unless it names one.
    """
    if not text:
        return None
    if text.isdigit():
        return int(text)
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        raise AdminError(f"{text!r} is not a time") from None
    if local.tzinfo is not None:
        return int(local.timestamp() * 1000)
    return int((local - datetime(1970, 1, 1)).total_seconds() * 1000) + offset_min * 60_000  # noqa: DTZ001 - local


def _filter(view: View, limits: Preview = LISTED) -> MessageFilter:
    """Returns the message filter that the URL describes. Raises ``AdminError``."""
    if view.query("sql") and not view.console.masking.shows_all:
        raise AdminError("SQL92 filters are off in this console: they would reveal masked properties")
    broker, _, queue = view.query("queue").rpartition(":")
    offset_min = view.number("zone", 0)
    return MessageFilter(
        topic=view.name("topic"),
        broker_name=broker or None,
        queue_id=int(queue) if queue.isdigit() else None,
        tags=view.query("tag") or "*",
        sql=view.query("sql"),
        text=view.query("text"),
        preview=view.preview(limits),
        begin_ms=parse_time(view.query("from"), offset_min),
        end_ms=parse_time(view.query("to"), offset_min),
    )


async def _queues(view: View, topic: str) -> list[str]:
    try:
        route = await view.admin.route(topic)
    except OrbitError:
        return []
    return [f"{queue.broker_name}:{queue.queue_id}" for queue in route.subscribe_queues(topic)]


async def browse_page(view: View) -> Response:
    """Shows the messages of a topic that match a time, queue, offset, key or id and the filter."""
    name = view.name("topic")
    key, offset = view.query("key"), view.query("offset")
    found: list[MessageView] = []
    note = cursor = error = ""
    try:
        wanted = _filter(view)
        if key:
            found = await with_key(view, name, key)
            note = f"{len(found)} with the key or id {key}"
        elif offset:
            if not offset.isdigit() or wanted.queue_id is None or wanted.broker_name is None:
                raise AdminError("an offset needs a queue and must be a whole number")
            queue = MessageQueue(topic=name, broker_name=wanted.broker_name, queue_id=wanted.queue_id)
            one = await by_offset(view.admin, queue, int(offset), read_bytes=LISTED.read_bytes)
            found = wanted.preview.select([one], text="", tags="*")
        else:
            page = await browse(view.admin, wanted, count=_COUNT, cursor=view.query("cursor"))
            found, cursor = page.messages, page.cursor
            note = f"{len(found)} shown, {page.scanned:,} looked at of {page.available:,}"
    except TopicNotFound:
        raise
    except OrbitError as failure:
        error = str(failure)
    query = {key: value for key, value in view.request.query_params.items() if value and key != "cursor"}
    return view.page(
        "messages.html",
        name=name,
        messages=found,
        note=note,
        error=error,
        next=link("topics", name, "messages", **query, cursor=cursor) if cursor else "",
        download=link("topics", name, "messages.ndjson", **query),
        queues=await _queues(view, name),
        tab="messages",
    )


async def with_key(view: View, topic: str, key: str) -> list[MessageView]:
    """Returns the messages with a key or unique id, newest first, without those whose key is masked."""
    query = KeyQuery(topic=topic, key=key, count_max=_COUNT, read_bytes=LISTED.read_bytes)
    shown = view.preview(LISTED).select(await messages_by_key(view.admin, query), text="", tags="*")
    found = [message for message in shown if key in message.keys.split()]
    if not found:
        query = msgspec.structs.replace(query, unique=True)
        found = view.preview(LISTED).select(await messages_by_key(view.admin, query), text="", tags="*")
    return sorted(found, key=lambda one: -one.store_timestamp)


async def json_lines(view: View, name: str, rows: AsyncIterator[Result]) -> Response:
    """Returns a download with one line per message or dead letter. Raises an error that occurs before the first
    line.
    """
    masked = not view.console.masking.shows_all

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(rows) as found:  # type: ignore[type-var]  # a generator
            async for one in found:
                row = msgspec.to_builtins(one)
                if masked:
                    message = row.get("message", row)
                    del message["bodyBase64"], message["bodyCRC"]
                yield json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    source = lines()
    first = await anext(source, b"")

    async def content() -> AsyncIterator[bytes]:
        async with aclosing(source):  # type: ignore[type-var]  # a generator
            yield first
            async for line in source:
                yield line

    safe = "".join(c if (c.isalnum() and c.isascii()) or c in "-_" else "_" for c in name)
    headers = {"content-disposition": f'attachment; filename="{safe}.ndjson"', "cache-control": "no-store"}
    return StreamingResponse(content(), headers=headers, media_type="application/x-ndjson")


async def download(view: View) -> Response:
    """Streams all matching messages as JSON lines while they are read."""
    wanted = _filter(view, EXPORTED)
    if view.console.masking.bodies is Bodies.OFF:
        raise AdminError("message bodies are hidden in this console, so there is nothing to download")

    return await json_lines(view, wanted.topic, matching(view.admin, wanted, _DOWNLOAD_MAX))


def row_of(view: View, message: MessageView) -> dict[str, Any]:
    """Returns a message as a row of the live tail."""
    return {
        "id": message.message_id,
        "href": link("messages", message.message_id, topic=message.topic),
        "at": message.store_timestamp,
        "queue": f"{message.broker_name}:{message.queue_id}",
        "offset": str(message.queue_offset),
        "tags": message.tags,
        "keys": message.keys,
        "body": view.body_start(message),
    }


async def tail_page(view: View) -> Response:
    name = view.name("topic")
    query = {key: view.query(key) for key in ("tag", "sql", "text", "queue")}
    return view.page(
        "tail.html",
        name=name,
        stream=link("topics", name, "tail.stream", **query),
        queues=await _queues(view, name),
        tab="tail",
    )


async def tail_stream(view: View) -> Response:
    """Streams server-sent events with batches of rows and the number of skipped messages."""
    console = view.console
    if console.tails >= TAILS_MAX:
        return Response(f"{TAILS_MAX} live tails are open already", 429)
    wanted = _filter(view)

    async def events() -> AsyncIterator[str]:
        console.tails += 1
        quiet_since = console.admin.clock.monotonic()
        try:
            yield "retry: 3000\n\n"
            async with aclosing(tail(view.admin, wanted)) as batches:  # type: ignore[type-var]  # a generator
                async for batch in batches:
                    if batch.messages or batch.arrived:
                        body = {
                            "rows": [row_of(view, message) for message in batch.messages],
                            "arrived": batch.arrived,
                            "skipped": batch.skipped,
                        }
                        quiet_since = console.admin.clock.monotonic()
                        yield f"event: rows\ndata: {as_json(body)}\n\n"
                    elif console.admin.clock.monotonic() - quiet_since > _TAIL_QUIET_S:
                        quiet_since = console.admin.clock.monotonic()
                        yield ": quiet\n\n"  # detects a browser that disconnected
        except OrbitError as error:
            yield f"event: trouble\ndata: {as_json({'error': str(error)})}\n\n"
            await asyncio.sleep(0)
        finally:
            console.tails -= 1

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(events(), headers=headers, media_type="text/event-stream")


# -- sending -----------------------------------------------------------------------------------------------


async def send_page(view: View) -> Response:
    """Shows a form for a new message, filled in from an existing message if the URL names one."""
    name = view.name("topic")
    old, shown = None, None
    own: dict[str, str] = {}
    hidden: list[str] = []
    fields: dict[str, str] = {}
    if template := view.query("like"):
        old = await by_id(view.admin, view.query("from") or name, template, read_bytes=OPENED.read_bytes)
        shown = view.console.masking.mask(old)
        hidden = sorted(key for key, value in own_properties(old).items() if shown.properties[key] != value)
        own = {key: value for key, value in own_properties(shown).items() if key not in hidden}
        fields = {
            name: old.properties[key]
            for name, key in (("tags", "TAGS"), ("keys", "KEYS"), ("shard_key", "__SHARDINGKEY"))
            if key in old.properties and shown.properties[key] == old.properties[key]
        }
    masking = view.console.masking
    return view.page(
        "send.html",
        name=name,
        old=shown,
        body=shown.body if shown is not None and masking.shows_all else "",
        properties="\n".join(f"{key}={value}" for key, value in own.items()),
        hidden=hidden,
        fields=fields,
        queues=await _queues(view, name),
        tab="send",
        binary=old is not None and old.body is None,
        long=old is not None and bool(old.body_cut),
        masked=old is not None and not masking.shows_all,
        delays=DELAY_LEVELS_DEFAULT.split(),
    )


def message_of(form: Form) -> tuple[Message, MessageQueue | None]:
    """Returns the message that a form describes, and its queue if one is chosen. Raises ``AdminError``."""
    topic = form.required("topic", "the topic")
    check_send_topic(topic)
    properties: dict[str, str] = {}
    for line in form.raw("properties").splitlines():
        if line.strip():
            key, separator, value = line.partition("=")
            if not separator or not key.strip():
                raise AdminError(f"the property {line!r} is not of the form name=value")
            properties[key.strip()] = value.strip()
    delay_s = form.number("delay_s", "the delay in seconds", 0)
    message = Message(
        topic,
        form.raw("body").replace("\r\n", "\n"),
        tags=form.text("tags"),
        keys=form.text("keys"),
        properties=properties,
        shard_key=form.text("shard_key"),
        delay_level=form.number("delay_level", "the delay level", 0),
        delay_ms=delay_s * 1000,
    )
    if message.delay_level and message.delay_ms:
        raise AdminError("a message has one delay: a level or a number of seconds")
    if message.delay_level < 0 or message.delay_ms < 0:
        raise AdminError("a delay cannot be negative")
    try:
        message.property_pairs()
    except RecordError as error:
        raise AdminError(str(error)) from None
    broker, _, queue_id = form.text("queue").rpartition(":")
    queue = (
        MessageQueue(topic=topic, broker_name=broker, queue_id=int(queue_id))
        if broker and queue_id.isdigit()
        else None
    )
    return message, queue


async def _plan_send(view: View, form: Form) -> Plan:
    message, _ = message_of(form)
    rows: list[tuple[str, object]] = [
        ("body", f"{len(message.body_bytes()):,} bytes"),
        ("tag", message.tags or "-"),
        ("keys", message.keys or "-"),
        ("ordering key", message.shard_key or "-"),
        ("delay", f"level {message.delay_level}" if message.delay_level else f"{message.delay_ms // 1000} s"),
        ("queue", form.text("queue") or "any"),
        *(message.properties.items()),
    ]
    return Plan(
        title=f"Send a message to {message.topic}",
        lines=[f"Store one message in topic {message.topic}; its consumers will get it."],
        heads=("part", "value"),
        rows=rows,
        button="Send it",
        back=link("topics", message.topic, "send"),
    )


async def _send(view: View, form: Form) -> Done:
    message, queue = message_of(form)
    sent = await admin_sending.send(view.admin, message, queue=queue)
    return Done(
        text=f"Sent to {message.topic}, queue {sent.broker_name}:{sent.queue_id}, offset {sent.queue_offset}: "
        f"{sent.send_status}, id {sent.message_id}.",
        back=link("messages", sent.message_id, topic=message.topic),
    )


ACTIONS = {"send": Action(Role.OPERATOR, _plan_send, _send)}

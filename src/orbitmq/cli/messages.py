"""``orbitmq produce`` and ``orbitmq consume``: messages from and to the terminal."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from orbitmq.cli.client_connection import ClientConnection, client_connection
from orbitmq.cli.failures import remedies
from orbitmq.client import (
    BodyMismatch,
    ClientError,
    LitePullConsumer,
    Message,
    OrbitError,
    Producer,
    ReceivedMessage,
)
from orbitmq.errors import RequestTimeoutError
from orbitmq.runtime.words import counted

__all__ = ["consume_command", "moment", "produce_command"]

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SILENT_S_MAX: Final = 30
_PIECE_BYTES: Final = 64 * 1024
_LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""More than any broker is set to take: no line is read further."""


def moment(text: str, now: datetime) -> Any:
    """``earliest``, ``latest``, an ISO time, or a time ago such as ``-15m``, as a consumer's ``start``."""
    if text in ("earliest", "first"):
        return "first"
    if text in ("latest", "last"):
        return "last"
    try:
        if text.startswith("-") and text[-1:] in _UNITS and text[1:-1].isdigit():
            return now - timedelta(**{_UNITS[text[-1]]: int(text[1:-1])})
        found = datetime.fromisoformat(text)
        return found if found.tzinfo is not None else found.astimezone()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is not earliest, latest, an ISO time or a time ago (-15m)"
        ) from None


@click.command("produce")
@click.argument("topic")
@click.argument("bodies", nargs=-1)
@client_connection
@click.option("--tags", default="", help="Tag of every message.")
@click.option("--key", "keys", multiple=True, help="Key of every message; may be repeated.")
@click.option("--property", "-p", "properties", multiple=True, help="NAME=VALUE; may be repeated.")
@click.option("--group", default="orbitmq-produce", show_default=True)
def produce_command(
    topic: str,
    bodies: tuple[str, ...],
    connection: ClientConnection,
    tags: str,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    group: str,
) -> None:
    """Send BODIES, or each line of the standard input that is not empty, to TOPIC."""
    pairs = dict(text.split("=", 1) for text in properties if "=" in text)
    if len(pairs) != len(properties):
        raise click.BadParameter("a property is NAME=VALUE, each name once")
    if "" in bodies:
        raise click.BadParameter("a message without a body cannot be sent")

    async def send() -> int:
        count = 0
        async with Producer(group, connection.name_servers) as producer:
            async for body in _given(bodies):
                if body:
                    await producer.send(Message(topic, body, tags=tags, keys=keys, properties=pairs))
                    count += 1
        return count

    connection.export(os.environ)
    count = _run(send(), connection)
    click.echo(f"{counted(count, 'message')} sent to {topic}", err=True)


async def _given(bodies: tuple[str, ...]) -> AsyncIterator[bytes]:
    """What was given as arguments, or each line of the standard input, in the bytes it was given in."""
    for text in bodies:
        yield os.fsencode(text)
    if bodies or sys.stdin is None:  # None: the command was started without one
        return
    begun = bytearray()
    while piece := await _read_piece(sys.stdin.fileno()):
        *lines, last = piece.split(b"\n")
        for line in lines:
            yield bytes(begun + line)
            begun.clear()
        begun += last
        if len(begun) > _LINE_BYTES_MAX:
            raise click.ClickException(
                f"a line is longer than {_LINE_BYTES_MAX >> 20} MiB: no broker takes it"
            )
    if begun:
        yield bytes(begun)


async def _read_piece(descriptor: int) -> bytes:
    """The next bytes of a file that may make us wait; none at its end.

    Read on a thread nobody waits for: Ctrl-C must end the command although nothing more is typed. Not through
    ``sys.stdin``, whose lock such a thread would hold while the interpreter ends.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        try:
            piece = os.read(descriptor, _PIECE_BYTES)
        except OSError:  # closed, or a terminal that is gone
            piece = b""
        try:
            loop.call_soon_threadsafe(_settle, done, piece)
        except RuntimeError:
            pass  # the command has ended meanwhile

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return await done


def _settle(done: asyncio.Future[bytes], piece: bytes) -> None:
    if not done.done():
        done.set_result(piece)


@click.command("consume")
@click.argument("topic")
@client_connection
@click.option("--follow", "-f", is_flag=True, help="Wait for more instead of ending when all is read.")
@click.option(
    "--from", "start", default="earliest", show_default=True, help="earliest, latest, ISO time, -15m."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--count", "-c", type=click.IntRange(1), help="End after that many.")
@click.option("--expression", "-e", default="*", show_default=True, help="Tags: A || B.")
def consume_command(
    topic: str,
    connection: ClientConnection,
    follow: bool,
    start: str,
    form: str,
    count: int | None,
    expression: str,
) -> None:
    """Print the messages of TOPIC, queue after queue.

    They are read as group orbitmq-consume, which is registered with the brokers and stores no offsets.
    """
    begin = moment(start, datetime.now(UTC))
    connection.export(os.environ)
    servers = connection.name_servers
    _run(_print_all(topic, servers, begin, form, (follow, count, expression)), connection)


async def _print_all(
    topic: str, namesrv: str, begin: Any, form: str, wanted: tuple[bool, int | None, str]
) -> int:
    follow, count, expression = wanted
    printed = 0
    async with LitePullConsumer("orbitmq-consume", namesrv, auto_commit=False) as consumer:
        queues = await consumer.fetch_queues(topic)
        await consumer.assign(queues, expression)
        ends = {queue: await consumer.max_offset(queue) for queue in queues}
        position: dict[Any, int] = {}
        for queue in queues:
            if begin == "first":
                position[queue] = await consumer.min_offset(queue)
            elif begin == "last":
                position[queue] = ends[queue]
            else:
                position[queue] = await consumer.offset_at(queue, round(begin.timestamp() * 1000))
            await consumer.seek(queue, position[queue])
        silent_s = 0
        while follow or any(position[queue] < ends[queue] for queue in queues):
            batch = await consumer.poll(1.0)
            for message in batch:
                position[message.queue] = message.queue_offset + 1
                click.echo(_body_text(message) if form == "text" else json.dumps(_shown(message)))
                printed += 1
                if printed == count:
                    return printed
            silent_s = 0 if batch else silent_s + 1
            if batch or follow:
                continue
            if all(consumer.fetched_until(queue) >= ends[queue] for queue in queues):
                break  # what is left is filtered out
            if silent_s >= _SILENT_S_MAX:
                raise RequestTimeoutError(
                    f"no broker of topic {topic} answers, and not all messages are read"
                )
    return printed


def _body_text(message: ReceivedMessage) -> str:
    """Of any body: what is no text, or cannot be inflated, must not end the command."""
    try:
        body = message.body
    except BodyMismatch:
        body = message.record.body
    return body.decode("utf-8", "replace")


def _shown(message: ReceivedMessage) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "id": message.message_id,
        "born_at": message.born_at.isoformat(),
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.user_properties,
        "body": _body_text(message),
    }


def _run(work: Any, connection: ClientConnection) -> Any:
    try:
        return asyncio.run(work)
    except (ClientError, OrbitError) as error:
        click.echo(f"orbitmq: {error}", err=True)
        for line in remedies(error, connection.name_servers, encrypted=connection.encrypted):
            click.echo(f"  {line}", err=True)
        sys.exit(1)

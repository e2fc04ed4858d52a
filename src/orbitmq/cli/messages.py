"""``orbitmq produce``: sends messages from the terminal."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import click
import msgspec

from orbitmq.cli.admin_kit.explain import EXIT_FAILED, EXIT_UNKNOWN, nearest
from orbitmq.cli.client_connection import ClientConnection, client_connection
from orbitmq.cli.failures import remedies
from orbitmq.client import ClientError, Message, NoRouteError, OrbitError, Producer, SendResult
from orbitmq.errors import TopicNotFound
from orbitmq.runtime.words import counted

__all__ = ["moment", "produce_command", "run_client"]

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_PIECE_BYTES: Final = 64 * 1024
_LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Limit of a line's length, above any limit that brokers are configured with. Longer lines are refused."""


def moment(text: str, now: datetime) -> Any:
    """Converts a start option to a consumer's ``start``.

    The text is ``earliest``, ``latest``, an ISO time, or a time ago such as ``-15m``.
    """
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
@click.option("--key", "-k", "keys", multiple=True, help="Key of every message; may be repeated.")
@click.option(
    "--property",
    "--header",
    "-p",
    "-H",
    "properties",
    multiple=True,
    help="Property NAME=VALUE of every message; may be repeated.",
)
@click.option(
    "--key-separator",
    "-K",
    "separator",
    help="Each line or body is KEY, this text, BODY: `-K :` or `-K $'\\t'`.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: each line as `consume --format json` prints it (body, keys, tags, properties).",
)
@click.option("--json", "in_json", is_flag=True, help="Print the id and the place of each message, as JSON.")
@click.option("--group", default="orbitmq-produce", show_default=True)
def produce_command(
    topic: str, bodies: tuple[str, ...], connection: ClientConnection, group: str, **given: Any
) -> None:
    """Send BODIES, or each line of the standard input that is not empty, to TOPIC."""
    pairs = dict(text.split("=", 1) for text in given["properties"] if "=" in text)
    if len(pairs) != len(given["properties"]):
        raise click.BadParameter("a property is NAME=VALUE, each name once")
    if "" in bodies:
        raise click.BadParameter("a message without a body cannot be sent")
    if given["separator"] is not None and (not given["separator"] or given["form"] == "json"):
        raise click.BadParameter("--key-separator is a text that is not empty, without --format json")
    common = _Common(topic, given["tags"], given["keys"], pairs)
    separator = None if given["separator"] is None else os.fsencode(given["separator"])

    async def send() -> int:
        count = 0
        async with Producer(group, connection.name_servers) as producer:
            async for line in _given(bodies):
                if line:
                    as_line = _from_json(common, line) if given["form"] == "json" else None
                    sent = await producer.send(as_line or _from_line(common, line, separator))
                    count += 1
                    if given["in_json"]:
                        click.echo(json.dumps(_sent(sent)))
        return count

    connection.export(os.environ)
    count = run_client(send(), connection, topic)
    click.echo(f"{counted(count, 'message')} sent to {topic}", err=True)


class _Common(NamedTuple):
    """Values of options that all messages have in common."""

    topic: str
    tags: str
    keys: tuple[str, ...]
    properties: dict[str, str]


def _from_line(common: _Common, line: bytes, separator: bytes | None) -> Message:
    """Builds a message from a line. The text before the separator, if there is one, becomes an additional key."""
    keys, body = list(common.keys), line
    if separator is not None:
        key, found, body = line.partition(separator)
        if not found or not key or not body:
            raise click.ClickException(
                f"a line is not KEY{os.fsdecode(separator)}BODY: {os.fsdecode(line[:80])!r}"
            )
        keys.append(os.fsdecode(key))
    return Message(common.topic, body, tags=common.tags, keys=keys, properties=common.properties)


def _from_json(common: _Common, line: bytes) -> Message:
    """Builds a message from a JSON line. Its tags and properties override those of the options. Its keys come before
    theirs.
    """
    try:
        value = msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError as error:
        raise click.ClickException(
            f"a line is not a message in JSON ({error}): {os.fsdecode(line[:80])!r}"
        ) from None
    own = [value.keys] if isinstance(value.keys, str) else value.keys
    return Message(
        common.topic,
        value.body.encode(),
        tags=value.tags or common.tags,
        keys=[*own, *common.keys],
        properties={**common.properties, **value.properties},
    )


class _Line(msgspec.Struct):
    """A message as printed by ``consume --format json``. Other members are ignored."""

    body: str
    keys: list[str] | str = []
    tags: str = ""
    properties: dict[str, str] = {}


def _sent(result: SendResult) -> dict[str, Any]:
    queue = result.queue
    return {
        "id": result.message_id,
        "status": result.status.name,
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "offset": result.queue_offset,
    }


async def _given(bodies: tuple[str, ...]) -> AsyncIterator[bytes]:
    """Yields the bodies given as arguments, or each line of standard input, as the original bytes."""
    for text in bodies:
        yield os.fsencode(text)
    if bodies or sys.stdin is None:  # None if the command was started without stdin
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
                f"a line is longer than {_LINE_BYTES_MAX >> 20} MiB, more than any broker accepts"
            )
    if begun:
        yield bytes(begun)


async def _read_piece(descriptor: int) -> bytes:
    """Returns the next bytes of a file whose reads may block; empty at its end.

    The read runs on a daemon thread, so that Ctrl-C ends the command even if nothing more is typed. It does not use
    ``sys.stdin``, whose lock the thread would hold while the interpreter exits.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        try:
            piece = os.read(descriptor, _PIECE_BYTES)
        except OSError:  # closed, or the terminal is gone
            piece = b""
        try:
            loop.call_soon_threadsafe(_settle, done, piece)
        except RuntimeError:
            pass  # the command has already ended

    threading.Thread(target=read, name="stdin", daemon=True).start()
    return await done


def _settle(done: asyncio.Future[bytes], piece: bytes) -> None:
    if not done.done():
        done.set_result(piece)


def run_client(work: Any, connection: ClientConnection, topic: str) -> Any:
    """Run ``work`` on ``topic``. Reports an error in a few lines and exits with 1, or with 4 if the topic does not
    exist.
    """
    try:
        return asyncio.run(work)
    except (ClientError, OrbitError) as error:
        click.echo(f"orbitmq: {error}", err=True)
        lines = remedies(error, connection.name_servers, encrypted=connection.encrypted)
        unknown = isinstance(error, NoRouteError | TopicNotFound)
        if unknown and (meant := nearest(topic, asyncio.run(connection.topics()))):
            lines.insert(0, f"Did you mean {' or '.join(meant)}?")
        for line in lines:
            click.echo(f"  {line}", err=True)
        sys.exit(EXIT_UNKNOWN if unknown else EXIT_FAILED)

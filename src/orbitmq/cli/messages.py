"""``orbitmq produce``, ``orbitmq consume`` and ``orbitmq run``: messages from and to the terminal, and workers."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from orbitmq.cli.contexts import client_settings
from orbitmq.cli.failures import remedies
from orbitmq.cli.name_server import name_server_option
from orbitmq.cli.reload import run_and_reload
from orbitmq.client import (
    BodyMismatch,
    ClientError,
    LitePullConsumer,
    Message,
    OrbitError,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from orbitmq.errors import RequestTimeoutError

__all__ = ["consume_command", "moment", "produce_command", "run_command"]

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SILENT_S_MAX: Final = 30
_PIECE_BYTES: Final = 64 * 1024
_LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""More than any broker is set to take: no line is read further."""
_name_server = name_server_option()


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
@_name_server
@click.option("--tags", default="", help="Tag of every message.")
@click.option("--key", "keys", multiple=True, help="Key of every message; may be repeated.")
@click.option("--property", "-p", "properties", multiple=True, help="NAME=VALUE; may be repeated.")
@click.option("--group", default="orbitmq-produce", show_default=True)
def produce_command(
    topic: str,
    bodies: tuple[str, ...],
    namesrv: str,
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
        async with Producer(group, namesrv, **client_settings()) as producer:
            async for body in _given(bodies):
                if body:
                    await producer.send(Message(topic, body, tags=tags, keys=keys, properties=pairs))
                    count += 1
        return count

    count = _run(send(), namesrv)
    click.echo(f"{count} messages sent to {topic}", err=True)


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
@_name_server
@click.option("--follow", "-f", is_flag=True, help="Wait for more instead of ending when all is read.")
@click.option(
    "--from", "start", default="earliest", show_default=True, help="earliest, latest, ISO time, -15m."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--count", "-c", type=click.IntRange(1), help="End after that many.")
@click.option("--expression", "-e", default="*", show_default=True, help="Tags: A || B.")
def consume_command(
    topic: str, namesrv: str, follow: bool, start: str, form: str, count: int | None, expression: str
) -> None:
    """Print the messages of TOPIC. No group is used, so reading here moves no group's offset."""
    begin = moment(start, datetime.now(UTC))
    _run(_print_all(topic, namesrv, begin, form, (follow, count, expression)), namesrv)


async def _print_all(
    topic: str, namesrv: str, begin: Any, form: str, wanted: tuple[bool, int | None, str]
) -> int:
    follow, count, expression = wanted
    printed = 0
    async with LitePullConsumer(
        "orbitmq-consume", namesrv, auto_commit=False, **client_settings()
    ) as consumer:
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


@click.command("run")
@click.argument("target")
@click.option(
    "--health-port", type=click.IntRange(0, 65_535), help="Serve /live and /ready over HTTP on loopback."
)
@click.option("--reload", is_flag=True, help="Start again when a .py file below this directory changes.")
def run_command(target: str, health_port: int | None, reload: bool) -> None:
    """Run a worker: TARGET is module:consumer, a PushConsumer with handlers. SIGTERM and SIGINT let handlers end."""
    if reload:
        arguments = [] if health_port is None else ["--health-port", str(health_port)]
        sys.exit(run_and_reload([sys.executable, "-m", "orbitmq", "run", target, *arguments], Path.cwd()))
    _run(_work(target, health_port))


async def _work(target: str, health_port: int | None) -> None:
    consumer = _load(target)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    health = None
    if health_port is not None:
        health = await asyncio.start_server(lambda r, w: _health(consumer, r, w), "127.0.0.1", health_port)
        click.echo(f"health port {health.sockets[0].getsockname()[1]}", err=True)
    try:
        async with consumer:
            click.echo(f"running {target} group={consumer.group}", err=True)
            await stop.wait()
            click.echo("stopping: handlers may end", err=True)
    finally:
        if health is not None:
            health.close()
    if consumer.abandoned:
        click.echo(
            f"stopped beside {consumer.abandoned} handlers that did not end within close_wait_s "
            f"({consumer.options.close_wait_s:g} s); their messages come again",
            err=True,
        )
        # The interpreter would wait for their threads, and asyncio for their tasks, for ever.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    click.echo("stopped", err=True)


def _load(target: str) -> PushConsumer:
    """Import the consumer on the loop: asyncio's own objects belong to the loop they are made on."""
    module_name, _, name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), name or "consumer")
    except (ImportError, AttributeError) as error:
        raise click.ClickException(f"{target}: {error}") from error
    if not isinstance(found, PushConsumer):
        raise click.ClickException(f"{target} is a {type(found).__name__}; a PushConsumer is needed")
    return found


async def _health(consumer: PushConsumer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(5):
            line = await reader.readline()
        path = line.split(b" ")[1:2]
        status = "200 OK"
        if path == [b"/ready"]:
            try:
                await consumer.wait_ready(0.5)
            except OrbitError:
                status = "503 Service Unavailable"
        elif path != [b"/live"]:
            status = "404 Not Found"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
    except (OSError, TimeoutError):
        pass
    finally:
        writer.close()


def _run(work: Any, name_server: str = "") -> Any:
    try:
        return asyncio.run(work)
    except (ClientError, OrbitError) as error:
        click.echo(f"orbitmq: {error}", err=True)
        for line in remedies(error, name_server):
            click.echo(f"  {line}", err=True)
        sys.exit(1)

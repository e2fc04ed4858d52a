"""``orbitmq dlq``: manages dead letters from the command line, like the console."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from orbitmq.admin import Admin
from orbitmq.admin import deadletters as dead
from orbitmq.cli.admin_kit.connect import CONNECTION_KEYS, connection_options, open_admin
from orbitmq.cli.servers import fail
from orbitmq.errors import OrbitError, TopicNotFound
from orbitmq.runtime.words import counted

__all__ = ["dlq_commands"]

_SHOWN_CHARS = 80


class _ConnectedCommand(click.Command):
    """A command that also accepts the connection options, so that ``-n`` works before and after its name."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.params += [option for option in connection_options() if option.name != "wide"]

    def invoke(self, ctx: click.Context) -> Any:
        given = {key: ctx.params.pop(key, None) for key in CONNECTION_KEYS}
        ctx.obj = {**(ctx.find_object(dict) or {}), **{key: value for key, value in given.items() if value}}
        return super().invoke(ctx)


@click.group("dlq", context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def dlq_commands(ctx: click.Context, /, **settings: Any) -> None:
    """Dead letters: messages that exceeded the retry limit of their group.

    The cluster itself records which ones were resent or dropped.
    """
    ctx.obj = settings


dlq_commands.params = list(connection_options())


def _run(work: Callable[[Admin], Awaitable[None]]) -> None:
    settings = click.get_current_context().find_object(dict) or {}
    try:

        async def run() -> None:
            async with open_admin(settings, os.environ) as admin:
                await work(admin)

        asyncio.run(run())
    except TopicNotFound:  # the topic is created with the first dead letter
        click.echo("the group has no dead letters", err=True)
    except OrbitError as error:
        fail(str(error))


def _as_json() -> bool:
    return bool((click.get_current_context().find_object(dict) or {}).get("as_json"))


def _print_json(value: object) -> None:
    click.echo(msgspec.json.encode(value))


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if ms else "-"


_ids = click.argument("ids", nargs=-1)
_text = click.option("--text", default="", help="Only those with this text in the body or a property.")
_reason = click.option(
    "--reason", default="", help="Only those with this text in the reason of their failure."
)


@dlq_commands.command("list", cls=_ConnectedCommand)
@click.argument("group", required=False)
@_text
@_reason
@click.option("--by-reason", is_flag=True, help="Count them by the reason of their failure.")
@click.option("--all", "everything", is_flag=True, help="Include resent and dropped ones.")
@click.option(
    "--count",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="Number of dead letters, newest first.",
)
def list_command(
    group: str | None, text: str, reason: str, by_reason: bool, everything: bool, count: int
) -> None:
    """Groups that have dead letters; with GROUP, its dead letters."""
    as_json = _as_json()

    async def work(admin: Admin) -> None:
        if group is None:
            groups = await dead.dead_groups(admin)
            if as_json:
                _print_json(groups)
                return
            for row in groups.groups:
                click.echo(f"{row.count:>10,}  {_when(row.newest)}  {row.group}")
            if not groups.groups:
                click.echo("no group has dead letters")
            return
        if by_reason:
            _print_reasons(
                await dead.dead_reasons(admin, group, text=text, reason=reason, with_done=everything)
            )
            return
        if reason:
            page = await dead.dead_letters_with_reason(
                admin, group, reason, text=text, with_done=everything, count=count
            )
        else:
            page = await dead.dead_letters(admin, group, text=text, with_done=everything, count=count)
        if as_json:
            _print_json(page)
            return
        for letter in page.letters:
            message = letter.message
            start = (message.body or "(binary)")[:_SHOWN_CHARS].replace("\n", " ")
            click.echo(
                f"{message.message_id}  {_when(message.store_timestamp)}  tries={letter.tries}  "
                f"from={letter.origin_topic or '?'}  {letter.done or 'open'}  {start}"
            )
            if letter.reason:
                click.echo(f"    {_one_line(letter.reason)}")

    _run(work)


def _print_reasons(found: dead.DeadReasons) -> None:
    if _as_json():
        _print_json(found)
        return
    for row in found.reasons:
        click.echo(f"{row.count:>10,}  {_when(row.newest)}  {_one_line(row.reason) or '(no reason kept)'}")
        if row.example != row.reason:
            click.echo(f"            for example: {_one_line(row.example)}")
    if found.more:
        click.echo(f"{found.more:>10,}  with other reasons")


def _one_line(text: str) -> str:
    """Replaces line breaks and control characters in text written by a client."""
    return "".join(char if char.isprintable() else " " for char in text)


@dlq_commands.command("show", cls=_ConnectedCommand)
@click.argument("group")
@click.argument("ids", nargs=-1, required=True)
def show_command(group: str, ids: tuple[str, ...]) -> None:
    """Everything about dead letters, as JSON."""

    async def work(admin: Admin) -> None:
        found = 0
        source = dead.each_dead_letter(admin, group, ids=ids, with_done=True)
        async with aclosing(source) as letters:  # type: ignore[type-var]  # a generator
            async for letter in letters:
                _print_json(letter)
                found += 1
        if not found:
            fail(f"group {group} has no such dead letter")

    _run(work)


async def _chosen(
    admin: Admin, group: str, ids: tuple[str, ...], text: str, reason: str, everything: bool
) -> list[dead.DeadLetter]:
    if not (ids or text or reason or everything):
        raise click.UsageError("say which: ids, --text TEXT, --reason TEXT, or --all")
    source = dead.each_dead_letter(admin, group, ids=ids, text=text, reason=reason)
    async with aclosing(source) as letters:  # type: ignore[type-var]  # a generator
        return [letter async for letter in letters]


@dlq_commands.command("resend", cls=_ConnectedCommand)
@click.argument("group")
@_ids
@_text
@_reason
@click.option("--all", "everything", is_flag=True, help="All dead letters of the group.")
@click.option("--to", "topic", default="", help="Topic to send to; else the one each came from.")
@click.option(
    "--rate", type=click.FloatRange(min=0.1), default=50.0, show_default=True, help="Messages a second."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be sent.")
def resend_command(
    group: str, ids: tuple[str, ...], topic: str, rate: float, dry_run: bool, **which: Any
) -> None:
    """Send dead letters once more, as new messages."""

    async def work(admin: Admin) -> None:
        letters = await _chosen(admin, group, ids, which["text"], which["reason"], which["everything"])
        if dry_run:
            for letter in letters:
                target = topic or letter.origin_topic or "?"
                click.echo(f"{letter.message.message_id} would go to {target}")
            click.echo(f"{counted(len(letters), 'dead letter')}; nothing was sent")
            return
        sent = failed = 0
        steps = dead.resend_paced(admin, group, letters, topic=topic, per_second=rate)
        async with aclosing(steps) as running:  # type: ignore[type-var]  # a generator
            async for letter, fresh in running:
                if fresh.startswith("!"):
                    failed += 1
                    click.echo(f"{letter.message.message_id} failed: {fresh[1:]}", err=True)
                else:
                    sent += 1
                    click.echo(f"{letter.message.message_id} sent as {fresh}")
        click.echo(f"{sent} sent, {failed} failed")
        if failed:
            sys.exit(1)

    _run(work)


@dlq_commands.command("drop", cls=_ConnectedCommand)
@click.argument("group")
@_ids
@_text
@_reason
@click.option("--all", "everything", is_flag=True, help="All dead letters of the group.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop_command(
    group: str, ids: tuple[str, ...], text: str, reason: str, everything: bool, yes: bool
) -> None:
    """Mark dead letters as done, so that they are no longer listed."""

    async def work(admin: Admin) -> None:
        letters = await _chosen(admin, group, ids, text, reason, everything)
        if not letters:
            click.echo("nothing to drop")
            return
        if not yes:
            click.confirm(f"Drop {counted(len(letters), 'dead letter')} of {group}?", abort=True)
        await dead.mark_done(admin, group, [one.message.offset_msg_id for one in letters], "dropped")
        click.echo(f"{len(letters)} dropped")

    _run(work)


@dlq_commands.command("export", cls=_ConnectedCommand)
@click.argument("group")
@_text
@_reason
@click.option("--all", "everything", is_flag=True, help="Include resent and dropped ones.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File; else standard output."
)
def export_command(group: str, text: str, reason: str, everything: bool, output: Path | None) -> None:
    """Dead letters as JSON lines, oldest first."""

    async def work(admin: Admin) -> None:
        stream: IO[bytes] = sys.stdout.buffer if output is None else output.open("wb")
        try:
            source = dead.each_dead_letter(admin, group, text=text, reason=reason, with_done=everything)
            async with aclosing(source) as letters:  # type: ignore[type-var]  # a generator
                async for letter in letters:
                    stream.write(msgspec.json.encode(letter) + b"\n")
        finally:
            if output is not None:
                stream.close()

    _run(work)

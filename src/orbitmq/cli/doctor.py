"""``orbitmq doctor``: reports problems of a cluster and how to fix them."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Final

import click
import msgspec

from orbitmq.admin.doctor import Checkup, Level, checkup
from orbitmq.cli.admin_kit.connect import connection_options, open_admin
from orbitmq.cli.admin_kit.screen import screen_lines, terminal_width
from orbitmq.cli.servers import fail
from orbitmq.errors import OrbitError

__all__ = ["doctor_command"]

_COLOURS: Final = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@click.command("doctor")
@click.option("-t", "--topic", help="Also explain why this topic has no route or cannot be written.")
def doctor_command(topic: str | None, **settings: Any) -> None:
    """Check a cluster: name servers, brokers, disks, clocks, versions, replication, groups.

    Nothing is changed. The exit code is 1 if something is broken, 0 if there are only warnings.
    """

    async def run() -> Checkup:
        async with open_admin(settings, os.environ) as admin:
            return await checkup(admin, topic)

    try:
        found = asyncio.run(run())
    except OrbitError as error:
        fail(str(error))
    if settings["as_json"]:
        click.echo(msgspec.json.encode(found))
    else:
        _print(found)
    sys.exit(1 if found.failed else 0)


doctor_command.params += [option for option in connection_options() if option.name != "wide"]


def _print(found: Checkup) -> None:
    width = terminal_width() - 6
    for one in found.findings:
        first, *rest = screen_lines(one.what, width)
        click.echo(f"{click.style(f'{one.level.value:<5}', fg=_COLOURS[one.level])} {first}")
        for line in rest:
            click.echo(f"      {line}")
        if one.remedy:
            for number, line in enumerate(screen_lines(one.remedy, width - 4)):
                click.echo(f"      {'->  ' if not number else ''}{line}")
    broken = sum(one.level is Level.FAIL for one in found.findings)
    warned = sum(one.level is Level.WARN for one in found.findings)
    click.echo(f"{len(found.findings)} checks, {broken} failed, {warned} warnings")

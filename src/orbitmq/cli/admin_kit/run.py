"""Builds click commands from declarations and runs them, including output and exit code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import click
import msgspec

from orbitmq.admin import Admin, Result
from orbitmq.admin.session import Progress
from orbitmq.cli.admin_kit.complete import completer
from orbitmq.cli.admin_kit.connect import CONNECTION_KEYS, connection_options, open_admin
from orbitmq.cli.admin_kit.declare import INTERVAL, Args, Command, Flag
from orbitmq.cli.admin_kit.explain import EXIT_FAILED, Failure, explain
from orbitmq.cli.admin_kit.output import print_parts
from orbitmq.errors import OrbitError

__all__ = ["build"]

_INTERRUPTED = 130
"""The exit code that shells use for a process ended by SIGINT."""
_STARTED_OVER_S = 0.5
"""Seconds after which an operation shows a progress bar."""


class _AdminCommand(click.Command):
    """Lists the connection options in the help separately from the command's own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                (shared if param.name in CONNECTION_KEYS else own).append(record)
        for title, records in (("Options", own), ("Connection", shared)):
            with formatter.section(title):
                formatter.write_dl(records)


def build(command: Command) -> click.Command:
    """Builds the click command of a declaration."""

    def callback(**params: Any) -> None:
        settings = _merged(params)
        args = {flag.key: params[_parameter(flag)] for flag in command.flags}
        if command.one_of and not any(args[key] is not None for key in command.one_of):
            names = " or ".join(_typed(command, key) for key in command.one_of)
            raise click.UsageError(f"Missing option {names}.")
        try:
            sys.exit(asyncio.run(_run(command, args, settings)))
        except KeyboardInterrupt:  # the normal end of a repeating command
            sys.exit(_INTERRUPTED)

    help_text = command.help
    if command.apache_only:
        help_text += "\n\nOnly Apache's servers support this; this project's servers refuse it."
    return _AdminCommand(
        command.name,
        params=[*(_option(flag) for flag in command.flags), *connection_options()],
        callback=callback,
        help=help_text,
        short_help=command.help.partition("\n")[0],
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _parameter(flag: Flag) -> str:
    return f"flag_{flag.key.replace('-', '_')}"


def _typed(command: Command, key: str) -> str:
    return next("/".join(flag.names) for flag in command.flags if flag.key == key)


def _option(flag: Flag) -> click.Parameter:
    if flag.by_place:
        complete = completer(flag.completes) if flag.completes else None
        return click.Argument(
            [_parameter(flag)], metavar=flag.key.upper(), required=flag.required, shell_complete=complete
        )
    names = [*flag.names, _parameter(flag)]
    if flag.switch:
        return click.Option(names, is_flag=True, default=False, help=flag.help)
    kind: Any = click.Choice(flag.choices, case_sensitive=False) if flag.choices else flag.kind
    complete = completer(flag.completes) if flag.completes else None
    # With an explicit default of None, click would consider the option given.
    default: dict[str, Any] = {} if flag.default is None else {"default": flag.default, "show_default": True}
    return click.Option(
        names,
        type=kind,
        required=flag.required,
        help=flag.help,
        shell_complete=complete,
        metavar="true|false" if flag.kind is bool else None,
        **default,
    )


def _merged(params: dict[str, Any]) -> dict[str, Any]:
    """Merges the connection options given before and after the command. Those after it take precedence."""
    context = click.get_current_context()
    outer = context.obj if isinstance(context.obj, dict) else {}
    return {
        key: params.get(key) if params.get(key) is not None else outer.get(key) for key in CONNECTION_KEYS
    }


async def _run(command: Command, args: Args, settings: dict[str, Any]) -> int:
    as_json = bool(settings["as_json"])
    with _progress(shown=not as_json) as progress:
        try:
            admin = open_admin(settings, os.environ, progress)
        except OrbitError as error:
            return _fail(Failure(str(error), [], EXIT_FAILED), as_json=as_json)
        async with admin:
            try:
                await _show(command, admin, args, _Form(as_json, bool(settings["wide"])))
            except OrbitError as error:
                return _fail(await explain(admin, args, error), as_json=as_json)
            except BrokenPipeError:
                raise  # such as `| head`; click exits silently
            except OSError as error:  # a file named by the user
                return _fail(Failure(str(error), [], EXIT_FAILED), as_json=as_json)
    return 0


class _Form(NamedTuple):
    """How to print results."""

    as_json: bool
    wide: bool


async def _show(command: Command, admin: Admin, args: Args, form: _Form) -> None:
    interval_s = args.get(INTERVAL.key)
    while True:
        answer = command.call(admin, args)
        if isinstance(answer, AsyncIterator):
            async for result in answer:
                _print(command, result, args, form)
        else:
            _print(command, await answer, args, form)
        if command.streams or not interval_s:
            return
        await asyncio.sleep(interval_s)


def _print(command: Command, result: Result, args: Args, form: _Form) -> None:
    assert isinstance(result, command.results), f"{command.name} gave {type(result).__name__}"
    if not form.as_json:
        if command.clears and sys.stdout.isatty():
            click.clear()
        print_parts(command.view(result, args), wide=form.wide)
        return
    text = msgspec.json.encode(result)
    if sys.stdout.isatty() and not command.streams:
        text = msgspec.json.format(text, indent=2)
    click.echo(text)


def _fail(failure: Failure, *, as_json: bool) -> int:
    if as_json:
        error = {"message": failure.text, "code": failure.response_code, "hints": failure.hints}
        click.echo(msgspec.json.encode({"error": error}), err=True)
    else:
        click.echo(f"orbitmq: {failure.text}", err=True)
        for hint in failure.hints:
            click.echo(f"  {hint}", err=True)
    return failure.exit_code


@contextlib.contextmanager
def _progress(*, shown: bool) -> Iterator[Progress | None]:
    """Yields a callback that shows progress of long operations, or None if standard error is not a terminal."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    with contextlib.ExitStack() as stack:
        bar: list[Any] = []
        loop_start: list[float] = []

        def step(what: str, done: int, total: int) -> None:
            now = asyncio.get_running_loop().time()
            if not loop_start:
                loop_start.append(now)
            if not bar and (now - loop_start[0] < _STARTED_OVER_S or done >= total):
                return
            if not bar:
                from rich.console import Console
                from rich.progress import Progress as RichProgress

                bars = stack.enter_context(RichProgress(console=Console(stderr=True), transient=True))
                bar.extend((bars, bars.add_task(what, total=total)))
            bar[0].update(bar[1], description=what, completed=done, total=total)

        yield step

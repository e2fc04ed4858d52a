"""The ``orbitmq`` command. Subcommands are imported when they are called, so ``orbitmq --version`` takes 60 ms."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Final

import click

from orbitmq import __version__

__all__ = ["main"]

_COMMANDS: Final = {
    "namesrv": ("orbitmq.cli.servers", "namesrv_command", "Run a name server."),
    "broker": ("orbitmq.cli.broker_server", "broker_command", "Run a broker."),
    "proxy": ("orbitmq.cli.proxy", "proxy_command", "Run a gRPC proxy for 5.x clients."),
    "filtersrv": ("orbitmq.cli.filtersrv", "filtersrv_command", "Run a filter server."),
    "up": ("orbitmq.cli.up", "up_command", "Run everything on this machine, for development."),
    "init": ("orbitmq.cli.init", "init_command", "Write configuration files that start as they are."),
    "demo": ("orbitmq.cli.demo", "demo_command", "An end-to-end run that ends by itself."),
    "doctor": ("orbitmq.cli.doctor", "doctor_command", "What is wrong with a cluster, and what to do."),
    "topic": ("orbitmq.cli.everyday", "topic_commands", "Topics: list, create, describe, delete, alter."),
    "group": ("orbitmq.cli.everyday", "group_commands", "Consumer groups: list, describe, lag, reset."),
    "message": ("orbitmq.cli.everyday", "message_commands", "Stored messages: get, find."),
    "top": ("orbitmq.cli.everyday", "top_command", "Rates and lags, refreshed."),
    "admin": ("orbitmq.cli.admin", "admin_commands", "Look at a cluster and change it."),
    "store": ("orbitmq.cli.store", "store_commands", "Look into the files of a store."),
    "sql": ("orbitmq.cli.sql", "sql_command", "Query topics and stores with SQL."),
    "pipeline": ("orbitmq.cli.pipeline", "pipeline_commands", "Data pipelines on Spark."),
    "console": ("orbitmq.cli.console", "console_command", "Serve the web console."),
    "dlq": ("orbitmq.cli.dlq", "dlq_commands", "Dead letters: list, show, resend, drop, export."),
    "produce": ("orbitmq.cli.messages", "produce_command", "Send lines to a topic."),
    "consume": ("orbitmq.cli.consume", "consume_command", "Print the messages of a topic."),
    "run": ("orbitmq.cli.worker", "run_command", "Run a worker: module:consumer."),
    "context": ("orbitmq.cli.contexts", "context_commands", "Clusters with a name: save, use, list, remove."),
    "mcp": ("orbitmq.cli.mcp_server", "mcp_command", "Serve a cluster to assistants, read-only by default."),
    "completion": ("orbitmq.cli.completion", "completion_command", "Print a shell's completion script."),
    "bench": (
        "orbitmq.cli.bench",
        "bench_command",
        "Benchmarks, compared with Apache RocketMQ where Java is present.",
    ),
}
"""Module, attribute and help line by name. Only commands whose packages are installed are offered; see
``_LazyGroup``.
"""


class _LazyGroup(click.Group):
    """A group that checks whether a command's module exists, and imports it only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in _COMMANDS if _is_present(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS or not _is_present(cmd_name):
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}:{attribute} is not a command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            meant = get_close_matches(name, self.list_commands(ctx), n=2)
            admin = _admin_command(name)
            hint = f"Did you mean {' or '.join(meant)}?" if meant else "See `orbitmq --help`."
            ctx.fail(
                f"No such command {name!r}. {f'Did you mean `orbitmq admin {admin}`?' if admin else hint}"
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click would import every command to get its help line.
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][2]) for name in self.list_commands(ctx)])


def _admin_command(name: str) -> str:
    """Returns the ``orbitmq admin`` command with this name, ignoring case; empty if there is none."""
    from orbitmq.cli.admin import AREAS

    names = {one.lower(): one for commands in AREAS.values() for one in commands}
    return names.get(name.lower(), "")


def _is_present(name: str) -> bool:
    return importlib.util.find_spec(_COMMANDS[name][0]) is not None


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from orbitmq.kernel import NAME as KERNEL  # imported here, because no other command needs it earlier

    click.echo(f"orbitmq, version {__version__}, {KERNEL} kernel")
    ctx.exit()


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)
def main() -> None:
    """orbitmq: Apache RocketMQ, rebuilt in Python."""


if __name__ == "__main__":
    main()

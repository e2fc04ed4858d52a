"""Code shared by all server commands, and ``orbitmq namesrv``.

A server command reads its configuration, starts, prints one ready line, runs until SIGTERM or SIGINT, stops
gracefully and exits with 0. If it cannot start, it exits with 1 and one line with the reason.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from orbitmq.cli.failures import start_failure
from orbitmq.cli.settings import BrokerSettings, read_broker_settings, read_config
from orbitmq.errors import ConfigError, OrbitError
from orbitmq.kernel import NAME as KERNEL
from orbitmq.runtime.logs import LOG_LEVELS, configure_logging
from orbitmq.runtime.loops import new_event_loop
from orbitmq.runtime.machine import environment, open_all_files_allowed
from orbitmq.runtime.options import given_without_effect, kept_without_effect, options_of
from orbitmq.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from orbitmq.metrics.endpoint import MetricsEndpoint

__all__ = [
    "STOP_AT_EOF",
    "BrokerSettings",
    "fail",
    "logging_options",
    "metrics_text",
    "namesrv_command",
    "read_broker_settings",
    "read_config",
    "run_server",
    "set_options",
    "warn_without_effect",
]

logger = logging.getLogger(__name__)

STOP_AT_EOF: Final = "ORBITMQ_STOP_AT_EOF"
"""Environment variable that makes a child process stop when its standard input closes."""

C = TypeVar("C")
S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])


def fail(message: str) -> NoReturn:
    """Exit with code 1 after printing one line on standard error."""
    click.echo(f"orbitmq: {' '.join(message.split())}", err=True)
    sys.exit(1)


def logging_options(command: F) -> F:
    """Adds ``--log-level`` and ``--log-file`` to a server command."""
    command = click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS, case_sensitive=False),
        default="INFO",
        show_default=True,
        help="Minimum level to log.",
    )(command)
    return click.option(
        "--log-file",
        type=click.Path(dir_okay=False),
        help="Log to this file, which rolls over; else to stderr.",
    )(command)


def set_options(command: F) -> F:
    """Adds ``-c FILE`` and ``--set KEY=VALUE`` to a server command."""
    command = click.option(
        "-c",
        "--config",
        "config_file",
        type=click.Path(dir_okay=False),
        help="Properties file, with Apache's keys.",
    )(command)
    return click.option(
        "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set one option; wins over the file."
    )(command)


def warn_without_effect(kept: Mapping[str, str], source: str) -> None:
    """Log one line that names all options that are accepted but have no effect."""
    if kept:
        logger.warning("options without effect source=%s keys=%s", source, ",".join(sorted(kept)))


def metrics_text(endpoint: MetricsEndpoint | None) -> str:
    """Returns the part of the ready line about metrics; empty if they are not served."""
    return "" if endpoint is None else f", metrics http://{endpoint.address}/metrics"


def run_server(
    server: Callable[[], AbstractAsyncContextManager[S]],
    ready: Callable[[S], str],
    failed: Callable[[S], Coroutine[Any, Any, BaseException]] | None = None,
) -> None:
    """Run a server until a signal arrives. ``ready`` returns the line to print once it serves.

    ``failed`` may wait until the server has failed and can no longer serve; the process then exits with 1.
    """
    if not __debug__:
        fail("a server does not start under python -O: its assertions guard the data")
    open_all_files_allowed()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            failure = runner.run(_serve(server, ready, failed))
    except (OrbitError, OSError) as error:
        fail(start_failure(error))
    if failure is not None:
        fail(f"stopped: {failure}")


async def _serve(
    server: Callable[[], AbstractAsyncContextManager[S]],
    ready: Callable[[S], str],
    failed: Callable[[S], Coroutine[Any, Any, BaseException]] | None,
) -> BaseException | None:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not stopped.done():
            stopped.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if environment(STOP_AT_EOF):
        _at_end_of_input(loop, stop)
    # Requests create few reference cycles but many short-lived objects. With the default threshold the young
    # generation would be collected a thousand times a second under load.
    gc.set_threshold(50_000, 20, 50)
    async with server() as running:
        # Everything imported and built so far lives as long as the process, so exclude it from collection.
        gc.freeze()
        click.echo(ready(running))
        sys.stdout.flush()
        if failed is None:
            await stopped
            return None
        tasks = TaskOwner("process")
        failure: asyncio.Task[BaseException] = tasks.start(failed(running), "failure-watch")
        await asyncio.wait((stopped, failure), return_when=asyncio.FIRST_COMPLETED)
        reason = failure.result() if failure.done() else None
        await tasks.close()
        return reason


def _at_end_of_input(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call ``stop`` when standard input closes, which means that the parent process is gone or has requested a
    stop.
    """
    descriptor = sys.stdin.fileno()

    def readable() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            stop()

    loop.add_reader(descriptor, readable)


@click.command("namesrv")
@set_options
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on (listenPort).")
@click.option("-p", "--print-config", is_flag=True, help="Print the configuration and exit.")
@click.option("-n", "--namesrv-addr", hidden=True, help="Accepted for Apache's scripts; ignored.")
@logging_options
def namesrv_command(
    config_file: str | None,
    overrides: tuple[str, ...],
    port: int | None,
    print_config: bool,
    namesrv_addr: str | None,
    log_level: str,
    log_file: str | None,
) -> None:
    """Run a name server until SIGTERM or SIGINT.

    Options have Apache's names (listenPort, kvConfigPath, ...); -p shows all of them.
    """
    from orbitmq.namesrv.config import NameServerConfig, render_config
    from orbitmq.namesrv.server import NameServer
    from orbitmq.runtime.apache_options import NAME_SERVER_KEYS

    try:
        configure_logging(log_level.upper(), log_file)
        if port is not None:
            overrides = (*overrides, f"listenPort={port}")
        if config_file is not None and not any(text.startswith("configStorePath=") for text in overrides):
            overrides = (*overrides, f"configStorePath={config_file}")
        config, properties, unknown = read_config(NameServerConfig, config_file, overrides)
        declared = [option.key for option in options_of(NameServerConfig)]
        kept = kept_without_effect(properties, unknown, declared, NAME_SERVER_KEYS)
        kept |= given_without_effect(config)
    except (ConfigError, OSError) as error:
        fail(str(error))
    if print_config:
        click.echo(render_config(config), nl=False)
        return
    warn_without_effect(kept, properties.source)
    run_server(
        lambda: NameServer(config, stored=properties.values),
        lambda server: (
            f"orbitmq name server ready, address {server.address}"
            + metrics_text(server.metrics)
            + f" ({KERNEL} kernel)"
        ),
    )

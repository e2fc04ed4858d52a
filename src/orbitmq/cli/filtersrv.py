"""``orbitmq filtersrv``: runs a filter server until SIGTERM or SIGINT."""

from __future__ import annotations

import logging

import click

from orbitmq.cli.servers import fail, logging_options, read_config, run_server, set_options
from orbitmq.errors import ConfigError
from orbitmq.kernel import NAME as KERNEL
from orbitmq.runtime.logs import configure_logging
from orbitmq.runtime.options import kept_without_effect, options_of, render_value

__all__ = ["filtersrv_command"]

logger = logging.getLogger(__name__)


@click.command("filtersrv")
@set_options
@click.option("-b", "--broker", help="The broker to filter for, host:port (connectWhichBroker).")
@click.option(
    "-d",
    "--classes",
    type=click.Path(file_okay=False),
    help="Directory with the filter classes (filterClassDirectory).",
)
@click.option("-p", "--print-config", is_flag=True, help="Print the configuration and exit.")
@logging_options
def filtersrv_command(
    config_file: str | None,
    overrides: tuple[str, ...],
    broker: str | None,
    classes: str | None,
    print_config: bool,
    log_level: str,
    log_file: str | None,
) -> None:
    """Run a filter server until SIGTERM or SIGINT.

    Consumers with a class filter pull the messages that their Python class selects. The broker must allow it
    (filterServerNums=1). Classes come from a directory; consumers may upload theirs only if
    clientUploadFilterClassEnable is set, which lets anyone who can reach the port run code.
    """
    from orbitmq.filtersrv.config import FilterServerConfig
    from orbitmq.filtersrv.server import FilterServer

    try:
        configure_logging(log_level.upper(), log_file)
        if broker is not None:
            overrides = (*overrides, f"connectWhichBroker={broker}")
        if classes is not None:
            overrides = (*overrides, f"filterClassDirectory={classes}")
        config, properties, unknown = read_config(FilterServerConfig, config_file, overrides)
        kept_without_effect(properties, unknown, [o.key for o in options_of(FilterServerConfig)], ())
    except (ConfigError, OSError) as error:
        fail(str(error))
    if print_config:
        for declared in options_of(FilterServerConfig):
            value = render_value(getattr(config, declared.name))
            click.echo(f"{declared.key}={'******' if declared.secret and value else value}")
        return
    run_server(
        lambda: FilterServer(config),
        lambda server: f"orbitmq filter server ready, address {server.address} ({KERNEL} kernel)",
    )

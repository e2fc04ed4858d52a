"""``orbitmq broker``: runs a broker until SIGTERM or SIGINT."""

from __future__ import annotations

import logging

import click

from orbitmq.cli.local_proxy import broker_and_proxy, local_proxy_config, proxy_text
from orbitmq.cli.name_server import NameServerOption
from orbitmq.cli.servers import (
    fail,
    logging_options,
    metrics_text,
    read_broker_settings,
    run_server,
    set_options,
    warn_without_effect,
)
from orbitmq.cli.supervisor import Child, Supervisor, broker_children
from orbitmq.client.surroundings import name_servers_given
from orbitmq.errors import ConfigError
from orbitmq.kernel import NAME as KERNEL
from orbitmq.runtime.logs import configure_logging
from orbitmq.runtime.options import options_of

__all__ = ["broker_command"]

logger = logging.getLogger(__name__)


@click.command("broker")
@set_options
@click.option("namesrv_addr", cls=NameServerOption, help="Name servers (namesrvAddr).")
@click.option("-p", "--print-config", is_flag=True, help="Print the configuration and exit.")
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of broker groups, each with its own process, name, store and port.",
)
@click.option(
    "--proxy",
    "proxy_file",
    type=click.Path(dir_okay=False),
    help="Serve 5.x clients over gRPC as well, with this rmq-proxy.json.",
)
@logging_options
def broker_command(
    config_file: str | None,
    overrides: tuple[str, ...],
    namesrv_addr: str | None,
    print_config: bool,
    processes: int,
    proxy_file: str | None,
    log_level: str,
    log_file: str | None,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Options have Apache's names (listenPort, brokerName, storePathRootDir, ...); -p shows all of them.
    """
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.live_config import shown

    try:
        configure_logging(log_level.upper(), log_file)
        if namesrv_addr is not None:
            overrides = (*overrides, f"namesrvAddr={namesrv_addr}")
        settings = read_broker_settings(config_file, overrides)
        if not settings.config.name_servers and (known := name_servers_given()):
            overrides = (*overrides, f"namesrvAddr={known}")
            settings = read_broker_settings(config_file, overrides)
        proxy_config = None if proxy_file is None else local_proxy_config(proxy_file)
        if proxy_config is not None and processes > 1:
            raise ConfigError("--proxy works with one broker; for several, run orbitmq proxy")
    except (ConfigError, OSError) as error:
        fail(str(error))
    if print_config:
        more = settings.more
        for part in (settings.config, settings.store_config, more.auth, more.tls, more.limits):
            for declared in options_of(type(part)):
                click.echo(f"{declared.key}={shown(declared, getattr(part, declared.name))}")
        return
    warn_without_effect(settings.without_effect, config_file or "command line")
    if not settings.config.name_servers:
        logger.warning(
            "no name server is configured, so clients cannot find this broker: use -n, namesrvAddr or ORBITMQ_NAMESRV"
        )
    if processes > 1:
        arguments = [part for override in overrides for part in ("--set", override)]
        arguments += ["--log-level", log_level]
        _run_processes(broker_children(range(processes), settings, arguments, config_file, log_file))
        return
    run_server(
        lambda: broker_and_proxy(
            lambda: Broker(
                settings.config, settings.store_config, config_file=config_file, more=settings.more
            ),
            proxy_config,
        ),
        lambda both: (
            f"orbitmq broker ready, name {both.broker.config.broker_name}, address {both.broker.address}"
            + metrics_text(both.broker.metrics)
            + proxy_text(both.proxy)
            + f" ({KERNEL} kernel)"
        ),
        lambda both: both.broker.failure(),
    )


def _run_processes(children: list[Child]) -> None:
    """Run several brokers until SIGTERM or SIGINT. Prints their ready lines, then one for all of them."""
    run_server(
        lambda: Supervisor(children, on_restart=lambda _, line: click.echo(line)),
        lambda running: "\n".join((*running.ready_lines, f"{len(children)} brokers ready")),
    )

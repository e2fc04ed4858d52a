"""``orbitmq broker``: one broker until SIGTERM or SIGINT."""

from __future__ import annotations

import gc
import logging

import click

from orbitmq.cli.servers import fail, logging_options, metrics_text, read_config, run_server, set_options
from orbitmq.errors import ConfigError
from orbitmq.kernel import NAME as KERNEL
from orbitmq.runtime.logs import configure_logging
from orbitmq.runtime.options import options_of, render_value

__all__ = ["broker_command"]

logger = logging.getLogger(__name__)


@click.command("broker")
@set_options
@click.option("-n", "--namesrv-addr", help="Name servers, host:port separated by ';' (namesrvAddr).")
@click.option("-p", "--print-config", is_flag=True, help="Print the configuration and end.")
@logging_options
def broker_command(
    config_file: str | None,
    overrides: tuple[str, ...],
    namesrv_addr: str | None,
    print_config: bool,
    log_level: str,
    log_file: str | None,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Options have Apache's names (listenPort, brokerName, storePathRootDir, ...); -p shows all of them.
    """
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.config import BrokerConfig
    from orbitmq.store.config import StoreConfig

    try:
        configure_logging(log_level.upper(), log_file)
        if namesrv_addr is not None:
            overrides = (*overrides, f"namesrvAddr={namesrv_addr}")
        config, properties, unknown = read_config(BrokerConfig, config_file, overrides)
        store_config, _, unknown_to_store = read_config(StoreConfig, config_file, overrides)
    except (ConfigError, OSError) as error:
        fail(str(error))
    if print_config:
        for part in (config, store_config):
            for declared in options_of(type(part)):
                click.echo(f"{declared.key}={render_value(getattr(part, declared.name))}")
        return
    for key in sorted(set(unknown) & set(unknown_to_store)):
        logger.warning("unknown option ignored key=%s source=%s", key, properties.source)
    # Requests make few reference cycles and many short-lived objects; the default threshold would walk
    # the young generation a thousand times a second under load.
    gc.set_threshold(50_000, 20, 50)
    run_server(
        lambda: Broker(config, store_config, config_file=config_file),
        lambda broker: (
            f"orbitmq broker ready, name {broker.config.broker_name}, address {broker.address}"
            + metrics_text(broker.metrics)
            + f" ({KERNEL} kernel)"
        ),
        lambda broker: broker.failure(),
    )

"""``orbitmq proxy``: runs a gRPC proxy for 5.x clients in front of a cluster's brokers until SIGTERM or SIGINT."""

from __future__ import annotations

import logging

import click

from orbitmq.cli.name_server import NameServerOption
from orbitmq.cli.servers import fail, logging_options, metrics_text, run_server
from orbitmq.client.surroundings import name_servers_given
from orbitmq.errors import ConfigError
from orbitmq.kernel import NAME as KERNEL
from orbitmq.runtime.logs import configure_logging
from orbitmq.runtime.options import options_of, render_value

__all__ = ["proxy_command"]

logger = logging.getLogger(__name__)


@click.command("proxy")
@click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(dir_okay=False),
    help="JSON file with the keys of Apache's rmq-proxy.json.",
)
@click.option("namesrv_addr", cls=NameServerOption, help="Name servers (namesrvAddr).")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set one option; wins over the file."
)
@click.option("-p", "--print-config", is_flag=True, help="Print the configuration and exit.")
@logging_options
def proxy_command(
    config_file: str | None,
    namesrv_addr: str | None,
    overrides: tuple[str, ...],
    print_config: bool,
    log_level: str,
    log_file: str | None,
) -> None:
    """Run a gRPC proxy until SIGTERM or SIGINT.

    Clients of RocketMQ 5.x (Java, Python, Go, Node, C#, C++, Rust) connect to it, by
    default on port 8081. A broker can run one in its own process: orbitmq broker --proxy FILE.
    """
    from orbitmq.proxy.config import ProxyConfig, read_proxy_config
    from orbitmq.proxy.server import Proxy

    try:
        configure_logging(log_level.upper(), log_file)
        given = dict(_pair(text) for text in overrides)
        if namesrv_addr is not None:
            given["namesrvAddr"] = namesrv_addr
        config, unknown = read_proxy_config(config_file, given)
        if print_config:
            for declared in options_of(ProxyConfig):
                click.echo(f"{declared.key}={render_value(getattr(config, declared.name))}")
            return
        if not config.name_servers:
            config, unknown = read_proxy_config(config_file, {**given, "namesrvAddr": name_servers_given()})
        if config.mode.upper() == "LOCAL":
            raise ConfigError("proxyMode=LOCAL runs inside a broker: orbitmq broker --proxy FILE")
        if not config.name_servers:
            raise ConfigError("no name server is given: -n host:port, namesrvAddr or ORBITMQ_NAMESRV")
        proxy = Proxy(config)
    except (ConfigError, OSError) as error:
        fail(str(error))
    for key in unknown:
        logger.warning("unknown option ignored key=%s source=%s", key, config_file or "--set")
    run_server(
        lambda: proxy,
        lambda running: (
            f"orbitmq proxy ready, address {running.address}"
            + metrics_text(running.metrics)
            + f" ({KERNEL} kernel)"
        ),
    )


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {text!r} is not of the form KEY=VALUE")
    return key.strip(), value

"""``orbitmq up``: name server and broker in one process on loopback, for development and first steps."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import click

from orbitmq.cli.servers import fail, logging_options, read_config, run_server
from orbitmq.errors import ConfigError
from orbitmq.runtime.logs import configure_logging

__all__ = ["up_command"]


@dataclass(frozen=True, slots=True)
class _Running:
    name_server: str
    broker: str
    data: Path


@click.command("up")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Where messages and metadata are kept between runs.",
)
@click.option("--port", type=click.IntRange(1, 65_535), default=9876, show_default=True, help="Name server.")
@click.option("--broker-port", type=click.IntRange(3, 65_535), default=10911, show_default=True)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set one broker option.")
@logging_options
def up_command(
    data: Path, port: int, broker_port: int, overrides: tuple[str, ...], log_level: str, log_file: str | None
) -> None:
    """Run a name server and a broker in one process, on loopback only.

    Stop with Ctrl-C; the data stays for the next run.
    """
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.config import BrokerConfig
    from orbitmq.namesrv.config import NameServerConfig
    from orbitmq.namesrv.server import NameServer
    from orbitmq.store.config import StoreConfig

    try:
        data.mkdir(parents=True, exist_ok=True)
        # On a terminal the ready text is what matters; the servers' own lines go to a file.
        configure_logging(log_level.upper(), log_file or str(data / "orbitmq.log"))
        name_server_config, _, _ = read_config(
            NameServerConfig,
            None,
            (f"listenPort={port}", "bindAddress=127.0.0.1", f"kvConfigPath={data / 'kvConfig.json'}"),
        )
        settings = (
            f"listenPort={broker_port}",
            "bindAddress=127.0.0.1",
            "brokerIP1=127.0.0.1",
            "brokerIP2=127.0.0.1",
            f"namesrvAddr=127.0.0.1:{port}",
            f"storePathRootDir={data / 'store'}",
            *overrides,
        )
        config, _, unknown = read_config(BrokerConfig, None, settings)
        store_config, _, unknown_to_store = read_config(StoreConfig, None, settings)
        misspelt = sorted(set(unknown) & set(unknown_to_store))
        if misspelt:
            raise ConfigError(f"no such option: {', '.join(misspelt)}")
    except (ConfigError, OSError) as error:
        fail(str(error))

    @contextlib.asynccontextmanager
    async def servers() -> AsyncIterator[_Running]:
        async with NameServer(name_server_config) as name_server, Broker(config, store_config) as broker:
            yield _Running(name_server.address, broker.address, data)

    run_server(servers, _ready)


def _ready(running: _Running) -> str:
    return f"""\
orbitmq is ready (Ctrl-C stops it)
  name server  {running.name_server}
  broker       {running.broker}
  data         {running.data}  (kept between runs; log in {running.data / "orbitmq.log"})
Give any RocketMQ client namesrvAddr={running.name_server}; topics are created by the first send."""

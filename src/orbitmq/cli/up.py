"""``orbitmq up``: runs a name server and a broker in one process on loopback, for development and first steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from orbitmq.cli.failures import start_failure
from orbitmq.cli.local_proxy import broker_and_proxy
from orbitmq.cli.name_server import NAME_SERVER_DEFAULT
from orbitmq.cli.servers import (
    BrokerSettings,
    fail,
    logging_options,
    read_broker_settings,
    read_config,
    run_server,
)
from orbitmq.cli.supervisor import PORT_STEP, Child, Supervisor, broker_children
from orbitmq.errors import ConfigError
from orbitmq.kernel import NAME as KERNEL
from orbitmq.runtime.logs import configure_logging

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.namesrv.config import NameServerConfig
    from orbitmq.namesrv.server import NameServer
    from orbitmq.proxy.config import ProxyConfig

__all__ = ["up_command"]

_LOOPBACK: Final = "127.0.0.1"
_EVERYTHING_ON: Final = ("enablePropertyFilter=true", "recallMessageEnable=true")
"""Features that are off by default but that a developer may want to try: SQL92 filters and recall of delayed
messages.
"""
_SLAVE_PORT: Final = 5
"""Distance from a broker's port to the port of its slave."""
_METRICS_PORT: Final = 5557
_CONSOLE_PORT: Final = 8080
_PROXY_PORT: Final = 8081


@dataclass(frozen=True, slots=True)
class _Running:
    name_server: str
    brokers: tuple[tuple[str, str], ...]
    """Name and address of each broker. A slave's name is derived from its broker's."""
    proxy: str
    """The gRPC address; empty if the required extra is not installed."""
    metrics: tuple[tuple[str, str], ...]
    data: Path
    log: Path
    message_count: int
    console: str
    """The console's address, or the reason why it is not running."""


@click.command("up")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Where messages and metadata are kept between runs.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=9876,
    show_default=True,
    help="Port of the name server; 0: any free one.",
)
@click.option(
    "--broker-port",
    type=click.IntRange(0, 65_535),
    default=10911,
    show_default=True,
    help="Port of the broker; 0: any free one.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_534),
    help=f"Port of the broker's metrics; the name server's is one above. 0: any free one. "
    f"[default: {_METRICS_PORT} if free]",
)
@click.option(
    "--console-port",
    type=click.IntRange(0, 65_535),
    help=f"Port of the web console; 0: any free one. [default: {_CONSOLE_PORT} if free]",
)
@click.option("--no-console", is_flag=True, help="Do not start the web console.")
@click.option(
    "--proxy-port",
    type=click.IntRange(0, 65_535),
    help=f"Port of gRPC for 5.x clients; 0: any free one. [default: {_PROXY_PORT} if free]",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Broker groups; those after the first have a process each.",
)
@click.option("--slaves", is_flag=True, help="Start a slave for every broker, each in its own process.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set one broker option.")
@logging_options
def up_command(
    data: Path,
    port: int,
    broker_port: int,
    metrics_port: int | None,
    console_port: int | None,
    overrides: tuple[str, ...],
    **given: Any,
) -> None:
    """Run everything on this machine for development: name server, broker, gRPC and web console, on loopback only.

    Every feature is on. Stop with Ctrl-C; the data stays for the next run.
    """
    from orbitmq.broker.broker import Broker
    from orbitmq.namesrv.server import NameServer

    log = Path(given["log_file"]) if given["log_file"] else data / "orbitmq.log"
    broker_metrics, name_server_metrics = _metrics_ports(metrics_port)
    try:
        data.mkdir(parents=True, exist_ok=True)
        # The terminal shows only the ready text; the servers log to a file.
        configure_logging(given["log_level"].upper(), str(log))
        name_server_config = _name_server_config(data, port, name_server_metrics)
        settings = (
            f"listenPort={broker_port}",
            f"bindAddress={_LOOPBACK}",
            f"brokerIP1={_LOOPBACK}",
            f"brokerIP2={_LOOPBACK}",
            f"storePathRootDir={data / 'store'}",
            "metricsExporterType=PROM",
            f"metricsPromExporterPort={broker_metrics}",
            *_EVERYTHING_ON,
            *overrides,
        )
        read = read_broker_settings(None, settings)
        config, store_config = read.config, read.store_config
        proxy_config = _proxy_config(given["proxy_port"])
    except (ConfigError, OSError) as error:
        fail(start_failure(error))

    @contextlib.asynccontextmanager
    async def servers() -> AsyncIterator[_Running]:
        async with NameServer(name_server_config) as name_server:
            known = config.name_servers or name_server.address
            used = dataclasses.replace(config, name_servers=known)
            make = functools.partial(Broker, used, store_config, more=read.more)
            async with broker_and_proxy(make, proxy_config) as both:
                broker = both.broker
                proxy = "" if both.proxy is None else both.proxy.address
                metrics = _metrics_addresses(broker, name_server)
                stored = _stored_count(broker)
                children = _more_brokers(given["brokers"], read, settings, known, data, log)
                if given["slaves"]:
                    names = [config.broker_name, *(child.name for child in children)]
                    children += _slaves(names, (broker.address, broker_port), settings, known, data)
                async with (
                    Supervisor(children) as more,
                    _console(name_server.address, data, console_port, given["no_console"]) as console,
                ):
                    addresses = (broker.address, *more.addresses)
                    brokers = tuple(
                        zip((config.broker_name, *(c.name for c in children)), addresses, strict=True)
                    )
                    yield _Running(name_server.address, brokers, proxy, metrics, data, log, stored, console)
        click.echo("orbitmq stopped; the data stays")

    run_server(servers, _ready)


def _name_server_config(data: Path, port: int, metrics_port: int) -> NameServerConfig:
    from orbitmq.namesrv.config import NameServerConfig

    config, _, _ = read_config(
        NameServerConfig,
        None,
        (
            f"listenPort={port}",
            f"bindAddress={_LOOPBACK}",
            f"kvConfigPath={data / 'kvConfig.json'}",
            f"configStorePath={data / 'namesrv.properties'}",
            "metricsExporterType=PROM",
            f"metricsPromExporterPort={metrics_port}",
        ),
    )
    return config


def _more_brokers(
    count: int, first: BrokerSettings, settings: tuple[str, ...], name_servers: str, data: Path, log: Path
) -> list[Child]:
    """Returns the brokers after the first. They have the same options but their own names, stores and ports."""
    elsewhere = dataclasses.replace(first.store_config, root=str(data / "brokers"))
    arguments = [*(part for one in settings for part in ("--set", one)), "-n", name_servers]
    return broker_children(
        range(1, count),
        dataclasses.replace(first, store_config=elsewhere),
        arguments,
        log_file=str(log),
    )


def _slaves(
    names: list[str], first: tuple[str, int], settings: tuple[str, ...], name_servers: str, data: Path
) -> list[Child]:
    """Returns a slave for each broker. It finds its master through the name server."""
    address, asked_port = first
    port = int(address.rpartition(":")[2])
    children = []
    for number, name in enumerate(names):
        own = {
            "brokerName": name,
            "brokerId": "1",
            "brokerRole": "SLAVE",
            "listenPort": str(port + number * PORT_STEP + _SLAVE_PORT if asked_port else 0),
            "haListenPort": "0",
            "storePathRootDir": str(data / "slaves" / name),
            "metricsExporterType": "DISABLE",
        }
        command = [sys.executable, "-m", "orbitmq.cli.main", "broker", "-n", name_servers]
        for one in (*settings, *(f"{key}={value}" for key, value in own.items())):
            command += ["--set", one]
        command += ["--log-file", str(data / f"{name}-slave.log")]
        children.append(Child(f"{name} (slave)", tuple(command)))
    return children


@contextlib.asynccontextmanager
async def _console(name_server: str, data: Path, port: int | None, unwanted: bool) -> AsyncIterator[str]:
    """Run the web console if it is wanted and installed. Yields its address, or the reason why it is not running."""
    from orbitmq.cli.console import INSTALL_HINT, missing_packages, option_meanings

    if unwanted:
        yield "off (--no-console)"
        return
    if missing_packages():
        yield f"not installed; to have it: {INSTALL_HINT}"
        return
    from orbitmq.admin import Admin
    from orbitmq.console.serve import serve_console
    from orbitmq.console.settings import ConsoleSettings

    settings = ConsoleSettings(
        state=data / "console", pipelines=(data / "pipelines",), meanings=option_meanings()
    )
    wanted = port if port is not None else _CONSOLE_PORT if _is_free(_CONSOLE_PORT) else 0
    async with serve_console(Admin(name_server), settings, port=wanted) as running:
        yield running.url


def _proxy_config(asked: int | None) -> ProxyConfig | None:
    """Returns the gRPC settings for loopback, or None if the extra is not installed."""
    try:
        found = importlib.util.find_spec("google.protobuf")
    except ModuleNotFoundError:  # there is no package named google
        found = None
    if found is None:
        return None
    from orbitmq.proxy.config import ProxyConfig

    port = asked if asked is not None else _PROXY_PORT if _is_free(_PROXY_PORT) else 0
    return ProxyConfig(port=port, bind_address=_LOOPBACK)


def _metrics_addresses(broker: Broker, name_server: NameServer) -> tuple[tuple[str, str], ...]:
    servers = (("broker", broker.metrics), ("name server", name_server.metrics))
    return tuple((server, metrics.address) for server, metrics in servers if metrics)


def _metrics_ports(asked: int | None) -> tuple[int, int]:
    """Returns the metrics ports of the broker and of the name server.

    A requested port is the broker's, and the next one the name server's. Without a request, they are the defaults if
    both are free; otherwise 0.
    """
    if asked is not None:
        return (asked, asked + 1) if asked else (0, 0)
    if _is_free(_METRICS_PORT) and _is_free(_METRICS_PORT + 1):
        return _METRICS_PORT, _METRICS_PORT + 1
    return 0, 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return False
    return True


def _stored_count(broker: object) -> int:
    """Returns the number of stored messages of earlier runs, excluding system topics."""
    from orbitmq.broker.broker import Broker

    assert isinstance(broker, Broker)
    store = broker.store
    return sum(
        store.max_offset(topic, queue_id) - store.min_offset(topic, queue_id)
        for topic in store.topics()
        if not broker.topics.is_system(topic)
        for queue_id in store.queues(topic)
    )


def _ready(running: _Running) -> str:
    kept = f"{running.message_count} messages from before" if running.message_count else "kept between runs"
    python = Path(sys.executable)
    python = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    orbitmq = shlex.quote(str(python.parent / "orbitmq"))
    usual = running.name_server == NAME_SERVER_DEFAULT
    where = "" if usual else f" -n {running.name_server}"
    absent = "not installed; to have it: pip install 'orbitmq[proxy]'"
    grpc = f"  gRPC         {f'{running.proxy} (clients of 5.x)' if running.proxy else absent}\n"
    brokers = "".join(f"  {'broker':<11}  {address}  {name}\n" for name, address in running.brokers)
    metrics = "".join(
        f"  metrics      http://{address}/metrics ({server})\n" for server, address in running.metrics
    )
    return f"""\
orbitmq is ready, {KERNEL} kernel (Ctrl-C stops it)
  console      {running.console}
  name server  {running.name_server}
{brokers}{grpc}{metrics}  data         {running.data} ({kept}; log in {running.log})
On: SQL92 filters, delays and recall, transactions, topics created by the first send.
Try next, in another terminal:
  {orbitmq} produce Greetings hello world{where}
  {orbitmq} consume Greetings{where}
  {orbitmq} admin consumerProgress{where}
  {orbitmq} doctor{where}
Or give any RocketMQ client the name server address {running.name_server}."""

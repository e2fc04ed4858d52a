"""``orbitmq init``: writes commented configuration files for one broker, 2m-2s or failover, ready to run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from orbitmq.cli.failures import start_failure
from orbitmq.cli.servers import fail

__all__ = ["init_command"]

_BROKER_STEP: Final = 10
"""Distance between the listen ports of two brokers. Each broker also uses the port two below and the port one above
its own.
"""
_KINDS: Final = ("single", "2m-2s", "failover")


@dataclass(frozen=True, slots=True)
class _Ports:
    name_server: int
    first_broker: int
    first_metrics: int

    def broker(self, number: int) -> int:
        return self.first_broker + number * _BROKER_STEP


@dataclass(frozen=True, slots=True)
class _Broker:
    """The settings in which the brokers of a layout differ."""

    file: str
    name: str
    broker_id: int
    role: str
    about: str
    more: tuple[str, ...] = ()


_FAILOVER: Final = (
    "# Elects the master of this broker name through etcd, so brokerRole has no effect (docs/failover.md).",
    "# Needs: pip install 'orbitmq[failover]', and an etcd 3.4 or newer at this address.",
    "enableFailover=true",
    "etcdEndpoints=http://127.0.0.1:2379",
)
_BROKERS: Final = {
    "single": (
        _Broker("broker.conf", "broker-a", 0, "ASYNC_MASTER", "The only broker: a master without a slave."),
    ),
    "2m-2s": (
        _Broker(
            "broker-a.conf",
            "broker-a",
            0,
            "SYNC_MASTER",
            "Master of broker-a: answers a send when its slave has it.",
        ),
        _Broker(
            "broker-a-s.conf", "broker-a", 1, "SLAVE", "Slave of broker-a: same brokerName, another brokerId."
        ),
        _Broker("broker-b.conf", "broker-b", 0, "SYNC_MASTER", "Master of broker-b."),
        _Broker("broker-b-s.conf", "broker-b", 1, "SLAVE", "Slave of broker-b."),
    ),
    "failover": tuple(
        _Broker(
            f"broker-a-{number}.conf",
            "broker-a",
            number,
            "",
            f"Replica {number} of broker-a: every replica has its own brokerId, and one of them is elected.",
            _FAILOVER,
        )
        for number in (1, 2, 3)
    ),
}


@click.command("init")
@click.argument("kind", type=click.Choice(_KINDS), default="single")
@click.option(
    "--directory",
    "-d",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("conf"),
    show_default=True,
    help="Directory for the files; existing files are not replaced.",
)
@click.option(
    "--port", type=click.IntRange(1, 65_535), default=9876, show_default=True, help="Of the name server."
)
@click.option(
    "--broker-port",
    type=click.IntRange(1, 65_000),
    default=10911,
    show_default=True,
    help=f"Of the first broker; the others are {_BROKER_STEP} apart.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65_000),
    default=5557,
    show_default=True,
    help="Of the first server; the others count up from it.",
)
def init_command(kind: str, directory: Path, port: int, broker_port: int, metrics_port: int) -> None:
    """Write configuration files that run unchanged on this machine.

    \b
    single    one name server, one broker
    2m-2s     one name server, two masters with a slave each
    failover  one name server, three replicas that elect their master over etcd
    """
    ports = _Ports(port, broker_port, metrics_port)
    files = dict(_files(kind, directory, ports))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in files:
            if (directory / name).exists():
                fail(f"{directory / name} exists already; name another folder with --directory")
        for name, text in files.items():
            (directory / name).write_text(text, "utf-8")
    except OSError as error:
        fail(start_failure(error))
    click.echo(f"Written to {directory}: {', '.join(files)}")
    click.echo("Start each in a terminal of its own, or as a service:")
    for name in files:
        server = "namesrv" if name == "namesrv.conf" else "broker"
        click.echo(f"  orbitmq {server} -c {shlex.quote(str(directory / name))}")
    click.echo(f"Then: orbitmq doctor -n 127.0.0.1:{port}")


def _files(kind: str, directory: Path, ports: _Ports) -> Iterator[tuple[str, str]]:
    data = directory.resolve() / "data"
    yield "namesrv.conf", _name_server(data, ports)
    for number, broker in enumerate(_BROKERS[kind]):
        yield broker.file, _broker(broker, number, data, ports)


def _name_server(data: Path, ports: _Ports) -> str:
    return f"""\
# A name server: brokers register here, clients ask it where a topic is. Run two or three on different machines; they
# do not talk to each other. 'orbitmq namesrv -p' shows every option.
listenPort={ports.name_server}
# Loopback only. For other machines: an address of this one, and access control (docs/how-to/secure.md).
bindAddress=127.0.0.1
kvConfigPath={data}/namesrv/kvConfig.json
configStorePath={data}/namesrv/namesrv.properties
# http://127.0.0.1:{ports.first_metrics}/metrics, /healthz and /readyz
metricsExporterType=PROM
metricsPromExporterHost=127.0.0.1
metricsPromExporterPort={ports.first_metrics}
"""


def _broker(broker: _Broker, number: int, data: Path, ports: _Ports) -> str:
    port = ports.broker(number)
    store = data / broker.file.removesuffix(".conf")
    lines = [
        f"# {broker.about}",
        "# Keys are Apache's; 'orbitmq broker -p' shows all of them with their values.",
        "brokerClusterName=DefaultCluster",
        f"brokerName={broker.name}",
        f"brokerId={broker.broker_id}",
        *([f"brokerRole={broker.role}"] if broker.role else []),
        *broker.more,
        f"namesrvAddr=127.0.0.1:{ports.name_server}",
        "",
        f"# Clients use this port; {port - 2} is the fast port and {port + 1} is for slaves.",
        f"listenPort={port}",
        "# On several machines: the address of this one that clients (brokerIP1) and slaves (brokerIP2) reach, and",
        "# no bindAddress, or the same address. Switch access control on first (docs/how-to/secure.md).",
        "bindAddress=127.0.0.1",
        "brokerIP1=127.0.0.1",
        "brokerIP2=127.0.0.1",
        "",
        "# The messages, best on a disk of its own: at 85 % the oldest are deleted, at 90 % sends are refused.",
        f"storePathRootDir={store}",
        "# SYNC_FLUSH answers a send when the disk has it: safe against power cuts, and slower.",
        "flushDiskType=ASYNC_FLUSH",
        "# Hours that messages are kept, and the hour of the day when older ones are deleted.",
        "fileReservedTime=72",
        "deleteWhen=04",
        "",
        "# true: a send to a topic that does not exist creates it. In production create topics on purpose.",
        "autoCreateTopicEnable=true",
        "# SQL92 filters of consumers.",
        "enablePropertyFilter=true",
        "metricsExporterType=PROM",
        "metricsPromExporterHost=127.0.0.1",
        f"metricsPromExporterPort={ports.first_metrics + 1 + number}",
    ]
    return "\n".join(lines) + "\n"

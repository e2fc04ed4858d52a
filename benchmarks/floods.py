"""Floods and stalls every listening port, compared with Apache 5.5.0: measures how long a well-behaved client waits
meanwhile, and what the server spends.

    python -m benchmarks.floods [--seconds 5] [--settle 10] [--only PORT] [--ours-only] [--json FILE]

Each attack of ``benchmarks.flood_attacks`` runs in its own process. Meanwhile a well-behaved client opens a
connection every 50 ms, sends one request and waits for the response. CPU seconds and memory (anonymous, resident) are
those of the server's process: before the attack, the highest value during it, and ``--settle`` seconds after it (60
after resets).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from benchmarks.flood_attacks import ATTACKS
from tests.apache.artifacts import prepare
from tests.apache.harness import LATEST, ApacheBroker, ApacheNamesrv, create_topic, missing_tools
from tests.apache.ours import COMMAND, OrbitBroker, OrbitNamesrv
from tests.apache.proxy_stack import ApacheProxy, OurProxy
from tests.apache.servers import ApacheServer, accepts, remoting_call
from tests.proxy.golden import SERVICE, metadata
from tests.support.ports import free_ports

from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb

TOPIC: Final = "T"
POLITE_S: Final = 30.0
"""How long the polite client waits for an answer."""
RESETS_SETTLE_S: Final = 60.0
SEND: Final = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0"}
SEND_V2, MAX_OFFSET, CLUSTER_INFO = 310, 30, 106


@dataclass(frozen=True, slots=True)
class Port:
    """A listening port: its server, and one polite request to it, which raises ``OSError`` if it fails."""

    name: str
    protocol: str
    server: ApacheServer
    address: str
    ask: Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Figures:
    """The outcome of one attack."""

    side: str
    port: str
    attack: str
    answers: int
    failures: int
    longest_s: float
    cpu_s: float
    before_mib: float
    peak_mib: float
    after_mib: float


def _max_offset(address: str) -> None:
    code, _, _ = remoting_call(address, MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}, timeout_s=POLITE_S)
    if code:
        raise OSError(f"code {code}")


def _cluster_info(address: str) -> None:
    remoting_call(address, CLUSTER_INFO, timeout_s=POLITE_S)


def _follow(address: str) -> None:
    """Connects like a slave with an empty log."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), POLITE_S) as connection:
        connection.settimeout(POLITE_S)
        connection.sendall(struct.pack(">q", 0))
        if not connection.recv(1):
            raise OSError("closed")


def _page(path: str) -> Callable[[str], None]:
    def ask(address: str) -> None:
        connection = http.client.HTTPConnection(address, timeout=POLITE_S)
        try:
            connection.request("GET", path)
            connection.getresponse().read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from None
        finally:
            connection.close()

    return ask


def _route(address: str) -> None:
    request = pb.QueryRouteRequest(topic=pb.Resource(name=TOPIC))
    host, _, port = address.rpartition(":")
    request.endpoints.scheme = pb.IPv4
    request.endpoints.addresses.add(host=host, port=int(port))
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(
            f"{SERVICE}QueryRoute", pb.QueryRouteRequest.SerializeToString, pb.QueryRouteResponse.FromString
        )
        try:
            call(request, metadata=metadata("polite"), timeout=POLITE_S)
        except grpc.RpcError as error:
            raise OSError(str(error.code())) from None


class _Polite(threading.Thread):
    """Sends requests until it is stopped."""

    def __init__(self, port: Port) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._ended = threading.Event()
        self.waits: list[float] = []
        self.failures = 0
        self.peak_bytes = 0

    def run(self) -> None:
        while not self._ended.wait(0.05):
            started = time.perf_counter()
            try:
                self._port.ask(self._port.address)
            except OSError:
                self.failures += 1
            self.waits.append(time.perf_counter() - started)
            self.peak_bytes = max(self.peak_bytes, self._port.server.private_bytes())

    def stop(self) -> None:
        self._ended.set()
        self.join(2 * POLITE_S)


def attack(side: str, port: Port, name: str, *, seconds: float, settle_s: float) -> Figures:
    """Runs one attack and returns its measurements."""
    server = port.server
    port.ask(port.address)
    before, cpu_s = server.private_bytes(), server.cpu_seconds()
    polite = _Polite(port)
    polite.start()
    host, _, number = port.address.rpartition(":")
    command = [sys.executable, "-m", "benchmarks.flood_attacks", name, port.protocol, host, number]
    with tempfile.TemporaryFile() as told:
        done = subprocess.run([*command, str(seconds)], stdout=told, stderr=told, timeout=20 * seconds)
        told.seek(0)
        if done.returncode and b"TimeoutError" not in (output := told.read()):
            raise RuntimeError(f"{name} on {port.name}: {output.decode(errors='replace')}")
    polite.stop()
    spent_s = server.cpu_seconds() - cpu_s
    time.sleep(max(settle_s, RESETS_SETTLE_S) if name == "resets" else settle_s)
    mib = 1 / 2**20
    return Figures(
        side,
        port.name,
        name,
        len(polite.waits) - polite.failures,
        polite.failures,
        max(polite.waits),
        spent_s,
        before * mib,
        polite.peak_bytes * mib,
        server.private_bytes() * mib,
    )


class _Console(ApacheServer):
    """``orbitmq console``."""

    def __init__(self, namesrv: OrbitNamesrv) -> None:
        super().__init__("orbitmq-console", None)
        (port,) = free_ports()
        self.address = f"127.0.0.1:{port}"
        self._command = [*COMMAND, "console", "-n", namesrv.address, "--port", str(port)]

    def start(self, timeout_s: float = 60.0) -> None:
        super().start()
        self.wait_ready(lambda: accepts(self.address), timeout_s=timeout_s)


def _ports(
    namesrv: ApacheServer, broker: OrbitBroker | ApacheBroker, proxy: OurProxy | ApacheProxy, metrics: int
) -> list[Port]:
    address = namesrv.address  # type: ignore[attr-defined]  # both kinds have one
    create_topic(namesrv, broker, TOPIC, queue_count=1)  # type: ignore[arg-type]  # the same
    code, _, _ = remoting_call(broker.address, SEND_V2, SEND, b"body")
    assert code == 0, code
    return [
        Port("name server", "frames", namesrv, address, _cluster_info),
        Port("remoting", "frames", broker, broker.address, _max_offset),
        Port("fast port", "frames", broker, f"127.0.0.1:{broker.port - 2}", _max_offset),
        Port("replication", "stream", broker, broker.ha_address, _follow),
        Port("gRPC", "grpc", proxy, proxy.address, _route),
        Port("metrics", "http", broker, f"127.0.0.1:{metrics}", _page("/metrics")),
    ]


@contextlib.contextmanager
def _ours() -> Iterator[list[Port]]:
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        (metrics,) = free_ports()
        conf: dict[str, Any] = {"metricsExporterType": "PROM", "metricsPromExporterPort": metrics}
        namesrv = enter(OrbitNamesrv())
        broker = enter(OrbitBroker(namesrv, **conf, metricsPromExporterHost="127.0.0.1"))
        ports = _ports(namesrv, broker, enter(OurProxy(namesrv)), metrics)
        console = enter(_Console(namesrv))
        yield [*ports, Port("console", "http", console, console.address, _page("/healthz"))]


@contextlib.contextmanager
def _apaches() -> Iterator[list[Port]]:
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        (metrics,) = free_ports()
        conf: dict[str, Any] = {"metricsExporterType": "PROM", "metricsPromExporterPort": metrics}
        namesrv = enter(ApacheNamesrv(LATEST))
        broker = enter(ApacheBroker(LATEST, namesrv, **conf, metricsPromExporterHost="127.0.0.1"))
        yield _ports(namesrv, broker, enter(ApacheProxy(namesrv)), metrics)


def _line(found: Figures) -> str:
    return (
        f"| {found.port} | {found.attack} | {found.side} | {found.longest_s:.2f} | {found.answers} | "
        f"{found.failures} | {found.cpu_s:.1f} | {found.before_mib:.0f} | {found.peak_mib:.0f} | "
        f"{found.after_mib:.0f} |"
    )


def run(*, seconds: float, settle_s: float, only: str = "", ours_only: bool = False) -> list[Figures]:
    """Runs every attack on every port of our servers, and of Apache servers unless ``ours_only`` is set."""
    sides: dict[str, Callable[[], contextlib.AbstractContextManager[list[Port]]]] = {"orbitmq": _ours}
    if not ours_only:
        if missing := missing_tools():
            raise RuntimeError(f"Apache's servers need {', '.join(missing)}; use --ours-only")
        prepare()
        sides[f"apache-{LATEST}"] = _apaches
    results: list[Figures] = []
    print(f"load average {os.getloadavg()[0]:.1f}")
    print(
        "| port | attack | server | longest wait s | answered | failed | CPU s | MiB before | peak | after |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for side, opened in sides.items():
        with opened() as ports:
            for port in ports:
                if only and only != port.name:
                    continue
                for one in ATTACKS[port.protocol]:
                    results.append(attack(side, port, one.__name__, seconds=seconds, settle_s=settle_s))
                    print(_line(results[-1]), flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> list[Figures]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="length of an attack that waits")
    parser.add_argument("--settle", type=float, default=10.0, help="seconds before memory is read again")
    parser.add_argument("--only", default="", metavar="PORT", help="name server, remoting, gRPC ...")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--json", help="write the figures there as well")
    given = parser.parse_args(arguments)
    results = run(seconds=given.seconds, settle_s=given.settle, only=given.only, ours_only=given.ours_only)
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(one) for one in results], indent=1))
    return results


if __name__ == "__main__":
    main()

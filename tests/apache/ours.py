"""Our name server and broker as processes, started with the commands that a new user types.

They have the interface of `ApacheNamesrv` and `ApacheBroker`, so a test can run against either.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.apache.servers import (
    Addressed,
    ApacheServer,
    accepts,
    address_of,
    cluster_info,
    create_group,
    create_topic,
    write_properties,
)
from tests.support.ports import free_ports

__all__ = ["OrbitBroker", "OrbitCluster", "OrbitNamesrv", "orbit_cluster"]

START_TIMEOUT_S: Final = 20.0
COMMAND: Final = (sys.executable, "-m", "orbitmq.cli.main")


class OrbitServer(ApacheServer):
    """Shared by both servers. The output is in `log_tail()`."""

    command: Sequence[str] = COMMAND
    """Starts `orbitmq`; another one may run another checkout."""

    def exit_code(self, *, timeout_s: float, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit code. Raises when the process does not exit in time."""
        self.process.send_signal(number)
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {timeout_s} s:\n{self.log_tail()}") from None
        self._reap()
        return code

    def check_log(self) -> None:
        """Checks the log: a test fails if it contains a traceback."""
        path = self.workdir / "stderr.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        bad = [number for number, line in enumerate(lines) if " ERROR " in line or "Traceback" in line]
        assert not bad, "\n".join([f"{self.name} logged:", *lines[max(0, bad[0] - 5) : bad[0] + 60]])

    def open_files(self) -> int:
        """Returns the number of open descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


class OrbitNamesrv(OrbitServer):
    """`orbitmq namesrv`. Keyword arguments are option names, Apache's."""

    def __init__(self, port: int = 0, *, workdir: Path | None = None, **conf: str | int | bool) -> None:
        super().__init__("orbitmq-namesrv", workdir)
        self.port = port or free_ports()[0]
        self.address = f"127.0.0.1:{self.port}"
        self._conf = {
            "listenPort": self.port,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(self.workdir / "kvConfig.json"),
            **conf,
        }

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the server and waits until it answers requests."""
        config = self.workdir / "namesrv.conf"
        write_properties(config, self._conf)
        self._command = [*self.command, "namesrv", "-c", str(config)]
        super().start()
        self.wait_ready(lambda: cluster_info(self.address) is not None, timeout_s=timeout_s)


class OrbitBroker(OrbitServer):
    """`orbitmq broker -c FILE -n ADDRESS`. Keyword arguments are Apache's option names; a `store_dir` given by the
    caller is kept when the broker is closed.
    """

    def __init__(
        self,
        namesrv: Addressed | str,
        store_dir: Path | None = None,
        *,
        workdir: Path | None = None,
        **conf: str | int | bool,
    ) -> None:
        super().__init__("orbitmq-broker", workdir)
        self.namesrv_address = address_of(namesrv)
        self.store_dir = store_dir if store_dir is not None else self.workdir / "store"
        port, _, ha_port = free_ports(-2, 1)
        self.conf: dict[str, str | int | bool] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": port,
            "haListenPort": ha_port,
            "storePathRootDir": str(self.store_dir),
            "mappedFileSizeCommitLog": 64 * 1024 * 1024,
            **conf,
        }
        self.port = int(self.conf["listenPort"])
        self.ha_port = int(self.conf["haListenPort"])
        self.broker_name = str(self.conf["brokerName"])
        self.address = f"127.0.0.1:{self.port}"
        self.ha_address = f"127.0.0.1:{self.ha_port}"

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the broker and waits until the port is open and it is registered with every name server."""
        config = self.workdir / "broker.conf"
        write_properties(config, self.conf)
        self._command = [*self.command, "broker", "-c", str(config), "-n", self.namesrv_address]
        super().start()
        self.wait_ready(self._serves, timeout_s=timeout_s)

    def _serves(self) -> bool:
        if not accepts(self.address):
            return False
        quoted = json.dumps(self.address)
        return all(quoted in (cluster_info(server) or "") for server in self.namesrv_address.split(";"))


@dataclass(frozen=True, slots=True)
class OrbitCluster:
    """Our name server with one broker."""

    namesrv: OrbitNamesrv
    broker: OrbitBroker

    def create_topic(self, topic: str, *, queue_count: int = 4, order: bool = False) -> str:
        create_topic(self.namesrv, self.broker, topic, queue_count=queue_count, order=order)
        return topic

    def create_group(self, group: str) -> str:
        create_group(self.namesrv, self.broker, group)
        return group


@contextmanager
def orbit_cluster(store_dir: Path | None = None, **conf: str | int | bool) -> Iterator[OrbitCluster]:
    """Yields both, for one test or one module. Keyword arguments are passed to the broker."""
    with OrbitNamesrv() as namesrv, OrbitBroker(namesrv, store_dir, workdir=None, **conf) as broker:
        try:
            yield OrbitCluster(namesrv, broker)
        except BaseException as error:
            error.add_note(broker.log_tail())
            raise
        for server in (namesrv, broker):
            server.check_log()

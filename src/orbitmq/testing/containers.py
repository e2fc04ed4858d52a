"""A name server and a broker in a container, for users who test with testcontainers.

Needs the package ``testcontainers``, a container engine and the image of ``packaging/docker/Dockerfile``. For Python
code, ``run_broker`` is faster and simpler and needs none of them. Use this module to test the image, clients in other
languages, or several containers together::

    from orbitmq.testing.containers import OrbitMQContainer

    with OrbitMQContainer() as orbitmq:
        producer = Producer("group", orbitmq.name_server)
"""

from __future__ import annotations

import shlex
import socket
from typing import Any, Final, Self

from orbitmq.errors import ConfigError

try:
    from testcontainers.core.container import DockerContainer
except ImportError:
    raise ConfigError(
        "OrbitMQContainer needs the package testcontainers: pip install testcontainers"
    ) from None

__all__ = ["OrbitMQContainer", "server_script"]

NAME_SERVER_PORT: Final = 9876
_METRICS_PORT: Final = 5557
_SCRIPT: Final = "/var/lib/orbitmq/start.sh"
_WAIT: Final = f"""
import sys, time, urllib.request
until = time.monotonic() + float(sys.argv[1])
while True:
    try:
        urllib.request.urlopen("http://127.0.0.1:{_METRICS_PORT}/readyz", timeout=3)
        break
    except OSError as error:
        if time.monotonic() > until:
            sys.exit(str(error))
        time.sleep(0.2)
"""
"""Runs in the container."""


class OrbitMQContainer(DockerContainer):
    """Runs the servers in a container. ``options`` are broker options with Apache's keys."""

    def __init__(self, image: str = "orbitmq:0.1.0", **options: str | float | bool) -> None:
        super().__init__(image)
        self._options = options
        self.broker_port = _free_port()
        # A client connects to the address that the broker registers, so the port is the same inside and outside.
        self.with_bind_ports(self.broker_port, self.broker_port)
        self.with_exposed_ports(NAME_SERVER_PORT)
        self.with_kwargs(entrypoint=["sh", "-c"])

    @property
    def name_server(self) -> str:
        """The name server's address for producers and consumers."""
        return f"{self.get_container_host_ip()}:{self.get_exposed_port(NAME_SERVER_PORT)}"

    def start(self, timeout_s: float = 60.0) -> Self:
        """Start the container and wait until the broker is registered. Raises ``TimeoutError``."""
        self.with_command([f"until [ -e {_SCRIPT} ]; do sleep 0.1; done; exec sh {_SCRIPT}"])
        super().start()
        # How clients reach the container is known only once it runs.
        script = server_script(self.get_container_host_ip(), self.broker_port, self._options)
        self._run("sh", "-c", f'printf %s "$0" >{_SCRIPT}.part && mv {_SCRIPT}.part {_SCRIPT}', script)
        if self._run("python", "-c", _WAIT, str(timeout_s)) != 0:
            output = b"".join(self.get_logs()).decode("utf-8", "replace")[-2000:]
            self.stop()
            raise TimeoutError(f"the broker is not ready after {timeout_s:g} s: {output}")
        return self

    def create_topic(self, topic: str, *, queue_count: int = 4) -> str:
        """Create a topic and return its name."""
        address = f"127.0.0.1:{NAME_SERVER_PORT}"
        code = self._run("orbitmq", "topic", "create", topic, "-n", address, "--queues", str(queue_count))
        if code != 0:
            raise RuntimeError(f"topic {topic} was not created: exit code {code}")
        return topic

    def _run(self, *command: str) -> int:
        result: Any = self.exec(list(command))
        return int(result[0])


def server_script(host: str, broker_port: int, options: dict[str, str | float | bool]) -> str:
    """Returns the shell command that runs both servers until the container stops."""
    address = {"localhost": "127.0.0.1"}.get(host, host)
    settings = {
        "brokerIP1": address,
        "listenPort": broker_port,
        "storePathRootDir": "/var/lib/orbitmq/store",
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": _METRICS_PORT,
        **options,
    }
    texts = [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()
    ]
    sets = " ".join(shlex.quote(f"--set={text}") for text in texts)
    return (
        "orbitmq namesrv --set=kvConfigPath= --set=configStorePath= & "
        f"exec orbitmq broker --namesrv-addr=127.0.0.1:{NAME_SERVER_PORT} {sets}"
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

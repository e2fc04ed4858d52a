"""The container for users' tests, with a fake of the library that starts containers."""

from __future__ import annotations

import shlex
import sys
import types
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from orbitmq.cli.settings import read_broker_settings
from orbitmq.errors import ConfigError

MODULE = "orbitmq.testing.containers"
LIBRARY = ("testcontainers", "testcontainers.core", "testcontainers.core.container")


class FakeContainer:
    """The calls of ``DockerContainer`` that are used."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.ports: dict[int, int | None] = {}
        self.arguments: dict[str, Any] = {}
        self.command: list[str] = []
        self.executed: list[list[str]] = []
        self.codes = [0, 0]
        self.running = False

    def with_bind_ports(self, container: int, host: int) -> None:
        self.ports[container] = host

    def with_exposed_ports(self, *ports: int) -> None:
        self.ports.update(dict.fromkeys(ports))

    def with_kwargs(self, **arguments: Any) -> None:
        self.arguments = arguments

    def with_command(self, command: list[str]) -> None:
        self.command = command

    def get_container_host_ip(self) -> str:
        assert self.running, "the library asks the container's network"
        return "localhost"

    def get_exposed_port(self, port: int) -> int:
        return port + 20_000

    def get_logs(self) -> tuple[bytes, bytes]:
        return b"out", b"why"

    def exec(self, command: list[str]) -> tuple[int, bytes]:
        self.executed.append(command)
        return (self.codes.pop(0) if self.codes else 1), b""

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False


@pytest.fixture
def containers(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    for name in LIBRARY:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules[LIBRARY[-1]], "DockerContainer", FakeContainer, raising=False)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield import_module(MODULE)
    sys.modules.pop(MODULE, None)


def test_servers_start_with_known_options_and_the_address_that_clients_use(containers: Any) -> None:
    container = containers.OrbitMQContainer(flushDiskType="SYNC_FLUSH", autoCreateTopicEnable=False)
    container.start()
    assert container.name_server == "localhost:29876"
    assert container.ports == {container.broker_port: container.broker_port, 9876: None}
    (*_, script), wait = container.executed
    assert wait[-1] == "60.0", "waits for the broker"
    words = shlex.split(script.partition("exec orbitmq ")[2])
    settings = [word.removeprefix("--set=") for word in words if word.startswith("--set=")]
    config = read_broker_settings(None, settings).config
    assert (config.public_host, config.listen_port) == ("127.0.0.1", container.broker_port)
    assert config.auto_create_topics is False
    container.codes = [0]
    assert container.create_topic("T", queue_count=2) == "T"
    assert container.executed[-1][-2:] == ["--queues", "2"]


def test_servers_that_never_get_ready_are_stopped_with_their_output(containers: Any) -> None:
    container = containers.OrbitMQContainer()
    container.codes = [0]
    with pytest.raises(TimeoutError, match="why"):
        container.start(timeout_s=0.0)
    assert not container.running


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIBRARY:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(ConfigError, match="pip install testcontainers"):
        import_module(MODULE)

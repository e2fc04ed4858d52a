"""Runs several server processes under one parent. They start and stop together, and one that exits is restarted.

One event loop uses one core. RocketMQ scales out by broker groups, and so does this: each process is a broker group
with its own name, store and port, and topic routes spread clients over them.

A child stops when its standard input closes, so none survives if the parent is killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from orbitmq.cli.servers import STOP_AT_EOF, BrokerSettings
from orbitmq.errors import ConfigError
from orbitmq.runtime.tasks import TaskOwner

__all__ = ["PORT_STEP", "Child", "RestartPolicy", "Supervisor", "broker_children"]

logger = logging.getLogger(__name__)

PORT_STEP: Final = 10
"""Distance between the ports of two brokers. Each broker also uses the port two below and the port one above its
own.
"""
READY_WITHIN_S: Final = 120.0
"""Seconds until the ready line. Long, because a store that was not closed cleanly is recovered first."""
STABLE_AFTER_S: Final = 60.0
_ADDRESS: Final = re.compile(r"address ([^\s,]+)")


@dataclass(frozen=True, slots=True)
class Child:
    """A process to keep running. It prints one line when it is ready, and exits when its input closes."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The delay before a restart. It doubles after each failure and is reset after a stable run."""

    first_s: float = 0.5
    most_s: float = 30.0
    stop_s: float = 60.0


class Supervisor:
    """Starts the children on entry and stops them on exit. Entry fails if one of them cannot start."""

    def __init__(
        self,
        children: Sequence[Child],
        policy: RestartPolicy | None = None,
        on_restart: Callable[[str, str], None] | None = None,
    ) -> None:
        self._children = tuple(children)
        self._policy = policy or RestartPolicy()
        self._on_restart = on_restart
        self._tasks = TaskOwner("supervisor")
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    async def __aenter__(self) -> Self:
        try:
            started = await asyncio.gather(*(self._start(child) for child in self._children))
        except BaseException:
            await self._stop()
            raise
        self.ready_lines = tuple(started)
        for child in self._children:
            self._tasks.start(self._keep(child), child.name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that the children printed in their ready lines."""
        found = (_ADDRESS.search(line) for line in self.ready_lines)
        return tuple(match[1] for match in found if match)

    @property
    def process_ids(self) -> dict[str, int]:
        """The ids of the current processes, by name of the child."""
        return {name: process.pid for name, process in self._running.items()}

    async def _start(self, child: Child) -> str:
        """Start a child and return its ready line. Raises ``ConfigError`` if the process exits first."""
        process = await asyncio.create_subprocess_exec(
            *child.command,
            env={**os.environ, STOP_AT_EOF: "1"},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches only the parent, which stops them gracefully
        )
        self._running[child.name] = process
        assert process.stdout is not None
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                line = (await process.stdout.readline()).decode(errors="replace").strip()
        except TimeoutError:
            process.kill()
            line = ""
        if not line:
            status = await process.wait()
            raise ConfigError(f"{child.name} did not start (exit status {status}); the reason is above")
        return line

    async def _keep(self, child: Child) -> None:
        wait_s = self._policy.first_s
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            process = self._running[child.name]
            assert process.stdout is not None
            while await process.stdout.readline():  # a full pipe would block the child
                pass
            status = await process.wait()
            if self._stopping.is_set():
                return
            if clock() - began > STABLE_AFTER_S:
                wait_s = self._policy.first_s
            logger.error("process ended name=%s status=%s restart_in_s=%s", child.name, status, wait_s)
            await asyncio.sleep(wait_s)
            if self._stopping.is_set():  # nothing would stop a process that starts now
                return
            wait_s = min(wait_s * 2, self._policy.most_s)
            try:
                line = await self._start(child)
            except ConfigError as error:
                logger.error("process not restarted name=%s reason=%s", child.name, error)
                continue
            logger.warning("process restarted name=%s", child.name)
            if self._on_restart is not None:
                self._on_restart(child.name, line)

    async def _stop(self) -> None:
        self._stopping.set()
        for process in self._running.values():
            if process.returncode is None and process.stdin is not None:
                process.stdin.close()
        waiting = [process.wait() for process in self._running.values()]
        try:
            async with asyncio.timeout(self._policy.stop_s):
                await asyncio.gather(*waiting)
        except TimeoutError:
            for name, process in self._running.items():
                if process.returncode is None:
                    logger.error("process did not stop in time name=%s", name)
                    process.kill()
                    await process.wait()
        await self._tasks.close()


def broker_children(
    numbers: Iterable[int],
    settings: BrokerSettings,
    arguments: Sequence[str],
    config_file: str | None = None,
    log_file: str | None = None,
) -> list[Child]:
    """Returns one broker process for each number. They differ from the given configuration in name, store and ports.

    Number n has the name ``<brokerName>-<n>``, the store ``<storePathRootDir>/<name>``, and ports ``PORT_STEP``
    apart. Each has a copy of the configuration file that stores options changed by request. A newer file replaces the
    copy.
    """
    config, store_config = settings.config, settings.store_config
    root = Path(store_config.root)
    children = []
    for number in numbers:
        name = f"{config.broker_name}-{number}"
        own = {"brokerName": name, "storePathRootDir": str(root / name)}
        if store_config.commit_log_path:
            places = store_config.commit_log_path.split(",")
            own["storePathCommitLog"] = ",".join(str(Path(place) / name) for place in places)
        ports = {
            "listenPort": config.listen_port,
            "haListenPort": config.ha_listen_port,
            "metricsPromExporterPort": config.metrics_port,
        }
        own |= {key: str(port + number * PORT_STEP) for key, port in ports.items() if port}
        command = [sys.executable, "-m", "orbitmq.cli.main", "broker", *arguments]
        if config_file is not None:
            command += ["-c", str(_own_copy(Path(config_file), root / f"{name}.conf"))]
        for key, value in own.items():
            command += ["--set", f"{key}={value}"]
        if log_file is not None:
            path = Path(log_file)
            command += ["--log-file", str(path.with_name(f"{path.stem}-{number}{path.suffix}"))]
        children.append(Child(name, tuple(command)))
    return children


def _own_copy(shared: Path, own: Path) -> Path:
    own.parent.mkdir(parents=True, exist_ok=True)
    if not own.exists() or own.stat().st_mtime < shared.stat().st_mtime:
        own.write_bytes(shared.read_bytes())
    return own

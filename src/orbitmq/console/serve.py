"""Serves a console on a port, with uvicorn inside the running event loop and without its signal handlers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import uvicorn

from orbitmq.admin import Admin
from orbitmq.console.app import Console
from orbitmq.console.settings import ConsoleSettings
from orbitmq.errors import ConfigError
from orbitmq.runtime.tasks import TaskOwner

__all__ = ["RunningConsole", "is_loopback", "serve_console"]

_STOP_S = 3.0


@dataclass(frozen=True, slots=True)
class RunningConsole:
    """A running console and its address."""

    address: str
    console: Console

    @property
    def url(self) -> str:
        return f"http://{self.address}/"


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers, because the process handles shutdown itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


@contextlib.asynccontextmanager
async def serve_console(
    admin: Admin, settings: ConsoleSettings, *, host: str = "127.0.0.1", port: int = 8080
) -> AsyncIterator[RunningConsole]:
    """Serve until the block ends. Raises ``ConfigError`` for an address other than loopback without a login."""
    if not is_loopback(host) and not settings.needs_login:
        raise ConfigError(
            f"a console on {host} needs a login: give --users FILE or --broker-login, or listen on 127.0.0.1"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise ConfigError(f"the console cannot listen on {host}:{port}: {error.strerror}") from None
    bound = listening.getsockname()[1]
    address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
    tasks = TaskOwner("console-server")
    async with admin, Console(admin, settings) as console:
        config = uvicorn.Config(
            console.app,
            log_config=None,
            lifespan="off",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            ws="none",
        )
        server = _Server(config)
        task = tasks.start(server.serve(sockets=[listening]), "http")
        try:
            while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn offers nothing to wait for
                await asyncio.sleep(0.01)
            yield RunningConsole(address, console)
        finally:
            # An open event stream would block a graceful shutdown forever.
            server.should_exit = server.force_exit = True
            await asyncio.wait((task,), timeout=_STOP_S)
            await tasks.close()
            listening.close()

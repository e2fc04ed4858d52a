"""``orbitmq run``: runs one consumer as a process, with signals, logs, probes and metrics."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from orbitmq.cli.client_connection import ClientConnection, client_connection
from orbitmq.cli.failures import remedies
from orbitmq.cli.reload import run_and_reload
from orbitmq.client import OrbitError, PushConsumer
from orbitmq.errors import ConfigError
from orbitmq.runtime.logs import LOG_FORMATS, LOG_LEVELS, configure_logging
from orbitmq.runtime.words import counted

__all__ = ["run_command"]

logger = logging.getLogger("orbitmq.run")

_CONFIGURATION: Final = 2
"""Exit code for errors that a restart would not fix."""
_NO_NAME_SERVER: Final = (
    "no name server address: use -n HOST:PORT, ORBITMQ_NAMESRV, a context, or give it to the PushConsumer"
)


@click.command("run")
@click.argument("target")
@client_connection
@click.option(
    "--health-port", type=click.IntRange(0, 65_535), help="Serve /live, /ready and /metrics over HTTP."
)
@click.option("--health-host", default="127.0.0.1", show_default=True, help="Address of that port.")
@click.option("--reload", is_flag=True, help="Restart when a .py file below this directory changes.")
@click.option(
    "--log-level", type=click.Choice(LOG_LEVELS, case_sensitive=False), default="INFO", show_default=True
)
@click.option("--log-format", type=click.Choice(LOG_FORMATS), default="text", show_default=True)
def run_command(
    target: str,
    connection: ClientConnection,
    health_port: int | None,
    health_host: str,
    reload: bool,
    log_level: str,
    log_format: str,
) -> None:
    """Run a worker: TARGET is module:consumer, a PushConsumer with handlers.

    Connection options apply where the consumer's own code sets none. On SIGTERM and SIGINT handlers have
    close_wait_s to finish; then coroutines are cancelled. Exit code 2 means an invalid configuration.
    """
    configure_logging(log_level.upper(), None, log_format)
    connection.export(os.environ)
    if reload:
        arguments = ["--log-level", log_level, "--log-format", log_format]
        if health_port is not None:
            arguments += ["--health-port", str(health_port), "--health-host", health_host]
        sys.exit(run_and_reload([sys.executable, "-m", "orbitmq", "run", target, *arguments], Path.cwd()))
    try:
        asyncio.run(_work(target, None if health_port is None else (health_host, health_port)))
    except ConfigError as error:
        _refuse(str(error))
    except OrbitError as error:
        logger.error("worker failed error=%s", error)
        for line in remedies(error, connection.name_servers, encrypted=connection.encrypted):
            logger.error("%s", line)
        sys.exit(1)


def _refuse(reason: str) -> NoReturn:
    logger.error("%s", reason)
    sys.exit(_CONFIGURATION)


async def _work(target: str, health: tuple[str, int] | None) -> None:
    consumer = _load(target)
    if not consumer.name_servers:
        _refuse(_NO_NAME_SERVER)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = None
    if health is not None:
        probes = _Probes(consumer)
        try:
            server = await asyncio.start_server(probes.answer, *health)
        except OSError as error:
            _refuse(f"--health-port {health[1]}: {error.strerror or error}")
        logger.info("health port %d", server.sockets[0].getsockname()[1])
    try:
        async with consumer:
            logger.info("running %s group=%s", target, consumer.group)
            await stop.wait()
            logger.info("stopping, waiting up to %g s for handlers", consumer.options.close_wait_s)
    finally:
        if server is not None:
            server.close()
    if consumer.abandoned:
        logger.error(
            "stopped although %s did not end within close_wait_s (%g s); their messages are redelivered",
            counted(consumer.abandoned, "handler"),
            consumer.options.close_wait_s,
        )
        # asyncio would wait forever for tasks that suppress their cancellation.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    logger.info("stopped")


def _load(target: str) -> PushConsumer:
    """Import and return the consumer. Runs inside the loop, because asyncio objects belong to the loop they are
    created on.
    """
    module_name, _, name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), name or "consumer")
    except (ImportError, AttributeError) as error:
        _refuse(f"{target}: {error}")
    if not isinstance(found, PushConsumer):
        _refuse(f"{target} is a {type(found).__name__}; a PushConsumer is needed")
    return found


class _Probes:
    """Answers one GET per connection, for /live, /ready or /metrics."""

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer
        self._page = _metrics_page(consumer)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                line = await reader.readline()
            words = line.split(b" ")
            status, kind, body = await self._of(words[1].decode("latin-1") if len(words) > 1 else "")
            head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            await writer.drain()
        except (OSError, TimeoutError, ValueError):  # disconnected, silent, or a line without an end
            pass
        finally:
            writer.close()

    async def _of(self, path: str) -> tuple[str, str, bytes]:
        plain = "text/plain; charset=utf-8"
        if path == "/live":
            return "200 OK", plain, b"ok\n"
        if path == "/ready":
            try:
                await self._consumer.wait_ready(0.5)
                fault = self._consumer.fault
            except OrbitError as error:
                fault = str(error)
            if fault:
                return "503 Service Unavailable", plain, f"{fault}\n".encode()
            return "200 OK", plain, b"ok\n"
        if path == "/metrics":
            if self._page is None:
                text = b"prometheus_client is not installed: pip install prometheus-client\n"
                return "503 Service Unavailable", plain, text
            return "200 OK", "text/plain; version=0.0.4; charset=utf-8", self._page()
        return "404 Not Found", plain, b"try /live, /ready or /metrics\n"


def _metrics_page(consumer: PushConsumer) -> Callable[[], bytes] | None:
    """Returns a function that renders the process's registry, including the consumer's own metrics.

    Returns None if the package is not installed.
    """
    try:
        import prometheus_client
    except ImportError:
        return None
    from orbitmq.client.metrics import PrometheusMetrics

    try:
        metrics = PrometheusMetrics()
    except ValueError:  # registered by the worker's own code, which configured them
        return prometheus_client.generate_latest
    consumer.add_hook(metrics)
    metrics.watch(consumer)
    generate: Any = prometheus_client.generate_latest
    return generate  # type: ignore[no-any-return]  # untyped in some releases

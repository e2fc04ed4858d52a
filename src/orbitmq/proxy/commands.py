"""Operator queries that a broker forwards to a client and the proxy sends over telemetry (Apache:
ProxyClientRemotingProcessor).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final

from orbitmq.proxy.clients import Client
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import Refused

__all__ = ["Commands"]

logger = logging.getLogger(__name__)

_WAITING_MAX: Final = 1000
_WAIT_S: Final = 10.0


class Commands:
    """Sends commands to clients. Keeps the pending ones by nonce."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Client, asyncio.Future[pb.TelemetryCommand]]] = {}

    def answered(self, client: Client | None, command: pb.TelemetryCommand) -> None:
        """Resolve a pending command. An answer from a different client, or to no pending command, is dropped."""
        nonce = command.thread_stack_trace.nonce or command.verify_message_result.nonce
        asked, waiting = self._waiting.get(nonce, (None, None))
        if waiting is None or asked is not client or waiting.done():
            logger.debug("answer without a pending command client=%s", client and client.client_id)
            return
        waiting.set_result(command)

    async def stack_trace(self, client: Client) -> str:
        """Returns the stack traces of a client's threads. Raises ``Refused``."""
        nonce = secrets.token_hex(16)
        command = pb.TelemetryCommand()
        command.print_thread_stack_trace_command.nonce = nonce
        answer = await self._ask(client, nonce, command)
        return answer.thread_stack_trace.thread_stack_trace

    async def verify(self, client: Client, message: pb.Message) -> pb.Status:
        """Have a consumer consume one message now, and return its result. Raises ``Refused``."""
        nonce = secrets.token_hex(16)
        command = pb.TelemetryCommand()
        command.verify_message_command.nonce = nonce
        command.verify_message_command.message.CopyFrom(message)
        return (await self._ask(client, nonce, command)).status

    async def _ask(self, client: Client, nonce: str, command: pb.TelemetryCommand) -> pb.TelemetryCommand:
        if len(self._waiting) >= _WAITING_MAX:
            raise Refused(pb.TOO_MANY_REQUESTS, "too many commands wait")
        waiting: asyncio.Future[pb.TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._waiting[nonce] = client, waiting
        try:
            if not client.send(command):
                raise Refused(pb.NOT_FOUND, f"client {client.client_id} has no telemetry stream")
            async with asyncio.timeout(_WAIT_S):
                return await waiting
        except TimeoutError:
            raise Refused(pb.PROXY_TIMEOUT, f"client {client.client_id} did not answer") from None
        finally:
            self._waiting.pop(nonce, None)

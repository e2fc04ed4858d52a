"""Keeps push consumers' messages hidden while their handlers run (Apache: DefaultReceiptHandleManager).

A push consumer never extends a message's invisibility itself. The proxy keeps each handle it issued with
``auto_renew``, renews it shortly before it expires, and records the new handle, while the client keeps using its own.
When the client ends, its remaining messages are released immediately.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from orbitmq.errors import OrbitError
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.handles import Handle
from orbitmq.proxy.statuses import Refused
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from orbitmq.proxy.clients import Client, Clients

__all__ = ["Held", "Renewal"]

logger = logging.getLogger(__name__)

_STEPS_MS: Final = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
_HELD_MAX: Final = 100_000
"""Limit per client. Messages above the limit are not renewed. Push consumers hold a thousand."""
_AT_ONCE: Final = 64

ChangeTime = Callable[[str, str, Handle, int], Awaitable[Handle]]
"""Takes group, topic, handle and milliseconds, and returns the new handle. Raises ``OrbitError`` or ``Refused``."""


class Held:
    """A message that a client is processing."""

    __slots__ = ("attempts", "failures", "group", "handle", "received_ms", "renewals", "renewing", "topic")

    def __init__(self, group: str, topic: str, handle: Handle, received_ms: int, attempts: int) -> None:
        self.group = group
        self.topic = topic
        self.handle = handle
        """The handle that is valid now."""
        self.received_ms = received_ms
        self.attempts = attempts
        """Number of deliveries so far, including this one."""
        self.renewals = 0
        self.failures = 0
        self.renewing: asyncio.Future[None] | None = None


class Renewal:
    """Renews and releases messages, and looks up their valid handles."""

    def __init__(
        self,
        config: ProxyConfig,
        clients: Clients,
        change: ChangeTime,
        *,
        clock: Clock,
        tasks: TaskOwner,
        retry_delay_ms: Callable[[str, int], Awaitable[int]],
    ) -> None:
        """``retry_delay_ms`` returns the delay before a group's next delivery, given the number of deliveries so
        far.
        """
        self._config = config
        self._clients = clients
        self._change = change
        self._clock = clock
        self._tasks = tasks
        self._retry_delay_ms = retry_delay_ms
        clients.gone.append(self.give_back)

    def keep(self, client: Client, message_id: str, handle_text: str, held: Held) -> None:
        if self._config.auto_renew and len(client.held) < _HELD_MAX:
            client.held[message_id, handle_text] = held

    async def release(
        self, client: Client | None, message_id: str, handle_text: str, group: str, topic: str
    ) -> Handle | None:
        """Stop renewing a message. Returns its valid handle, or None if it is not kept for this client, group and
        topic.
        """
        if client is None:
            return None
        held = client.held.get((message_id, handle_text))
        if held is None or (held.group, held.topic) != (group, topic):
            return None
        del client.held[message_id, handle_text]
        if held.renewing is not None:
            await asyncio.shield(held.renewing)
        return held.handle

    async def renew_due(self) -> None:
        """Renew every handle that is about to expire. Call it every few seconds."""
        now_ms = self._clock.now_ms()
        horizon_ms = now_ms + self._config.renew_ahead_ms
        due = [
            (client, key, held)
            for client in self._clients
            for key, held in client.held.items()
            if held.renewing is None and held.handle.visible_ms <= horizon_ms
        ]
        for start in range(0, len(due), _AT_ONCE):
            part = due[start : start + _AT_ONCE]
            await asyncio.gather(*(self._renew(client, key, held, now_ms) for client, key, held in part))

    async def _renew(self, client: Client, key: tuple[str, str], held: Held, now_ms: int) -> None:
        held.renewing = asyncio.get_running_loop().create_future()
        try:
            if now_ms - held.received_ms >= self._config.renew_max_ms:
                delay_ms = await self._retry_delay_ms(held.group, held.attempts)
                client.held.pop(key, None)
                held.handle = await self._change(held.group, held.topic, held.handle, delay_ms)
                return
            time_ms = _STEPS_MS[min(held.renewals, len(_STEPS_MS) - 1)]
            held.handle = await self._change(held.group, held.topic, held.handle, time_ms)
            held.renewals += 1
            held.failures = 0
        except (OrbitError, Refused) as error:
            held.failures += 1
            logger.info("not renewed message=%s failures=%d error=%s", key[0], held.failures, error)
            if isinstance(error, Refused) or held.failures >= self._config.renew_attempts:
                client.held.pop(key, None)
        finally:
            held.renewing.set_result(None)
            held.renewing = None

    def give_back(self, client: Client) -> None:
        """Release the messages of a client that has left, so that others can receive them."""
        held = list(client.held.values())
        client.held.clear()
        if held:
            self._tasks.start(self._give_back(held), "give-back")

    async def _give_back(self, all_held: list[Held]) -> None:
        for start in range(0, len(all_held), _AT_ONCE):
            part = all_held[start : start + _AT_ONCE]
            await asyncio.gather(*(self._give_back_one(held) for held in part))

    async def _give_back_one(self, held: Held) -> None:
        if held.renewing is not None:
            await asyncio.shield(held.renewing)
        try:
            await self._change(held.group, held.topic, held.handle, self._config.invisible_when_cleared_ms)
        except (OrbitError, Refused) as error:
            logger.info("message not returned topic=%s error=%s", held.topic, error)

"""Single pulls under the caller's full control (Apache: ``DefaultMQPullConsumer``)."""

from __future__ import annotations

from typing import Final, Unpack

from orbitmq.client.consume.consumer_base import ConsumerBase
from orbitmq.client.consume.handlers import Outcome
from orbitmq.client.consume.puller import Puller, PullResult
from orbitmq.client.consume.send_back import SendBack
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.options import ConsumerOptions, build_options
from orbitmq.client.settings import ConsumerSettings
from orbitmq.codes import PullFlag
from orbitmq.model.route import MessageQueue
from orbitmq.model.subscription import SQL92, TAG, parse_subscription
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.wire.bodies import ConsumeType

__all__ = ["PullConsumer"]

_SUSPEND_S: Final = 20.0


class PullConsumer(ConsumerBase):
    """Pulls only on request. For tools, and for systems that store offsets themselves."""

    consume_type = ConsumeType.ACTIVELY

    def __init__(
        self,
        group: str,
        name_servers: str = "",
        options: ConsumerOptions | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self.options = build_options(ConsumerOptions, options, dict(settings))
        super().__init__(group, name_servers, self.options, clock)
        self._puller = Puller(self._instance, self.group, self.options, self._reader)
        self._send_back = SendBack(self._instance, self.group, self.options, -1)

    async def start(self) -> None:
        """Connect and register the group."""
        await self._join()

    async def stop(self) -> None:
        """Disconnect from the brokers."""
        if self._instance.running:
            await self._instance.stop()

    async def register(self, topic: str) -> None:
        """Register the group as a reader of a topic, because brokers refuse some calls of unknown groups."""
        await self._membership.announce(self._subscriptions.add(topic, "*", sql=False))

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        *,
        expression: str = "*",
        sql: bool = False,
        block: bool = False,
    ) -> PullResult:
        """Pull messages from ``offset`` on. With ``block`` the broker waits up to 20 s for a message."""
        subscription = parse_subscription(queue.topic, expression, SQL92 if sql else TAG, 0)
        flags = PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if block else PullFlag(0))
        if self._instance.book.broker(queue.broker_name) is None:
            await self._instance.book.refresh(queue.topic)
            await self._instance.heartbeat()
        return await self._puller.pull(
            queue, offset, subscription, flags=flags, max_count=max_count, suspend_s=_SUSPEND_S
        )

    async def update_offset(self, queue: MessageQueue, offset: int) -> None:
        """Store the group's offset of a queue."""
        self._offsets.store.update(queue, offset, increase_only=False)
        await self._offsets.store.persist([queue], wait=True)

    async def send_back(self, message: ReceivedMessage, delay_level: int = 0) -> bool:
        """Have a message redelivered to the group through its retry topic. Returns False if that failed."""
        return await self._send_back.send_back(message, Outcome(0, delay_level))

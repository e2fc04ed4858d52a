"""Receives and acknowledges messages one by one, over remoting (``SimpleConsumer`` of Apache's 5.x clients).

The broker distributes the messages, so there is no rebalancing, and any number of consumers may share one queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from numbers import Real
from typing import Any, Final, Unpack

from orbitmq.client.consume.consumer_base import ConsumerBase
from orbitmq.client.consume.popper import ALL_QUEUES, PoppedMessage, Popper
from orbitmq.client.errors import ClientStateError
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.options import SimpleOptions, build_options
from orbitmq.client.settings import SimpleSettings
from orbitmq.errors import ConfigError, OrbitError
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.model.route import MessageQueue, utf16_key
from orbitmq.model.subscription import SubscriptionData
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.wire.bodies import ConsumeType, MessageModel

__all__ = ["SimpleConsumer"]

logger = logging.getLogger(__name__)

_COUNT_MAX: Final = 32
_AFTER_ERROR_S: Final = 1.0
_SECONDS_MAX: Final = 30 * 86_400
_LEVELS: Final = DelayLevels()

Place = tuple[MessageQueue, SubscriptionData]


class SimpleConsumer(ConsumerBase):
    """Receives and acknowledges messages on request.

    ::

        consumer = SimpleConsumer("group", "127.0.0.1:9876", invisible_s=30)
        consumer.subscribe("orders", "paid")
        async with consumer:
            for message in await consumer.receive():
                ...
                await consumer.ack(message)

    A message that is not acknowledged within its invisible time is redelivered to any consumer of the group;
    ``message.attempt`` is the number of its deliveries. Needs brokers of 5.x, or this project's.
    """

    consume_type = ConsumeType.POP

    def __init__(
        self,
        group: str,
        name_servers: str = "",
        options: SimpleOptions | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[SimpleSettings],
    ) -> None:
        self.options = build_options(SimpleOptions, options, dict(settings))
        if self.options.model is MessageModel.BROADCASTING:
            raise ClientStateError("a simple consumer cannot broadcast: its group shares the messages")
        super().__init__(group, name_servers, self.options, clock)
        self._popper = Popper(self._instance, self.group, self.options, clock, self._reader)
        self._turn = 0
        self._delivery = _Received(self)

    # -- subscriptions and life ------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", *, sql: bool = False) -> None:
        """Subscribe to a topic. The expression is ``*``, tags (``"A || B"``), or an SQL92 expression. Also allowed
        while running."""
        wire_topic = self._subscriptions.add(topic, expression, sql=sql)
        if self._instance.running:
            self._instance.tasks.start(self._membership.announce(wire_topic), "subscribe")

    def unsubscribe(self, topic: str) -> None:
        """Stop receiving a topic."""
        self._subscriptions.remove(topic)

    async def start(self) -> None:
        """Connect and join the group."""
        await self._join()

    async def stop(self) -> None:
        """Leave the group. Messages that were received and not acknowledged are redelivered after their invisible
        time."""
        if self._instance.running:
            await self._instance.stop()

    # -- receiving -------------------------------------------------------------------------------------

    async def receive(
        self, max_count: int = 16, *, invisible_s: float | None = None, wait_s: float | None = None
    ) -> list[PoppedMessage]:
        """Returns up to ``max_count`` messages (at most 32); an empty list if none arrived within ``wait_s``.

        Raises the error of the last broker if none could be reached, and ``ClientClosedError`` before the start and
        as soon as the consumer is stopped.
        """
        if not 1 <= max_count <= _COUNT_MAX:
            raise ClientStateError(f"max_count {max_count} is not within 1 to {_COUNT_MAX}")
        if not self._subscriptions.wanted:
            raise ClientStateError("subscribe to a topic before you receive")
        hide_s = self.options.invisible_s if invisible_s is None else _seconds("invisible_s", invisible_s)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.options.await_s if wait_s is None else _seconds("wait_s", wait_s))
        while True:
            self._instance.check_running()
            places = await self._places()
            left_s = max(0.0, deadline - loop.time())
            # A single place is asked and waited for in one request; of several, the first that has messages is asked.
            hold_s = left_s if len(places) == 1 else 0.0
            failure: OrbitError | None = None
            failed_count = 0
            for queue, subscription in places:
                try:
                    result = await self._popper.pop(
                        queue, subscription, max_count=max_count, invisible_s=hide_s, wait_s=hold_s
                    )
                except OrbitError as error:
                    self._instance.check_running()  # stopped meanwhile: not an error of the broker's
                    self._instance.log_limits.warning(
                        logger,
                        ("pop", queue.broker_name, type(error)),
                        "pop failed queue=%s error=%s",
                        queue,
                        error,
                    )
                    failure = error
                    failed_count += 1
                    continue
                if result.messages:
                    for message in result.messages:
                        message._delivery = self._delivery
                    return result.messages
            left_s = deadline - loop.time()
            if left_s <= 0:
                if failure is not None and failed_count == len(places):
                    raise failure
                return []
            self._instance.check_running()
            if failure is not None or not places:
                await self._pause(min(left_s, _AFTER_ERROR_S))
            elif len(places) > 1:
                await self._wait_for_any(places, left_s)

    async def _pause(self, wait_s: float) -> None:
        """Sleep for ``wait_s``, or until the consumer is stopped."""
        await asyncio.wait([self._instance.tasks.start(asyncio.sleep(wait_s), "pause")])

    async def _places(self) -> list[Place]:
        """Returns every combination of a topic and one of its brokers. Each call starts with another combination."""
        book = self._instance.book
        if not all(book.subscribe.get(topic) for topic in self._subscriptions.wanted):
            await self._membership.refresh_missing()
        found: list[Place] = []
        for topic, subscription in self._subscriptions.wanted.items():
            names = {queue.broker_name for queue in book.subscribe.get(topic, ())}
            for name in sorted(names, key=utf16_key):
                queue = MessageQueue(topic=topic, broker_name=name, queue_id=ALL_QUEUES)
                found.append((queue, subscription))
        if found:
            self._turn = (self._turn + 1) % len(found)
            found = found[self._turn :] + found[: self._turn]
        return found

    async def _wait_for_any(self, places: list[Place], wait_s: float) -> None:
        """Wait until one of the brokers has messages."""
        tasks = [
            self._instance.tasks.start(self._waited(queue, subscription, wait_s), "wait-for-messages")
            for queue, subscription in places
        ]
        try:
            await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _waited(self, queue: MessageQueue, subscription: SubscriptionData, wait_s: float) -> None:
        try:
            await self._popper.has_messages(queue, subscription, wait_s=wait_s)
        except OrbitError as error:
            logger.info("notification request failed queue=%s error=%s", queue, error)
            await asyncio.sleep(min(wait_s, _AFTER_ERROR_S))

    async def ack(self, message: PoppedMessage) -> None:
        """Acknowledge the message. Raises ``BrokerError`` if the broker refuses, and connection errors."""
        await self._popper.ack(message)

    async def ack_all(self, messages: Iterable[PoppedMessage]) -> None:
        """Acknowledge several messages. All are tried, then the first error is raised."""
        results = await asyncio.gather(*map(self._popper.ack, messages), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def change_invisible(self, message: PoppedMessage, invisible_s: float) -> None:
        """Set how long the message stays invisible, counted from now. Use a longer time to keep working on it, or 0
        to have it redelivered immediately."""
        await self._popper.change_invisible(message, _seconds("invisible_s", invisible_s))


def _seconds(name: str, value: Any) -> float:
    """Returns ``value`` in seconds, checked against the limits for a broker. Raises ``ConfigError``, like the option
    of the same meaning."""
    if type(value) is bool or not isinstance(value, Real):
        raise ConfigError(f"{name} is {value!r}; a number is accepted")
    seconds = float(value)
    if not 0 <= seconds <= _SECONDS_MAX:
        raise ConfigError(f"{name} is {value!r}; 0 to {_SECONDS_MAX} is accepted")
    return seconds


class _Received:
    """Implements ``message.ack()`` and ``message.retry()`` for received messages."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        self._consumer = consumer

    async def acknowledge(self, message: ReceivedMessage) -> None:
        assert isinstance(message, PoppedMessage)
        await self._consumer.ack(message)
        message._delivery = None

    async def give_back(self, message: ReceivedMessage, delay_level: int, reason: str) -> None:
        assert isinstance(message, PoppedMessage)
        if delay_level < 0:
            raise ClientStateError(
                "a simple consumer cannot move a message to the dead letters: the broker does after the last attempt"
            )
        delay_ms = _LEVELS.delay_ms(delay_level) if delay_level else 0
        await self._consumer.change_invisible(message, delay_ms / 1000)
        message._delivery = None

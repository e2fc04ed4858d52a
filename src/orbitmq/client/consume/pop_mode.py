"""Lets the broker assign the queues of a push consumer, and decide whether the consumer pulls or pops them.

Corresponds to the POP half of Apache's DefaultMQPushConsumerImpl, PopProcessQueue and
ConsumeMessagePopConcurrentlyService. The mode is set on the broker (SET_MESSAGE_REQUEST_MODE) and takes effect at the
next rebalance. A popped message is acknowledged when its handler has returned. A failed one is hidden for the delay
of its attempt, and dead-lettered when it reaches the retry limit (Apache's client never dead-letters messages in this
mode).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from orbitmq.client.consume.handlers import Outcome
from orbitmq.client.consume.membership import Membership
from orbitmq.client.consume.popper import PoppedMessage, Popper
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.client.consume.send_back import SendBack
from orbitmq.client.message import ReceivedMessage
from orbitmq.client.options import PushOptions
from orbitmq.errors import BrokerError, OrbitError, RequestCodeNotSupported
from orbitmq.model.rebalance import STRATEGIES
from orbitmq.model.route import MessageQueue
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies.queues import QueryAssignmentRequest, QueryAssignmentResponse

__all__ = ["POP_DELAYS_S", "PopMode", "PopQueue"]

logger = logging.getLogger(__name__)

POP_DELAYS_S: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""How long a failed message is hidden, by attempt."""
_ATTEMPTS_MAX: Final = 16
_FULL_S: Final = 3.0
_PAUSED_S: Final = 0.2
_POP: Final = "POP"


class PopQueue(ProcessQueue):
    """Popped messages that are not finished. Their offsets have no meaning here, because they may come from any queue
    of a broker.

    Unlike a pulled queue, it is never dropped: popped messages are ours until their invisible time is over, whichever
    consumer pops next.
    """

    __slots__ = ("ended", "mode")

    def __init__(self, queue: MessageQueue, mode: PopMode) -> None:
        options = mode.options
        super().__init__(queue, 0, count_max=options.pop_count_max, bytes_max=options.cached_bytes_max)
        self.mode = mode
        self.ended = False
        """Pop no more."""

    def put(self, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            self.messages[id(message)] = message
            self.size += len(message.record.body)

    def remove(self, messages: Iterable[ReceivedMessage]) -> int:
        for message in messages:
            if self.messages.pop(id(message), None) is not None:
                self.size -= len(message.record.body)
        if self._room is not None and not self.full:
            self._wake()
        return -1

    def end(self) -> None:
        """Stop popping, and wake the loop that waits for room."""
        self.ended = True
        self._wake()

    def first_offset(self) -> int:
        return -1

    def holds(self, message: ReceivedMessage) -> bool:
        return id(message) in self.messages


class PopMode:
    """The queues that a consumer pops."""

    def __init__(
        self,
        membership: Membership,
        options: PushOptions,
        popper: Popper,
        send_back: SendBack,
        deliver: Callable[[ProcessQueue, list[ReceivedMessage]], None],
    ) -> None:
        """``deliver`` receives the popped messages."""
        self._membership = membership
        self._instance = membership.instance
        self.options = options
        self.popper = popper
        self._send_back = send_back
        self._deliver = deliver
        self.suspended = False
        """Pop nothing; messages already here are still handled."""
        self.held: dict[MessageQueue, PopQueue] = {}
        self._former: list[PopQueue] = []
        """Queues that are no longer popped but still have messages."""
        self._ending: set[asyncio.Task[None]] = set()

    # -- assignment ------------------------------------------------------------------------------------

    async def ask(self, topic: str) -> tuple[list[MessageQueue], list[MessageQueue]] | None:
        """Returns the queues that the broker assigned to us: those to pull and those to pop. Returns None if the
        broker does not assign queues.

        Raises ``BrokerError`` if the broker refuses the request, and connection errors.
        """
        address = self._instance.book.address_of_topic(topic)
        if address is None:
            return None
        names = [name for name, strategy in STRATEGIES.items() if strategy is self.options.strategy]
        body = QueryAssignmentRequest(
            topic=topic,
            consumer_group=self._membership.group,
            client_id=self._instance.client_id,
            strategy_name=names[0] if names else "AVG",
            message_model=str(self.options.model),
        )
        try:
            answer = await self._instance.ask(address, RequestCode.QUERY_ASSIGNMENT, None, body.encode())
        except RequestCodeNotSupported:
            return None  # a broker of 4.x
        found = QueryAssignmentResponse.decode(answer.body).message_queue_assignments
        if found is None:
            raise BrokerError(f"the broker has no assignment of topic {topic} for us yet")
        queues = [(one.message_queue, one.mode) for one in found if one.message_queue is not None]
        return (
            [queue for queue, mode in queues if mode != _POP],
            [queue for queue, mode in queues if mode == _POP],
        )

    def apply(self, topic: str, wanted: Sequence[MessageQueue]) -> None:
        """Pop exactly these queues of a topic, and no others."""
        for queue, held in list(self.held.items()):
            if queue.topic == topic and queue not in wanted:
                held.end()
                del self.held[queue]
                self._former = [one for one in self._former if one.count] + [held]
                logger.info("queue no longer popped group=%s queue=%s", self._membership.group, queue)
        for queue in wanted:
            if queue not in self.held:
                self.held[queue] = held = PopQueue(queue, self)
                logger.info("queue popped group=%s queue=%s", self._membership.group, queue)
                self._instance.tasks.start(self._pop_forever(held), f"pop-{queue.topic}-{queue.queue_id}")

    def drop_all(self) -> None:
        """Stop popping. Messages that have already arrived may still be finished."""
        for held in self.held.values():
            held.end()
        self._former += self.held.values()
        self.held.clear()

    async def settled(self, wait_s: float) -> None:
        """Return messages that no handler has begun, and wait up to ``wait_s`` for acknowledgements in flight. Called
        at the end."""
        left = [message for held in self._former for message in held.messages.values()]
        self._start([message for message in left if isinstance(message, PoppedMessage)], self._give_back)
        if self._ending:
            await asyncio.wait(list(self._ending), timeout=wait_s)

    # -- popping ---------------------------------------------------------------------------------------

    async def _pop_forever(self, held: PopQueue) -> None:
        options = self.options
        while not held.ended:
            subscription = self._membership.subscriptions.wanted.get(held.queue.topic)
            if self.suspended or subscription is None:
                await asyncio.sleep(_PAUSED_S)
                continue
            if held.full:
                await held.wait_for_room()
                continue
            try:
                result = await self.popper.pop(
                    held.queue,
                    subscription,
                    max_count=options.pop_batch_size,
                    invisible_s=options.pop_invisible_s,
                    wait_s=options.suspend_s,
                )
            except OrbitError as error:
                if not held.ended:
                    key, text = ("pop", held.queue.broker_name, type(error)), "pop failed queue=%s error=%s"
                    self._instance.log_limits.warning(logger, key, text, held.queue, error)
                    await asyncio.sleep(options.pull_error_pause_s)
                continue
            if result.messages:
                # Including those of a pop that was in flight when the queue was taken from us: no other member has
                # them.
                held.put(result.messages)
                self._deliver(held, list(result.messages))
            elif result.full:
                await asyncio.sleep(_FULL_S)

    # -- after the handler -----------------------------------------------------------------------------

    def done(self, messages: Sequence[ReceivedMessage]) -> None:
        """Acknowledge messages whose handlers returned."""
        self._start([message for message in messages if isinstance(message, PoppedMessage)], self._ack)

    def failed(self, messages: Sequence[ReceivedMessage], outcome: Outcome) -> None:
        """Have messages redelivered later, or dead-letter them, after their handlers failed."""

        async def again(message: PoppedMessage) -> None:
            await self._again(message, outcome)

        self._start([message for message in messages if isinstance(message, PoppedMessage)], again)

    def _start(
        self, messages: Sequence[PoppedMessage], end: Callable[[PoppedMessage], Awaitable[None]]
    ) -> None:
        async def end_all() -> None:
            await asyncio.gather(*map(end, messages))

        if messages:
            task = self._instance.tasks.start(end_all(), "end-popped")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _ack(self, message: PoppedMessage) -> None:
        try:
            await self.popper.ack(message)
        except OrbitError as error:
            text = "message not acknowledged, it will be redelivered id=%s error=%s"
            self._limited("ack", message, error, text)

    async def _give_back(self, message: PoppedMessage) -> None:
        try:
            await self.popper.change_invisible(message, 0, counted=False)
        except OrbitError as error:
            logger.info("message not returned id=%s error=%s", message.message_id, error)

    async def _again(self, message: PoppedMessage, outcome: Outcome) -> None:
        delay_level = outcome.delay_level
        limit = self.options.reconsume_max if self.options.reconsume_max >= 0 else _ATTEMPTS_MAX
        last = delay_level < 0 or message.reconsume_times >= limit
        dead = Outcome(0, -1, reason=outcome.reason)
        if last and await self._send_back.send_back(message, dead):
            await self._ack(message)
            return
        index = delay_level - 1 if delay_level > 0 else message.reconsume_times
        delay_s = POP_DELAYS_S[max(0, min(index, len(POP_DELAYS_S) - 1))]
        try:
            await self.popper.change_invisible(message, delay_s)
        except OrbitError as error:
            text = "message will be redelivered after its invisible time id=%s error=%s"
            self._limited("again", message, error, text)

    def _limited(self, what: str, message: PoppedMessage, error: OrbitError, text: str) -> None:
        """Log an outage with a few lines, regardless of the number of messages it affects."""
        key = (what, message.queue.broker_name, type(error))
        self._instance.log_limits.warning(logger, key, text, message.message_id, error)

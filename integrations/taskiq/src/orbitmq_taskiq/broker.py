"""``RocketMQBroker``: tasks are messages of one topic, workers are members of one consumer group."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from orbitmq import ClientClosedError, Message, Producer, ProducerOptions, PushConsumer, PushOptions

__all__ = ["RocketMQBroker"]


class RocketMQBroker(AsyncBroker):
    """Sends tasks with ``Producer`` and receives them with an iterated ``PushConsumer``.

    It reads these labels of a task: ``delay`` (seconds), ``shard_key`` (tasks with the same key share a queue) and
    ``topic`` (instead of the broker's).
    """

    def __init__(
        self,
        name_servers: str = "",
        *,
        topic: str = "taskiq",
        group: str = "taskiq",
        orderly: bool = False,
        producer: ProducerOptions | None = None,
        consumer: PushOptions | None = None,
    ) -> None:
        """``orderly``: tasks of one queue run one after the other. New groups begin with the oldest task, so that
        tasks sent before the first worker started are not skipped; ``consumer`` can change this.
        """
        super().__init__()
        self._name_servers = name_servers
        self._topic = topic
        self._group = group
        self._producer_options = producer
        self._consumer_options = consumer or PushOptions(orderly=orderly, start="first")
        self._producer: Producer | None = None
        self._consumer: PushConsumer | None = None

    async def startup(self) -> None:
        """Connects. Workers join their group when they begin to listen."""
        await super().startup()
        if self._producer is None:
            producer = Producer(f"{self._group}-tasks", self._name_servers, self._producer_options)
            await producer.start()
            self._producer = producer

    async def shutdown(self) -> None:
        """Leaves the group; another worker runs the tasks that were not acknowledged."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.stop()
        await super().shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        """Sends a task. Raises ``orbitmq.SendFailed`` and related errors."""
        if self._producer is None:
            raise ClientClosedError("start the broker before a task is sent: await broker.startup()")
        labels: dict[str, Any] = message.labels
        delay = labels.get("delay")
        await self._producer.send(
            Message(
                str(labels.get("topic") or self._topic),
                message.message,
                keys=message.task_id,
                shard_key=str(labels.get("shard_key") or ""),
                delay=None if delay is None else float(delay),
                properties={"taskName": message.task_name},
            )
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yields tasks as they arrive; each is finished by its ``ack``."""
        consumer = PushConsumer(self._group, self._name_servers, self._consumer_options)
        consumer.subscribe(self._topic)
        await consumer.start()
        self._consumer = consumer
        async for message in consumer.messages(auto_ack=False):
            yield AckableMessage(data=message.body, ack=message.ack)

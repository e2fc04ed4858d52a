"""A broker's tables and store without the broker, for the handlers of admin requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any, cast

from tests.unit.broker.kit import Asker, FakeConnection, channel, open_store, safe_file, subscriptions

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.broker.tables.clients import ConsumerTable, ProducerTable
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.topic import TopicConfig
from orbitmq.record.properties import encode_properties
from orbitmq.requests import Request
from orbitmq.store.types import Appended, NewMessage
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Answer, Route, finish_slow_request
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request
from orbitmq.wire.header import Header, encode_ext

BORN_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x01"


class TalkingConnection(FakeConnection):
    """A peer that answers calls by a script, and accepts responses to slow requests."""

    def __init__(self, number: int = 1) -> None:
        super().__init__(number)
        self.calls: list[tuple[int, dict[str, str], bytes]] = []
        self.bodies: list[bytes] = []
        self.script: list[Frame | Exception] = []
        self.sent: list[bytes] = []
        self.slow: list[Awaitable[None]] = []

    def notify(self, code: int, header: Header | None = None, body: bytes = b"") -> None:
        super().notify(code, header, body)
        self.bodies.append(body)

    def call(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
        ext: dict[str, str] | None = None,
    ) -> asyncio.Future[Frame]:
        assert timeout_s > 0
        self.calls.append((code, encode_ext(header) if header is not None else dict(ext or {}), body))
        future = asyncio.get_running_loop().create_future()
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def start_slow_request(self, frame: Frame, answer: Awaitable[Answer]) -> bytes | None:
        self.slow.append(finish_slow_request(frame, cast(Connection, self), answer))
        return None


def talking(number: int = 1) -> tuple[TalkingConnection, Connection]:
    """Returns the same object twice: as the test sees it and as the tables accept it."""
    fake = TalkingConnection(number)
    return fake, cast(Connection, fake)


def ask_slowly(
    routes: Iterable[Route],
    code: Request,
    header: Header | dict[str, str] | None = None,
    body: bytes = b"",
) -> Frame:
    """Calls an ``async`` handler and returns its response."""
    fake, connection = talking(99)
    asker = Asker(routes, connection)

    async def run() -> None:
        ext = encode_ext(header) if isinstance(header, Header) else header
        answered = asker.dispatch(encode_request(code, 7, ext, body))
        assert answered is None
        assert len(fake.slow) == 1, "the handler did not answer by a task"
        await fake.slow[0]

    asyncio.run(run())
    (answer,) = FrameDecoder().feed(fake.sent[0])
    return answer


class World:
    """Tables, a small store and counters, all on one manual clock."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.clock = ManualClock()
        self.config = BrokerConfig(broker_name="broker-a", cluster_name="DefaultCluster", **options)
        self.topics = TopicTable(
            self.config, self.clock, safe_file(directory, "topics.json"), events=BrokerEvents()
        )
        self.groups = GroupTable(
            self.config, self.clock, safe_file(directory, "groups.json"), events=BrokerEvents()
        )
        self.offsets = ConsumerOffsets(self.config, self.clock, safe_file(directory, "offsets.json"))
        self.consumers = ConsumerTable(self.config, self.clock, events=BrokerEvents())
        self.producers = ProducerTable(self.config, self.clock)
        self.stats = BrokerStats("DefaultCluster", self.clock.now_ms())
        self.events = BrokerEvents()
        self.store = open_store(directory, self.clock, [self.events.readable])

    def topic(self, name: str, queues: int = 2, **fields: Any) -> None:
        self.topics.update(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, **fields)
        )

    def group(self, name: str) -> None:
        self.groups.update(SubscriptionGroupConfig(group_name=name))

    def put(self, topic: str, queue_id: int = 0, body: bytes = b"x", **properties: str) -> Appended:
        message = NewMessage(
            topic, queue_id, body, encode_properties(properties), self.clock.now_ms(), BORN_HOST
        )
        return self.store.append(message)

    def consumer(self, group: str, *topics: str, client: str = "c1", number: int = 1) -> TalkingConnection:
        """Returns an online consumer with these subscriptions."""
        fake, connection = talking(number)
        self.consumers.register(
            group,
            channel(connection, client, self.clock.now_ms()),
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            from_where="CONSUME_FROM_FIRST_OFFSET",
            subscriptions=subscriptions(*topics),
        )
        fake.notices.clear()
        fake.bodies.clear()
        return fake

"""Shared by the tests of the broker's tables and handlers: files, peers without sockets, requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.durability import AckGate, Replication
from orbitmq.broker.delivery.parking import Parking
from orbitmq.broker.delivery.put import WritePath
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.broker.tables.clients import ClientChannel
from orbitmq.codes import SerializeType, Version
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.model.subscription import SubscriptionData, subscribe_by_tags
from orbitmq.runtime.clock import Clock, ClockSteps
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore, StoreOwner
from orbitmq.store.types import Arrival, NewMessage
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Route, Router
from orbitmq.wire.frame import Frame, FrameDecoder, encode_oneway, encode_request
from orbitmq.wire.header import Header, encode_ext

CONFIG = BrokerConfig(broker_name="broker-a", cluster_name="DefaultCluster")


def safe_file(directory: Path, name: str) -> SafeFile:
    return SafeFile(LOCAL_FILE_SYSTEM, str(directory / name))


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


class FakeConnection:
    """A peer that records what it receives."""

    def __init__(self, number: int = 1) -> None:
        self.remote = ("10.0.0.1", number)
        self.remote_text = f"10.0.0.1:{number}"
        self.closed = False
        self.unsent_bytes = 0
        self.waited_s = 0.0
        self.attachment: Any = None
        self.notices: list[tuple[int, dict[str, str]]] = []
        self.sent: list[bytes] = []
        self.slow: Any = None
        """The answer that a handler will give later."""

    def notify(self, code: int, header: Header | None = None, body: bytes = b"") -> None:
        assert not self.closed
        self.notices.append((code, encode_ext(header) if header is not None else {}))

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def start_slow_request(self, frame: Frame, answer: Any) -> bytes | None:
        self.slow = answer
        return None

    def close(self) -> None:
        self.closed = True


def peer(number: int = 1) -> Connection:
    """Returns a fake connection, typed as the tables expect."""
    return cast(Connection, FakeConnection(number))


def notices(connection: Connection) -> list[str]:
    """Returns the groups whose change was sent to the peer since the last call."""
    fake = cast(FakeConnection, connection)
    told = [fields["consumerGroup"] for code, fields in fake.notices if code == 40]
    assert len(told) == len(fake.notices)
    fake.notices.clear()
    return told


def channel(connection: Connection, client_id: str, now_ms: int = 0) -> ClientChannel:
    return ClientChannel(connection, client_id, "JAVA", Version.OURS, now_ms)


def subscriptions(*topics: str, version: int = 1, expression: str = "*") -> list[SubscriptionData]:
    return [subscribe_by_tags(topic, expression, version) for topic in topics]


class Asker:
    """Sends requests through a router, as bytes and back, over one connection."""

    def __init__(
        self,
        routes: Iterable[Route],
        connection: Connection | None = None,
        serialize_type: int = SerializeType.JSON,
    ) -> None:
        self._router = Router(routes)
        self._serialize_type = serialize_type
        self.connection = connection if connection is not None else peer()

    def ask(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        finish: Callable[[], None] | None = None,
    ) -> Frame:
        """Returns the response; there must be one. ``finish`` runs what a handler defers to the end of the turn."""
        ext = encode_ext(header) if header is not None else None
        answer = self.dispatch(encode_request(code, 7, ext, body, self._serialize_type))
        if answer is None and finish is not None:
            finish()
            [answer] = FrameDecoder().feed(cast(FakeConnection, self.connection).sent.pop())
        assert answer is not None
        assert answer.opaque == 7
        return answer

    def tell(self, code: int, header: Header | None = None, body: bytes = b"") -> None:
        """Sends a oneway request."""
        ext = encode_ext(header) if header is not None else None
        assert self.dispatch(encode_oneway(code, 7, ext, body, self._serialize_type)) is None

    def ask_raw(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Frame:
        """Sends a request with arbitrary fields."""
        answer = self.dispatch(encode_request(code, 7, ext, body, self._serialize_type))
        assert answer is not None
        return answer

    def dispatch(self, data: bytes) -> Frame | None:
        (frame,) = FrameDecoder().feed(data)
        answer = self._router.dispatch(frame, self.connection)
        if answer is None:
            return None
        (decoded,) = FrameDecoder().feed(answer)
        return decoded


def open_store(directory: Path, clock: Clock | None = None, arrived: Sequence[Arrival] = ()) -> MessageStore:
    """Returns a small real store without a worker thread, so nothing runs in the background of the test."""
    store = MessageStore(
        StoreConfig(root=str(directory / "store"), segment_bytes=1 << 20, index_slots=100, index_entries=400),
        clock=clock if clock is not None else ManualClock(),
        owner=StoreOwner(arrived),
    )
    store.open()
    return store


def parking(config: BrokerConfig, clock: Clock, store: MessageStore) -> Parking:
    steps = ClockSteps(clock, lambda: store.max_log_offset)
    return Parking(config, DelayLevels(store.config.delay_levels), steps, clock)


def door(
    store: MessageStore,
    clock: Clock,
    config: BrokerConfig = CONFIG,
    stats: BrokerStats | None = None,
    replication: Replication | None = None,
) -> WritePath:
    """Returns the write path for puts into ``store``."""
    return WritePath(
        store=store,
        parking=parking(config, clock, store),
        stats=stats if stats is not None else BrokerStats(),
        gate=AckGate(store, replication),
    )


def message(topic: str, queue_id: int = 0, body: bytes = b"x") -> NewMessage:
    return NewMessage(topic, queue_id, body, b"", 1, b"\x7f\x00\x00\x01\x00\x00\x00\x01")

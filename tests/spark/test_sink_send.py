"""The sends of one task against a real broker: one that goes away and comes back, and one that stays away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest
from tests.apache.process import free_ports

from orbitmq.client import ReceivedMessage, SendResult
from orbitmq.client.errors import NoRouteError
from orbitmq.client.options import ProducerOptions
from orbitmq.client.produce.sender import Outgoing
from orbitmq.client.sync import PullConsumer
from orbitmq.errors import ConnectionLostError, NoPermission, RequestTimeoutError
from orbitmq.model.route import MessageQueue
from orbitmq.spark.options import Access
from orbitmq.spark.sink.place import RowSender
from orbitmq.spark.sink.rows import RowKeys, encode_rows, key_prefix
from orbitmq.spark.sink.send import QueueTally, SendSession, SinkClient
from orbitmq.testing import run_broker

pytestmark = pytest.mark.slow

ROWS = 400
TOPIC = "Restarted"


@pytest.fixture
def ports() -> tuple[int, int]:
    """Ports of the broker (which also takes the neighbouring ones) and of the name server."""
    broker, *_, name_server = free_ports(-2, 1, 5)
    return broker, name_server


@pytest.fixture
def client(ports: tuple[int, int]) -> Iterator[SinkClient]:
    options = ProducerOptions(send_timeout_s=1.0, connect_timeout_s=0.5, call_timeout_s=0.5)
    made = SinkClient("sink-send-test", Access(f"127.0.0.1:{ports[1]}"), options)
    yield made
    made.close()


def send(session: SendSession, client: SinkClient, first: int) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([b"%d" % number for number in range(first, first + ROWS)], pa.binary()),
            "sharding_key": pa.array([None if number % 2 else "one" for number in range(ROWS)]),
        }
    )
    keys = RowKeys(key_prefix("test", 0, 0))
    RowSender(client, session, TOPIC, None, 2000).send(encode_rows(batch, first, keys, 1000))


def test_rows_of_a_task_survive_a_broker_that_goes_and_comes_back(
    tmp_path: Path, ports: tuple[int, int], client: SinkClient
) -> None:
    session = SendSession(client, timeout_s=60.0, in_flight_max=4)
    with run_broker(ports[0], name_server_port=ports[1], data=tmp_path) as broker:
        broker.create_topic(TOPIC, queue_count=3)
        send(session, client, 0)
        session.finish()
    # Nobody is there; four requests wait, and the fifth for them.
    sending = threading.Thread(target=send, args=(session, client, ROWS), daemon=True)
    sending.start()
    sending.join(0.3)
    assert sending.is_alive()
    with run_broker(ports[0], name_server_port=ports[1], data=tmp_path) as broker:
        sending.join(60)
        assert not sending.is_alive()
        session.finish()
        found = received(broker.name_server)
    unique = {message.message_id: int(message.text()) for message in found}
    assert sorted(unique.values()) == list(range(2 * ROWS))
    assert sum(tally.rows for tally in session.tallies.values()) == 2 * ROWS
    # A request stored without an answer is sent again before the next one of its queue: the first of each counts.
    ordered = [number for message in found if (number := int(message.text())) % 2 == 0]
    assert list(dict.fromkeys(ordered)) == list(range(0, 2 * ROWS, 2)), "rows of one key keep their order"


def received(name_server: str) -> list[ReceivedMessage]:
    """Everything in the topic, queue by queue."""
    found: list[ReceivedMessage] = []
    with PullConsumer("sink-send-test", name_server) as consumer:
        for queue in consumer.fetch_queues(TOPIC):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                result = consumer.pull(queue, offset, 1000)
                found += result.messages
                offset = result.next_offset
    return found


def test_request_that_fails_is_not_overtaken_by_the_next_of_its_queue(
    ports: tuple[int, int], client: SinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = client.sender.attempt
    failed: list[MessageQueue] = []

    async def first_one_fails(outgoing: Outgoing, queue: MessageQueue, timeout_s: float) -> SendResult:
        if not failed:
            failed.append(queue)
            raise ConnectionLostError("made to fail")
        return await attempt(outgoing, queue, timeout_s)

    monkeypatch.setattr(client.sender, "attempt", first_one_fails)
    with run_broker(ports[0], name_server_port=ports[1]) as broker:
        broker.create_topic(TOPIC, queue_count=1)
        session = SendSession(client, timeout_s=60.0, in_flight_max=8)
        queue = client.queues(TOPIC)[0]
        for number in range(8):
            session.single(TOPIC, b"%d" % number, b"", queue)
        session.finish()
        found = received(broker.name_server)
    assert failed == [queue]
    assert [message.text() for message in found] == list("01234567")


def test_broker_that_stays_away_fails_the_task_within_its_time(
    tmp_path: Path, ports: tuple[int, int], client: SinkClient
) -> None:
    with run_broker(ports[0], name_server_port=ports[1], data=tmp_path) as broker:
        broker.create_topic(TOPIC, queue_count=3)
        client.queues(TOPIC)
    session = SendSession(client, timeout_s=1.0, in_flight_max=4)
    with pytest.raises(RequestTimeoutError, match=r"not stored within 1 s \(sendTimeoutMs\)"):
        send(session, client, 0)
    with pytest.raises(RequestTimeoutError):
        session.finish()
    assert session.tallies == {}


def test_a_refusal_of_all_brokers_is_not_tried_until_the_time_is_over(
    ports: tuple[int, int], client: SinkClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def refused(outgoing: Outgoing, queue: MessageQueue, timeout_s: float) -> SendResult:
        tried.append(queue.broker_name)
        raise NoPermission("no access key")

    monkeypatch.setattr(client.sender, "attempt", refused)
    with run_broker(ports[0], name_server_port=ports[1]) as broker:
        broker.create_topic(TOPIC, queue_count=2)
        session = SendSession(client, timeout_s=60.0, in_flight_max=1)
        session.single(TOPIC, b"x", b"", None)
        with pytest.raises(NoPermission):
            session.finish()
    assert tried == ["broker-a"]


def test_topic_that_nobody_has_is_refused_at_once(ports: tuple[int, int], client: SinkClient) -> None:
    with run_broker(ports[0], name_server_port=ports[1], autoCreateTopicEnable=False):
        session = SendSession(client, timeout_s=60.0, in_flight_max=4)
        with pytest.raises(NoRouteError, match=TOPIC):
            send(session, client, 0)


def test_tallies_add_up_whatever_their_order() -> None:
    parts = [QueueTally(2, 20, 5, 6), QueueTally(1, 10, 3, 3, 1), QueueTally()]
    for order in (parts, parts[::-1]):
        total = QueueTally()
        for part in order:
            total.add(part)
        assert total == QueueTally(3, 30, 3, 6, 1)

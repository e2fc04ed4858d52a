"""A consumer that keeps running while its topic is deleted and recreated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.waiting import until_async
from tests.unit.client.messages import QUEUE, received

from orbitmq.client import LitePullConsumer, PushConsumer
from orbitmq.client.consume.puller import Puller
from orbitmq.codes import ResponseCode
from orbitmq.errors import ConnectFailedError
from orbitmq.model.route import BrokerData, MessageQueue
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import LockBatchResponse
from orbitmq.wire.frame import Frame, FrameDecoder, encode_response
from orbitmq.wire.header import Header, encode_ext
from orbitmq.wire.headers import OffsetResponse, PullMessageResponse

MASTER, SLAVE = "127.0.0.1:10911", "127.0.0.1:10912"


class Network:
    """Answers the first pull, refuses pulls while the topic is ``deleted``, and holds them otherwise."""

    def __init__(self, stored: int = -1) -> None:
        self.deleted = True
        self.stored = stored
        """The group's offset in the broker; -1 for none."""
        self.unreachable = 0
        """Queries of the offset that fail."""
        self.pulls: list[tuple[str, int]] = []

    def open_connection(self, address: str) -> None:
        return None

    async def call(
        self, address: str, code: int, header: None, body: bytes = b"", *, timeout_s: float, ext: Any
    ) -> Frame:
        if code == RequestCode.QUERY_CONSUMER_OFFSET:
            if self.unreachable:
                self.unreachable -= 1
                raise ConnectFailedError("refused")
            if self.stored < 0:
                return _answer(ResponseCode.QUERY_NOT_FOUND)
            return _answer(ResponseCode.SUCCESS, OffsetResponse(offset=self.stored))
        if code == RequestCode.LOCK_BATCH_MQ:
            return _answer(ResponseCode.SUCCESS, body=LockBatchResponse(lock_ok_mq_set=[QUEUE]).encode())
        if code not in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            return _answer(ResponseCode.SUCCESS)
        self.pulls.append((address, int(ext["queueOffset"])))
        if len(self.pulls) == 1:
            fields = PullMessageResponse(
                suggest_which_broker_id=0, next_begin_offset=100, min_offset=0, max_offset=100
            )
            return _answer(ResponseCode.PULL_NOT_FOUND, fields)
        if not self.deleted:
            await asyncio.Event().wait()
        return _answer(ResponseCode.TOPIC_NOT_EXIST)

    async def notify(self, *_: object, **__: object) -> None:
        pass

    async def close(self) -> None:
        pass


def _answer(code: int, header: Header | None = None, body: bytes = b"") -> Frame:
    ext = {} if header is None else encode_ext(header)
    (frame,) = FrameDecoder().feed(encode_response(code, 1, ext, body=body))
    return frame


async def start(
    consumer: PushConsumer | LitePullConsumer, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Start only the parts that pull and rebalance."""
    instance, assignment = consumer._instance, consumer._assignment
    known = BrokerData(cluster="c", broker_name=QUEUE.broker_name, broker_addrs={0: MASTER, 1: SLAVE})
    monkeypatch.setattr(instance.book, "broker", lambda name: known)
    monkeypatch.setattr(instance.book, "any_address", lambda name: MASTER)
    monkeypatch.setattr(instance.book, "master_address", lambda name: MASTER)
    monkeypatch.setattr(instance, "refresh_soon", lambda topic: None)
    instance.start()
    monkeypatch.setattr(instance, "_rpc", network)
    consumer._subscriptions.assign({"T"}, "*")
    assignment.give([QUEUE])
    instance.tasks.start(assignment.run(True), "rebalance")


@pytest.mark.parametrize("kind", ["push", "orderly", "lite"])
@pytest.mark.parametrize("stored", [-1, 70], ids=["offsets deleted", "only the topic lost"])
def test_a_queue_of_a_deleted_topic_restarts(kind: str, stored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the old offset it would miss messages if the topic is recreated and filled beyond that offset."""

    async def scenario() -> None:
        network = Network(stored)
        network.unreachable = 1
        settings: Any = {"pull_error_pause_s": 0.001, "rebalance_s": 0.05, "rebalance_spacing_s": 0.0}
        consumer: PushConsumer | LitePullConsumer
        if kind == "lite":
            consumer = LitePullConsumer("group", "127.0.0.1:1", **settings)
        else:
            consumer = PushConsumer("group", "127.0.0.1:1", orderly=kind == "orderly", **settings)
        await start(consumer, network, monkeypatch)
        store = consumer._offsets.store
        old = consumer._assignment.take(QUEUE, 100)
        old.put([received(99)])
        store.update(QUEUE, 99)
        await until_async(lambda: len(network.pulls) >= 5)
        begin = max(stored, 0)
        offsets = [offset for _, offset in network.pulls]
        assert offsets[:2] == [100, 100], "an answer, and the refusal"
        assert set(offsets[2:]) == {begin}
        held = consumer._assignment.held[QUEUE]
        assert (held.next_offset, held.count) == (begin, 0)
        if isinstance(consumer, PushConsumer):
            consumer._settling.finish(old, [received(99)])
        assert QUEUE not in store.offsets, "the old offset would be committed for the new topic"
        network.deleted = False
        await until_async(lambda: held.last_pull_ms)
        assert consumer._assignment.held[QUEUE] is held, "it restarts once"
        await consumer._instance.stop()

    asyncio.run(scenario())


def test_a_slave_without_the_topic_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not have the master's newest topics yet."""

    async def scenario() -> None:
        network = Network()
        consumer = PushConsumer("group", "127.0.0.1:1", pull_error_pause_s=0.001)
        await start(consumer, network, monkeypatch)
        puller = consumer._fetching._puller

        async def stay(*_: object) -> None:
            puller._suggested[QUEUE] = 1
            await asyncio.sleep(0)

        monkeypatch.setattr(puller, "failed", stay)
        monkeypatch.setattr(puller, "_result", _then_the_slave(puller))
        held = consumer._assignment.take(QUEUE, 100)
        await until_async(lambda: len(network.pulls) >= 4)
        assert set(network.pulls[1:]) == {(SLAVE, 100)}
        assert consumer._assignment.held[QUEUE] is held
        await consumer._instance.stop()

    asyncio.run(scenario())


def _then_the_slave(puller: Puller) -> Any:
    """The master's answer suggests the slave."""
    read = puller._result

    def result(queue: MessageQueue, *arguments: Any) -> Any:
        found = read(queue, *arguments)
        puller._suggested[queue] = 1
        return found

    return result

"""Why a consumer consumes nothing, and what ``/ready`` of a worker says about it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.waiting import until_async
from tests.unit.client.messages import QUEUE, received

from orbitmq.cli.worker import _Probes
from orbitmq.client import PushConsumer
from orbitmq.client.consume.process_queue import ProcessQueue
from orbitmq.errors import ConnectFailedError
from orbitmq.model.route import BrokerData
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.frame import Frame

BROKER = "127.0.0.1:10911"


class Bench:
    """A running consumer whose broker answers heartbeats unless ``lost``. Nothing is sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, orderly: bool = False) -> None:
        self.clock = ManualClock()
        self.lost = False
        self.consumer = PushConsumer("group", "127.0.0.1:1", clock=self.clock, orderly=orderly)
        instance = self.consumer._instance
        known = [BrokerData(cluster="c", broker_name="broker-a", broker_addrs={0: BROKER})]
        monkeypatch.setattr(instance.book, "brokers", lambda: known)
        monkeypatch.setattr(instance, "ask", self._answer)
        monkeypatch.setattr("orbitmq.cli.worker._metrics_page", lambda consumer: None)
        self.finished: list[ProcessQueue] = []
        settling = self.consumer._settling
        monkeypatch.setattr(settling, "finish", lambda held, _: self.finished.append(held))
        monkeypatch.setattr(settling, "commit", self._commit)
        monkeypatch.setattr(ProcessQueue, "lock_valid", lambda *_: True)
        self.probes = _Probes(self.consumer)

    async def _answer(self, *_: object, **__: object) -> Frame:
        if self.lost:
            raise ConnectFailedError("refused")
        return Frame(0, 1)

    def _commit(self, held: ProcessQueue) -> None:
        held.commit()
        self.finished.append(held)

    async def start(self, handler: Callable[..., Any]) -> None:
        self.consumer.on_message(handler)
        self.consumer._delivery.start(iterated=False)
        self.consumer._instance.start()
        await self.consumer._instance.heartbeat()

    def deliver(self, *offsets: int) -> None:
        held = ProcessQueue(QUEUE, 0, count_max=1000, bytes_max=1 << 20)
        messages = [received(offset) for offset in offsets]
        held.put(messages)
        self.consumer._delivery.deliver(held, messages)

    async def ready(self) -> tuple[str, str]:
        self.consumer._assignment._balanced.set()
        status, _, body = await self.probes._of("/ready")
        return status[:3], body.decode().strip()


async def _nothing(_: object) -> None:
    pass


def test_not_ready_while_no_broker_answers_heartbeats_and_while_it_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        bench = Bench(monkeypatch)
        instance = bench.consumer._instance
        assert bench.consumer.fault == "the consumer is not running"
        await bench.start(_nothing)
        assert await bench.ready() == ("200", "ok")
        bench.lost = True
        await instance.heartbeat()
        status, reason = await bench.ready()
        assert status == "503"
        assert f"{BROKER}: refused" in reason
        bench.lost = False
        await instance.heartbeat()
        assert await bench.ready() == ("200", "ok")
        instance.begin_stop()
        assert await bench.ready() == ("503", "the consumer is stopping")
        await instance.stop()
        assert (await bench.ready())[0] == "503"

    asyncio.run(scenario())


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain"])
def test_not_ready_while_handlers_hang(monkeypatch: pytest.MonkeyPatch, orderly: bool, plain: bool) -> None:
    async def scenario() -> None:
        bench = Bench(monkeypatch, orderly=orderly)
        began: list[int] = []
        gate, thread_gate = asyncio.Event(), threading.Event()

        async def handle(message: object) -> None:
            began.append(1)
            await gate.wait()

        def handle_plain(message: object) -> None:
            began.append(1)
            thread_gate.wait(60)

        await bench.start(handle_plain if plain else handle)
        bound_ms = bench.consumer.options.consume_timeout_s * 1000
        bench.clock.advance(bound_ms * 2)
        assert await bench.ready() == ("200", "ok"), "an idle consumer does not hang"
        bench.deliver(0)
        await until_async(lambda: began)
        bench.clock.advance(bound_ms)
        assert await bench.ready() == ("200", "ok"), "it may take that long"
        bench.clock.advance(1000)
        status, reason = await bench.ready()
        assert status == "503"
        assert "1 handler running, and none has finished for 901 s" in reason
        gate.set()
        thread_gate.set()
        await until_async(lambda: bench.consumer._delivery.running == 0)
        assert await bench.ready() == ("200", "ok")
        await bench.consumer._instance.stop()
        bench.consumer._delivery.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_slow_handler_is_no_fault_while_others_finish(
    monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    async def scenario() -> None:
        bench = Bench(monkeypatch, orderly=orderly)
        gate, began = asyncio.Event(), asyncio.Event()

        async def handle(message: object) -> None:
            if not began.is_set():
                began.set()
                await gate.wait()

        await bench.start(handle)
        bench.deliver(0)
        await began.wait()
        bench.clock.advance(901_000)
        assert (await bench.ready())[0] == "503"
        bench.deliver(1)
        await until_async(lambda: bench.finished)
        assert await bench.ready() == ("200", "ok")
        gate.set()
        await bench.consumer._instance.stop()

    asyncio.run(scenario())

"""An idempotent producer and brokers that freeze, die or change roles: every message is stored once."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.integration.ha_kit import ask, caught_up, pair, rpc, until
from tests.support.waiting import until_async

from orbitmq.broker.broker import Broker
from orbitmq.client import ClientStateError, Message, Producer, SendResult, SendTimeoutError
from orbitmq.codes import Property
from orbitmq.errors import RequestTimeoutError
from orbitmq.requests import RequestCode
from orbitmq.testing import run_broker

pytestmark = pytest.mark.slow


def test_broker_that_freezes_and_dies_stores_each_message_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "orbitmq.client.produce.sender")

    def failed() -> int:
        return sum("send failed topic=once" in record.message for record in caplog.records)

    async def scenario(broker: OrbitBroker, names: str) -> None:
        settings: dict[str, Any] = {"idempotent": True, "send_timeout_s": 0.5, "auto_create_queue_count": 1}
        async with Producer("once", names, **settings) as producer:
            before = await producer.send(Message("once", "before"))
            broker.pause()
            try:
                sends = [asyncio.create_task(producer.send(Message("once", f"{n}"))) for n in range(20)]
                batch = asyncio.create_task(producer.send_batch([Message("once", "a"), Message("once", "b")]))
                await until_async(failed, "a first attempt that timed out")
            finally:
                broker.resume()
            results = [*await asyncio.gather(*sends), *await batch]
            assert sorted(each.queue_offset for each in results) == list(range(1, 23))
            broker.kill()
            broker.start()
            again = await producer.send(Message("once", "before"), message_id=before.message_id)
            assert (again.queue_offset, again.message_id) == (before.queue_offset, before.message_id)
            assert (await producer.send(Message("once", "after"))).queue_offset == 23

    with OrbitNamesrv() as names, OrbitBroker(names) as broker:
        asyncio.run(scenario(broker, names.address))


def test_new_master_knows_the_sends_of_the_old_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with pair(tmp_path) as (first, second), rpc() as client:

            async def send(broker: Broker, key: str) -> list[str]:
                properties = f"UNIQ_KEY\x01{key}\x02{Property.IDEMPOTENT}\x01true\x02"
                fields = {"a": "g", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1"}
                fields |= {"h": "0", "i": properties, "j": "0", "k": "false", "m": "false"}
                answer = await client.call(
                    broker.address, RequestCode.SEND_MESSAGE_V2, body=b"body", ext=fields, timeout_s=5
                )
                assert answer.code == 0, answer.remark
                return [answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]]

            stored = [await send(first, "one"), await send(first, "two")]
            await until(lambda: caught_up(first, second), "the log")
            answer = await ask(client, second, RequestCode.UPDATE_BROKER_CONFIG, b"brokerRole=ASYNC_MASTER")
            assert answer.code == 0, answer.remark
            assert [await send(second, "one"), await send(second, "two")] == stored
            assert await send(second, "three") == ["0", "2"]

    asyncio.run(scenario())


def test_send_that_ran_out_of_time_is_repeated_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(names: str) -> None:
        async with Producer("once", names) as plain:
            with pytest.raises(ClientStateError, match="idempotent=True"):
                await plain.send(Message("once", "x"), message_id="order-7")
        async with Producer("once", names, idempotent=True) as producer:
            first = await producer.send(Message("once", "x"), message_id="order-7")
            again = await producer.send(Message("once", "x"), message_id="order-7")
            assert first == again
            attempt = producer._sender.attempt

            async def unanswered(*args: Any) -> SendResult:
                await attempt(*args)
                raise RequestTimeoutError("no answer")

            monkeypatch.setattr(producer._sender, "attempt", unanswered)
            with pytest.raises(SendTimeoutError) as failed:
                await producer.send(Message("once", "y"), queue=first.queue, timeout_s=0.2)
            monkeypatch.undo()
            result = await producer.send(
                Message("once", "y"), queue=first.queue, message_id=failed.value.message_id, timeout_s=30
            )
            assert result.queue_offset == first.queue_offset + 1
            last = await producer.send(Message("once", "z"), queue=first.queue, timeout_s=30)
            assert last.queue_offset == first.queue_offset + 2

    with run_broker() as broker:
        asyncio.run(scenario(broker.name_server))

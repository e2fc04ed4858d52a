"""States of clients, local offsets, the synchronous facade and forks."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.client.messages import QUEUE

from orbitmq.client import (
    ClientStateError,
    ForkedError,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    SendTimeoutError,
    sync,
)
from orbitmq.client.consume.offset_store import LocalOffsets
from orbitmq.errors import InvalidParameter, MessageIllegal
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM
from orbitmq.testing import run_broker


def test_local_offsets_survive_and_read_as_the_java_client_writes_them(tmp_path: Path) -> None:
    offsets = LocalOffsets(LOCAL_FILE_SYSTEM, str(tmp_path), "ip@DEFAULT", "g")
    offsets.load()
    offsets.update(QUEUE, 5)
    offsets.update(QUEUE, 3)
    asyncio.run(offsets.persist([QUEUE]))
    file = tmp_path / "ip@DEFAULT" / "g" / "offsets.json"
    assert '"offsetTable"' in file.read_text()
    again = LocalOffsets(LOCAL_FILE_SYSTEM, str(tmp_path), "ip@DEFAULT", "g")
    again.load()
    assert asyncio.run(again.stored(QUEUE)) == 5
    java = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:9}}'
    file.write_bytes(java)
    again.load()
    assert asyncio.run(again.stored(QUEUE)) == 9
    file.write_bytes(b"rubbish")
    file.with_name("offsets.json.bak").write_bytes(b"rubbish")
    again.load()
    assert asyncio.run(again.stored(QUEUE)) == -1


def test_frozen_offsets_do_not_move_until_forgotten(tmp_path: Path) -> None:
    offsets = LocalOffsets(LOCAL_FILE_SYSTEM, str(tmp_path), "c", "g")
    offsets.update(QUEUE, 5)
    offsets.freeze(QUEUE)
    offsets.update(QUEUE, 9)
    assert offsets.offsets[QUEUE] == 5
    offsets.forget(QUEUE)
    offsets.update(QUEUE, 2)
    assert offsets.offsets[QUEUE] == 2


def test_wrong_use_is_told_at_once() -> None:
    async def run() -> None:
        with pytest.raises(ClientStateError, match="reserved"):
            Producer("DEFAULT_PRODUCER")
        with pytest.raises(InvalidParameter, match="blank"):
            Producer(" ")
        with pytest.raises(ClientStateError, match="subscribe"):
            await PushConsumer("g").start()
        consumer = LitePullConsumer("g")
        consumer.subscribe("T")
        with pytest.raises(ClientStateError, match="exclude"):
            await consumer.assign([QUEUE])
        with pytest.raises(ClientStateError, match="start"):
            await consumer.poll(0.1)
        two = PushConsumer("g")
        two.subscribe("A", handler=lambda message: None)
        two.subscribe("B")
        with pytest.raises(ClientStateError, match="no handler for topic B"):
            await two.start()

    asyncio.run(run())


def test_values_of_wrong_types_are_told_in_plain_words() -> None:
    wrong: Any = 5
    for kind in (Producer, PushConsumer, LitePullConsumer):
        with pytest.raises(TypeError, match=r"group is 5 \(int\); a string is accepted"):
            kind(wrong)
        with pytest.raises(TypeError, match=r"name_servers is 5 \(int\)"):
            kind("g", wrong)
    consumer = PushConsumer("g")
    with pytest.raises(TypeError, match=r"topic is 5 \(int\)"):
        consumer.subscribe(wrong)
    wrong = print  # as a decorator without parentheses gives it
    with pytest.raises(TypeError, match=r'write @consumer.listen\("topic"\) above print'):
        consumer.listen(wrong)


def test_send_of_something_else_or_without_time_sends_nothing() -> None:
    async def run() -> None:
        async with Producer("g", "127.0.0.1:1") as producer:
            wrong: Any = "hello"
            for send in (producer.send, producer.send_oneway, producer.request):
                with pytest.raises(TypeError, match=r"a Message is sent, not 'hello' \(str\)"):
                    await cast(Any, send)(wrong)
            with pytest.raises(TypeError, match=r"a message of a batch is 'h' \(str\)"):
                await producer.send_batch(wrong)
            with pytest.raises(TypeError, match="a Message is sent"):
                producer.transaction(wrong)
            for timeout_s in (0, -1.5, float("nan")):
                with pytest.raises(SendTimeoutError, match="nothing was sent: timeout_s is") as caught:
                    await producer.send(Message("T", "x"), timeout_s=timeout_s)
                assert caught.value.attempts == 0
                with pytest.raises(TimeoutError):
                    await producer.send_batch([Message("T", "x")], timeout_s=timeout_s)

    asyncio.run(run())
    with sync.Producer("g", "127.0.0.1:1") as plain:
        with pytest.raises(SendTimeoutError, match="nothing was sent"):
            plain.send(Message("T", "x"), timeout_s=0)
        with pytest.raises(TypeError, match="a Message is sent"):
            plain.send(cast(Any, b"x"))


@pytest.mark.parametrize("delay", [{"delay_level": 1}, {"delay_ms": 5}, {"deliver_at_ms": 2**41}])
def test_a_delayed_message_of_a_transaction_is_refused(delay: dict[str, int]) -> None:
    async def run() -> None:
        async with Producer("g", "127.0.0.1:1", check=lambda message: None) as producer:
            message = Message("T", "x", **cast(Any, delay))
            with pytest.raises(MessageIllegal, match="cannot be delayed"):
                await producer.send_in_transaction(message, lambda message, key: None)
            with pytest.raises(MessageIllegal, match="cannot be delayed"):
                async with producer.transaction(message):
                    pass

    asyncio.run(run())


def test_second_start_is_an_error() -> None:
    async def run() -> None:
        async with Producer("g", "127.0.0.1:1") as producer:
            with pytest.raises(ClientStateError, match="started before"):
                await producer.start()

    asyncio.run(run())


def test_client_left_behind_by_a_fork_says_so() -> None:
    async def run() -> str:
        async with Producer("g", "127.0.0.1:1") as producer:
            real = producer._instance._process_id
            producer._instance._process_id = os.getppid()  # what a child of a fork would see
            try:
                with pytest.raises(ForkedError, match="after the fork") as caught:
                    await producer.send(Message("T", "x"))
            finally:
                producer._instance._process_id = real
            return str(caught.value)

    assert str(os.getppid()) in asyncio.run(run())


def test_calls_of_a_loop_thread_always_end() -> None:
    async def answer(value: int) -> int:
        return value

    async def fail() -> None:
        raise ValueError("raised for the waiter")

    cancelled = threading.Event()

    async def wait_long() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    loop = sync.LoopThread()
    assert [loop.submit(answer(n)).result(10) for n in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="raised for the waiter"):
        loop.run(fail())
    given_up = loop.submit(wait_long())
    loop.run(answer(0))
    assert given_up.cancel()
    assert cancelled.wait(10)
    left = [loop.submit(wait_long()) for _ in range(3)]
    loop.close()
    for future in left:
        with pytest.raises(CancelledError):
            future.result(10)
    with pytest.raises(ClientStateError, match="closed"):
        loop.run(answer(0))


@pytest.mark.slow
def test_plain_clients_share_a_loop_and_leave_no_thread() -> None:
    before = set(threading.enumerate())
    with run_broker() as broker:
        loop = sync.LoopThread()
        with (
            sync.Producer("p", broker.name_server, loop=loop) as one,
            sync.Producer("q", broker.name_server, loop=loop) as two,
        ):
            futures = [producer.send_async(Message("T", "x")) for producer in (one, two) for _ in range(5)]
            assert len({future.result(10).message_id for future in futures}) == 10
            assert one.client_id != two.client_id
        loop.close()
        with pytest.raises(ClientStateError, match="stopped"):
            one.send(Message("T", "x"))
        with pytest.raises(ClientStateError, match="closed"):
            one.send_async(Message("T", "x"))
    assert set(threading.enumerate()) == before

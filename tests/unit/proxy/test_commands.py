"""Commands to clients and their responses, and the proxy's memory of servers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbitmq.errors import ConnectionLostError, OrbitError
from orbitmq.proxy.cache import Cache
from orbitmq.proxy.clients import Client, ClientKey
from orbitmq.proxy.commands import Commands
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import Refused
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.testing.manual_clock import ManualClock


def _client(name: str) -> tuple[Client, list[pb.TelemetryCommand]]:
    client = Client(ClientKey(name), pb.Settings(), 0.0)
    sent: list[pb.TelemetryCommand] = []
    write = lambda data: sent.append(pb.TelemetryCommand.FromString(data))  # noqa: E731
    client.stream = cast(Any, SimpleNamespace(done=False, write=write))
    return client, sent


def _trace(nonce: str, text: str) -> pb.TelemetryCommand:
    command = pb.TelemetryCommand()
    command.thread_stack_trace.nonce = nonce
    command.thread_stack_trace.thread_stack_trace = text
    return command


def test_answer_counts_only_from_the_client_that_was_asked() -> None:
    async def run() -> str:
        commands = Commands()
        asked, sent = _client("asked")
        other, _ = _client("other")
        waiting = asyncio.ensure_future(commands.stack_trace(asked))
        await asyncio.sleep(0)
        nonce = sent[0].print_thread_stack_trace_command.nonce
        assert len(nonce) == 32
        for stranger in (other, None):
            commands.answered(stranger, _trace(nonce, "forged"))
        commands.answered(asked, _trace("another nonce", "forged"))
        commands.answered(asked, _trace(nonce, "main: idle"))
        commands.answered(asked, _trace(nonce, "too late"))
        return await waiting

    assert asyncio.run(run()) == "main: idle"


def test_message_is_given_to_the_client_to_verify() -> None:
    async def run() -> pb.Status:
        commands = Commands()
        client, sent = _client("c")
        waiting = asyncio.ensure_future(commands.verify(client, pb.Message(body=b"look")))
        await asyncio.sleep(0)
        command = sent[0].verify_message_command
        assert command.message.body == b"look"
        answer = pb.TelemetryCommand(status=pb.Status(code=pb.FAILED_TO_CONSUME_MESSAGE))
        answer.verify_message_result.nonce = command.nonce
        commands.answered(client, answer)
        return await waiting

    assert asyncio.run(run()).code == pb.FAILED_TO_CONSUME_MESSAGE


def test_client_without_a_stream_cannot_be_asked() -> None:
    client, _ = _client("c")
    client.stream = None
    with pytest.raises(Refused) as refused:
        asyncio.run(Commands().stack_trace(client))
    assert refused.value.code == pb.NOT_FOUND


class _Loads:
    def __init__(self) -> None:
        self.count = 0
        self.fails = False
        self.clock = ManualClock()

    async def load(self, name: str) -> str:
        self.count += 1
        await asyncio.sleep(0)
        if self.fails:
            raise ConnectionLostError("gone")
        return f"{name}{self.count}"

    def cache(self, tasks: TaskOwner) -> Cache[str]:
        return Cache(self.load, tasks=tasks, clock=self.clock, refresh_s=20, expiry_s=300, entries_max=2)


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_value_is_loaded_once_and_refreshed_beside_the_calls() -> None:
    async def run() -> None:
        loads, tasks = _Loads(), TaskOwner("test")
        cache = loads.cache(tasks)
        assert cache.known("a") is None
        assert list(await asyncio.gather(cache.get("a"), cache.get("a"))) == ["a1", "a1"]
        loads.clock.advance(21_000)
        assert cache.known("a") == "a1", "old, but at once"
        await _turns()
        assert cache.known("a") == "a2"
        loads.fails = True
        loads.clock.advance(21_000)
        assert cache.known("a") == "a2"
        await _turns()
        assert cache.known("a") == "a2", "a failed refresh changes nothing"
        with pytest.raises(OrbitError):
            await cache.get("b")
        await tasks.close()

    asyncio.run(run())


def test_unused_values_expire_and_forgotten_ones_are_asked_for_again() -> None:
    async def run() -> None:
        loads, tasks = _Loads(), TaskOwner("test")
        cache = loads.cache(tasks)
        await cache.get("a")
        cache.forget("a")
        assert await cache.get("a") == "a2"
        loads.clock.advance(301_000)
        cache.expire()
        assert cache.known("a") is None
        await tasks.close()

    asyncio.run(run())


def test_number_of_values_is_bounded() -> None:
    async def run() -> None:
        loads, tasks = _Loads(), TaskOwner("test")
        cache = loads.cache(tasks)
        for name in "abcde":
            await cache.get(name)
        assert len([name for name in "abcde" if cache.known(name) is not None]) <= 2
        await tasks.close()

    asyncio.run(run())

"""Bursts of sends on a machine with a slow event loop: each send gets its full timeout once it is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orbitmq import Message, Producer
from orbitmq.client.errors import TooManyInFlightError
from orbitmq.client.message import SendResult, SendStatus
from orbitmq.client.produce.flow import PER_TURN
from orbitmq.client.produce.sender import Sender
from orbitmq.testing import RunningBroker, run_broker

ENCODE_S = 0.001
"""Processor time that a send costs here twice: to prepare it, and to write it. Some 50 times the usual."""


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


@pytest.fixture
def slow_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowed(call: Callable[..., Any]) -> Callable[..., Any]:
        def slowly(*arguments: Any) -> Any:
            end = time.perf_counter() + ENCODE_S
            while time.perf_counter() < end:
                pass
            return call(*arguments)

        return slowly

    monkeypatch.setattr(Sender, "prepare", slowed(Sender.prepare))
    monkeypatch.setattr(Sender, "binary_fields", slowed(Sender.binary_fields))


@pytest.mark.slow
@pytest.mark.usefixtures("slow_encoding")
def test_burst_of_a_new_producer_outlasts_the_time_of_one_send(broker: RunningBroker) -> None:
    topic, count, timeout_s = broker.create_topic("burst"), 2_000, 1.0
    assert count * ENCODE_S > timeout_s > PER_TURN * ENCODE_S * 4

    async def burst() -> list[SendResult | BaseException]:
        async with Producer("bursts", broker.name_server, send_timeout_s=timeout_s, retries=0) as producer:
            sends = (producer.send(Message(topic, "x")) for _ in range(count))
            return await asyncio.gather(*sends, return_exceptions=True)

    outcomes = asyncio.run(burst())
    assert [one for one in outcomes if isinstance(one, BaseException)] == []
    assert {one.status for one in outcomes if isinstance(one, SendResult)} == {SendStatus.OK}


@pytest.mark.slow
@pytest.mark.usefixtures("slow_encoding")
def test_wait_before_the_write_has_its_own_error_under_an_explicit_limit(broker: RunningBroker) -> None:
    topic = broker.create_topic("limited")

    async def burst() -> list[SendResult | BaseException]:
        async with Producer("limits", broker.name_server) as producer:
            await producer.send(Message(topic, "first"))
            sends = (producer.send(Message(topic, "x"), timeout_s=0.4) for _ in range(1_500))
            return await asyncio.gather(*sends, return_exceptions=True)

    outcomes = asyncio.run(burst())
    late = [one for one in outcomes if isinstance(one, TooManyInFlightError)]
    assert late, "all were written within the limit"
    assert "the message was not written: the limit of 0.4 s ended after" in str(late[0])
    assert " -" not in " ".join(map(str, outcomes))

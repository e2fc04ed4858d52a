"""A master that may have been demoted: changes it made because of the end of its log are not replicated."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.ha_kit import ask, config_file, make_broker, rpc

from orbitmq.codes import ResponseCode
from orbitmq.requests import RequestCode


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_TIMER_CHECK_POINT,
    ],
)
def test_slaves_get_no_cursors_of_it(tmp_path: Path, code: int) -> None:
    async def test() -> None:
        async with make_broker(tmp_path) as broker, rpc() as client:
            broker.gate.is_master = lambda: False
            answer = await ask(client, broker, code)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "FLUSH_SLAVE_TIMEOUT")
            broker.gate.is_master = lambda: True
            answer = await ask(client, broker, code)
            assert answer.code == ResponseCode.SUCCESS
            assert answer.body

    asyncio.run(test())


def test_its_offsets_are_those_saved_when_it_surely_was(tmp_path: Path) -> None:
    async def test() -> None:
        async with make_broker(tmp_path) as broker:
            offsets = broker.offsets
            offsets.commit("pop", "g", "T", 0, 1)
            broker.gate.is_master = lambda: True
            await broker.pop.save_offsets()
            offsets.commit("pop", "g", "T", 0, 2)
            broker.gate.is_master = lambda: False
            await broker.pop.save_offsets()
            assert config_file(broker, "consumerOffset.json")["offsetTable"] == {"T@g": {"0": 1}}
            await broker._deliveries.stop()
            assert offsets.query("g", "T", 0) == 1
            # From here on it is a slave, which saves what it copies.
            offsets.commit("pop", "g", "T", 0, 3)
            await broker.pop.save_offsets()
            assert config_file(broker, "consumerOffset.json")["offsetTable"] == {"T@g": {"0": 3}}

    asyncio.run(test())

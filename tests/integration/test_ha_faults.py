"""A bad network between master and slave: the slave has every message that a SYNC_MASTER acknowledged. Every run of a
seed does the same; a failure names its seed and the faults so far.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.integration.ha_kit import (
    HOST,
    assert_equal_logs,
    caught_up,
    gate_code,
    log_bytes,
    make_broker,
    put,
    until,
)
from tests.unit.transport.loops import run

from orbitmq.broker.config import BrokerRole
from orbitmq.codes import ResponseCode
from orbitmq.testing.chaos_proxy import ChaosProxy

ROUNDS = 40
QUICK = {"replication_heartbeat_ms": 60, "replication_silence_ms": 250, "slave_timeout_ms": 100}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 20])
def test_nothing_a_sync_master_acknowledged_is_missing_on_the_slave(seed: int, tmp_path: Path) -> None:
    run("uvloop", lambda: scenario(seed, tmp_path))


async def scenario(seed: int, root: Path) -> None:
    chance = random.Random(seed)
    history: list[str] = []
    codes: set[int] = set()
    async with (
        make_broker(root / "m", BrokerRole.SYNC_MASTER, **QUICK) as master,
        ChaosProxy(HOST, master.config.ha_listen_port) as proxy,
        make_broker(root / "s", BrokerRole.SLAVE, 1, **QUICK) as slave,
    ):
        slave.roles.master_announced(master.address, proxy.address)
        # The slave has messages before the faults begin: an empty one would be sent only the newest segment.
        put(master, 1, topic="First")
        await until(lambda: caught_up(master, slave), "the first message")
        for number in range(ROUNDS):
            put(master, chance.randint(1, 64), first=number * 100, body=b"x" * chance.randint(0, 3_000))
            history.append(proxy.fault(chance))
            end = master.store.max_log_offset
            code = await gate_code(master)
            codes.add(code)
            if code == ResponseCode.SUCCESS:
                assert slave.store.max_log_offset >= end, (seed, history)
            await asyncio.sleep(chance.uniform(0.0, 0.1))
            known = slave.store.max_log_offset
            assert log_bytes(master)[:known] == log_bytes(slave), (seed, history)
        proxy.heal()
        await until(lambda: caught_up(master, slave), f"all of the log after {seed} {history}", 15)
        assert_equal_logs(master, slave)
        assert await gate_code(master) == ResponseCode.SUCCESS
    assert len(codes) > 1, "the faults must have been felt"

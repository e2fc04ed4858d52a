"""When a SYNC_MASTER may respond, given the reports of its slaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from tests.sim.loop import SimLoop

from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.broker.replication.acks import AckWaiters
from orbitmq.codes import ResponseCode

OK, LATE, NO_SLAVE = (
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)


class Slaves:
    """Log ends that a test sets."""

    def __init__(self, *ends: int, **options: Any) -> None:
        self.ends = list(ends)
        config = BrokerConfig(role=BrokerRole.SYNC_MASTER, **{"slave_timeout_ms": 30, **options})
        self.acks = AckWaiters(config, lambda: self.ends, lambda: None)
        self.codes: list[int] = []

    def wait(self, log_end: int) -> None:
        self.acks.when_replicated(log_end, self.codes.append)

    def report(self, *ends: int) -> None:
        self.ends = list(ends)
        self.acks.reported()


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs on a virtual clock: the machine may be late, but the timeouts are not."""
    with asyncio.Runner(loop_factory=lambda: SimLoop(0)) as runner:
        runner.run(test)


@pytest.mark.parametrize(
    ("role", "replicas", "required"),
    [
        (BrokerRole.SYNC_MASTER, 0, True),
        (BrokerRole.SYNC_MASTER, 1, False),
        (BrokerRole.SYNC_MASTER, 2, True),
        (BrokerRole.ASYNC_MASTER, 0, False),
        (BrokerRole.ASYNC_MASTER, 2, False),
    ],
)
def test_who_waits(role: BrokerRole, replicas: int, required: bool) -> None:
    assert (
        AckWaiters(BrokerConfig(role=role, in_sync_replicas=replicas), list, lambda: None).required
        is required
    )


def test_report_answers_what_it_covers_in_order() -> None:
    async def test() -> None:
        slaves = Slaves(0)
        for end in (100, 200, 300):
            slaves.wait(end)
        slaves.report(99)
        assert slaves.codes == []
        slaves.report(200)
        assert slaves.codes == [OK, OK]
        slaves.report(300)
        assert slaves.codes == [OK, OK, OK]
        assert slaves.acks.waiting_count == 0
        slaves.acks.release_all()

    run(test())


def test_without_a_slave_nobody_waits_unless_a_number_is_set() -> None:
    async def test() -> None:
        none = Slaves()
        none.wait(100)
        assert none.codes == [NO_SLAVE]
        far = Slaves(0, slave_gap_bytes=100)
        far.wait(100)
        far.wait(99)
        assert far.codes == [NO_SLAVE]
        far.acks.release_all()
        assert far.codes == [NO_SLAVE, LATE]
        numbered = Slaves(in_sync_replicas=2)
        numbered.wait(100)
        assert numbered.codes == []
        numbered.report(100)
        assert numbered.codes == [OK]
        numbered.acks.release_all()

    run(test())


def test_time_out_is_told_each_waiter_once_and_later_reports_change_nothing() -> None:
    async def test() -> None:
        slaves = Slaves(0)
        slaves.wait(100)
        await asyncio.sleep(0.015)
        slaves.wait(200)
        await asyncio.sleep(0.02)
        assert slaves.codes == [LATE]
        slaves.report(200)
        assert slaves.codes == [LATE, OK]
        await asyncio.sleep(0.05)
        assert slaves.codes == [LATE, OK]

    run(test())


def test_two_slaves_needed_means_the_second_best_counts() -> None:
    async def test() -> None:
        slaves = Slaves(0, 0, 0, in_sync_replicas=3)
        slaves.wait(100)
        slaves.report(500, 99, 0)
        assert slaves.codes == []
        slaves.report(500, 100, 0)
        assert slaves.codes == [OK]
        slaves.acks.release_all()

    run(test())

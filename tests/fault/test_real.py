"""Injects real faults and checks the outcome with the simulation's checker.

Ordinary runs include a single kill; `make soak` runs every fault.
"""

from __future__ import annotations

import pytest
from tests.apache.etcd import require_etcd
from tests.fault.real import FAULTS, run

pytestmark = pytest.mark.slow


def test_a_kill_under_load_loses_nothing_acknowledged() -> None:
    row = run("kill", "ours", 1)
    assert (row.runs, row.lost) == (1, 0), row
    assert row.acked > 300


@pytest.mark.soak
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_no_fault_loses_what_was_acknowledged(fault: str) -> None:
    if not FAULTS[fault][1]:
        require_etcd()
    row = run(fault, "ours", 3)
    assert (row.runs, row.lost) == (3, 0), row


@pytest.mark.soak
def test_a_killed_master_is_replaced_within_three_seconds() -> None:
    require_etcd()
    row = run("failover", "ours", 10)
    assert row.lost == 0, row
    assert sorted(row.outages_s)[len(row.outages_s) // 2] < 3.0, row.outages_s

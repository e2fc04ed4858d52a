"""The election model keeps the promises of docs/failover.md, and notices each rule that is left out."""

from __future__ import annotations

import pytest
from tests.model.election import BREAKS, Model, Violation, explore, walk

STEPS = 80
FOUND_BY = {
    "ack-unflushed": range(20),
    "ack-without-set": range(100, 120),
    "elect-outsider": range(20),
    "no-cut": range(85, 105),
    "keep-epoch": range(20),
    "no-lease": range(20),
    "join-early": range(20),
}
"""Seeds of the walks that find a broken rule under SYNC_FLUSH."""
NO_DOUBT = range(300, 310)
"""The same under ASYNC_FLUSH, without which nothing is in doubt."""


def walks(model: Model, seeds: range) -> None:
    for seed in seeds:
        assert walk(model, seed, STEPS) == STEPS


@pytest.mark.parametrize("flushes", [True, False], ids=["sync-flush", "async-flush"])
def test_random_walks_keep_the_promises(flushes: bool) -> None:
    walks(Model(3, flushes=flushes), range(100))


def test_every_short_history_of_two_members_keeps_the_promises() -> None:
    count, is_all = explore(Model(2), 9, 20_000)
    assert is_all
    assert count > 5000


@pytest.mark.parametrize("broken", FOUND_BY)
def test_a_rule_that_is_left_out_is_noticed(broken: str) -> None:
    with pytest.raises(Violation):
        walks(Model(3, broken=broken), FOUND_BY[broken])


def test_election_of_a_member_in_doubt_is_noticed() -> None:
    with pytest.raises(Violation, match="kept"):
        walks(Model(3, flushes=False, broken="no-doubt"), NO_DOUBT)


def test_every_rule_has_a_walk_that_needs_it() -> None:
    assert {*FOUND_BY, "no-doubt"} == {*BREAKS}

"""Busy-waiting: for which peers, how long, and how rarely where it does not pay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orbitmq.transport import busy_wait as busy_wait
from orbitmq.transport.busy_wait import AWAKE_S, IN_A_ROW, MISSES_MAX, BusyWait
from orbitmq.wire.frame import Frame


class Turns:
    """A loop that is advanced manually, and its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.0
        self.planned: list[Callable[[], Any]] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)
        self.busy_wait = BusyWait(frozenset({310}), self)

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        raise AssertionError

    def call_soon(self, work: Callable[[], Any]) -> None:
        self.planned.append(work)

    def turn(self, after_s: float = 0.0) -> bool:
        """Runs one turn of the loop; returns whether it would sleep now."""
        self.now += after_s
        planned, self.planned = self.planned, []
        for work in planned:
            work()
        return not self.planned

    def served(self, peer: object, count: int = 1, code: int = 310) -> None:
        self.busy_wait.served(peer, Frame(code, 1) if count == 1 else None)

    def habit(self, peer: object, code: int = 310) -> None:
        for _ in range(IN_A_ROW + 1):
            self.served(peer, code=code)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


def test_loop_stays_awake_for_a_moment_after_each_lone_request(turns: Turns) -> None:
    peer = object()
    for _ in range(IN_A_ROW):
        turns.served(peer)
        assert not turns.planned, "no habit yet"
    turns.served(peer)
    for _ in range(100):
        for _ in range(3):
            assert not turns.turn(AWAKE_S / 4)
        turns.served(peer)
        assert len(turns.planned) == 1
    assert not turns.turn(AWAKE_S / 2)
    assert turns.turn(AWAKE_S)


@pytest.mark.parametrize("what", ["another peer", "several requests", "a pull"])
def test_nobody_is_waited_for_while_there_is_more_to_do(turns: Turns, what: str) -> None:
    peer = object()
    turns.habit(peer)
    assert not turns.turn()
    if what == "another peer":
        turns.served(object())
    elif what == "several requests":
        turns.served(peer, count=2)
    else:
        turns.served(peer, code=11)
    assert turns.turn(), "at once"
    for _ in range(IN_A_ROW - 1):
        turns.served(peer)
    assert not turns.planned


def test_waiting_in_vain_becomes_rare_and_success_brings_it_back(turns: Turns) -> None:
    peer = object()
    turns.habit(peer)
    waits = []
    for _ in range(MISSES_MAX + 2):
        assert not turns.turn(AWAKE_S / 2)
        assert turns.turn(AWAKE_S)
        waits.append(0)
        turns.served(peer)
        while not turns.planned:
            waits[-1] += 1
            turns.served(peer)
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 256, 256]
    for _ in range(MISSES_MAX):
        turns.served(peer)  # in time
        assert not turns.turn()
    assert turns.turn(AWAKE_S * 2)
    for _ in range(2):
        turns.served(peer)
        assert not turns.planned
    turns.served(peer)
    assert turns.planned


def test_peer_that_is_in_time_every_other_time_is_hardly_waited_for(turns: Turns) -> None:
    """Requests in pairs, the pairs far apart: a success must not undo the failures before it."""
    peer = object()
    turns.habit(peer)
    waited = 0
    for _ in range(2_000):
        turns.served(peer)
        if turns.planned:
            waited += 1
            turns.served(peer)  # the second of the pair, in time
            turns.turn(AWAKE_S * 2)
        turns.served(peer)
        turns.turn(AWAKE_S * 2)
        turns.now += 0.001
    assert waited < 100


def test_nobody_stays_awake_for_pulls(turns: Turns) -> None:
    for _ in range(3):
        turns.habit(object(), code=11)
    assert not turns.planned


def test_bounds_are_those_the_decision_names() -> None:
    assert busy_wait.AWAKE_S == 60e-6
    assert 1 << MISSES_MAX == 256

"""Clocks that are set forwards and backwards."""

from __future__ import annotations

import logging

import pytest

from orbitmq.runtime.clock import ClockSteps, ForwardClock, SteadyClock
from orbitmq.testing.manual_clock import ManualClock

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def test_a_steady_clock_is_not_moved() -> None:
    machine = ManualClock(START_MS)
    steady = SteadyClock(machine)
    for step_ms in (HOUR_MS, -2 * HOUR_MS):
        machine.jump(machine.now_ms() + step_ms)
        machine.advance(1_000)
    assert steady.now_ms() == START_MS + 2_000
    assert steady.monotonic() == machine.monotonic()


def test_a_forward_clock_follows_forwards_and_never_goes_back(caplog: pytest.LogCaptureFixture) -> None:
    machine = ManualClock(START_MS)
    clock = ForwardClock(machine)
    machine.advance(500)
    assert clock.now_ms() == START_MS + 500
    machine.jump(START_MS + HOUR_MS)
    assert clock.now_ms() == START_MS + HOUR_MS
    with caplog.at_level(logging.WARNING):
        machine.jump(START_MS)
        assert clock.now_ms() == START_MS + HOUR_MS
        machine.advance(1_000)
        assert clock.now_ms() == START_MS + HOUR_MS + 1_000
    assert len(caplog.records) == 1, "said once"
    machine.jump(START_MS + HOUR_MS + 5_000)
    assert clock.now_ms() == START_MS + HOUR_MS + 5_000


def test_a_forward_clock_goes_on_after_what_is_stored() -> None:
    machine = ManualClock(START_MS)
    clock = ForwardClock(machine)
    clock.at_least(START_MS - 1)
    assert clock.now_ms() == START_MS
    clock.at_least(START_MS + 5_000)
    machine.advance(10)
    assert clock.now_ms() == START_MS + 5_010


def test_times_stored_before_a_step_are_moved_and_later_ones_are_not() -> None:
    machine = ManualClock(START_MS)
    end = 100
    steps = ClockSteps(machine, lambda: end)
    machine.jump(START_MS + HOUR_MS)
    steps.look()
    assert [steps.shift_ms(offset) for offset in (0, 99, 100, 200)] == [HOUR_MS, HOUR_MS, 0, 0]
    end = 200
    machine.advance(5_000)
    machine.jump(machine.now_ms() - HOUR_MS)
    steps.look()
    assert [steps.shift_ms(offset) for offset in (0, 150, 200)] == [0, -HOUR_MS, 0]
    machine.jump(machine.now_ms() + 100)
    steps.look()
    assert steps.shift_ms(150) == -HOUR_MS, "a slewed clock is not a step"


def test_a_forward_clock_is_not_ahead_of_the_wall_clock_within_a_millisecond() -> None:
    machine = ManualClock(START_MS)
    machine.advance(0.9)  # the wall clock, in whole milliseconds, still says START_MS
    clock = ForwardClock(machine)
    machine.advance(0.2)
    assert clock.now_ms() == START_MS

"""The manual clock."""

from __future__ import annotations

import pytest

from orbitmq.testing.manual_clock import ManualClock


def test_clock_moves_only_when_told() -> None:
    clock = ManualClock(1000)
    assert (clock.now_ms(), clock.monotonic()) == (1000, 0.0)
    clock.advance(1500)
    assert (clock.now_ms(), clock.monotonic()) == (2500, 1.5)


def test_wall_clock_can_jump_back_and_the_steady_one_cannot() -> None:
    clock = ManualClock(1000)
    clock.advance(1)
    steady = clock.monotonic()
    clock.jump(10)
    assert (clock.now_ms(), clock.monotonic()) == (10, steady)
    with pytest.raises(AssertionError):
        clock.advance(-1)

"""Delay levels."""

from __future__ import annotations

import pytest

from orbitmq.errors import ConfigError
from orbitmq.model.delay_levels import DelayLevels


def test_apaches_eighteen_levels() -> None:
    levels = DelayLevels()
    assert levels.max_level == 18
    assert [levels.delay_ms(level) for level in (1, 2, 5, 18)] == [1_000, 5_000, 60_000, 7_200_000]


def test_any_list_of_any_unit() -> None:
    assert DelayLevels("3s  2m 1h 4d 0s").delays_ms == (3_000, 120_000, 3_600_000, 345_600_000, 0)


def test_due_time_cuts_a_level_that_is_too_high_and_gives_a_strange_one_a_second() -> None:
    levels = DelayLevels("5s 10s")
    assert [levels.clamp(level) for level in (-1, 0, 1, 2, 3, 99)] == [-1, 0, 1, 2, 2, 2]
    assert [levels.due_ms(level, 100) for level in (1, 2, 99, 0, -5)] == [5_100, 10_100, 10_100, 1_100, 1_100]


@pytest.mark.parametrize("text", ["", " ", "5", "s", "5x", "-5s", "5s,10s", "1.5s", "٣s"])
def test_a_list_that_cannot_be_read_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        DelayLevels(text)

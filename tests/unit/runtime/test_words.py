"""Counts and durations in messages."""

from __future__ import annotations

import pytest

from orbitmq.runtime.words import counted, duration_text


@pytest.mark.parametrize(("count", "text"), [(0, "0 tries"), (1, "1 try")])
def test_counted_takes_irregular_plurals(count: int, text: str) -> None:
    assert counted(count, "try", "tries") == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 attempts"), (1, "1 attempt"), (2_000, "2,000 attempts")])
def test_counted_agrees_in_number(count: int, text: str) -> None:
    assert counted(count, "attempt") == text


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (250, "250 ms"),
        (90_000, "90 s"),
        (150_000, "2.5 min"),
        (1_200_000, "20 min"),
        (9_000_000, "2.5 h"),
        (86_400_000 * 3, "3.0 d"),
    ],
)
def test_duration_is_short_and_never_negative(duration_ms: float, text: str) -> None:
    assert duration_text(duration_ms) == text

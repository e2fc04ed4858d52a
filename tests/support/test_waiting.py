"""Tests that waits return when the condition holds, and otherwise name the condition."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.waiting import until, until_async


def test_wait_ends_when_the_condition_holds() -> None:
    answers = iter([False, 0, "yes"])
    until(lambda: next(answers), "the third answer")
    assert next(answers, None) is None


def test_wait_async_lets_the_loop_run() -> None:
    async def main() -> None:
        seen: list[int] = []
        asyncio.get_running_loop().call_soon(seen.append, 1)
        await until_async(lambda: seen, "the callback")

    asyncio.run(main())


def test_wait_that_is_over_names_what_it_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"^waited 0\.01 s for rows; last value: \[1\]$"):
        until(lambda: False, "rows", 0.01, last=lambda: [1])
    with pytest.raises(AssertionError, match=r"^waited 0 s for rows$"):
        asyncio.run(until_async(lambda: False, "rows", 0))


def test_condition_is_checked_even_without_time() -> None:
    until(lambda: True, "nothing", 0)

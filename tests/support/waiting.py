"""Waits for a condition with a generous limit. A wait takes only as long as the condition needs, so a short limit
gains nothing and fails on a busy machine. Pass one only where the time itself is under test.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Final

__all__ = ["LIMIT_S", "until", "until_async"]

LIMIT_S: Final = 60.0
_POLL_S: Final = 0.01


def until(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "a condition",
    limit_s: float = LIMIT_S,
    *,
    last: Callable[[], object] | None = None,
) -> None:
    """Returns when ``condition`` is true; otherwise raises AssertionError with ``what`` and the value of ``last``.

    If ``what`` is a function, it is called on timeout to describe the state.
    """
    deadline = time.monotonic() + limit_s
    while True:
        now = time.monotonic()  # before the condition: a process stopped in between checks once more
        if condition():
            return
        if now >= deadline:
            raise AssertionError(_message(what, limit_s, last))
        time.sleep(_POLL_S)


async def until_async(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "a condition",
    limit_s: float = LIMIT_S,
    *,
    last: Callable[[], object] | None = None,
) -> None:
    """Does the same as ``until`` while the event loop runs. ``condition`` may be a coroutine function."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while True:
        now = loop.time()
        holds = condition()
        if await holds if inspect.isawaitable(holds) else holds:
            return
        if now >= deadline:
            raise AssertionError(_message(what, limit_s, last))
        await asyncio.sleep(_POLL_S)


def _message(what: str | Callable[[], str], limit_s: float, last: Callable[[], object] | None) -> str:
    what = what if isinstance(what, str) else what()
    return f"waited {limit_s:g} s for {what}" + ("" if last is None else f"; last value: {last()!r}")

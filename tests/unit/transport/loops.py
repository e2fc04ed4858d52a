"""Runs a coroutine test on plain asyncio and on uvloop, with nothing left behind.

A test fails when it does not end in time, when the loop reports an unhandled exception, or when a task survives it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}
DEADLINE_S = 120.0


def run(loop_kind: str, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs ``test`` on its own loop."""
    unhandled: list[dict[str, Any]] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        async with asyncio.timeout(DEADLINE_S):
            await test()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"

    with asyncio.Runner(loop_factory=LOOPS[loop_kind]) as runner:
        runner.run(bounded())
    assert not unhandled, unhandled


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a coroutine function a test that runs once on each loop."""

    def both(loop_kind: str, **fixtures: Any) -> None:
        run(loop_kind, lambda: test(**fixtures))

    wanted = [
        inspect.Parameter("loop_kind", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *inspect.signature(test).parameters.values(),
    ]
    both.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined]  # functions carry it, stubs do not say so
    both.__name__ = test.__name__
    both.__doc__ = test.__doc__
    both.__module__ = test.__module__
    marked: Callable[..., None] = pytest.mark.parametrize("loop_kind", list(LOOPS))(both)
    marked.pytestmark += getattr(test, "pytestmark", [])  # type: ignore[attr-defined]  # functions carry it, stubs do not say so
    return marked

"""Calls user functions in the way they are written: coroutines on the loop, plain functions on a thread."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any, Final

__all__ = ["HANDLING", "UserCalls", "is_async"]

HANDLING: Final[ContextVar[object]] = ContextVar("orbitmq_handling", default=None)
"""The service whose handler runs here, on the loop or on a thread. A stop from inside must not wait for itself."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it returns an awaitable: a coroutine function, or an object whose ``__call__`` is one."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - not a test for callability
    )


class UserCalls:
    """A bounded pool of threads, created when the first plain function is called."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of ``function``; its exceptions are passed on."""
        if is_async(function):
            return await function(*arguments)
        result = await self.in_thread(function, *arguments)
        # A lambda around a coroutine function looks like a plain function.
        return await result if inspect.isawaitable(result) else result

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, self._name)
        # Pass on context variables, for tracing and logging.
        run = copy_context().run
        return asyncio.get_running_loop().run_in_executor(self._pool, run, function, *arguments)

    def close(self) -> None:
        """Accept no more calls. Busy threads end when their function does."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

"""Calls user functions: coroutine functions on the loop, plain functions on a thread."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import ContextVar, copy_context
from queue import Empty, SimpleQueue
from typing import Any, Final

__all__ = ["HANDLING", "UserCalls", "is_async"]

HANDLING: Final[ContextVar[object]] = ContextVar("orbitmq_handling", default=None)
"""The service whose handler runs here, on the loop or on a thread. A stop from inside must not wait for itself."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling ``function`` returns an awaitable: it is a coroutine function, or an object whose ``__call__``
    is one."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - not a test for callability
    )


class _DaemonThreads(Executor):
    """A pool of threads that the interpreter does not wait for when it exits. The threads of ``ThreadPoolExecutor``
    would keep the process alive if a function never returned."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._closed = False

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        if self._closed:
            raise RuntimeError(f"the threads of {self._name} are closed")
        future: Future[Any] = Future()
        self._calls.put((future, functools.partial(function, *arguments, **named)))
        if not self._idle.acquire(blocking=False) and self._started < self._threads:
            name = f"{self._name}_{self._started}"
            self._started += 1
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        return future

    def _serve(self) -> None:
        calls = self._calls
        while True:
            try:
                call = calls.get_nowait()
            except Empty:
                self._idle.release()
                call = calls.get()
            if call is None:
                return
            future, work = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001 - for the caller
                    future.set_exception(error)
            del call, future, work  # an idle thread keeps no message in memory

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls and cancel those that have not begun. Never waits for a running function."""
        self._closed = True
        while True:
            try:
                call = self._calls.get_nowait()
            except Empty:
                break
            if call is not None:
                call[0].cancel()
        for _ in range(self._started):
            self._calls.put(None)


class UserCalls:
    """A bounded pool of threads, created when the first plain function is called."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._pool: Executor | None = None

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function`` and return its result. An async function runs on the loop, a plain one on a thread.
        Exceptions are passed on."""
        if is_async(function):
            return await function(*arguments)
        result = await self.in_thread(function, *arguments)
        # A lambda around a coroutine function looks like a plain function.
        return await result if inspect.isawaitable(result) else result

    def in_thread(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        if self._pool is None:
            self._pool = _DaemonThreads(self._threads, self._name)
        # Pass on context variables, for tracing and logging.
        run = copy_context().run
        return asyncio.get_running_loop().run_in_executor(self._pool, run, function, *arguments)

    def close(self) -> None:
        """Accept no more calls. Busy threads end when their functions return."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)

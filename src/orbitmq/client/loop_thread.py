"""An event loop on a thread, for code without asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from orbitmq.client.errors import ClientStateError, ForkedError
from orbitmq.runtime.loops import new_event_loop
from orbitmq.runtime.machine import process_id
from orbitmq.runtime.tasks import TaskOwner

__all__ = ["LoopThread"]

T = TypeVar("T")


class LoopThread:
    """An event loop on a thread. Share one between clients to save threads.

    The names of its thread and of the threads of its default executor begin with ``name``.
    """

    def __init__(self, name: str = "orbitmq-loop") -> None:
        self._loop = new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix=f"{name}-worker"))
        self._process_id = process_id()
        self._tasks = TaskOwner("orbitmq-loop")
        self._waiting: deque[tuple[Coroutine[Any, Any, Any], Future[Any]]] = deque()
        self._woken = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._end())
            self._loop.close()

    async def _end(self) -> None:
        await self._tasks.close()
        await self._loop.shutdown_asyncgens()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop. Returns the future of its result."""
        future: Future[T] = Future()
        try:
            self._check_caller()
            self._waiting.append((work, future))
            # Waking the loop is a system call, so one wake-up covers all calls until the loop reads them. The flag is
            # cleared before the loop reads, so later calls wake it again.
            if not self._woken:
                self._woken = True
                self._loop.call_soon_threadsafe(self._start_waiting)
        except ClientStateError:
            work.close()
            raise
        except RuntimeError:
            self._refuse_waiting()  # closed since we asked; the future says so
        return future

    def _start_waiting(self) -> None:
        self._woken = False
        while self._waiting:
            work, future = self._waiting.popleft()
            if future.cancelled():
                work.close()
                continue
            task = self._tasks.start(_settle(work, future), "call")
            task.add_done_callback(partial(_ended, work, future))
            future.add_done_callback(partial(self._cancel_too, task))

    def _cancel_too(self, task: asyncio.Task[None], future: Future[Any]) -> None:
        if future.cancelled() and not task.done():
            try:
                self._loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                pass  # the loop has ended, and the task with it

    def _refuse_waiting(self) -> None:
        while self._waiting:
            work, future = self._waiting.popleft()
            work.close()
            if future.set_running_or_notify_cancel():
                future.set_exception(ClientStateError("the loop of this client is closed"))

    def check_thread(self) -> None:
        """Raise ``ClientStateError`` if called on the loop's own thread, where a blocking call would wait for
        itself."""
        if threading.get_ident() == self._thread.ident:
            raise ClientStateError(
                "a blocking call on the loop's own thread would wait for itself: use the asyncio client there"
            )

    def _check_caller(self) -> None:
        """Raise ``ClientStateError`` or ``ForkedError`` if a call could never end: on the loop's own thread, in
        another process, or after the loop has ended."""
        self.check_thread()
        if self._process_id != process_id():
            raise ForkedError(f"the loop of this client runs in process {self._process_id}")
        if not self._thread.is_alive():
            raise ClientStateError("the loop of this client is closed")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, wait, and return its result."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close_soon(self) -> None:
        """Stop the loop without waiting for its end. For callers that the loop itself waits for."""
        try:
            self._loop.call_soon_threadsafe(self._loop.stop)
        except RuntimeError:
            pass  # it has ended

    def close(self) -> None:
        """Stop the loop, cancel what runs on it, and wait for its thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10.0)
        self._refuse_waiting()


async def _settle(work: Coroutine[Any, Any, T], future: Future[T]) -> None:
    """Run a coroutine, and set its result on a future of another thread."""
    try:
        result = await work
    except Exception as error:  # noqa: BLE001 - whatever it raises is for the waiter
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(result)


def _ended(work: Coroutine[Any, Any, Any], future: Future[Any], _task: asyncio.Task[None]) -> None:
    """Cancel the future of a cancelled task, even one cancelled before its first step, so that no caller waits
    forever."""
    work.close()
    future.cancel()

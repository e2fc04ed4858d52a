"""Owns background tasks. ``create_task`` is called only here.

A ``TaskOwner`` starts tasks only while it is open. It reports each failed task once, with the task's name. On close
it cancels the remaining tasks and waits for them, up to a deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from orbitmq.runtime.stalls import measured

__all__ = ["TaskOwner", "every"]

logger = logging.getLogger(__name__)


class TaskOwner:
    """Owns the background tasks of one component."""

    def __init__(
        self,
        name: str,
        on_failure: Callable[[BaseException], None] | None = None,
        *,
        watched: bool = False,
    ) -> None:
        """With ``watched``, tasks that block the loop for too long are reported (``runtime/stalls.py``)."""
        self._name = name
        self._watched = watched
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the owner is closed. It then starts no more tasks, and the remaining ones are cancelled."""
        return self._closed

    def owns(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task was started here and has not ended."""
        return task in self._tasks

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run ``work`` as a task until it ends or the owner closes. Raises an error if the owner is already
        closed."""
        if self._closed:
            work.close()
            raise RuntimeError(f"{self._name} is closed; cannot start {name}")
        if self._watched:
            work = measured(work, name)
        task = asyncio.get_running_loop().create_task(work, name=f"{self._name}.{name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            logger.error("task failed name=%s", task.get_name(), exc_info=error)
            if self._on_failure is not None:
                self._on_failure(error)

    async def close(self, wait_s: float = 5.0) -> None:
        """Cancel all tasks and wait for them, at most ``wait_s`` seconds."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=wait_s)
            for task in late:
                logger.warning("task did not stop in time name=%s", task.get_name())


async def every(
    period_s: float, work: Callable[[], Awaitable[None] | None], *, first_s: float | None = None
) -> None:
    """Call ``work`` repeatedly, with pauses of ``period_s``. Errors are logged and the calls continue."""
    await asyncio.sleep(period_s if first_s is None else first_s)
    while True:
        try:
            result = work()
            if result is not None:
                await result
        except Exception:  # a periodic job must survive one bad round
            logger.exception("periodic job failed job=%s", getattr(work, "__qualname__", work))
        await asyncio.sleep(period_s)

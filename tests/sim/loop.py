"""An event loop on virtual time, whose processes can be killed and paused.

The loop never waits: when no callback is ready, the time jumps to the next one that is due. Every callback belongs to
the process in whose context it was scheduled (``PROCESS``), so a kill drops scheduled callbacks and a pause keeps
them for later, at any point between two callbacks. There are no threads: their work is done inline, after the time a
disk takes.

One seed always produces the same history, provided hashes of text are fixed (PYTHONHASHSEED=0).
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import selectors
from collections import deque
from collections.abc import Callable
from typing import Any

PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Deadlock(Exception):
    """The simulation is waiting, but no further event will ever happen."""


class Process:
    """One incarnation of a simulated process on a machine."""

    def __init__(self, loop: SimLoop, name: str, host: str) -> None:
        self.loop = loop
        self.name = name
        self.host = host
        self.alive = True
        self.paused = False
        self.held: list[_Planned] = []
        """Became due while it stood still."""
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.on_death: list[Callable[[], None]] = []

    def start(self, work: Any, name: str) -> asyncio.Task[Any]:
        """Runs a coroutine as part of this process."""
        return self.context.run(lambda: self.loop.create_task(work, name=f"{self.name}.{name}"))

    def kill(self) -> None:
        """Ends the process and notifies its watchers."""
        self.alive = False
        self.held.clear()
        for callback in self.on_death:
            callback()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """Runs the callbacks that became due meanwhile, in order."""
        self.paused = False
        held, self.held = self.held, []
        self.loop.run_soon(held)


class _VirtualSelector(selectors.BaseSelector):
    """Holds the loop's pipe to itself, and is never queried."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, number, events, data)
        self._keys[number] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[Any]:
        raise NotImplementedError

    def get_map(self) -> Any:
        return self._keys


class _Planned(asyncio.TimerHandle):
    """A callback that runs unless its process is dead or paused by then."""

    __slots__ = ("process",)

    def __init__(
        self,
        when: float,
        callback: Any,
        args: tuple[Any, ...],
        loop: SimLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._when = when
        self._scheduled = False
        self._repr: str | None = None
        self._source_traceback = None
        self.process = self._context.get(PROCESS)

    def _run(self) -> None:
        if self._cancelled:
            return
        process = self.process
        if process is not None:
            if not process.alive:
                return
            if process.paused:
                process.held.append(self)
                return
        super()._run()


class SimLoop(asyncio.SelectorEventLoop):
    """The event loop shared by all simulated processes."""

    def __init__(self, seed: int) -> None:
        self.now = 1000.0
        super().__init__(_VirtualSelector())
        self.chance = random.Random(seed)
        self.kept: list[Any] = []
        """Tasks of the dead: ended with the simulation, not when memory is collected."""
        self.set_task_factory(self._task)
        self.network: Any = None
        self.slow_disks: dict[str, float] = {}
        """By host: the longest time an operation of a failing disk takes."""
        self._ready: deque[_Planned] = deque()
        self._timers: list[tuple[float, int, _Planned]] = []
        self._count = 0

    def _task(self, loop: Any, work: Any, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # a killed process leaves its tasks behind
        self.kept.append(task)
        return task

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]  # typeshed ties the arguments to the callback; any will do here
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Planned(self.now, callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]  # typeshed ties the arguments to the callback; any will do here
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Planned(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, handle))
        return handle

    def run_soon(self, planned: list[_Planned]) -> None:
        """Schedules the callbacks of a resumed process."""
        self._ready.extend(planned)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Does nothing: cancelled timers stay until they are due."""

    def _run_once(self) -> None:
        """Does the same as asyncio's, without a selector and with cheaper comparisons."""
        ready, timers = self._ready, self._timers
        if not ready:
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Deadlock("no callback is planned")
            self.now = max(self.now, timers[0][0])
        while timers and timers[0][0] <= self.now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            ready.popleft()._run()

    def call_soon_threadsafe(  # type: ignore[override]  # typeshed ties the arguments to the callback; any will do here
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]  # typeshed ties the arguments to the callback; any will do here
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - as an executor does
                done.set_exception(error)

        self.call_later(self.disk_delay(0.01), work)
        return done

    def disk_delay(self, longest_s: float) -> float:
        """Returns how long the disk of the current process takes."""
        process = PROCESS.get() if self.slow_disks else None
        if process is not None:
            longest_s = self.slow_disks.get(process.host, longest_s)
        return self.chance.uniform(0.0005, longest_s)

    async def create_server(self, protocol_factory: Any, *args: Any, **named: Any) -> Any:
        return self.network.listen(protocol_factory, named["sock"])

    async def create_connection(self, protocol_factory: Any, *args: Any, **named: Any) -> Any:
        host, port = args[:2]
        return await self.network.connect(protocol_factory, str(host), int(port))


class SimClock:
    """``runtime.clock.Clock`` of one machine: its wall clock can be set, its steady one cannot."""

    EPOCH_MS = 1_767_225_600_000

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.shift_ms = 0

    def now_ms(self) -> int:
        return self.EPOCH_MS + int(self._loop.now * 1000) + self.shift_ms

    def monotonic(self) -> float:
        return self._loop.now

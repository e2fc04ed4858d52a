"""Runs one filter class in its own process, bounded in time and memory.

A process that does not answer a batch in time, or dies, is killed and restarted for the next one. A class that fails
repeatedly is disabled for a while, so that it cannot keep the machine busy starting processes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Final

from orbitmq.errors import OrbitError
from orbitmq.filtersrv.worker import FRAME_BYTES_MAX, RAISED, SELECTED

__all__ = ["FilterFailed", "FilterProcess"]

logger = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 15.0
"""Enough to start Python and load modules on a busy machine."""
FAILURES_MAX: Final = 5
REST_S: Final = 30.0


class FilterFailed(OrbitError):
    """The class cannot be loaded, or did not answer in time."""


class FilterProcess:
    """The process of one class. ``select`` starts it when needed; concurrent calls run one after the other."""

    def __init__(self, class_name: str, source: str, *, memory_bytes: int, batch_s: float) -> None:
        self.class_name = class_name
        self._order = json.dumps(
            {"class_name": class_name, "source": source, "memory_bytes": memory_bytes}
        ).encode()
        self._batch_s = batch_s
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._failure_count = 0
        self._rest_until = 0.0

    async def check(self) -> None:
        """Load the class. If that fails, raises ``FilterFailed`` with the error of the class."""
        async with self._turn:
            await self._started()

    async def select(self, records: list[bytes]) -> list[bool]:
        """Returns for each record whether the class selects it. Raises ``FilterFailed``.

        When a batch fails as a whole, each record is tried alone. A record that the class cannot handle counts as not
        selected, because consumers would otherwise never get past it.
        """
        async with self._turn:
            try:
                return await self._judge(records)
            except FilterFailed as error:
                if len(records) == 1:
                    raise
                logger.warning("filter batch failed class=%s error=%s", self.class_name, error)
            selected: list[bool] = []
            for record in records:
                try:
                    selected += await self._judge([record])
                except FilterFailed as error:
                    if self._resting():
                        raise
                    logger.warning("filter failed for a message class=%s error=%s", self.class_name, error)
                    selected.append(False)
            return selected

    async def _judge(self, records: list[bytes]) -> list[bool]:
        process = await self._started()
        try:
            async with asyncio.timeout(self._batch_s):
                answers = await self._exchange(process, b"".join(records))
        except TimeoutError:
            raise await self._failed(f"no answer within {self._batch_s:g} s") from None
        except (OSError, EOFError) as error:
            raise await self._failed(f"the process ended: {error}") from None
        if len(answers) != len(records):
            raise await self._failed(f"{len(answers)} answers to {len(records)} messages")
        self._failure_count = 0
        if raised := answers.count(RAISED):
            logger.warning("filter class raised class=%s messages=%d", self.class_name, raised)
        return [answer == SELECTED for answer in answers]

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        if self._resting():
            raise FilterFailed(
                f"class {self.class_name} failed {FAILURES_MAX} times and is paused for {REST_S:g} s"
            )
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-m",
            "orbitmq.filtersrv.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"LC_ALL": "C.UTF-8"},
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                problem = await self._exchange(process, self._order)
        except TimeoutError:
            raise await self._failed(f"not loaded within {START_TIMEOUT_S:g} s") from None
        except (OSError, EOFError) as error:
            raise await self._failed(f"the process ended while loading: {error}") from None
        if problem:
            raise await self._failed(problem.decode("utf-8", "replace"))
        return process

    async def _exchange(self, process: asyncio.subprocess.Process, data: bytes) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(len(data).to_bytes(4, "big") + data)
        await process.stdin.drain()
        size = int.from_bytes(await process.stdout.readexactly(4), "big")
        if size > FRAME_BYTES_MAX:
            raise EOFError("the size of the answer is invalid")
        return await process.stdout.readexactly(size)

    async def _failed(self, reason: str) -> FilterFailed:
        await self._end()
        self._failure_count += 1
        if self._failure_count >= FAILURES_MAX:
            self._failure_count = 0
            self._rest_until = asyncio.get_running_loop().time() + REST_S
        return FilterFailed(f"filter class {self.class_name}: {reason}")

    def _resting(self) -> bool:
        return asyncio.get_running_loop().time() < self._rest_until

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()

    async def close(self) -> None:
        await self._end()

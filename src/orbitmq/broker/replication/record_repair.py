"""Repairs damaged records of a running broker from another broker of its group.

Master and slaves have the same log, byte for byte. A reader that finds a damaged record requests its repair
(``Integrity.fetch``) and stops before it. Readers of its queue are woken when the repair has ended, whether or not it
succeeded. The record is fetched by its log offset (VIEW_MESSAGE_BY_ID, which Apache's brokers answer too), and so are
the following ones, up to one that both brokers have. Two logs with equal bytes at one offset are equal before it
(rule 4 of ``failover.state``, and ``log_prefix``). Records in between that differ are replaced as well, since a
checksum does not cover a record's header. If the log ends before a common record, a difference of one byte counts as
damage, and any other difference as a different history.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from orbitmq.codes import ResponseCode
from orbitmq.errors import OrbitError
from orbitmq.kernel import walk_records
from orbitmq.requests import RequestCode
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.client import RpcClient
from orbitmq.wire.headers import ViewMessageByIdRequest

__all__ = ["RecordRepair"]

logger = logging.getLogger(__name__)

HOLD_S: Final = 4.0
"""Longest time that readers wait for a repair."""
_CALL_S: Final = 2.0
_AT_ONCE: Final = 64
_BYTES_MAX: Final = 8 << 20
"""Largest range of damaged records that one repair replaces."""
_RECORDS_MAX: Final = 64
_FAILED_MAX: Final = 10_000
_AGAIN_S: Final = 60.0
"""How long readers skip a record after a failed repair before the next attempt."""


class _NoRepair(OrbitError):
    """A peer cannot supply a valid copy of the record."""


class RecordRepair:
    """Repairs one broker's damaged records."""

    def __init__(
        self,
        store: MessageStore,
        rpc: RpcClient,
        readable: Callable[[str, int], None],
        peers: Callable[[], Awaitable[list[str]]],
        has_peers: Callable[[], bool],
    ) -> None:
        """``readable`` is called for each queue whose readers waited for a repair. ``peers`` returns the request
        addresses of the group's other brokers."""
        self._store = store
        self._rpc = rpc
        self._peers = peers
        self._has_peers = has_peers
        self._readable = readable
        self._tasks = TaskOwner("record-repair")
        self._waiting: dict[int, set[tuple[str, int]]] = {}
        """Queues whose readers wait for a repair, by the log offset of the record."""
        self._failed: OrderedDict[int, float] = OrderedDict()
        """Time of the last failed repair, by log offset."""
        self.repaired_count = 0
        """Number of records replaced since the start."""
        store.integrity.fetch_with(self.wanted)

    @property
    def failed_count(self) -> int:
        """Damaged records whose last repair failed."""
        return len(self._failed)

    def wanted(self, log_offset: int, topic: str, queue_id: int) -> bool:
        """Start repairing the record at a log offset, unless a repair of it failed recently. Returns whether a repair
        is in progress."""
        waiting = self._waiting.get(log_offset)
        if waiting is None:
            if log_offset >= self._store.confirm_offset or len(self._waiting) >= _AT_ONCE:
                return False
            failed_at = self._failed.get(log_offset)
            if failed_at is not None and asyncio.get_running_loop().time() < failed_at + _AGAIN_S:
                return False
            if not self._has_peers():
                return False
            waiting = self._waiting[log_offset] = set()
            self._tasks.start(self._repair(log_offset), f"record-{log_offset}")
        if topic:
            waiting.add((topic, queue_id))
        return True

    async def stop(self) -> None:
        self._store.integrity.fetch_with(None)
        await self._tasks.close()

    async def _repair(self, log_offset: int) -> None:
        problem = "no other broker of the group answered in time"
        try:
            async with asyncio.timeout(HOLD_S):
                problem = await self._from_any(log_offset)
        except TimeoutError:
            pass
        except OSError as error:
            problem = f"the record cannot be written: {error}"
        finally:
            waiting = self._waiting.pop(log_offset)
            self._store.integrity.fetch_ended(log_offset)
            if problem:
                self._failed[log_offset] = asyncio.get_running_loop().time()
                if len(self._failed) > _FAILED_MAX:
                    self._failed.popitem(last=False)
                logger.error("damaged record not repaired log_offset=%d reason=%s", log_offset, problem)
            else:
                self._failed.pop(log_offset, None)
        for key in waiting:
            self._readable(*key)

    async def _from_any(self, log_offset: int) -> str:
        """Repair the record from the first broker that can. Returns why none could; empty if the repair succeeded."""
        problem = "no other broker of the group is known"
        for address in await self._peers():
            try:
                found = await self._fetch(address, log_offset)
            except OrbitError as error:
                problem = f"{address}: {error}"
                continue
            count = 0
            for position, record in found:
                count += self._store.integrity.overwrite(position, record) != record
            self.repaired_count += count
            logger.warning(
                "damaged records repaired log_offset=%d count=%d from=%s", log_offset, count, address
            )
            return ""
        return problem

    async def _fetch(self, address: str, log_offset: int) -> list[tuple[int, bytes]]:
        """Fetches the records from a damaged one up to one that both logs have. Raises ``OrbitError``."""
        store, integrity = self._store, self._store.integrity
        found: list[tuple[int, bytes]] = []
        at = log_offset
        while True:
            at = integrity.after_marker(at)
            if at >= store.confirm_offset:
                self._check_end(found)
                return found
            if at - log_offset > _BYTES_MAX or len(found) >= _RECORDS_MAX:
                raise _NoRepair(f"its log differs from ours in {at - log_offset} bytes or more")
            record = await self._record(address, at)
            if record == integrity.whole_at(at):
                if not found:
                    raise _NoRepair("it has the same bytes")
                return found
            found.append((at, record))
            at += len(record)
            if at > store.confirm_offset:
                raise _NoRepair("its records go past the end of our log")

    def _check_end(self, found: list[tuple[int, bytes]]) -> None:
        """Accept only a difference of one byte, because no record that both logs have follows. Raises ``_NoRepair``
        otherwise."""
        differing = 0
        for position, record in found:
            ours = self._store.log_range(position, len(record))
            differing += sum(one != other for one, other in zip(ours, record, strict=False))
        if differing != 1:
            raise _NoRepair("no record that both logs have follows the damage yet")

    async def _record(self, address: str, log_offset: int) -> bytes:
        answer = await self._rpc.call(
            address,
            RequestCode.VIEW_MESSAGE_BY_ID,
            ViewMessageByIdRequest(offset=log_offset),
            timeout_s=_CALL_S,
        )
        if answer.code != ResponseCode.SUCCESS:
            raise _NoRepair(answer.remark or f"it answers {answer.code}")
        record = bytes(answer.body)
        walked, end = walk_records(record, 0, len(record), True, log_offset)
        if len(walked) != 1 or end != len(record):
            raise _NoRepair(f"its record at {log_offset} is damaged too")
        return record

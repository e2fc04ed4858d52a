"""Checks that a slave's log is a prefix of its master's, and handles logs that differ.

The replication stream does not compare the logs. A slave that was once master, or whose master came back with a
shorter log, would silently append after bytes the master never had. So before it follows, a slave requests the record
at the offset of its own last record from its master (VIEW_MESSAGE_BY_ID, which any Apache broker answers). Equal
bytes at the same offset, including store time and host, prove that the logs are equal up to there.

If they differ, a binary search finds the last common record. The slave's bytes after it are not in the master's log.
They are truncated only if that is allowed, by a change of role while the broker runs or by ``haTruncateSlave``.
Otherwise the slave stays as it is and logs the reason, because its bytes may be the only copy. A log without any
common record is never changed.
"""

from __future__ import annotations

import logging
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.codes import ResponseCode
from orbitmq.errors import OrbitError
from orbitmq.requests import RequestCode
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.client import RpcClient
from orbitmq.wire.headers import ViewMessageByIdRequest

__all__ = ["LogPrefixCheck", "LogsDiffer"]

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 3.0


class LogsDiffer(OrbitError):
    """The slave's log is not a prefix of the master's."""


class LogPrefixCheck:
    """Compares our log with a master's."""

    def __init__(self, config: BrokerConfig, store: MessageStore, rpc: RpcClient) -> None:
        self._config = config
        self._store = store
        self._rpc = rpc
        self.may_cut = False
        """Whether the next check may truncate bytes that the master does not have. Set by a change of
        role."""

    def allow_cut(self, allowed: bool) -> None:
        """Set ``may_cut``: whether bytes that only our log has may be truncated."""
        self.may_cut = allowed

    async def check(self, master_address: str) -> None:
        """Ensure that our log is a prefix of the master's, truncating ours if that is allowed. Raises ``LogsDiffer``,
        or ``OrbitError`` if the master does not answer. Without an address there is no master to query, and the slave
        follows unchecked."""
        last = self._record_below(self._store.max_log_offset)
        if not master_address or last is None:
            return
        if not await self._common(master_address, last):
            await self._cut_back(master_address, last)
        self.may_cut = False

    async def _cut_back(self, master_address: str, last: tuple[int, int]) -> None:
        common = await self._last_common(master_address, last)
        if common is None:
            raise LogsDiffer(
                f"no record of our log is in that of {master_address}: it belongs to another group, or our part is "
                "gone there; remove our store to copy the master's"
            )
        end = common[0] + common[1]
        lost = self._store.max_log_offset - end
        if not (self.may_cut or self._config.cut_differing_log):
            raise LogsDiffer(
                f"{lost} bytes of our log from offset {end} are missing in the log of {master_address}; "
                "set haTruncateSlave=true to discard them, or make this broker the master to keep them"
            )
        logger.warning("log truncated to the master's log_offset=%d lost_bytes=%d", end, lost)
        self._store.truncate(end)

    async def _last_common(self, master_address: str, last: tuple[int, int]) -> tuple[int, int] | None:
        """Finds the last record in both logs by a binary search over log offsets."""
        known: tuple[int, int] | None = None
        low, high = self._store.min_log_offset, last[0]
        while low < high:
            middle = (low + high) // 2
            record = self._record_below(middle + 1)
            if record is None or record[0] < low:
                low = middle + 1
            elif await self._common(master_address, record):
                known = record
                low = max(middle + 1, record[0] + record[1])
            else:
                high = record[0]
        return known

    async def _common(self, master_address: str, record: tuple[int, int]) -> bool:
        ours = self._store.record_at(*record)
        header = ViewMessageByIdRequest(offset=record[0])
        answer = await self._rpc.call(
            master_address, RequestCode.VIEW_MESSAGE_BY_ID, header, timeout_s=_TIMEOUT_S
        )
        return ours is not None and answer.code == ResponseCode.SUCCESS and answer.body == ours

    def _record_below(self, log_offset: int) -> tuple[int, int] | None:
        """Returns log offset and size of the last record that starts before ``log_offset``, found through the queues;
        None if there is none."""
        store = self._store
        best: tuple[int, int] | None = None
        for topic in store.topics():
            for queue_id in store.queues(topic):
                found = self._unit_below(topic, queue_id, log_offset)
                if found is not None and (best is None or found > best):
                    best = found
        return best

    def _unit_below(self, topic: str, queue_id: int, log_offset: int) -> tuple[int, int] | None:
        store = self._store
        low, high = max(0, store.min_offset(topic, queue_id)), store.max_offset(topic, queue_id)
        found: tuple[int, int] | None = None
        # Try the newest first, because usually there is nothing past the offset.
        middle = high - 1
        while low < high:
            unit = store.units(topic, queue_id, middle, 1)
            if not unit or unit[0][0] >= log_offset:
                high = middle
            else:
                found = unit[0][:2]
                low = middle + 1
            middle = (low + high) // 2
        return found

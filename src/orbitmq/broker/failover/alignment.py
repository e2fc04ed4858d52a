"""Keeps our log consistent with the group's: truncates it by the epoch history, and tracks whether it may lack
acknowledged messages.

Created before the role switch, which calls it before this broker follows a master.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.failover.group_view import Seen
from orbitmq.broker.failover.in_sync import InSyncSet
from orbitmq.broker.failover.own_state import OwnState
from orbitmq.broker.failover.safe_end import SafeEnd
from orbitmq.broker.failover.state import GroupState, StateError, acknowledged_loss, cut_point
from orbitmq.broker.replication.slave import Membership
from orbitmq.broker.replication.stream import encode_greeting
from orbitmq.store.errors import StoreUnavailable
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import FlushMode

__all__ = ["LogAlignment"]

logger = logging.getLogger(__name__)


class _Aligned(msgspec.Struct, frozen=True):
    """The master that our log was aligned with."""

    epoch: int
    begun_at: int
    """Log offset at which the master's epoch began. Everything acknowledged earlier is below it."""
    flushes: bool
    """Whether the master acknowledges only flushed messages."""


class LogAlignment:
    """Our log in relation to the group's. ``roles.GroupLog`` is the part that the role switch needs."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        own_state: OwnState,
        safe_end: SafeEnd,
        in_sync: InSyncSet,
    ) -> None:
        self._config = config
        self._store = store
        self.own_state = own_state
        self.safe_end = safe_end
        self._in_sync = in_sync
        self.seen: Seen | None = None
        """The group as last read from etcd."""
        self._aligning = _Aligned(0, 0, False)
        self._announced_end = -1
        """Last safe end received from the master we follow; -1 before the first."""

    def take(self, seen: Seen) -> None:
        """Store the newest view of the group, as read from etcd."""
        self.seen = seen

    # -- before following ------------------------------------------------------------------------------

    def align(self) -> None:
        """Before following, truncate the bytes that, according to the history, are not in the master's log. If the
        history does not reach back far enough, the record comparison that follows decides. Raises ``StateError``,
        ``StoreError``."""
        seen = self.seen
        state = seen.state if seen is not None else None
        if seen is None or state is None:
            raise StateError("the state of the group is not known yet")
        self.cut(state)
        begun_at = state.history[-1].log_offset if state.history else 0
        self._aligning = _Aligned(state.epoch, begun_at, self._flushes(seen))

    def _flushes(self, seen: Seen) -> bool:
        """Whether the master acknowledges only flushed messages. If it publishes no flush mode, ours is assumed."""
        published = "" if seen.master is None else seen.master.flush
        return (published or self._store.flush_mode.value) == FlushMode.SYNC.value

    async def aligned(self) -> Membership:
        """Enter the master's epoch, now that our log is a prefix of its log. Raises ``StoreError``, ``OSError``."""
        aligned = self._aligning
        if aligned.flushes:
            await self.flush_log()
        self.own_state.enter(aligned.epoch, exposed=not aligned.flushes)
        self._announced_end = -1
        greeting = encode_greeting(self._config.broker_id, aligned.epoch)
        return Membership(greeting, self._safe_end_announced, aligned.flushes)

    # -- while following -------------------------------------------------------------------------------

    def _safe_end_announced(self, log_offset: int) -> None:
        """Called with the safe end that the master sends: the whole in-sync set has the log up to this offset."""
        self._announced_end = log_offset
        self._in_sync.safe_end_announced(log_offset)

    def note_whole(self) -> None:
        """Clear the doubt once we have caught up. Everything acknowledged before the master's epoch is below its
        first offset, and everything acknowledged since is below the safe end that the master sends."""
        end = self._store.max_log_offset
        if not (0 <= self._announced_end <= end and self._aligning.begun_at <= end):
            return
        self.safe_end.cut(end)
        if self.own_state.in_doubt:
            logger.info("log no longer in doubt log_offset=%d", end)
            self.own_state.made_whole()

    # -- before leading --------------------------------------------------------------------------------

    async def lead(self, epoch: int, noted_end: int) -> None:
        """Enter an epoch as its elected master. ``noted_end`` is the acknowledged end stored in etcd. Raises
        ``StoreError``, ``OSError``."""
        flushes = self._store.flush_mode is FlushMode.SYNC
        if flushes:
            await self.flush_log()
        self.own_state.enter(epoch, exposed=not flushes)
        self.own_state.made_whole()
        self.safe_end.begin(noted_end, self._store.max_log_offset)

    async def flush_log(self) -> None:
        """Flush the whole log to disk. Raises ``StoreUnavailable`` if that fails."""
        flushed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._store.when_flushed(
            self._store.max_log_offset, lambda done: None if flushed.done() else flushed.set_result(done)
        )
        if not await flushed:
            raise StoreUnavailable("the log could not be flushed before following or leading")

    # -- truncation ------------------------------------------------------------------------------------

    def cut(self, state: GroupState) -> bool:
        """Truncate our log to its common prefix with the newest epoch's log. Returns False if the history does not
        reach back to our epoch."""
        epoch = self.own_state.epoch
        if epoch == state.epoch:
            return True
        end = cut_point(state, epoch)
        if end is None:
            return False
        if end < self._store.max_log_offset:
            self._keep_acknowledged(state, end)
            logger.warning(
                "log cut back to what the group acknowledged log_offset=%d lost_bytes=%d epoch=%d of=%d",
                end,
                self._store.max_log_offset - end,
                epoch,
                state.epoch,
            )
            self._store.truncate(end)
            self._store.limit_reads(min(self._store.confirm_offset, end))
            self.safe_end.cut(end)
        return True

    def _keep_acknowledged(self, state: GroupState, end: int) -> None:
        """Prevent the truncation of bytes that the whole in-sync set has acknowledged, because ours may be the only
        copy. Raises ``StateError``, unless ``haTruncateSlave`` allows it."""
        log_end, config = self._store.max_log_offset, self._config
        lost = acknowledged_loss(state, self.own_state.epoch, log_end)
        safe_end = max(self._store.confirm_offset, self.safe_end.kept)
        if lost is None and config.all_in_sync_acknowledge and safe_end > end:
            lost = (end, min(log_end, safe_end))
        if lost is None or config.cut_differing_log:
            return
        raise StateError(
            f"the group elected a master without our log from offset {lost[0]} to {lost[1]}, which holds messages "
            "that were, or may have been, acknowledged; following it would cut them off. Save them first "
            "(orbitmq store dump), then set haTruncateSlave=true"
        )

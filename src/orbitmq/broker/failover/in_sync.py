"""The master's view of the in-sync set (Apache: AutoSwitchHAService, its sync state set and confirm offset).

``InSyncSet`` answers two questions: up to which offset does every member of the set have the log (sends wait for
that, ``ha.acks``), and up to which offset may consumers read. The two are the same number, except that under
SYNC_FLUSH consumers read no further than the master has flushed. A failover may truncate messages that some members
lack or that a power failure loses, and a consumer that had read them would then skip the messages stored in their
place. The master therefore sends that offset to the members, which do not let consumers read past it either. A broker
that has just started shows consumers nothing until it has received that offset.

A change of the set is proposed, written to etcd by the coordinator, and then applied or dropped. In between both sets
count, since it is unknown which one is in force. A joining slave counts even earlier. From the moment it is close to
the log end, no send is acknowledged without it. It is proposed once it has the log up to the end as of that moment.
So when etcd lists it as a member, it has everything acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.held_arrivals import HeldArrivals
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.replication.master import SlaveLink
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import FlushMode

__all__ = ["InSyncSet"]


class InSyncSet:
    """Tracks the in-sync set. It always exists, but the set counts only while this broker is master."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        links: Sequence[SlaveLink],
        events: BrokerEvents,
    ) -> None:
        """``links`` are the connected slaves."""
        self._config = config
        self._store = store
        self._links = links
        self._readable = events.readable
        store.limit_reads(0)
        events.arrived.append(self._arrived)
        self._own = config.broker_id
        self._proposed: frozenset[int] | None = None
        self._reached_at: dict[int, float] = {}
        self._joining: dict[int, tuple[int, float]] = {}
        """Slaves that sends wait for although they are not in the set yet: the offset each must reach, and the time
        it started to count."""
        self._held = HeldArrivals()
        self._begun_at = 0
        self._flushing = False
        self._last_look = (0, 0.0)
        """Log end at the last call of ``proposal``, and its time."""
        self.members: frozenset[int] = frozenset()
        """The members according to etcd."""
        self.active = False

    # -- lifecycle -------------------------------------------------------------------------------------

    def begin(self, members: Sequence[int], log_offset: int, now: float) -> None:
        """Start as the master of an epoch that begins at ``log_offset``."""
        self.members = frozenset(members)
        self._proposed = None
        self._joining.clear()
        self._flushing = False
        self._begun_at = log_offset
        self._last_look = (self._store.max_log_offset, now)
        self._reached_at = dict.fromkeys(self.members, now)
        self.active = True
        # The safe end received from the previous master remains valid, even while members are missing.
        self._show(max(self._store.confirm_offset, self._readable_end()))

    def end(self) -> None:
        """Stop counting the in-sync set, because this broker is no longer the master. Messages that were not safe
        stay hidden: the next master may not have them, and a consumer that read them here would skip the messages
        stored in their place."""
        if self.active:
            self.active = False
            self.members = frozenset()
            self._proposed = None

    def safe_end_announced(self, log_offset: int) -> None:
        """Called with the safe end that the master sends: the whole in-sync set has the log up to this offset."""
        if not self.active and log_offset > self._store.confirm_offset:
            self._show(log_offset)

    # -- safe end --------------------------------------------------------------------------------------

    def safe_end(self) -> int:
        """Returns the log offset that all required members have reached; -1 if a required member is missing."""
        ends: dict[int, int] = {}
        for link in self._links:
            if link.member:
                ends[link.member] = max(ends.get(link.member, -1), link.acknowledged)
        safe = self._store.max_log_offset
        needed = self._config.in_sync_replicas - 1
        if needed > 0:
            newest = sorted(ends.values(), reverse=True)
            safe = newest[needed - 1] if len(newest) >= needed else -1
            if not self._config.all_in_sync_acknowledge:
                return safe
        for member in self._counted:
            if member != self._own:
                safe = min(safe, ends.get(member, -1))
        return safe

    @property
    def _counted(self) -> frozenset[int]:
        """The members that must have a message before it is acknowledged."""
        if self._proposed is None and not self._joining:
            return self.members
        return self.members | (self._proposed or frozenset()) | self._joining.keys()

    def progressed(self) -> None:
        """Let consumers read the newly safe messages, after slaves have progressed or the set has changed."""
        if not self.active:
            return
        safe = self._readable_end()
        if safe > self._store.confirm_offset:
            self._show(safe)

    def _readable_end(self) -> int:
        safe, store = self.safe_end(), self._store
        if store.flush_mode is FlushMode.ASYNC or safe <= store.flushed_offset:
            return safe
        if not self._flushing:
            self._flushing = True
            store.when_flushed(safe, self._flushed)
        return store.flushed_offset

    def _flushed(self, done: bool) -> None:
        """Called after a flush. A failed flush is retried with the next progress; sends are refused meanwhile."""
        self._flushing = False
        if done:
            self.progressed()

    def _show(self, log_offset: int) -> None:
        """Let consumers read up to ``log_offset``."""
        self._store.limit_reads(log_offset)
        for key in self._held.take(log_offset):
            self._readable(*key)

    def _arrived(self, topic: str, queue_id: int) -> None:
        """Wake the readers of a queue with new messages once they are readable."""
        end = self._store.max_log_offset
        if len(self._counted) == 1:
            self.progressed()
        if end <= self._store.confirm_offset:
            self._readable(topic, queue_id)
            return
        self._held.add(topic, queue_id, end)

    # -- changes ---------------------------------------------------------------------------------------

    def proposal(self, now: float) -> frozenset[int] | None:
        """Returns the set to propose, or None if it need not change. A member leaves if it has had no connection
        for ``slaveTimeout``, or has not reached the log end for ``haMaxTimeSlaveNotCatchup``. Called once per
        round."""
        end = self._store.max_log_offset
        wanted = {self._own}
        linked: set[int] = set()
        for link in self._links:
            if not link.member or link.acknowledged < 0:
                continue
            linked.add(link.member)
            # Under load no slave is ever at the end. One that has reached the previous call's end is keeping up.
            if link.acknowledged >= self._last_look[0]:
                self._reached_at[link.member] = self._last_look[1]
                if link.member not in self.members:
                    self._joining.setdefault(link.member, (end, now))
            needed = self._joining.get(link.member)
            if needed is not None and link.acknowledged >= max(needed[0], self._begun_at):
                wanted.add(link.member)
        for member, (_, since) in list(self._joining.items()):
            late = now - since > self._config.slave_timeout_ms / 1000 and member not in wanted
            if late or member not in linked:
                del self._joining[member]
        for member in self.members - {self._own}:
            limit_ms = self._config.not_caught_up_ms
            if member not in linked:
                limit_ms = min(limit_ms, self._config.slave_timeout_ms)
            if now - self._reached_at.get(member, 0.0) <= limit_ms / 1000:
                wanted.add(member)
        self._last_look = (end, now)
        return None if wanted == self.members else frozenset(wanted)

    @property
    def changing(self) -> bool:
        """Whether a change of the set is proposed and not yet settled."""
        return self._proposed is not None

    def propose(self, members: frozenset[int]) -> None:
        """Propose a new set. From now on both sets count."""
        self._proposed = members

    def settle(self, members: Sequence[int], now: float) -> None:
        """Apply the set stored in etcd."""
        for member in members:
            self._reached_at.setdefault(member, now)
        for member in list(self._reached_at):
            if member not in members:
                del self._reached_at[member]
        self.members = frozenset(members)
        self._proposed = None
        for member in members:
            self._joining.pop(member, None)
        self.progressed()

"""The master's view of the in-sync set (Apache: AutoSwitchHAService, its sync state set and confirm offset).

``InSyncSet`` answers two questions at any moment: up to where does every member of the set have the log (sends
wait for that, ``ha.acks``), and up to where may consumers read. That is the same number, and under SYNC_FLUSH no more
than is on the master's disk: what not every member has, or a power cut takes, may be cut off by a failover, and a
consumer that had seen it would then skip what came in its place. So the master tells it to the members, who show
consumers no more than that either; a broker that has just started shows nothing before it knows.

A change of the set is proposed, written to etcd by the coordinator, and then taken or dropped. While that is
under way both sets count, since it is unknown which one is in force. A slave that joins is waited for some time
before that: from the moment it is near, no send is acknowledged without it, and it is proposed when it has the
log up to where it was at that moment. So it has everything acknowledged when etcd says that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.delivery.held_arrivals import HeldArrivals
from orbitmq.broker.replication.master import SlaveLink
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import FlushMode

__all__ = ["InSyncSet"]


class InSyncSet:
    """Exists all the time; the set counts only while this broker is master."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        links: Callable[[], Sequence[SlaveLink]],
        wake: Callable[[str, int], None],
    ) -> None:
        """``wake`` is called for a queue with messages that consumers may read now."""
        self._config = config
        self._store = store
        self._links = links
        self._wake = wake
        store.confirm_offset = 0
        self._own = config.broker_id
        self._proposed: frozenset[int] | None = None
        self._reached_at: dict[int, float] = {}
        self._joining: dict[int, tuple[int, float]] = {}
        """Who is waited for without being in the set yet: what it must have, and since when."""
        self._held = HeldArrivals()
        self._begun_at = 0
        self._flushing = False
        self._last_look = (0, 0.0)
        """The end of the log, and when that was."""
        self.members: frozenset[int] = frozenset()
        """As etcd has them."""
        self.active = False

    # -- life ------------------------------------------------------------------------------------------

    def begin(self, members: Sequence[int], log_offset: int, now: float) -> None:
        """This broker is master of an epoch that began at ``log_offset``."""
        self.members = frozenset(members)
        self._proposed = None
        self._joining.clear()
        self._flushing = False
        self._begun_at = log_offset
        self._last_look = (self._store.max_log_offset, now)
        self._reached_at = dict.fromkeys(self.members, now)
        self.active = True
        # What the last master told is safe still, also while members are missing.
        self._show(max(self._store.confirm_offset, self._readable_end()))

    def end(self) -> None:
        """This broker is no master any more. What was not safe stays hidden: the next master may not have it, and a
        consumer that reads it here would pass over what is stored in its place."""
        if self.active:
            self.active = False
            self.members = frozenset()
            self._proposed = None

    def told_safe(self, log_offset: int) -> None:
        """By the master: the whole set has the log up to here."""
        if not self.active and log_offset > self._store.confirm_offset:
            self._show(log_offset)

    # -- what is safe ----------------------------------------------------------------------------------

    def safe_end(self) -> int:
        """All members that must have the log have it up to here; -1 when one is missing."""
        ends: dict[int, int] = {}
        for link in self._links():
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
        """Who must have a message before it is acknowledged."""
        if self._proposed is None and not self._joining:
            return self.members
        return self.members | (self._proposed or frozenset()) | self._joining.keys()

    def progressed(self) -> None:
        """Slaves have more, or other slaves count: let consumers read what is safe now."""
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
        """What failed is tried again by whatever comes next; its sends are refused meanwhile."""
        self._flushing = False
        if done:
            self.progressed()

    def _show(self, log_offset: int) -> None:
        """Let consumers read up to there."""
        self._store.confirm_offset = log_offset
        for key in self._held.take(log_offset):
            self._wake(*key)

    def arrived(self, topic: str, queue_id: int) -> None:
        """A queue got messages; its readers are woken once they may read them."""
        end = self._store.max_log_offset
        if len(self._counted) == 1:
            self.progressed()
        if end <= self._store.confirm_offset:
            self._wake(topic, queue_id)
            return
        self._held.add(topic, queue_id, end)

    # -- changes ---------------------------------------------------------------------------------------

    def proposal(self, now: float) -> frozenset[int] | None:
        """The set as it should be; None when it is right. Who has no connection for ``slaveTimeout``, or has not
        reached the end for ``haMaxTimeSlaveNotCatchup``, leaves. Called once a round."""
        end = self._store.max_log_offset
        wanted = {self._own}
        linked: set[int] = set()
        for link in self._links():
            if not link.member or link.acknowledged < 0:
                continue
            linked.add(link.member)
            # Under load nobody is at the end; who has reached where it was at the last look follows well.
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
        """Whether a change of the set is proposed and not settled."""
        return self._proposed is not None

    def propose(self, members: frozenset[int]) -> None:
        """From now on both sets count."""
        self._proposed = members

    def settle(self, members: Sequence[int], now: float) -> None:
        """The set as stored in etcd."""
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

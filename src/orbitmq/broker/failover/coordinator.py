"""Elects and demotes the group's master: the holder of the master key (Apache: ReplicasManager and its controller).

Theory of operation
1. Every member has a lease in etcd and renews it three times per lifetime. Two keys are attached to it: every member
   has ``members/<n>``, and the elected one also has ``master``. ``state`` is permanent (see ``state``).
2. One task reads these keys about once a second and acts on them: lead, follow, or stand for election. It never
   assumes the outcome of a failed write; the next read shows it.
3. A master stops acting before its lease can expire for others. It measures by its own clock, from before it sent the
   last renewal, and subtracts a quarter. Then it fences itself: sends are refused, waiting sends are answered with
   FLUSH_SLAVE_TIMEOUT, and slaves are disconnected. Under SYNC_MASTER nothing depends on that clock: see rule 2 of
   ``state``.
4. When there is no master, a member of the in-sync set stops following, truncates whatever the history says does not
   belong to the group's log, and publishes its log end. When all live members of the set have published theirs, or
   failed to in time, they try in the order of ``rank``: each writes itself into the key and the next epoch into the
   state, in one transaction that fails if anything has changed since it read them. A member whose log may lack
   acknowledged bytes waits until all members of the set have published (``_doubt``) or an operator accepts the loss.
5. A slave that loses its connection to the master probes the master's machine. If both ports refuse connections, the
   process is gone, and the slave revokes the master's lease instead of waiting. Only a member of the in-sync set does
   so, and only where nothing depends on the master's clock (SYNC_MASTER that waits for the whole set). If a firewall
   refused the connections and the master is alive, it cannot acknowledge anything after the election either, and its
   next renewal shows that the lease is gone. A broker that finds its previous process's key revokes that lease.
6. A state write with an unknown outcome may take effect later. It names the revision it was based on, so it is
   harmless once the state has a newer one. Until then both in-sync sets count.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from orbitmq.broker.config import MASTER_ID, BrokerConfig, BrokerRole
from orbitmq.broker.delivery.durability import AckGate
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.failover.etcd import Compare, EtcdError, Put
from orbitmq.broker.failover.group_view import Seen, read_group
from orbitmq.broker.failover.parts import FailoverParts
from orbitmq.broker.failover.safe_end import LOOK_S
from orbitmq.broker.failover.state import (
    Acknowledged,
    GroupState,
    Master,
    Member,
    StateError,
    cut_point,
    rank,
)
from orbitmq.broker.roles import RoleSwitch
from orbitmq.errors import OrbitError, ServerError
from orbitmq.runtime.tasks import TaskOwner, every
from orbitmq.store.message_store import MessageStore
from orbitmq.transport.client import split_address

__all__ = ["Failover"]

logger = logging.getLogger(__name__)

_ROUND_S_MAX: Final = 1.0
_TELL_S: Final = 2.0
"""How long a candidate waits for the others to publish their log ends. They read the keys at least once a second."""
_CANDIDATE_ROUND_S: Final = 0.1
_NEW_GROUP_S: Final = 2.0
"""Like ``_TELL_S``, but for a group that has no state yet, because its brokers may just be starting."""
_RANK_S: Final = 1.0
_EAGER_S: Final = 0.1
_HAND_OVER_S: Final = 10.0
_REVOKE_S: Final = 1.0
_PROBE_S: Final = 0.5
_TABLES_S: Final = 4.0
"""How long to wait for members to copy tables: longer than a disconnected member stays in the in-sync set, shorter
than the timeout of admin tools."""
_TABLES_LOOK_S: Final = 0.005


class Failover:
    """This broker's part in the election."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        parts: FailoverParts,
        roles: RoleSwitch,
        gate: AckGate,
        events: BrokerEvents,
    ) -> None:
        self._config = config
        self._store = store
        self._roles = roles
        self._gate = gate
        self._events = events
        self._own = config.broker_id
        self._etcd = parts.etcd
        self._prefix = parts.prefix
        self.in_sync = parts.in_sync
        self._mastership = parts.mastership
        self._alignment = parts.alignment
        self._own_state = parts.alignment.own_state
        self._safe_end = parts.alignment.safe_end
        self._ttl_s = float(config.lease_ttl_s)
        self._tasks = TaskOwner("failover", watched=True)
        self._lease = 0
        self._renew_at = 0.0
        self._fence_timer: asyncio.TimerHandle | None = None
        self._pause_s = 0.0
        """Time until the next round."""
        self._eager = False
        """Whether an operator is waiting for this broker to become master."""
        self.ineligible = False
        """Whether there is no master and this broker may not become it."""
        self._vacant_since: float | None = None
        self._unpublished_at = 0.0
        """Last time a candidate had not yet published its log end. Ranked waiting starts here."""
        self._abstain_until = 0.0
        self._proposed_revision = -1
        self._accepts_loss = False
        """Whether an operator wants this broker elected regardless of what its log lacks."""
        self._wake = asyncio.Event()
        """Starts the next round immediately."""
        self.problem = ""
        """Why failover cannot work now; empty when it can."""
        events.master_lost.append(self._wake.set)

    @property
    def acting(self) -> bool:
        """Whether this broker is the master."""
        return self._mastership.acting

    @property
    def epoch(self) -> int:
        """The newest epoch that our log is part of."""
        return self._own_state.epoch

    @property
    def in_doubt(self) -> bool:
        """Whether our log may lack bytes that the group has acknowledged."""
        return self._own_state.in_doubt

    # -- lifecycle -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._tasks.start(self._run(), "rounds")
        self._tasks.start(every(0.1, self._check_minimum), "minimum")
        self._tasks.start(every(LOOK_S, self._keep_safe_end), "safe-end")

    async def stop(self) -> None:
        """Step down and revoke the lease, so that the others need not wait for it to expire."""
        if self.holds():
            # Messages and cursors of deliveries can still be replicated now, but not after demotion.
            await self._roles.end_deliveries()
        await self._tasks.close()
        self._fence()
        try:
            if self._lease:
                async with asyncio.timeout(_REVOKE_S):
                    await self._etcd.revoke(self._lease)
        except (OrbitError, TimeoutError) as error:
            logger.info("lease not revoked error=%s", error)
        await self._etcd.close()

    async def _run(self) -> None:
        while True:
            self._pause_s = _EAGER_S if self._eager else min(_ROUND_S_MAX, self._ttl_s / 6)
            try:
                await self.look()
                if not self.ineligible:
                    self._log_problem("")
            except (OrbitError, OSError) as error:
                self._log_problem(str(error))
            except Exception:  # one bad round must not end the group's only way to a master
                logger.exception("failover round failed")
            try:
                async with asyncio.timeout(self._pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    def _log_problem(self, text: str) -> None:
        """Log a problem once per outage, and the recovery once."""
        if bool(text) != bool(self.problem):
            if text:
                logger.warning("failover unavailable reason=%s", text)
            else:
                logger.info("failover available again")
        self.problem = text

    # -- observing the group ---------------------------------------------------------------------------

    async def look(self) -> None:
        """Run one round. Raises ``EtcdError``, ``StateError``, ``StoreError``."""
        await self._renew()
        seen = await self._read()
        self._alignment.take(seen)
        self.ineligible = False
        if self.acting:
            await self._lead(seen)
        elif seen.master_key is None:
            await self._stand(seen)
        elif self._is_ours(seen):
            await self._take_over(seen)
        else:
            self._vacant_since = None
            if await self._end_lease_of_dead(seen):
                self._pause_s = 0.0
            elif seen.master is not None and seen.master.member != self._own:
                self._alignment.note_whole()
                self._roles.follow(seen.master.address, seen.master.ha_address)

    async def _end_lease_of_dead(self, seen: Seen) -> bool:
        """Revoke the master's lease if its process is known to be gone. Returns whether the lease was revoked."""
        master, key, state = seen.master, seen.master_key, seen.state
        if master is None or key is None or not key.lease or self._roles.follower.link is not None:
            return False
        if master.member == self._own:
            # Nobody else can listen on our own addresses.
            gone = master.address == self._roles.address or master.ha_address == self._roles.ha_address
        else:
            gone = (
                self._config.failover_role == BrokerRole.SYNC_MASTER.value
                and self._config.all_in_sync_acknowledge
                and state is not None
                and self._own in state.in_sync
                and self._roles.follower.ha_address == master.ha_address
                and await _refuses(master.address)
                and await _refuses(master.ha_address)
            )
        if not gone:
            return False
        logger.warning("the master's process is gone member=%d epoch=%d", master.member, master.epoch)
        try:
            await self._etcd.revoke(key.lease)
        except EtcdError as error:
            if "lease not found" not in str(error):  # another slave was faster
                raise
        return True

    async def _read(self) -> Seen:
        return await read_group(self._etcd, self._prefix)

    def _is_ours(self, seen: Seen) -> bool:
        """Whether this process holds the master key. A key of our previous process has another lease."""
        key = seen.master_key
        return key is not None and key.lease == self._lease != 0

    # -- lease -----------------------------------------------------------------------------------------

    def holds(self) -> bool:
        """Whether this broker is master and no other broker can currently be."""
        return self._mastership.holds()

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._lease and began < self._renew_at:
            return
        if self._lease:
            ttl_s = await self._etcd.keep_alive(self._lease)
            if ttl_s > 0:
                self._renewed(began, ttl_s)
                return
            logger.warning("lease expired epoch=%d", self.epoch)
            self._lease = 0
            await self._demote()
        began = loop.time()
        self._lease, ttl_s = await self._etcd.grant(self._config.lease_ttl_s)
        self._renewed(began, ttl_s)
        await self._publish()

    def _renewed(self, began: float, ttl_s: int) -> None:
        self._ttl_s = float(ttl_s)
        self._renew_at = began + ttl_s / 3
        self._mastership.extend(began + ttl_s * 0.75)
        self._watch_lease()

    def _watch_lease(self) -> None:
        if self._fence_timer is not None:
            self._fence_timer.cancel()
            self._fence_timer = None
        if self.acting:
            loop = asyncio.get_running_loop()
            self._fence_timer = loop.call_at(self._mastership.held_until, self._lease_may_be_over)

    def _lease_may_be_over(self) -> None:
        self._fence_timer = None
        if self.acting:
            logger.warning("lease could not be renewed, demoted epoch=%d", self.epoch)
            self._fence()
            self._tasks.start(self._demote(), "demote")

    async def _publish(self, vacancy: int = -1) -> None:
        own = Member(
            self._own,
            self._roles.address,
            self._roles.ha_address,
            self.epoch,
            self._store.max_log_offset,
            vacancy,
        )
        await self._etcd.put(f"{self._prefix}members/{self._own}", msgspec.json.encode(own), self._lease)

    # -- master ----------------------------------------------------------------------------------------

    async def _take_over(self, seen: Seen) -> None:
        state, master = seen.state, seen.master
        if state is None or master is None or state.master != self._own or state.epoch != master.epoch:
            raise StateError(f"we hold the key of epoch {master and master.epoch}, but the state is {state}")
        loop = asyncio.get_running_loop()
        if loop.time() >= self._mastership.held_until or loop.time() < self._abstain_until:
            return
        begun_at = state.history[-1].log_offset if state.history else 0
        if self._store.max_log_offset < begun_at:
            raise StateError(
                f"elected with a log up to {begun_at}, which ends at {self._store.max_log_offset}"
            )
        if self._proposed_revision == seen.state_revision:
            # We were master of this epoch before, and one of our writes may still be in flight: supersede it.
            await self._write_state(seen, state)
            self._pause_s = 0.0
            return
        await self._roles.freeze()
        await self._alignment.lead(state.epoch, seen.acknowledged_end)
        self._vacant_since = None
        self.in_sync.begin(state.in_sync, begun_at, loop.time())
        self._mastership.begin(state.epoch)
        self._watch_lease()
        logger.info(
            "elected epoch=%d log_offset=%d in_sync=%s",
            state.epoch,
            self._store.max_log_offset,
            state.in_sync,
        )
        self._check_minimum()
        # This uses the version of the table as copied, so it must run before the version changes.
        self._roles.adopt_topics()
        self._events.elected(state.epoch)
        await self._roles.change(BrokerRole[self._config.failover_role], MASTER_ID)
        if not self.acting:
            await self._demote()

    async def _lead(self, seen: Seen) -> None:
        state = seen.state
        if not self._is_ours(seen) or state is None or state.epoch != self.epoch:
            logger.warning("this broker is no longer the master epoch=%d", self.epoch)
            await self._demote()
            return
        now = asyncio.get_running_loop().time()
        if seen.state_revision != self._proposed_revision:
            self._proposed_revision = -1
            self.in_sync.settle(state.in_sync, now)
            self._roles.replicas.acks.reported()
        if state.preferred not in (0, self._own):
            if state.preferred in state.in_sync and state.preferred in seen.members:
                logger.info("mastership handed over to=%d", state.preferred)
                await self._resign(seen)
                return
            await self._write_state(seen, msgspec.structs.replace(state, preferred=0))
            return
        wanted = self.in_sync.proposal(now)
        if wanted is None and self._proposed_revision == seen.state_revision:
            wanted = self.in_sync.members  # a write of unknown outcome must be superseded
        if wanted is None:
            return
        self._proposed_revision = seen.state_revision
        self.in_sync.propose(wanted)
        if await self._write_state(seen, state.with_in_sync(wanted)) and self.acting:
            logger.info("in-sync set changed from=%s to=%s", state.in_sync, sorted(wanted))
            self._proposed_revision = -1
            self.in_sync.settle(sorted(wanted), now)
            self._roles.replicas.acks.reported()

    async def _write_state(self, seen: Seen, state: GroupState) -> bool:
        """Replace the state in etcd, if it is unchanged since it was read and we still hold the master key. Returns
        whether it was replaced."""
        assert seen.master_key is not None
        return await self._etcd.transact(
            (
                Compare(f"{self._prefix}master", seen.master_key.create_revision, created=True),
                Compare(f"{self._prefix}state", seen.state_revision),
            ),
            (Put(f"{self._prefix}state", msgspec.json.encode(state)),),
        )

    async def _keep_safe_end(self) -> None:
        """Record how far the group has acknowledged, on disk and, as master, in etcd."""
        if not self._config.all_in_sync_acknowledge:
            return
        self._safe_end.keep()
        seen = self._alignment.seen
        if seen is not None and self.holds() and self._is_ours(seen):
            await self._safe_end.note(seen, self.epoch, asyncio.get_running_loop().time())

    def _check_minimum(self) -> None:
        """Refuse sends while too few members are in sync (``minInSyncReplicas``)."""
        minimum = self._config.min_in_sync_replicas
        refusal = ""
        if self.acting and len(self.in_sync.members) < minimum:
            refusal = f"the in-sync replicas are not enough: {len(self.in_sync.members)} of {minimum}"
        if refusal != self._gate.refusal:
            self._gate.refuse(refusal)
            if self.acting:
                self._events.announcement_changed()

    def _fence(self) -> None:
        """Stop acting as master without waiting for anything."""
        was_acting = self.acting
        self._mastership.end()
        if was_acting:
            self._watch_lease()
            self._roles.fence(self._own)
            self.in_sync.end()
            self._gate.refuse("")

    async def _demote(self) -> None:
        self._fence()
        await self._roles.change(BrokerRole.SLAVE, self._own)

    async def _resign(self, seen: Seen) -> None:
        """Hand the mastership to another member of the in-sync set."""
        await self._demote()
        self._abstain_until = asyncio.get_running_loop().time() + self._ttl_s
        assert seen.master_key is not None
        key = f"{self._prefix}master"
        try:
            await self._etcd.transact(
                (Compare(key, seen.master_key.create_revision, created=True),), (Put(key, None),)
            )
        except EtcdError:
            # The key may still be deleted later, so this lease must never make us master again.
            self._lease = 0
            raise

    # -- candidate -------------------------------------------------------------------------------------

    async def _stand(self, seen: Seen) -> None:
        """Stand for election, if allowed, while there is no master."""
        now = asyncio.get_running_loop().time()
        state = seen.state
        forced = self._accepts_loss
        if state is not None and self._own not in state.in_sync and not forced:
            self._mark_ineligible(f"it is not in sync, as {state.in_sync} are")
            return
        await self._roles.freeze()
        # An emptied store, or one that is too old, has nothing in common with the set's log.
        has_part = state is None or (self.epoch >= 1 and self._alignment.cut(state))
        if state is not None and has_part:
            self._own_state.cut_to(state.epoch)
        key = seen.members.get(self._own)
        end = self._store.max_log_offset
        is_published = key is not None and (key.log_end, key.vacancy) == (end, seen.state_revision)
        if not is_published:
            await self._publish(seen.state_revision)
        if not has_part:
            self._mark_ineligible(f"its log is of epoch {self.epoch}, which the history does not reach")
            return
        self._pause_s = min(self._pause_s, _CANDIDATE_ROUND_S)
        if self._vacant_since is None:
            self._vacant_since = now
        if not is_published:
            return
        if forced:
            await self._elect(seen, end, forced=True)
            return
        if now < self._abstain_until and len(seen.members) > 1:
            return
        doubt = self._doubt(seen, end)
        if doubt:
            self._mark_ineligible(doubt)
            return
        candidates = [one for one in seen.members.values() if state is None or one.member in state.in_sync]
        own = Member(self._own, "", "", self.epoch, end)
        place = rank(own, candidates, 0 if state is None else state.preferred)
        patience_s = _NEW_GROUP_S if state is None else _TELL_S
        some_unpublished = state is None or any(one.vacancy != seen.state_revision for one in candidates)
        if some_unpublished and now - self._vacant_since < patience_s:
            self._unpublished_at = now
            return
        if now - max(self._unpublished_at, self._vacant_since) < place * _RANK_S:
            return
        await self._elect(seen, end)

    async def _elect(self, seen: Seen, end: int, *, forced: bool = False) -> None:
        """Write ourselves into etcd as the master of the next epoch, if nothing has changed since the read."""
        state, acknowledged = seen.state, self._acknowledged(seen)
        if state is None:
            after = GroupState.first(self._own, end, max(0, self.epoch) + 1, acknowledged=acknowledged)
        else:
            after = state.elected(self._own, end, acknowledged=acknowledged, alone=forced)
        master = Master(
            self._own,
            self._roles.address,
            self._roles.ha_address,
            after.epoch,
            self._store.flush_mode.value,
        )
        puts = [
            Put(f"{self._prefix}master", msgspec.json.encode(master), self._lease),
            Put(f"{self._prefix}state", msgspec.json.encode(after)),
        ]
        if acknowledged > end:
            value = msgspec.json.encode(Acknowledged(after.epoch, end))
            puts.append(Put(f"{self._prefix}acknowledged", value))
        won = await self._etcd.transact(
            (Compare(f"{self._prefix}master", 0), Compare(f"{self._prefix}state", seen.state_revision)), puts
        )
        if won:
            self._pause_s = 0.0
            self._accepts_loss = False
            if forced or self.in_doubt or acknowledged > end:
                logger.error("elected with possible loss epoch=%d %s", after.epoch, self._loss(seen, end))

    def _doubt(self, seen: Seen, end: int) -> str:
        """Returns why our log may lack acknowledged messages that another member may have. Empty if it lacks none, or
        if no other member can have more."""
        state = seen.state
        if state is None or not (self.in_doubt or end < self._acknowledged(seen)):
            return ""
        missing = seen.missing(self._own)
        if missing:
            return (
                f"its log may lack acknowledged messages ({self._loss(seen, end)}), and members {missing} of the "
                "in-sync set, which may have them, are not back; start them, or accept the loss: "
                f"orbitmq admin changeRole -b {self._roles.address} -r {self._config.failover_role} --acceptLoss"
            )
        longer = [one for one in state.in_sync if one != self._own and seen.members[one].log_end > end]
        return f"members {longer} have more of the log" if longer else ""

    def _acknowledged(self, seen: Seen) -> int:
        """Returns a lower bound of the log end that the group has acknowledged, according to etcd and our own
        file."""
        return max(seen.acknowledged_end, self._safe_end.kept)

    def _loss(self, seen: Seen, end: int) -> str:
        """Returns a description of what would be lost if we were elected now, as far as that is known."""
        parts = [f"our log ends at {end}"]
        acknowledged = self._acknowledged(seen)
        if end < acknowledged:
            parts.append(
                f"messages were acknowledged up to {acknowledged} at least, "
                f"so {acknowledged - end} bytes or more are missing"
            )
        if self.in_doubt:
            parts.append("what was not flushed before the unclean stop of this broker may be missing")
        return "; ".join(parts)

    def _mark_ineligible(self, reason: str) -> None:
        self.ineligible = True
        self._vacant_since = None
        self._log_problem(f"there is no master, and this broker may not become it: {reason}")

    # -- requests --------------------------------------------------------------------------------------

    async def tables_copied(self) -> None:
        """Wait until every other member of the in-sync set has the current topics and groups, so that the next master
        has them. Raises ``ServerError`` if that takes too long."""
        replicas = self._roles.replicas
        try:
            async with asyncio.timeout(_TABLES_S):
                while missing := self.in_sync.members - replicas.tables_copied - {self._own}:  # noqa: ASYNC110
                    await asyncio.sleep(_TABLES_LOOK_S)
        except TimeoutError:
            raise ServerError(
                f"the change is stored, but members {sorted(missing)} of the failover group have not copied it, so a "
                "failover may discard it; repeat the request"
            ) from None

    async def change_role(self, role: BrokerRole, broker_id: int, *, accept_loss: bool = False) -> None:
        """Carry out an operator's role change through etcd. With ``accept_loss`` this broker is elected even if its
        log may lack acknowledged messages. Raises ``ServerError`` with the reason when the change is impossible."""
        seen = self._alignment.seen
        if seen is None or seen.state is None:
            raise ServerError("failover is on and etcd has not answered yet, so no role can change")
        if role is BrokerRole.SLAVE:
            if broker_id != self._own:
                raise ServerError(f"with failover this broker has the id {self._own}, not {broker_id}")
            await self._hand_over()
        elif role.value != self._config.failover_role:
            raise ServerError(f"with failover a master is {self._config.failover_role} (failoverRole)")
        else:
            await self._request_election(accept_loss=accept_loss)

    async def _hand_over(self) -> None:
        seen = await self._fresh()
        state = seen.state
        if not self.acting or state is None:
            return
        others = [one for one in state.in_sync if one != self._own and one in seen.members]
        if not others:
            raise ServerError(
                f"no other broker of the group is alive and in sync (in sync: {state.in_sync}); this one stays master"
            )
        await self._resign(seen)

    async def _request_election(self, *, accept_loss: bool) -> None:
        seen = await self._fresh()
        state = seen.state
        if self.acting or state is None:
            return
        if accept_loss and seen.master_key is None:
            await self._take_over_with_loss(state)
            return
        if self._own not in state.in_sync:
            raise ServerError(
                f"this broker is not in the in-sync set {state.in_sync}: as a master it would lose messages"
            )
        if seen.master_key is None:
            raise ServerError(
                self._doubt(seen, self._store.max_log_offset)
                or "an election is under way; ask again when it is over"
            )
        self._eager = True
        try:
            written = await self._write_state(seen, msgspec.structs.replace(state, preferred=self._own))
            if not written:
                raise ServerError("the group changed in the meantime; repeat the request")
            await self._until_serving()
        except EtcdError as error:
            raise ServerError(f"etcd does not answer: {error}") from None
        except TimeoutError:
            raise ServerError("the master did not hand over in time; see its log") from None
        finally:
            self._eager = False

    async def _until_serving(self) -> None:
        """Wait until this broker serves as master. Raises ``TimeoutError``."""
        async with asyncio.timeout(_HAND_OVER_S + 2 * self._ttl_s):
            while not self._serving():  # noqa: ASYNC110 - several parties take part in becoming master
                await asyncio.sleep(0.05)

    async def _take_over_with_loss(self, state: GroupState) -> None:
        if self.epoch < 1 or (self.epoch != state.epoch and cut_point(state, self.epoch) is None):
            raise ServerError(
                f"this broker's log is of epoch {self.epoch}, which the group's history does not reach: it has no "
                "part of what the group acknowledged"
            )
        self._accepts_loss = self._eager = True
        self._wake.set()
        try:
            await self._until_serving()
        except TimeoutError:
            raise ServerError(
                f"this broker was not elected in time: {self.problem or 'see its log'}"
            ) from None
        finally:
            self._accepts_loss = self._eager = False

    def _serving(self) -> bool:
        return self.acting and not self._config.is_slave

    async def _fresh(self) -> Seen:
        try:
            return await self._read()
        except OrbitError as error:
            raise ServerError(f"etcd does not answer: {error}") from None


async def _refuses(address: str) -> bool:
    """Whether the machine refuses connections to that port, because no process listens on it. A timeout does not
    count."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_PROBE_S):
            transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError, ValueError):
        return False
    transport.abort()
    return False

"""A small model of the election, explored at random or exhaustively: leases, epochs, in-sync set, flushes, cuts.

The rules are not modelled again: elections, the history, truncation points and ranks are the functions of
``orbitmq.broker.failover.state``. The model adds what they run in: members that crash, lose their power, are cut off
from etcd or come back, one message at a time. Its invariants are the promises of ``docs/failover.md``:

* ``kept``: under SYNC_FLUSH a message acknowledged to a sender is in the log of every later master, whatever crashes,
  power cuts and network faults happened, unless an operator accepted the loss.
* ``one master``: at most one member is sure to be master.
* ``agreement``: two logs agree in everything that the group has acknowledged.
* ``no cut``: no member cuts an acknowledged message off its log.

Left out: an operator who accepts a loss, changes of ``flushDiskType``, and the time between a read of etcd and the
write that depends on it, which etcd's comparison covers.

    python -m tests.model                        # 1,000 random walks for each flush mode
    python -m tests.model --exhaustive 9         # all histories of up to 9 steps
    python -m tests.model --broken ack-unflushed
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from orbitmq.broker.failover.state import GroupState, Member, acknowledged_loss, cut_point, rank

__all__ = ["BREAKS", "Model", "Violation", "explore", "walk"]

Log: TypeAlias = tuple[tuple[int, int], ...]
"""A message is the epoch in which it was stored, and a number that no other message has."""
LOG_MAX: Final = 4
EPOCHS_MAX: Final = 5
BREAKS: Final = {
    "ack-unflushed": "rule 1: members report what they have written, although they flush",
    "ack-without-set": "rule 1: a message is acknowledged when the master has it",
    "elect-outsider": "rule 2: a member outside the set is elected",
    "no-doubt": "rule 3: a member that may have lost messages is elected like any other",
    "no-cut": "rule 4: a log keeps what does not belong to the group's",
    "keep-epoch": "rule 4: a member enters an epoch without saving it",
    "no-lease": "a master whose lease has ended still believes in it",
    "join-early": "a member joins the set before it has everything acknowledged",
}


class Violation(AssertionError):
    """An invariant does not hold."""


@dataclass(frozen=True)
class Node:
    """One member: its disk, its page cache, and what its process believes."""

    log: Log = ()
    flushed: int = 0
    epoch: int = 0
    is_up: bool = True
    in_doubt: bool = False
    exposed: bool = False
    """Whether it has reported messages that it had not flushed (ASYNC_FLUSH)."""
    acting: int = 0
    """The epoch in which it acts as master; 0 if it does not."""
    follows: int = 0
    """The epoch of the master it follows; 0 if it does not."""


@dataclass(frozen=True)
class World:
    """One state of everything."""

    nodes: tuple[Node, ...]
    group: GroupState | None = None
    holder: int = 0
    """The member whose key is in etcd; 0 when there is no master."""
    lease_over: bool = False
    """Whether the holder's own clock says that its lease is over. Its key ends only after that."""
    acknowledged: tuple[tuple[int, int], ...] = ()
    next_number: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for equal states; the group's state is not hashable."""
        return (self.nodes, repr(self.group), self.holder, self.lease_over, self.acknowledged)


Step: TypeAlias = tuple[str, World]


class Model:
    """Steps and invariants for a number of members, a flush mode, and perhaps one broken rule."""

    def __init__(self, members: int = 3, *, flushes: bool = True, broken: str = "") -> None:
        assert broken in ("", *BREAKS), broken
        self.members = members
        self.flushes = flushes
        self.broken = broken

    def start(self) -> World:
        nodes = (Node(),) * self.members
        return World(nodes)

    # -- steps
    def steps(self, world: World) -> Iterator[Step]:
        """Yields every next state and the name of the step that leads to it."""
        for member in range(1, self.members + 1):
            node = world.nodes[member - 1]
            if not node.is_up:
                yield f"start {member}", self._put(world, member, replace(node, is_up=True))
                continue
            yield from self._faults(world, member, node)
            yield from self._elections(world, member, node)
            if node.acting:
                yield from self._masters(world, member, node)
            else:
                yield from self._slaves(world, member, node)
            if node.flushed < len(node.log):
                yield f"flush {member}", self._put(world, member, replace(node, flushed=len(node.log)))
        if world.holder and not world.lease_over:
            # The master stops acting by its own clock before its key can end.
            after = replace(world, lease_over=True)
            holder = world.nodes[world.holder - 1]
            if holder.acting and self.broken != "no-lease":
                after = self._put(after, world.holder, replace(holder, acting=0))
            yield "lease over", after
        if world.holder and world.lease_over:
            yield "key ends", replace(world, holder=0, lease_over=False)

    def _faults(self, world: World, member: int, node: Node) -> Iterator[Step]:
        dead = replace(node, is_up=False, acting=0, follows=0)
        yield f"kill {member}", self._put(world, member, dead)
        lost = len(node.log) > node.flushed
        if lost or not self.flushes:
            dead = replace(
                dead, log=node.log[: node.flushed], in_doubt=node.in_doubt or node.exposed, exposed=False
            )
            yield f"power cut {member}", self._put(world, member, dead)

    def _elections(self, world: World, member: int, node: Node) -> Iterator[Step]:
        if world.holder or node.acting:
            return
        group = world.group
        if group is None:
            after = GroupState.first(member, len(node.log), 1)
            yield f"found {member}", self._elected(world, member, node, after)
            return
        if group.epoch >= EPOCHS_MAX:
            return
        if member not in group.in_sync and self.broken != "elect-outsider":
            return
        cut = self._cut(group, node)
        if cut is None:
            return
        standing = replace(cut, epoch=group.epoch, follows=0)
        if node != standing:
            yield f"stand {member}", self._put(world, member, standing)
            return
        others = {
            other: world.nodes[other - 1]
            for other in group.in_sync
            if other != member and world.nodes[other - 1].is_up
        }
        published = all(one.epoch == group.epoch and not one.follows for one in others.values())
        # Others that have not published in time are passed over, so only published ones count.
        ranked = [
            Member(other, "", "", one.epoch, len(one.log))
            for other, one in others.items()
            if not one.acting and one.epoch == group.epoch
        ]
        if rank(Member(member, "", "", node.epoch, len(node.log)), ranked, 0):
            return
        if node.in_doubt and self.broken != "no-doubt":
            missing = [one for one in group.in_sync if one != member and one not in others]
            if missing or not published:
                return
            if any(len(one.log) > len(node.log) for one in others.values()):
                return
        yield f"elect {member}", self._elected(world, member, node, group.elected(member, len(node.log)))

    def _elected(self, world: World, member: int, node: Node, after: GroupState) -> World:
        epoch = node.epoch if self.broken == "keep-epoch" else after.epoch
        flushed = len(node.log) if self.flushes else node.flushed
        own = replace(
            node,
            acting=after.epoch,
            follows=0,
            epoch=epoch,
            in_doubt=False,
            flushed=flushed,
            exposed=not self.flushes,
        )
        return replace(self._put(world, member, own), group=after, holder=member, lease_over=False)

    def _masters(self, world: World, member: int, node: Node) -> Iterator[Step]:
        group = world.group
        assert group is not None
        if len(node.log) < LOG_MAX:
            message = (node.acting, world.next_number)
            after = self._put(world, member, replace(node, log=(*node.log, message)))
            yield f"append {member}", replace(after, next_number=world.next_number + 1)
        safe = self._safe_end(world, member, node)
        news = tuple(one for one in node.log[:safe] if one not in world.acknowledged)
        if news:
            yield f"acknowledge {member}", replace(world, acknowledged=(*world.acknowledged, *news))
        if world.holder != member or group.epoch != node.acting:
            return  # etcd refuses its writes
        for other in range(1, self.members + 1):
            one = world.nodes[other - 1]
            if other in group.in_sync and other != member and one.follows != node.acting:
                kept = [each for each in group.in_sync if each != other]
                yield f"remove {other}", replace(world, group=group.with_in_sync(kept))
            if other not in group.in_sync and one.follows == node.acting and one.is_up:
                has = self._reported(one)
                if has >= len(node.log) or self.broken == "join-early":
                    joined = group.with_in_sync([*group.in_sync, other])
                    yield f"join {other}", replace(world, group=joined)

    def _safe_end(self, world: World, member: int, node: Node) -> int:
        """How much the master may acknowledge: what it and every member of the set that follows it have."""
        assert world.group is not None
        safe = self._reported(node)
        if self.broken == "ack-without-set":
            return safe
        # A deposed master knows the set as it was; its former members do not report to it any more.
        for other in world.group.in_sync:
            if other != member:
                one = world.nodes[other - 1]
                follows = one.is_up and one.follows == node.acting
                safe = min(safe, self._reported(one) if follows else 0)
        if world.group.epoch != node.acting:
            return 0
        return safe

    def _reported(self, node: Node) -> int:
        return node.flushed if self.flushes and self.broken != "ack-unflushed" else len(node.log)

    def _slaves(self, world: World, member: int, node: Node) -> Iterator[Step]:
        if not world.holder or world.group is None or world.holder == member:
            return
        master = world.nodes[world.holder - 1]
        if not (master.is_up and master.acting == world.group.epoch):
            return
        if node.follows != master.acting:
            cut = self._cut(world.group, node)
            if cut is None:
                return
            flushed = len(cut.log) if self.flushes else cut.flushed
            epoch = node.epoch if self.broken == "keep-epoch" else master.acting
            following = replace(
                cut, follows=master.acting, epoch=epoch, flushed=flushed, exposed=not self.flushes
            )
            yield f"follow {member}", self._put(world, member, following)
            return
        if len(node.log) < len(master.log):
            more = (*node.log, master.log[len(node.log)])
            doubt = node.in_doubt and len(more) < len(master.log)
            yield f"copy {member}", self._put(world, member, replace(node, log=more, in_doubt=doubt))

    def _cut(self, group: GroupState, node: Node) -> Node | None:
        """The node with its log cut to what it has in common with the newest one; None when the history does not say,
        or when acknowledged messages would go."""
        if node.epoch == group.epoch or self.broken == "no-cut":
            return node
        end = cut_point(group, node.epoch)
        if end is None:
            return node if not node.log else None
        if acknowledged_loss(group, node.epoch, len(node.log)) is not None:
            return None
        end = min(end, len(node.log))
        return replace(node, log=node.log[:end], flushed=min(node.flushed, end))

    @staticmethod
    def _put(world: World, member: int, node: Node) -> World:
        nodes = list(world.nodes)
        nodes[member - 1] = node
        return replace(world, nodes=tuple(nodes))

    # -- invariants
    def check(self, before: World, step: str, after: World) -> None:
        """Raises ``Violation``."""
        acting = [number for number, node in enumerate(after.nodes, 1) if node.acting]
        if len(acting) > 1:
            raise Violation(f"one master: members {acting} are both sure to be master")
        if step.startswith(("elect", "found")):
            log = after.nodes[after.holder - 1].log
            lost = [one for one in after.acknowledged if one not in log]
            everywhere = self.flushes or self._some_copy_lives(after, lost)
            if lost and everywhere:
                raise Violation(f"kept: acknowledged {lost} are not in the log of the new master")
        for old, new in zip(before.nodes, after.nodes, strict=True):
            gone = set(old.log) - set(new.log)
            if step.startswith(("stand", "follow")) and gone & set(after.acknowledged) and self.flushes:
                raise Violation(f"no cut: acknowledged {gone} were cut off")
        if self.flushes:
            self._check_agreement(after)

    @staticmethod
    def _some_copy_lives(world: World, lost: list[tuple[int, int]]) -> bool:
        """Whether a member of the set still has one of the messages; under ASYNC_FLUSH a power cut may take all."""
        assert world.group is not None
        return any(one in world.nodes[member - 1].log for one in lost for member in world.group.in_sync)

    @staticmethod
    def _check_agreement(world: World) -> None:
        for one in world.acknowledged:
            places = {node.log.index(one) for node in world.nodes if one in node.log}
            if len(places) > 1:
                raise Violation(f"agreement: acknowledged {one} is in places {places}")


def walk(model: Model, seed: int, steps: int) -> int:
    """Take one random walk; returns its number of steps. Raises ``Violation`` with the steps that led to it."""
    chance, world = random.Random(seed), model.start()
    trace: list[str] = []
    for _ in range(steps):
        options = list(model.steps(world))
        if not options:
            break
        step, after = _weighted(chance, options)
        trace.append(step)
        try:
            model.check(world, step, after)
        except Violation as error:
            raise Violation(f"{error}\n  seed {seed}: {', '.join(trace)}") from None
        world = after
    return len(trace)


def _weighted(chance: random.Random, options: list[Step]) -> Step:
    """Faults are rarer than work, or nothing would ever be acknowledged."""
    weights = [1 if step.startswith(("kill", "power", "lease", "remove")) else 4 for step, _ in options]
    return chance.choices(options, weights)[0]


def explore(model: Model, depth: int, states_max: int) -> tuple[int, bool]:
    """Visit every state within ``depth`` steps, breadth first; returns how many, and whether that was all of them.

    Raises ``Violation`` with a shortest history that leads to it.
    """
    first = model.start()
    seen: set[tuple[object, ...]] = {first.key}
    layer: list[tuple[World, tuple[str, ...]]] = [(first, ())]
    for _ in range(depth):
        following: list[tuple[World, tuple[str, ...]]] = []
        for world, before in layer:
            for step, after in model.steps(world):
                trace = (*before, step)
                try:
                    model.check(world, step, after)
                except Violation as error:
                    raise Violation(f"{error}\n  {', '.join(trace)}") from None
                if after.key not in seen:
                    if len(seen) >= states_max:
                        return len(seen), False
                    seen.add(after.key)
                    following.append((after, trace))
        layer = following
    return len(seen), True

"""The state that a broker group shares through etcd, as values, and the rules that govern it. No I/O, no clock.

Terms: an **epoch** is one master's term; every election begins the next one. The **in-sync set** is the set of
members that have everything a master may have acknowledged. The **history** lists the log offset at which each epoch
began.

Rules
1. A master acknowledges only messages that every member of the set has. Only the master of the current epoch changes
   the set, and only by compare-and-swap on the state. Under SYNC_FLUSH (the master's ``flushDiskType`` decides, and
   is in its key) *has* means flushed, otherwise written.
2. Only a member of the set is elected, by a compare-and-swap on the same state. It stops following before that, so
   nothing more can be acknowledged under the set that was compared. Among the live members the one with the longest
   log goes first.
3. A member whose log is in doubt (``own_state``), or is shorter than what the group is known to have acknowledged,
   is elected only when all members of the set are back and none has a longer log, or when an operator accepts the
   loss. So the elected master's log has everything acknowledged, unless every member has lost it.
4. A candidate truncates its log by the history before it is elected. So the log of an epoch's master begins as a
   prefix of the previous epoch's log, and the log of a member that knows it up to epoch e agrees with the log of
   epoch k up to the smallest first offset of the epochs e + 1 to k. Anything after that was never acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from orbitmq.errors import OrbitError

__all__ = [
    "Acknowledged",
    "GroupState",
    "Master",
    "Member",
    "StateError",
    "acknowledged_loss",
    "cut_point",
    "decode",
    "rank",
]

T = TypeVar("T")

_HISTORY_MAX: Final = 128
"""Number of epochs kept. A member that was away for longer compares its log record by record instead."""


_ANY_OFFSET: Final = 1 << 62


class StateError(OrbitError):
    """A value in etcd is not valid for this group."""


class Master(msgspec.Struct, frozen=True, rename="camel"):
    """The master key, which expires with its master's lease."""

    member: int
    address: str
    ha_address: str
    epoch: int
    flush: str = ""
    """The master's ``flushDiskType``, which decides what members report; empty from versions that did not publish
    it."""


class Acknowledged(msgspec.Struct, frozen=True, rename="camel"):
    """A lower bound of what the whole in-sync set has acknowledged, written by the master."""

    epoch: int
    log_offset: int


class Member(msgspec.Struct, frozen=True, rename="camel"):
    """A live broker's key, which expires with its lease."""

    member: int
    address: str
    ha_address: str
    epoch: int = 0
    """The newest epoch that the member's log is part of; -1 if unknown, because the log predates failover."""
    log_end: int = 0
    """The end of the member's log. Published at start and when the master is lost."""
    vacancy: int = -1
    """The revision of the state at which the member stopped following, so that ``log_end`` no longer
    changes."""


class Beginning(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The log offset at which an epoch began."""

    epoch: int
    log_offset: int
    gave_up: int = 0
    """The log offset up to which the group had, or may have, acknowledged bytes beyond the elected master's log; 0 if
    the master had everything."""


class GroupState(msgspec.Struct, frozen=True, rename="camel"):
    """The group's permanent state, which does not expire with any lease."""

    epoch: int
    master: int
    in_sync: list[int]
    history: list[Beginning]
    preferred: int = 0
    """The next master chosen by an operator; 0 when none is chosen."""

    def elected(self, member: int, log_end: int, *, acknowledged: int = 0, alone: bool = False) -> GroupState:
        """Returns the state after an election. The lost master leaves the set; the others stay because they
        have everything it acknowledged. ``acknowledged`` is the log end up to which the group is known to have
        acknowledged. ``alone`` means that an operator has chosen this member regardless of what the others
        have."""
        in_sync = [one for one in self.in_sync if one != self.master or one == member]
        gave_up = acknowledged if acknowledged > log_end else 0
        if alone:
            # Etcd does not have what was acknowledged most recently yet.
            in_sync, gave_up = [member], _ANY_OFFSET
        beginning = Beginning(self.epoch + 1, log_end, gave_up)
        return GroupState(
            epoch=self.epoch + 1,
            master=member,
            in_sync=in_sync,
            history=[*self.history, beginning][-_HISTORY_MAX:],
        )

    def with_in_sync(self, members: Iterable[int]) -> GroupState:
        return msgspec.structs.replace(self, in_sync=sorted(members))

    @staticmethod
    def first(member: int, log_end: int, epoch: int, *, acknowledged: int = 0) -> GroupState:
        """Returns the first state of a new group, or of a group whose state was lost."""
        beginning = Beginning(epoch, log_end, acknowledged if acknowledged > log_end else 0)
        return GroupState(epoch=epoch, master=member, in_sync=[member], history=[beginning])


def decode(content: bytes, kind: type[T]) -> T:
    """Decodes a value from etcd. Raises ``StateError``."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise StateError(f"a {kind.__name__} in etcd that cannot be read: {error}") from None


def cut_point(state: GroupState, epoch: int) -> int | None:
    """Returns the log offset up to which a log known up to ``epoch`` is certain to agree with the newest epoch's log.

    None if the history does not tell. It never does for the current epoch, whose log is the newest one.
    """
    if epoch >= state.epoch or epoch < 0:
        return None
    later = [begun for begun in state.history if begun.epoch > epoch]
    if not later or later[0].epoch != epoch + 1:
        return None
    return min(begun.log_offset for begun in later)


def acknowledged_loss(state: GroupState, epoch: int, log_end: int) -> tuple[int, int] | None:
    """Returns the range of bytes that truncating a log known up to ``epoch`` would remove although they were, or may
    have been, acknowledged; None if the history shows no such bytes."""
    common = log_end
    lost: tuple[int, int] | None = None
    for begun in state.history:
        if begun.epoch <= epoch:
            continue
        if begun.log_offset < min(begun.gave_up, common):
            end = min(begun.gave_up, common) if lost is None else lost[1]
            lost = (begun.log_offset, end)
        common = min(common, begun.log_offset)
    return lost


def rank(own: Member, candidates: Iterable[Member], preferred: int) -> int:
    """Returns how many candidates go before us: first the preferred one, then by newest epoch, longest log and lowest
    number."""

    def key(member: Member) -> tuple[bool, int, int, int]:
        return (member.member != preferred, -member.epoch, -member.log_end, member.member)

    mine = key(own)
    return sum(key(candidate) < mine for candidate in candidates if candidate.member != own.member)

"""What a broker group agrees on in etcd, as values, and the rules over them. No IO, no clock.

Terms: an **epoch** is the time of office of one master; every election begins the next one. The **in-sync set**
are the members that have everything a master may have acknowledged. The **history** says where in the log each
epoch began.

Rules
1. A master acknowledges only what every member of the set has; the set changes only by compare-and-swap on the
   state, and only by the master of the current epoch. Under SYNC_FLUSH (the master's ``flushDiskType`` decides, and
   is in its key) *has* means flushed, else written.
2. Only a member of the set is elected, by a compare-and-swap on the same state; before that it has stopped to
   follow, so nothing can be acknowledged any more under the set that was compared. Of those that are alive the one
   with the longest log goes first.
3. A member whose log is in doubt (``own_state``), or is shorter than what the group is known to have acknowledged,
   is elected only when all members of the set are back and none has a longer log, or when an operator accepts the
   loss. So everything acknowledged is in the log of whoever is elected, unless every member lost it.
4. A candidate cuts its log by the history before it is elected. So the log of an epoch's master begins as a part
   of the log of the epoch before, and the log of a member that knows it up to epoch e agrees with the one of
   epoch k up to the smallest beginning of the epochs e + 1 to k. What stands after that was never acknowledged.
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
"""Epochs remembered. A member that slept longer compares its log record by record instead."""


_ANY_OFFSET: Final = 1 << 62


class StateError(OrbitError):
    """A value in etcd is not ours."""


class Master(msgspec.Struct, frozen=True, rename="camel"):
    """The key that lives as long as its master's lease."""

    member: int
    address: str
    ha_address: str
    epoch: int
    flush: str = ""
    """Its ``flushDiskType``, which decides what members report; empty from versions that did not say."""


class Acknowledged(msgspec.Struct, frozen=True, rename="camel"):
    """A lower bound of what the whole in-sync set has acknowledged; written by the master every few seconds."""

    epoch: int
    log_offset: int


class Member(msgspec.Struct, frozen=True, rename="camel"):
    """A broker that is there; lives as long as its lease."""

    member: int
    address: str
    ha_address: str
    epoch: int = 0
    """The newest epoch its log has a part of; -1: unknown, the log is from before failover was switched on."""
    log_end: int = 0
    """Told when the master was lost, and at start."""
    vacancy: int = -1
    """The revision of the state under which it has stopped to follow: ``log_end`` does not move any more."""


class Beginning(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where in the log an epoch began."""

    epoch: int
    log_offset: int
    gave_up: int = 0
    """Up to where the group had, or may have, acknowledged more than its elected master had; 0 when it had
    everything."""


class GroupState(msgspec.Struct, frozen=True, rename="camel"):
    """What stays when all members are gone."""

    epoch: int
    master: int
    in_sync: list[int]
    history: list[Beginning]
    preferred: int = 0
    """Who is to be the next master, chosen by an operator; 0: none chosen."""

    def elected(self, member: int, log_end: int, *, acknowledged: int = 0, alone: bool = False) -> GroupState:
        """The state after an election. The master that was lost leaves the set; the others stay, for they have what
        it acknowledged. ``acknowledged``: the end up to which the group is known to have acknowledged. ``alone``: an
        operator has chosen this member whatever the others have."""
        in_sync = [one for one in self.in_sync if one != self.master or one == member]
        gave_up = acknowledged if acknowledged > log_end else 0
        if alone:
            # What was acknowledged in the last seconds is not in etcd yet.
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
        """The state a new group begins with, or one whose state was lost."""
        beginning = Beginning(epoch, log_end, acknowledged if acknowledged > log_end else 0)
        return GroupState(epoch=epoch, master=member, in_sync=[member], history=[beginning])


def decode(content: bytes, kind: type[T]) -> T:
    """A value out of etcd. Raises ``StateError``."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise StateError(f"a {kind.__name__} in etcd that cannot be read: {error}") from None


def cut_point(state: GroupState, epoch: int) -> int | None:
    """How far a log known up to ``epoch`` surely agrees with the newest one; None when the history does not say.

    It never says so for the current epoch, whose log is the newest one.
    """
    if epoch >= state.epoch or epoch < 0:
        return None
    later = [begun for begun in state.history if begun.epoch > epoch]
    if not later or later[0].epoch != epoch + 1:
        return None
    return min(begun.log_offset for begun in later)


def acknowledged_loss(state: GroupState, epoch: int, log_end: int) -> tuple[int, int] | None:
    """The range of bytes that were, or may have been, acknowledged and that the cut of a log known up to ``epoch``
    would remove; None when the history knows of none."""
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


def rank(own: Member, rivals: Iterable[Member], preferred: int) -> int:
    """How many should try before us: the preferred one, then by the newest epoch, the longest log, the number."""

    def key(member: Member) -> tuple[bool, int, int, int]:
        return (member.member != preferred, -member.epoch, -member.log_end, member.member)

    mine = key(own)
    return sum(key(rival) < mine for rival in rivals if rival.member != own.member)

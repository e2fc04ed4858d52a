"""What a broker group agrees on in etcd, as values, and the rules over them. No IO, no clock.

Terms: an **epoch** is the time of office of one master; every election begins the next one. The **in-sync set**
are the members that have everything a master may have acknowledged. The **history** says where in the log each
epoch began.

Rules
1. A master acknowledges only what every member of the set has; the set changes only by compare-and-swap on the
   state, and only by the master of the current epoch.
2. Only a member of the set is elected, by a compare-and-swap on the same state; before that it has stopped to
   follow, so nothing can be acknowledged any more under the set that was compared. Of those that are alive the one
   with the longest log goes first: a member whose machine lost its power may lack what it had not flushed.
3. So everything acknowledged is in the log of whoever is elected.
4. A candidate cuts its log by the history before it is elected. So the log of an epoch's master begins as a part
   of the log of the epoch before, and the log of a member that knows it up to epoch e agrees with the one of
   epoch k up to the smallest beginning of the epochs e + 1 to k. What stands after that was never acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from orbitmq.errors import OrbitError

__all__ = ["GroupState", "Master", "Member", "StateError", "cut_point", "decode", "rank"]

T = TypeVar("T")

_HISTORY_MAX: Final = 128
"""Epochs remembered. A member that slept longer compares its log record by record instead."""


class StateError(OrbitError):
    """A value in etcd is not ours."""


class Master(msgspec.Struct, frozen=True, rename="camel"):
    """The key that lives as long as its master's lease."""

    member: int
    address: str
    ha_address: str
    epoch: int


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


class Beginning(msgspec.Struct, frozen=True, rename="camel"):
    """Where in the log an epoch began."""

    epoch: int
    log_offset: int


class GroupState(msgspec.Struct, frozen=True, rename="camel"):
    """What stays when all members are gone."""

    epoch: int
    master: int
    in_sync: list[int]
    history: list[Beginning]
    preferred: int = 0
    """Who is to be the next master, chosen by an operator; 0: none chosen."""

    def elected(self, member: int, log_end: int) -> GroupState:
        """The state after an election. The master that was lost leaves the set; the others stay, for they have what
        it acknowledged."""
        in_sync = [one for one in self.in_sync if one != self.master or one == member]
        beginning = Beginning(self.epoch + 1, log_end)
        return GroupState(
            epoch=self.epoch + 1,
            master=member,
            in_sync=in_sync,
            history=[*self.history, beginning][-_HISTORY_MAX:],
        )

    def with_in_sync(self, members: Iterable[int]) -> GroupState:
        return msgspec.structs.replace(self, in_sync=sorted(members))

    @staticmethod
    def first(member: int, log_end: int, epoch: int) -> GroupState:
        """The state a new group begins with, or one whose state was lost."""
        return GroupState(epoch=epoch, master=member, in_sync=[member], history=[Beginning(epoch, log_end)])


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


def rank(own: Member, rivals: Iterable[Member], preferred: int) -> int:
    """How many should try before us: the preferred one, then by the newest epoch, the longest log, the number."""

    def key(member: Member) -> tuple[bool, int, int, int]:
        return (member.member != preferred, -member.epoch, -member.log_end, member.member)

    mine = key(own)
    return sum(key(rival) < mine for rival in rivals if rival.member != own.member)

"""A snapshot of a group's keys in etcd."""

from __future__ import annotations

import msgspec

from orbitmq.broker.failover.etcd import EtcdClient, KeyValue
from orbitmq.broker.failover.state import Acknowledged, GroupState, Master, Member, decode

__all__ = ["Seen", "read_group"]


class Seen(msgspec.Struct, frozen=True):
    """The result of one read."""

    master: Master | None
    master_key: KeyValue | None
    state: GroupState | None
    state_revision: int
    members: dict[int, Member]
    acknowledged_end: int
    """Lower bound of what the whole in-sync set has acknowledged."""

    def missing(self, own: int) -> list[int]:
        """Returns the members of the in-sync set other than ``own`` that have not published their log end in this
        vacancy. A member whose store was emptied publishes an old epoch, and counts as missing."""
        state = self.state
        if state is None:
            return []
        back = {
            one.member
            for one in self.members.values()
            if one.vacancy == self.state_revision and one.epoch == state.epoch
        }
        return [one for one in state.in_sync if one not in back and one != own]


async def read_group(etcd: EtcdClient, prefix: str) -> Seen:
    """Read all keys of a group. Raises ``EtcdError``, ``StateError``."""
    master_key: KeyValue | None = None
    state: GroupState | None = None
    state_revision = acknowledged_end = 0
    members: dict[int, Member] = {}
    for found in await etcd.under(prefix):
        name = found.key.removeprefix(prefix)
        if name == "master":
            master_key = found
        elif name == "state":
            state, state_revision = decode(found.value, GroupState), found.mod_revision
        elif name == "acknowledged":
            acknowledged_end = decode(found.value, Acknowledged).log_offset
        elif name.startswith("members/"):
            member = decode(found.value, Member)
            members[member.member] = member
    master = None if master_key is None else decode(master_key.value, Master)
    return Seen(master, master_key, state, state_revision, members, acknowledged_end)

"""Strategies that divide the queues of a topic among a group (Apache: the ``AllocateMessageQueue...`` classes).

There is no coordinator: each consumer computes its own share. So every member must see the same sorted queues and the
same sorted client ids, and the result must not depend on anything else. The last argument of every function is the
caller's own client id. A client that is not in the list gets no queues.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

from orbitmq.model.route import MessageQueue, utf16_key

__all__ = [
    "STRATEGIES",
    "Strategy",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "allocate_by_config",
    "allocate_by_consistent_hash",
    "allocate_by_machine_room",
    "allocate_nearby",
    "sorted_clients",
]

_Item = TypeVar("_Item", MessageQueue, str)
Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]

VIRTUAL_NODES: Final = 10


def sorted_clients(clients: Iterable[str]) -> list[str]:
    """Returns the client ids in the order that every member uses (Java's string order)."""
    return sorted(clients, key=utf16_key)


def allocate_averagely(queues: Sequence[MessageQueue], clients: Sequence[str], me: str) -> list[MessageQueue]:
    """Returns an equal, contiguous share of the queues for ``me``. If they do not divide evenly, the first clients
    get one more."""
    if me not in clients:
        return []
    index = clients.index(me)
    share, rest = divmod(len(queues), len(clients))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def allocate_averagely_by_circle(
    queues: Sequence[MessageQueue], clients: Sequence[str], me: str
) -> list[MessageQueue]:
    """Returns the share of ``me`` when the queues are dealt out to the clients in turn."""
    if me not in clients:
        return []
    return list(islice(queues, clients.index(me), None, len(clients)))


def allocate_by_consistent_hash(
    queues: Sequence[MessageQueue], clients: Sequence[str], me: str, *, virtual_nodes: int = VIRTUAL_NODES
) -> list[MessageQueue]:
    """Returns the queues that consistent hashing assigns to ``me``. Few queues move when a client joins or leaves,
    but shares are uneven."""
    if me not in clients:
        return []
    # If two nodes have the same hash, the later client's wins, like in Apache's map.
    owners = {_ring_hash(f"{client}-{node}"): client for client in clients for node in range(virtual_nodes)}
    ring = sorted(owners)
    if not ring:
        return []
    return [
        queue for queue in queues if owners[ring[bisect_left(ring, _ring_hash(str(queue))) % len(ring)]] == me
    ]


def allocate_by_config(fixed: Sequence[MessageQueue]) -> Strategy:
    """Returns a strategy that always returns the same queues, regardless of the other members."""
    share = tuple(fixed)

    def allocate(queues: Sequence[MessageQueue], clients: Sequence[str], me: str) -> list[MessageQueue]:
        return list(share)

    return allocate


def allocate_by_machine_room(rooms: Collection[str]) -> Strategy:
    """Returns a strategy for brokers named ``room@name``. It assigns only the queues of brokers in the given
    rooms."""
    chosen = frozenset(rooms)

    def allocate(queues: Sequence[MessageQueue], clients: Sequence[str], me: str) -> list[MessageQueue]:
        if me not in clients:
            return []
        index = clients.index(me)
        ours = [queue for queue in queues if _room_of(queue.broker_name) in chosen]
        share, rest = divmod(len(ours), len(clients))
        result = ours[share * index : share * (index + 1)]
        if index < rest:
            result.append(ours[index + share * len(clients)])
        return result

    return allocate


def allocate_nearby(
    inner: Strategy, room_of_queue: Callable[[MessageQueue], str], room_of_client: Callable[[str], str]
) -> Strategy:
    """Returns a strategy that assigns queues to clients in the same room. All clients share the queues of rooms
    without clients.

    Raises ``ValueError`` if a queue or a client has no room, because some queues would not be assigned to any member.
    """

    def allocate(queues: Sequence[MessageQueue], clients: Sequence[str], me: str) -> list[MessageQueue]:
        if me not in clients:
            return []
        queues_by_room = _by_room(queues, room_of_queue)
        clients_by_room = _by_room(clients, room_of_client)
        my_room = room_of_client(me)
        result = inner(queues_by_room.pop(my_room, []), clients_by_room[my_room], me)
        for room in sorted(queues_by_room, key=utf16_key):
            if room not in clients_by_room:
                result += inner(queues_by_room[room], clients, me)
        return result

    return allocate


STRATEGIES: Final[dict[str, Strategy]] = {
    "AVG": allocate_averagely,
    "AVG_BY_CIRCLE": allocate_averagely_by_circle,
    "CONSISTENT_HASH": allocate_by_consistent_hash,
}
"""Strategies without settings, by the name that a consumer requests from a broker (QUERY_ASSIGNMENT)."""


def _by_room(items: Sequence[_Item], room_of: Callable[[_Item], str]) -> dict[str, list[_Item]]:
    grouped: dict[str, list[_Item]] = {}
    for item in items:
        room = room_of(item)
        if not room:
            raise ValueError(f"no machine room is known for {item}")
        grouped.setdefault(room, []).append(item)
    return grouped


def _room_of(broker_name: str) -> str | None:
    parts = broker_name.split("@")
    # Java drops empty parts at the end, so "room@" has one part and "room@name@" two.
    while parts and not parts[-1]:
        parts.pop()
    return parts[0] if len(parts) == 2 else None


def _ring_hash(key: str) -> int:
    digest = hashlib.md5(key.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")

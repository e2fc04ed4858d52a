"""Shares of a group's members."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.model.rebalance import (
    STRATEGIES,
    Strategy,
    allocate_averagely,
    allocate_averagely_by_circle,
    allocate_by_config,
    allocate_by_consistent_hash,
    allocate_by_machine_room,
    allocate_nearby,
    sorted_clients,
)
from orbitmq.model.route import MessageQueue


def queues(count: int, broker: str = "broker-a", topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id) for queue_id in range(count)]


def shares(strategy: Strategy, all_queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[list[int]]:
    return [[queue.queue_id for queue in strategy(all_queues, clients, client)] for client in clients]


def room_of_broker(queue: MessageQueue) -> str:
    return queue.broker_name.partition("@")[0]


def room_of_client(client: str) -> str:
    return client.partition("@")[0]


NEARBY = allocate_nearby(allocate_averagely, room_of_broker, room_of_client)


@pytest.mark.parametrize(
    ("count", "clients", "expected"),
    [
        (8, "abc", [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, "abcd", [[0], [1], [2], [3]]),
        (2, "abcd", [[0], [1], [], []]),
        (7, "ab", [[0, 1, 2, 3], [4, 5, 6]]),
        (0, "ab", [[], []]),
    ],
)
def test_average_shares_are_neighbours(count: int, clients: str, expected: list[list[int]]) -> None:
    assert shares(allocate_averagely, queues(count), clients) == expected


def test_circle_deals_out_in_turn() -> None:
    assert shares(allocate_averagely_by_circle, queues(8), "abc") == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert shares(allocate_averagely_by_circle, queues(1), "abc") == [[0], [], []]


def test_consistent_hash_shares_as_apaches_client_does() -> None:
    clients = ["10.0.0.1@1", "10.0.0.2@2", "10.0.0.3@3"]
    assert shares(allocate_by_consistent_hash, queues(8), clients) == [[3, 4, 7], [2, 5], [0, 1, 6]]


def test_consistent_hash_moves_only_the_queues_of_a_client_that_left() -> None:
    clients = [f"10.0.0.{n}@{n}" for n in range(1, 6)]
    before = {client: allocate_by_consistent_hash(queues(64), clients, client) for client in clients}
    after = {client: allocate_by_consistent_hash(queues(64), clients[:-1], client) for client in clients[:-1]}
    for client in clients[:-1]:
        assert set(before[client]) <= set(after[client])


def test_configured_share_ignores_everything() -> None:
    assert allocate_by_config(queues(2))([], ["a"], "x") == queues(2)


def test_machine_room_takes_the_chosen_rooms_and_deals_the_rest_singly() -> None:
    ours = queues(4, "room1@a") + queues(3, "room2@b")
    others = queues(2, "room3@c") + queues(2, "plain") + queues(2, "room1@x@y") + queues(1, "room1@")
    strategy = allocate_by_machine_room({"room1", "room2"})
    found = [strategy(ours + others, "abc", client) for client in "abc"]
    assert found == [[*ours[0:2], ours[6]], ours[2:4], ours[4:6]]


def test_nearby_keeps_queues_in_their_room_and_shares_those_of_empty_rooms() -> None:
    here, there, empty = queues(3, "r1@a"), queues(2, "r2@b"), queues(3, "r3@c")
    clients = ["r1@1", "r1@2", "r2@1"]
    found = [NEARBY([*here, *there, *empty], clients, client) for client in clients]
    assert found == [[*here[:2], empty[0]], [here[2], empty[1]], [*there, empty[2]]]


def test_nearby_without_a_room_is_an_error() -> None:
    with pytest.raises(ValueError, match="machine room"):
        NEARBY(queues(1, "@a"), ["r1@1"], "r1@1")


@pytest.mark.parametrize("strategy", [*STRATEGIES.values(), allocate_by_machine_room({"broker-a"}), NEARBY])
def test_a_client_that_is_not_in_the_list_gets_nothing(strategy: Strategy) -> None:
    assert strategy(queues(4, "broker-a@1"), ["a@1", "b@1"], "c@1") == []


@given(
    st.integers(0, 40),
    st.lists(st.sampled_from([f"r{n % 3}@{n}" for n in range(12)]), min_size=1, unique=True),
)
def test_every_strategy_gives_each_queue_to_exactly_one_member(count: int, members: list[str]) -> None:
    clients = sorted_clients(members)
    all_queues = sorted([*queues(count, "r1@a"), *queues(count, "r5@b")])
    for strategy in (*STRATEGIES.values(), allocate_by_machine_room({"r1", "r5"}), NEARBY):
        given_out = [queue for client in clients for queue in strategy(all_queues, clients, client)]
        assert sorted(given_out) == all_queues


def test_clients_sort_as_in_java() -> None:
    assert sorted_clients(["b", "\uff21", "\U0001f600", "B"]) == ["B", "b", "\U0001f600", "\uff21"]

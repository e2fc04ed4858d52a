"""The rules of failover over values: where a log is truncated, which candidate comes first, and that both together
lose nothing.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from orbitmq.broker.failover.state import (
    Beginning,
    GroupState,
    Member,
    StateError,
    acknowledged_loss,
    cut_point,
    decode,
    rank,
)


def state(*beginnings: tuple[int, int], in_sync: tuple[int, ...] = (1, 2)) -> GroupState:
    history = [Beginning(epoch, log_offset) for epoch, log_offset in beginnings]
    return GroupState(epoch=history[-1].epoch, master=1, in_sync=list(in_sync), history=history)


@pytest.mark.parametrize(
    ("beginnings", "epoch", "expected"),
    [
        (((1, 0), (2, 500)), 2, None),  # the newest log itself
        (((1, 0), (2, 500)), 1, 500),
        (((1, 0), (2, 500), (3, 900)), 1, 500),
        (((1, 0), (2, 900), (3, 500)), 1, 500),  # the master of 3 had less than the one of 2
        (((1, 0), (2, 900), (3, 500)), 2, 500),
        (((5, 100), (6, 200)), 4, 100),
        (((5, 100), (6, 200)), 3, None),  # forgotten: the history of epoch 4 is unknown
        (((1, 0),), -1, None),  # a log from before failover
        (((1, 300),), 0, 300),
        (((1, 0), (2, 500)), 7, None),  # the state was lost and restarted
    ],
)
def test_cut_point_is_the_smallest_beginning_after_the_epoch_of_the_log(
    beginnings: tuple[tuple[int, int], ...], epoch: int, expected: int | None
) -> None:
    assert cut_point(state(*beginnings), epoch) == expected


def test_elected_member_begins_an_epoch_without_the_lost_master() -> None:
    after = state((4, 10), in_sync=(1, 2, 3)).elected(3, 77)
    assert (after.epoch, after.master, after.in_sync) == (5, 3, [2, 3])
    assert after.history[-1] == Beginning(5, 77)
    # A master that returns before another candidate stands remains in its own set.
    assert state((4, 10), in_sync=(1, 2)).elected(1, 77).in_sync == [1, 2]


def test_history_is_bounded() -> None:
    after = state((1, 0))
    for number in range(300):
        after = after.elected(1 + number % 2, number)
        after = after.with_in_sync([1, 2])
    assert len(after.history) == 128
    assert cut_point(after, after.epoch - 128) == after.history[0].log_offset
    assert cut_point(after, after.epoch - 129) is None


def test_rank_prefers_the_wished_one_then_epoch_then_log_then_number() -> None:
    def member(number: int, epoch: int, log_end: int) -> Member:
        return Member(number, "", "", epoch, log_end)

    own = member(2, 5, 100)
    assert rank(own, [member(2, 1, 1), member(3, 5, 99), member(4, 4, 900), member(5, 5, 100)], 0) == 0
    assert rank(own, [member(1, 5, 100), member(3, 6, 0), member(4, 5, 101)], 0) == 3
    assert rank(own, [member(1, 5, 100), member(3, 6, 0)], 2) == 0
    assert rank(own, [member(1, 1, 0)], 1) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"epoch":1}', b'{"epoch":"x"}', b"\xff"])
def test_value_that_is_not_ours_is_an_error(content: bytes) -> None:
    with pytest.raises(StateError):
        decode(content, GroupState)


def test_state_keeps_its_form_in_etcd() -> None:
    text = msgspec.json.encode(state((1, 0), (2, 500)))
    assert text == (
        b'{"epoch":2,"master":1,"inSync":[1,2],'
        b'"history":[{"epoch":1,"logOffset":0},{"epoch":2,"logOffset":500}],"preferred":0}'
    )
    assert decode(text, GroupState) == state((1, 0), (2, 500))


def test_an_election_that_gives_up_acknowledged_bytes_says_so() -> None:
    before = state((4, 10), in_sync=(1, 2, 3))
    assert before.elected(3, 77, acknowledged=77).history[-1] == Beginning(5, 77)
    assert before.elected(3, 77, acknowledged=80).history[-1] == Beginning(5, 77, 80)
    chosen = before.elected(3, 77, acknowledged=77, alone=True)
    assert (chosen.in_sync, chosen.history[-1]) == ([3], Beginning(5, 77, 1 << 62))
    assert acknowledged_loss(chosen, 4, 500) == (77, 500), "what was acknowledged last is not in etcd yet"
    assert GroupState.first(3, 77, 5, acknowledged=80).history == [Beginning(5, 77, 80)]


@pytest.mark.parametrize(
    ("epoch", "log_end", "expected"),
    [
        (1, 350, (100, 300)),
        (1, 250, (100, 250)),
        (1, 100, None),  # it has no bytes beyond
        (2, 350, (100, 300)),
        (3, 900, None),  # it followed the master that was elected with less
        (4, 900, None),
    ],
)
def test_bytes_that_an_election_gave_up_are_named_by_who_still_has_them(
    epoch: int, log_end: int, expected: tuple[int, int] | None
) -> None:
    history = [Beginning(1, 0), Beginning(2, 400), Beginning(3, 100, 300), Beginning(4, 700)]
    assert acknowledged_loss(GroupState(4, 1, [1], history), epoch, log_end) == expected


def test_a_tail_that_was_cut_off_before_is_not_named() -> None:
    """Its bytes differ from those discarded later."""
    history = [Beginning(1, 0), Beginning(2, 200), Beginning(3, 500, 600), Beginning(4, 100, 700)]
    assert acknowledged_loss(GroupState(4, 1, [1], history), 1, 900) == (100, 200)


class Model:
    """Brokers whose logs are lists of entries, under the rules and with the worst timing."""

    def __init__(self, chance: random.Random, count: int) -> None:
        self.chance = chance
        self.logs: dict[int, list[tuple[int, int]]] = {number: [] for number in range(1, count + 1)}
        self.epochs = dict.fromkeys(self.logs, 0)
        self.state = GroupState.first(1, 0, 1)
        self.epochs[1] = 1
        self.following: dict[int, int] = {}
        """Follower and the epoch it follows; one that follows an old master stays with it for a while."""
        self.masters = {1: 1}
        self.sets = {1: {1}}
        """The in-sync set as each epoch's master knew it last."""
        self.acknowledged: set[tuple[int, int]] = set()
        self.serial = 0

    def align(self, number: int) -> None:
        if self.epochs[number] != self.state.epoch:
            cut = cut_point(self.state, self.epochs[number])
            assert cut is not None
            del self.logs[number][cut:]
            self.epochs[number] = self.state.epoch

    def step(self) -> None:
        chance, state = self.chance, self.state
        kind = chance.choices(
            ("append", "copy", "follow", "sync", "elect"), weights=(4, 6, 4, 3, 1 if state.epoch % 3 else 6)
        )[0]
        if kind == "append":
            # An outdated master also accepts messages.
            epoch, number = chance.choice(list(self.masters.items()))
            for _ in range(chance.randint(1, 5)):
                self.serial += 1
                self.logs[number].append((epoch, self.serial))
        elif kind == "follow":
            number = chance.choice([one for one in self.logs if one != state.master])
            self.masters = {epoch: one for epoch, one in self.masters.items() if one != number}
            self.align(number)
            log = self.logs[number]
            assert log == self.logs[state.master][: len(log)], "aligned logs agree"
            self.following[number] = state.epoch
        elif kind == "copy" and self.following:
            number, epoch = chance.choice(list(self.following.items()))
            source = self.masters.get(epoch)
            if source is not None and source != number:
                self.logs[number] = self.logs[source][: len(self.logs[number]) + chance.randint(0, 9)]
        elif kind == "sync":
            self.change_set()
        elif kind == "elect":
            self.elect(chance.choice([one for one in state.in_sync if one != state.master] or state.in_sync))
        self.acknowledge()

    def acknowledge(self) -> None:
        """Acknowledges what every master, even an old one, may: all of the set it knows follow it and have it."""
        for epoch, master in self.masters.items():
            known = self.sets[epoch]
            if all(self.following.get(number) == epoch for number in known - {master}):
                have = min(len(self.logs[number]) for number in known | {master})
                self.acknowledged.update(self.logs[master][:have])

    def change_set(self) -> None:
        """Shrinks the set at will, and adds members that have everything."""
        state = self.state
        wanted = {number for number in state.in_sync if number == state.master or self.chance.random() < 0.95}
        for number, epoch in self.following.items():
            if epoch == state.epoch and len(self.logs[number]) >= len(self.logs[state.master]):
                wanted.add(number)
        self.state = state.with_in_sync(wanted)
        self.sets[state.epoch] = wanted

    def elect(self, number: int) -> None:
        self.following.pop(number, None)
        self.masters = {epoch: one for epoch, one in self.masters.items() if one != number}
        assert self.epochs[number] >= 1, "only who has followed gets into the set"
        self.align(number)
        self.state = self.state.elected(number, len(self.logs[number]))
        self.epochs[number] = self.state.epoch
        self.masters[self.state.epoch] = number
        self.sets[self.state.epoch] = set(self.state.in_sync)
        assert self.acknowledged <= set(self.logs[number]), "what was acknowledged is there"


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_any_order_of_events() -> None:
    epochs = 0
    for seed in range(150):
        model = Model(random.Random(seed), 2 + seed % 3)
        for _ in range(150):
            model.step()
        assert model.acknowledged, seed
        epochs += model.state.epoch
    assert epochs > 150 * 5

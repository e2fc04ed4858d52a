"""Slots for sends: bounded in number and bytes, first come first served, none lost and none assigned twice."""

from __future__ import annotations

import asyncio

import pytest

from orbitmq.client.produce.flow import PER_TURN, InFlight, Turns


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_places_are_bounded_in_number_and_bytes() -> None:
    places = InFlight(2, 100)
    assert places.try_enter(60)
    assert not places.try_enter(41), "too many bytes"
    assert places.try_enter(40)
    assert not places.try_enter(0), "too many"
    places.leave(60)
    places.leave(40)
    assert (places.count, places.size) == (0, 0)
    assert places.try_enter(1_000), "larger than all places together: alone"
    assert not places.try_enter(1)


def test_those_who_wait_come_in_order_and_nobody_overtakes() -> None:
    async def run() -> None:
        places = InFlight(1, 100)
        order: list[int] = []

        async def send(number: int, size: int) -> None:
            await places.enter(size)
            order.append(number)
            await turns(2)
            assert places.count == 1
            places.leave(size)

        assert places.try_enter(90)
        tasks = [asyncio.create_task(send(number, 100 - number)) for number in range(4)]
        await turns()
        assert places.waiting == 4
        assert not places.try_enter(1), "those who wait are first"
        places.leave(90)
        await asyncio.gather(*tasks)
        assert order == [0, 1, 2, 3]
        assert (places.count, places.size, places.waiting) == (0, 0, 0)

    asyncio.run(run())


@pytest.mark.parametrize("granted", [False, True])
def test_cancelled_waiter_takes_no_place_along(granted: bool) -> None:
    async def run() -> None:
        places = InFlight(1, 100)
        assert places.try_enter(10)
        first = asyncio.create_task(places.enter(20))
        second = asyncio.create_task(places.enter(30))
        await turns()
        if granted:
            places.leave(10)  # the place is first's now, who has not run yet
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        if not granted:
            assert not second.done()
            places.leave(10)
        await second
        assert (places.count, places.size) == (1, 30)
        places.leave(30)
        assert (places.count, places.size, places.waiting) == (0, 0, 0)

    asyncio.run(run())


def test_drained_waits_for_those_on_the_way_and_those_who_wait() -> None:
    async def run() -> None:
        places = InFlight(1, 100)
        await asyncio.wait_for(places.drained(), 1)
        assert places.try_enter(10)
        waiting = asyncio.create_task(places.enter(20))
        await turns()
        drained = asyncio.create_task(places.drained())
        await turns()
        places.leave(10)
        await waiting
        await turns()
        assert not drained.done(), "the one that waited is on the way"
        places.leave(20)
        await asyncio.wait_for(drained, 1)

    asyncio.run(run())


def test_turns_go_in_order_and_skip_cancelled_waiters() -> None:
    order: list[int] = []

    async def run() -> None:
        turns = Turns()

        async def one(number: int) -> None:
            if not turns.take():
                await turns.wait()
            order.append(number)

        tasks = [asyncio.ensure_future(one(number)) for number in range(3 * PER_TURN)]
        await asyncio.sleep(0)
        assert order == list(range(PER_TURN))
        tasks[PER_TURN].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert turns.take()

    asyncio.run(run())
    assert order == [number for number in range(3 * PER_TURN) if number != PER_TURN]

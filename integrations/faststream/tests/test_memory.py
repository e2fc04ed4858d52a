"""Tests ``TestRocketBroker``: published messages reach handlers in memory, following the rules of groups
and filters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pydantic
import pytest
from fast_depends.msgspec import MsgSpecSerializer
from faststream import AckPolicy
from faststream._internal.testing.broker import find_test_broker
from faststream.exceptions import SubscriberNotFound
from faststream.specification.asyncapi import AsyncAPI

from orbitmq_faststream import RocketBroker, RocketMessage, RocketResponse, RocketRouter, TestRocketBroker


def new_broker(**settings: Any) -> RocketBroker:
    return RocketBroker("127.0.0.1:1", logger=None, **settings)  # nothing listens there


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work

    asyncio.run(bounded())


class Order(pydantic.BaseModel):
    id: int


def test_one_member_of_each_group_that_selects_the_message_gets_it() -> None:
    broker, other = new_broker(), new_broker()
    seen: list[str] = []

    def subscribe(where: RocketBroker, name: str, **settings: Any) -> None:
        @where.subscriber("orders", **settings)
        async def handle(body: Order, message: RocketMessage) -> None:
            seen.append(name)
            assert message.keys == ["k1"]
            assert message.message_id

    subscribe(broker, "shared", group="shared")
    subscribe(other, "shared", group="shared")
    subscribe(broker, "tagged", group="tagged", tags="A || B")
    subscribe(broker, "other tag", group="other-tag", tags="C")
    subscribe(broker, "large", group="large", sql="amount > 10")
    subscribe(broker, "small", group="small", sql="amount < 10")
    subscribe(broker, "broadcast", group="all", broadcast=True)
    subscribe(other, "broadcast", group="all", broadcast=True)

    async def work() -> None:
        async with TestRocketBroker(broker, other):
            await broker.publish(Order(id=1), "orders", tags="B", keys="k1", headers={"amount": 11})
            await broker.publish_batch(b"1", b"2", topic="elsewhere")
        assert sorted(seen) == ["broadcast", "broadcast", "large", "shared", "tagged"]

    run(work())


def test_handlers_and_publishers_record_their_calls() -> None:
    broker = new_broker()
    router = RocketRouter("shop-")
    publisher = router.publisher("done")

    @publisher
    @router.subscriber("orders", ack_policy=AckPolicy.MANUAL)
    async def handle(body: Order, message: RocketMessage) -> RocketResponse:
        await message.ack()
        await message.nack()  # finished already
        return RocketResponse({"id": body.id}, tags="done")

    broker.include_router(router)

    async def work() -> None:
        async with TestRocketBroker(broker) as running:
            await running.publish({"id": 7}, "shop-orders")
            handle.mock.assert_called_once_with({"id": 7})
            publisher.mock.assert_called_once_with({"id": 7})
            answer = await running.request({"id": 8}, "shop-orders")
            assert await answer.decode() == {"id": 8}
            with pytest.raises(pydantic.ValidationError):
                await running.publish({"id": "x"}, "shop-orders")
            with pytest.raises(SubscriberNotFound):
                await running.request({"id": 8}, "nobody")

    run(work())
    assert find_test_broker(broker) is TestRocketBroker


class Part(msgspec.Struct):
    size: int


def test_bodies_of_msgspec_with_its_serializer() -> None:
    broker = new_broker(serializer=MsgSpecSerializer())
    seen: list[Part] = []

    @broker.subscriber("parts")
    async def handle(body: Part) -> None:
        seen.append(body)

    async def work() -> None:
        async with TestRocketBroker(broker):
            await broker.publish(Part(size=7), "parts")
        assert seen == [Part(size=7)]

    run(work())


def test_document_names_topics_and_payloads() -> None:
    broker = new_broker(description="orders of the shop")

    @broker.publisher("done", title="Done")
    @broker.subscriber("orders", description="all of them")
    async def handle(body: Order) -> int:
        return body.id

    document = AsyncAPI(broker).to_specification().to_jsonable()
    assert document["servers"]["development"]["protocol"] == "rocketmq"
    assert document["channels"]["orders:Handle"]["address"] == "orders"
    assert document["channels"]["Done"]["address"] == "done"
    assert "Order" in document["components"]["schemas"]

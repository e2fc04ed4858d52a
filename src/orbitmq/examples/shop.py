"""The shop of ``orbitmq demo``: the messages it sends, how it handles messages, and the expected result.

Orders arrive, and four of five are paid. A delayed message closes each order that was not paid in time (thirty
minutes in the shop's terms, three seconds here). Stock is confirmed by a transaction. A group of clerks grows from
one to three while it works. The shop keeps its own book, and at the end everything is compared with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rich.progress import Progress

from orbitmq.client import (
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    TransactionState,
)

__all__ = ["CLOSED", "LEVELS", "ORDERS", "PAYMENTS", "WARM_UP", "MinuteRow", "Shop", "ShopRun"]

ORDERS: Final = "ShopOrders"
PAYMENTS: Final = "ShopPayments"
TIMEOUTS: Final = "ShopOrderTimeouts"
CLOSED: Final = "ShopClosedOrders"
STOCK: Final = "ShopStock"
WARM_UP: Final = "warm-up"
LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 3s 1h 2h"
"""Apache's table with level 16, half an hour, shortened to three seconds."""
HALF_AN_HOUR_LEVEL: Final = 16
HALF_AN_HOUR_MS: Final = 3_000
OPENED_AT: Final = datetime.datetime(2026, 1, 5, 9, 0, tzinfo=datetime.UTC)
OPEN_MINUTES: Final = 10
"""The orders of one run are spread over this many minutes of the shop's day."""
WAIT_S: Final = 90.0


class MinuteRow(NamedTuple):
    """One minute of the shop's day: the orders placed in that minute, and their outcome."""

    minute: str
    orders: int
    paid: int
    closed: int
    paid_cents: int


@dataclass(frozen=True, slots=True)
class Order:
    """One order."""

    name: str
    placed_at: datetime.datetime
    cents: int

    @classmethod
    def numbered(cls, number: int, count: int) -> Order:
        """Returns order ``number`` of ``count``, the same in every run."""
        # Business picks up during the morning, and prices vary; the same in every run.
        seconds = OPEN_MINUTES * 60 * (number / count) ** 0.8
        return cls(
            f"order-{number:05d}",
            OPENED_AT + datetime.timedelta(seconds=seconds),
            500 + _mixed(number) % 4_500,
        )

    @property
    def is_paid(self) -> bool:
        """Whether the customer pays, which is the case for about four of five orders."""
        return _mixed(int(self.name.removeprefix("order-")) + 7) % 100 < 80

    @property
    def minute(self) -> str:
        return self.placed_at.strftime("%H:%M")

    def body(self) -> str:
        return json.dumps(
            {
                "order": self.name,
                "placed_at": self.placed_at.isoformat(timespec="milliseconds"),
                "cents": self.cents,
            }
        )


def _mixed(number: int) -> int:
    """Returns a pseudo-random number that depends only on ``number`` (Knuth's multiplicative hash)."""
    return (number * 2_654_435_761 % 2**32) >> 8


def order_of(message: ReceivedMessage) -> str:
    """Returns the name of the order that a message refers to."""
    return str(json.loads(message.body)["order"])


@dataclass(slots=True)
class Shop:
    """The record of everything that was sent and everything that arrived."""

    book: dict[str, Order] = field(default_factory=dict)
    """Every order by name."""
    sent_payments: set[str] = field(default_factory=set)
    sent_stock: dict[str, TransactionState] = field(default_factory=dict)
    till_sends: int = 0
    """Messages sent by the till. Messages about closed orders come from the back office."""
    sending_s: float = 0.0
    orders: Counter[str] = field(default_factory=Counter)
    paid: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    timeouts: set[str] = field(default_factory=set)
    confirmed: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    by_clerk: Counter[str] = field(default_factory=Counter)
    early: list[str] = field(default_factory=list)

    @property
    def unpaid(self) -> set[str]:
        return self.book.keys() - self.sent_payments

    @property
    def committed(self) -> set[str]:
        return {order for order, state in self.sent_stock.items() if state is not TransactionState.ROLLBACK}

    @property
    def clerk_count(self) -> int:
        return len(self.by_clerk)

    def differences(self) -> list[str]:
        """Returns the differences between what was sent and what arrived; empty if everything arrived."""
        found: list[str] = []
        for name, got, expected in (
            ("orders received", set(self.orders), set(self.book)),
            ("payments received", self.paid, self.sent_payments),
            ("orders closed as unpaid", self.closed, self.unpaid),
            ("stock confirmations", set(self.confirmed), self.committed),
        ):
            if got != expected:
                found.append(
                    f"{name}: {len(got)} of {len(expected)}; missing {sorted(expected - got)[:5]}, "
                    f"unexpected {sorted(got - expected)[:5]}"
                )
        if self.early:
            found.append(f"closed before their time: {self.early[:5]}")
        return found

    def minutes(self) -> list[MinuteRow]:
        """Returns the table that Spark must derive from the topics, sorted by minute."""
        orders: Counter[str] = Counter()
        paid: Counter[str] = Counter()
        closed: Counter[str] = Counter()
        cents: Counter[str] = Counter()
        for order in self.book.values():
            orders[order.minute] += 1
            if order.name in self.sent_payments:
                paid[order.minute] += 1
                cents[order.minute] += order.cents
            else:
                closed[order.minute] += 1
        return [
            MinuteRow(minute, orders[minute], paid[minute], closed[minute], cents[minute])
            for minute in sorted(orders)
        ]


class ShopRun:
    """One day of the shop, using the brokers of a name server."""

    def __init__(self, address: str, order_count: int, progress: Progress) -> None:
        self._address = address
        self._count = order_count
        self._progress = progress
        self._arrival = asyncio.Event()
        self.shop = Shop()

    async def run(self) -> None:
        """Runs the shop from its first order to the last delivery."""
        count = self._count
        async with contextlib.AsyncExitStack() as stack:
            producer = await stack.enter_async_context(
                Producer("shop", self._address, check=self._check_stock)
            )
            # The first send creates a topic; consumers started earlier would look for it again much later.
            for topic in (ORDERS, PAYMENTS, TIMEOUTS, CLOSED, STOCK):
                await producer.send(Message(topic, "open", tags=WARM_UP))
            for consumer in self._back_office(producer):
                await stack.enter_async_context(consumer)
            await stack.enter_async_context(self._clerk("clerk-1"))
            orders = self._progress.add_task("orders and payments", total=count)
            started_s = time.monotonic()
            for number in range(count):
                if number == count // 3:
                    await stack.enter_async_context(self._clerk("clerk-2"))
                if number == 2 * count // 3:
                    await stack.enter_async_context(self._clerk("clerk-3"))
                await self._order(producer, number)
                self._progress.advance(orders)
            self.shop.sending_s = time.monotonic() - started_s
            await self._wait_for_results()

    async def _order(self, producer: Producer, number: int) -> None:
        order = Order.numbered(number, self._count)
        shop, name, body = self.shop, order.name, order.body()
        shop.book[name] = order
        await producer.send(Message(ORDERS, body, tags="new", keys=name, shard_key=name))
        await producer.send(Message(TIMEOUTS, body, keys=name, delay_level=HALF_AN_HOUR_LEVEL))
        shop.till_sends += 2
        if order.is_paid:
            shop.sent_payments.add(name)
            await producer.send(Message(PAYMENTS, body, tags="paid", keys=name))
            shop.till_sends += 1
        if number % 10 == 0:
            outcome = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)[
                number // 10 % 3
            ]
            shop.sent_stock[name] = outcome
            await producer.send_in_transaction(Message(STOCK, body, keys=name), lambda _message, _id: outcome)
            shop.till_sends += 1

    def _check_stock(self, message: ReceivedMessage) -> TransactionState:
        """Commits an open stock transaction when the broker checks back, because the stock was taken."""
        self.shop.checked += 1
        return TransactionState.COMMIT

    def _clerk(self, name: str) -> PushConsumer:
        """Returns one of the consumers that share the orders."""
        consumer = PushConsumer(
            "clerks",
            self._address,
            instance_name=name,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
            rebalance_s=1.0,
        )

        @consumer.listen(ORDERS, "new")
        async def handle(message: ReceivedMessage) -> None:
            self.shop.orders[order_of(message)] += 1
            self.shop.by_clerk[name] += 1
            self._arrival.set()

        return consumer

    def _back_office(self, producer: Producer) -> list[PushConsumer]:
        shop = self.shop
        options = PushOptions(from_where=ConsumeFromWhere.FIRST_OFFSET, rebalance_s=1.0)
        cashier = PushConsumer("cashier", self._address, options)
        closer = PushConsumer("closer", self._address, options)
        storekeeper = PushConsumer("storekeeper", self._address, options)

        @cashier.listen(PAYMENTS, "paid")
        async def paid(message: ReceivedMessage) -> None:
            shop.paid.add(order_of(message))
            self._arrival.set()

        @closer.listen(TIMEOUTS)
        async def timed_out(message: ReceivedMessage) -> None:
            if message.tags == WARM_UP:
                return
            order = order_of(message)
            if message.store_timestamp_ms - message.born_timestamp_ms < HALF_AN_HOUR_MS - 100:
                shop.early.append(order)
            if order not in shop.sent_payments and order not in shop.closed:
                shop.closed.add(order)
                await producer.send(Message(CLOSED, message.body, tags="unpaid", keys=order))
            shop.timeouts.add(order)
            self._arrival.set()

        @storekeeper.listen(STOCK)
        async def confirmed(message: ReceivedMessage) -> None:
            if message.tags != WARM_UP:
                shop.confirmed[order_of(message)] += 1
                self._arrival.set()

        return [cashier, closer, storekeeper]

    async def _wait_for_results(self) -> None:
        shop = self.shop
        expected = len(shop.book)
        waiting = self._progress.add_task("deliveries after their delay", total=expected)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while len(shop.timeouts) < expected or shop.differences():
                    self._arrival.clear()
                    await self._arrival.wait()
                    self._progress.update(waiting, completed=len(shop.timeouts))
        self._progress.update(waiting, completed=len(shop.timeouts))

"""``orbitmq demo``: a shop on orbitmq, from start to checked result, in one process that ends by itself.

Orders come in; some are paid. A delayed message closes each order that was not paid in time (thirty minutes in the
shop's words, three seconds here). Stock is confirmed by a transaction. A group of consumers grows from one to three
while it works. At the end everything is compared with what was sent; any difference is printed and gives exit code 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.client import (
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    TransactionState,
)
from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.runtime.logs import configure_logging
from orbitmq.store.config import StoreConfig

__all__ = ["demo_command"]

ORDERS: Final = "ShopOrders"
PAYMENTS: Final = "ShopPayments"
TIMEOUTS: Final = "ShopOrderTimeouts"
STOCK: Final = "ShopStock"
LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 3s 1h 2h"
"""Apache's table with level 16, half an hour, cut to three seconds."""
HALF_AN_HOUR_LEVEL: Final = 16
WAIT_S: Final = 90.0


@dataclass(slots=True)
class Shop:
    """What was sent and what came out."""

    sent_orders: set[str] = field(default_factory=set)
    sent_payments: set[str] = field(default_factory=set)
    sent_stock: dict[str, TransactionState] = field(default_factory=dict)
    orders: Counter[str] = field(default_factory=Counter)
    paid: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)
    timeouts: set[str] = field(default_factory=set)
    confirmed: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    by_consumer: Counter[str] = field(default_factory=Counter)
    early: list[str] = field(default_factory=list)

    def differences(self) -> list[str]:
        """What is not as it was sent; empty when all is well."""
        found: list[str] = []
        unpaid = self.sent_orders - self.sent_payments
        committed = {
            order for order, state in self.sent_stock.items() if state is not TransactionState.ROLLBACK
        }
        for name, got, expected in (
            ("orders received", set(self.orders), self.sent_orders),
            ("payments received", self.paid, self.sent_payments),
            ("orders closed as unpaid", self.closed, unpaid),
            ("stock confirmations", set(self.confirmed), committed),
        ):
            if got != expected:
                found.append(
                    f"{name}: {len(got)} of {len(expected)}; missing {sorted(expected - got)[:5]}, "
                    f"unexpected {sorted(got - expected)[:5]}"
                )
        if self.early:
            found.append(f"closed before their time: {self.early[:5]}")
        return found


@contextlib.asynccontextmanager
async def _servers(directory: Path) -> AsyncIterator[tuple[str, str]]:
    name_server = NameServer(
        NameServerConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path="", config_store_path="")
    )
    async with name_server:
        config = BrokerConfig(
            listen_port=0,
            bind_host="127.0.0.1",
            public_host="127.0.0.1",
            name_servers=name_server.address,
            transaction_timeout_ms=1_000,
            transaction_check_interval_ms=1_000,
        )
        store = StoreConfig(
            root=str(directory / "store"), delay_levels=LEVELS, segment_bytes=64 * 1024 * 1024
        )
        async with Broker(config, store) as broker:
            yield name_server.address, broker.address


class _Demo:
    """One run."""

    def __init__(self, address: str, order_count: int, progress: Progress) -> None:
        self._address = address
        self._count = order_count
        self._progress = progress
        self._arrival = asyncio.Event()
        self.shop = Shop()

    async def run(self) -> None:
        count = self._count
        async with contextlib.AsyncExitStack() as stack:
            producer = await stack.enter_async_context(
                Producer("shop", self._address, check=self._check_stock)
            )
            # The first send creates a topic; consumers that start before would look for it again much later.
            for topic in (ORDERS, PAYMENTS, TIMEOUTS, STOCK):
                await producer.send(Message(topic, "open", tags="warm-up"))
            for consumer in self._back_office():
                await stack.enter_async_context(consumer)
            await stack.enter_async_context(self._clerk("clerk-1"))
            orders = self._progress.add_task("orders", total=count)
            for number in range(count):
                if number == count // 3:
                    await stack.enter_async_context(self._clerk("clerk-2"))
                if number == 2 * count // 3:
                    await stack.enter_async_context(self._clerk("clerk-3"))
                await self._order(producer, number)
                self._progress.advance(orders)
            await self._wait_for_results()

    async def _order(self, producer: Producer, number: int) -> None:
        order = f"order-{number:05d}"
        shop = self.shop
        shop.sent_orders.add(order)
        await producer.send(Message(ORDERS, order, tags="new", keys=order, shard_key=order))
        await producer.send(Message(TIMEOUTS, order, keys=order, delay_level=HALF_AN_HOUR_LEVEL))
        if number % 5:
            shop.sent_payments.add(order)
            await producer.send(Message(PAYMENTS, order, tags="paid", keys=order))
        if number % 10 == 0:
            outcome = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)[
                number // 10 % 3
            ]
            shop.sent_stock[order] = outcome
            await producer.send_in_transaction(
                Message(STOCK, order, keys=order), lambda _message, _id: outcome
            )

    def _check_stock(self, message: ReceivedMessage) -> TransactionState:
        """The broker asks about stock whose outcome was left open: it was taken."""
        self.shop.checked += 1
        return TransactionState.COMMIT

    def _clerk(self, name: str) -> PushConsumer:
        """One of the consumers that share the orders."""
        consumer = PushConsumer(
            "clerks",
            self._address,
            instance_name=name,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
            rebalance_s=1.0,
        )

        @consumer.listen(ORDERS, "new")
        async def handle(message: ReceivedMessage) -> None:
            self.shop.orders[message.text()] += 1
            self.shop.by_consumer[name] += 1
            self._arrival.set()

        return consumer

    def _back_office(self) -> list[PushConsumer]:
        shop = self.shop
        options = PushOptions(from_where=ConsumeFromWhere.FIRST_OFFSET, rebalance_s=1.0)
        cashier = PushConsumer("cashier", self._address, options)
        closer = PushConsumer("closer", self._address, options)
        storekeeper = PushConsumer("storekeeper", self._address, options)

        @cashier.listen(PAYMENTS, "paid")
        async def paid(message: ReceivedMessage) -> None:
            shop.paid.add(message.text())
            self._arrival.set()

        @closer.listen(TIMEOUTS)
        async def timed_out(message: ReceivedMessage) -> None:
            if message.tags == "warm-up":
                return
            order = message.text()
            shop.timeouts.add(order)
            if message.store_timestamp_ms - message.born_timestamp_ms < 2_900:
                shop.early.append(order)
            if order not in shop.sent_payments:
                shop.closed.add(order)
            self._arrival.set()

        @storekeeper.listen(STOCK)
        async def confirmed(message: ReceivedMessage) -> None:
            if message.tags != "warm-up":
                shop.confirmed[message.text()] += 1
                self._arrival.set()

        return [cashier, closer, storekeeper]

    async def _wait_for_results(self) -> None:
        shop = self.shop
        expected = len(shop.sent_orders)
        waiting = self._progress.add_task("deliveries", total=expected)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while len(shop.timeouts) < expected or shop.differences():
                    self._arrival.clear()
                    await self._arrival.wait()
                    self._progress.update(waiting, completed=len(shop.timeouts))


@click.command("demo")
@click.option("--orders", default=600, show_default=True, type=click.IntRange(30, 100_000))
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the store and the log in this directory.",
)
def demo_command(orders: int, keep: Path | None) -> None:
    """A shop on orbitmq: orders, payments, delays, transactions, and a check of everything."""
    console = Console()
    started_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orbitmq-demo-")))
        directory.mkdir(parents=True, exist_ok=True)
        configure_logging("INFO", str(directory / "orbitmq.log"))
        shop = asyncio.run(_run(directory, orders, console))
        differences = shop.differences()
        _report(console, shop, time.monotonic() - started_s, keep)
        for difference in differences:
            console.print(f"[red]mismatch[/] {difference}")
    sys.exit(1 if differences else 0)


async def _run(directory: Path, orders: int, console: Console) -> Shop:
    async with _servers(directory) as (name_server, broker):
        console.print(f"name server {name_server}, broker {broker}")
        with Progress(console=console, transient=not console.is_terminal) as progress:
            demo = _Demo(name_server, orders, progress)
            await demo.run()
    return demo.shop


def _report(console: Console, shop: Shop, elapsed_s: float, keep: Path | None) -> None:
    table = Table(title="The shop's day")
    table.add_column("what")
    table.add_column("sent", justify="right")
    table.add_column("arrived", justify="right")
    states = Counter(shop.sent_stock.values())
    committed = states[TransactionState.COMMIT] + states[TransactionState.UNKNOWN]
    table.add_row("orders", str(len(shop.sent_orders)), str(len(shop.orders)))
    table.add_row("payments", str(len(shop.sent_payments)), str(len(shop.paid)))
    table.add_row(
        "closed unpaid, after the delay",
        str(len(shop.sent_orders - shop.sent_payments)),
        str(len(shop.closed)),
    )
    table.add_row(
        f"stock confirmed (of {len(shop.sent_stock)}, {states[TransactionState.ROLLBACK]} rolled back)",
        str(committed),
        str(len(shop.confirmed)),
    )
    console.print(table)
    shares = ", ".join(f"{name} {count}" for name, count in sorted(shop.by_consumer.items()))
    console.print(f"orders by consumer: {shares}")
    again = shop.orders.total() - len(shop.orders)
    console.print(f"delivered again when the group grew (at least once is the promise): {again}")
    console.print(f"open transactions the broker asked about: {shop.checked}")
    where = f"; store and log in {keep}" if keep is not None else ""
    console.print(f"everything checked in {elapsed_s:.1f} s{where}")

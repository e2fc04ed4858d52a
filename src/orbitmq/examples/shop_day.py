"""A shop on orbitmq, from its start to a checked result.

It runs a name server, a master and a slave. The shop (``shop``) has orders, payments, delays, transactions and a
group that grows while it works. Then the slave's log is compared with the master's (``shop_servers``), and Spark
turns the topics into Parquet and a table (``shop_spark``). Everything is compared with what was sent.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from orbitmq.client import TransactionState
from orbitmq.examples import shop_spark
from orbitmq.examples.shop import CLOSED, ORDERS, PAYMENTS, Shop, ShopRun
from orbitmq.examples.shop_servers import Replication, run_cluster

__all__ = ["Outcome", "report", "run_day"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    shop: Shop
    replication: Replication
    spark: shop_spark.SparkResult | None

    def differences(self) -> list[str]:
        """Returns the differences between what was sent and what arrived; empty if everything arrived."""
        shop = self.shop
        found = [*shop.differences(), *self.replication.differences()]
        if shop.clerk_count < 3:
            found.append(f"only {shop.clerk_count} of three clerks got orders")
        if self.spark is not None:
            rows = {ORDERS: len(shop.book), PAYMENTS: len(shop.sent_payments), CLOSED: len(shop.unpaid)}
            found += self.spark.differences(shop.minutes(), rows)
        return found


async def run_day(data: Path, orders: int, console: Console, *, with_spark: bool) -> Outcome:
    """Run the servers and the shop with their data in ``data``. Progress is printed on ``console``."""
    async with run_cluster(data) as cluster:
        console.print(
            f"name server {cluster.name_server}, master {cluster.master.address}, slave {cluster.slave.address}"
        )
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as progress:
            day = ShopRun(cluster.name_server, orders, progress)
            await day.run()
            compared = progress.add_task("slave against master", total=1)
            replication = await cluster.replication()
            progress.advance(compared)
            spark = None
            if with_spark:
                read = progress.add_task("Spark: topics to Parquet", total=1)
                spark = await asyncio.to_thread(shop_spark.run, cluster.name_server, data)
                progress.advance(read)
    return Outcome(day.shop, replication, spark)


def report(console: Console, outcome: Outcome) -> None:
    """Print what was sent and what arrived."""
    shop = outcome.shop
    states: dict[TransactionState, int] = {}
    for state in shop.sent_stock.values():
        states[state] = states.get(state, 0) + 1
    table = Table(title="The shop's day")
    table.add_column("what")
    table.add_column("sent", justify="right")
    table.add_column("arrived", justify="right")
    table.add_row("orders", str(len(shop.book)), str(len(shop.orders)))
    table.add_row("payments", str(len(shop.sent_payments)), str(len(shop.paid)))
    table.add_row("closed unpaid, after the delay", str(len(shop.unpaid)), str(len(shop.closed)))
    table.add_row(
        f"stock confirmed (of {len(shop.sent_stock)}, {states.get(TransactionState.ROLLBACK, 0)} rolled back)",
        str(len(shop.committed)),
        str(len(shop.confirmed)),
    )
    replication = outcome.replication
    table.add_row(
        "bytes of the log, at the slave", str(replication.master_bytes), str(replication.slave_bytes)
    )
    console.print(table)
    shares = ", ".join(f"{name} {count}" for name, count in sorted(shop.by_clerk.items()))
    console.print(f"orders by clerk while the group grew: {shares}")
    again = shop.orders.total() - len(shop.orders)
    console.print(f"delivered again when it grew (at least once is the promise): {again}")
    console.print(f"open transactions the broker asked about: {shop.checked}")
    rate = shop.till_sends / shop.sending_s if shop.sending_s else 0.0
    console.print(f"{shop.till_sends} messages sent one after the other, {rate:,.0f} a second")
    if outcome.spark is not None:
        _report_spark(console, outcome.spark)


def _report_spark(console: Console, spark: shop_spark.SparkResult) -> None:
    table = Table(title="Orders by minute, by Spark")
    for name in ("minute", "orders", "paid", "closed", "EUR paid"):
        table.add_column(name, justify="left" if name == "minute" else "right")
    for row in spark.minutes:
        table.add_row(row.minute, *map(str, row[1:4]), f"{row.paid_cents / 100:,.2f}")
    console.print(table)
    rows = sum(spark.rows.values())
    console.print(
        f"Spark started in {spark.start_s:.1f} s, read {rows} rows of {len(spark.rows)} topics into Parquet "
        f"in {spark.read_s:.1f} s"
    )

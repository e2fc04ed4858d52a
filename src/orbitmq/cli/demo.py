"""``orbitmq demo``: a shop on orbitmq, from start to checked result, that ends by itself.

A name server, a master and a slave; orders, payments, delays, transactions and a group that grows while it works
(``demo_shop``); the slave's log compared with the master's (``demo_servers``); Spark turns the topics into Parquet
and a table (``demo_spark``). Everything is compared with what was sent; any difference is printed and ends with exit
code 1.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from orbitmq.cli import demo_spark
from orbitmq.cli.demo_servers import Replication, run_cluster
from orbitmq.cli.demo_shop import CLOSED, ORDERS, PAYMENTS, Shop, ShopRun
from orbitmq.cli.servers import fail
from orbitmq.client import TransactionState
from orbitmq.runtime.logs import configure_logging

__all__ = ["demo_command"]

_MARK: Final = ".orbitmq-demo"
"""Says that a directory is the demo's own and may go with the next run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    shop: Shop
    replication: Replication
    spark: demo_spark.SparkResult | None

    def differences(self) -> list[str]:
        """What is not as it was sent; empty when all is well."""
        shop = self.shop
        found = [*shop.differences(), *self.replication.differences()]
        if shop.clerk_count < 3:
            found.append(f"only {shop.clerk_count} of three clerks got orders")
        if self.spark is not None:
            rows = {ORDERS: len(shop.book), PAYMENTS: len(shop.sent_payments), CLOSED: len(shop.unpaid)}
            found += self.spark.differences(shop.minutes(), rows)
        return found


@click.command("demo")
@click.option("--orders", default=2_000, show_default=True, type=click.IntRange(30, 100_000))
@click.option(
    "--spark/--no-spark",
    default=None,
    help="With or without the Spark part; by default it runs where Java and PySpark are found.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data/demo"),
    show_default=True,
    help="Where stores, log and Parquet files go. What an earlier demo left there is removed first.",
)
def demo_command(orders: int, spark: bool | None, data: Path) -> None:
    """A shop on orbitmq: orders, payments, delays, transactions, a slave, Spark, and a check of everything."""
    lacking = "" if spark is False else demo_spark.missing()
    if lacking and spark:
        fail(
            f"the Spark part of the demo needs {lacking}; 'orbitmq demo --no-spark' runs the rest without it"
        )
    with_spark = spark is not False and not lacking
    console = Console()
    if lacking:
        console.print(f"The Spark part is skipped: it needs {lacking}. Everything else runs.", soft_wrap=True)
    started_s = time.monotonic()
    _make_room(data)
    configure_logging("INFO", str(data / "orbitmq.log"))
    try:
        outcome = asyncio.run(_run(data, orders, console, with_spark=with_spark))
    except (RuntimeError, TimeoutError) as error:
        fail(f"the demo stopped: {error}")
    _report(console, outcome)
    differences = outcome.differences()
    for difference in differences:
        console.print(f"[red]mismatch[/] {difference}")
    _say_where(console, data, with_spark=with_spark)
    verdict = "[red]not as sent[/]" if differences else "everything checked"
    console.print(f"{verdict} in {time.monotonic() - started_s:.1f} s")
    sys.exit(1 if differences else 0)


def _make_room(data: Path) -> None:
    """An empty directory of our own. Somebody else's files are never removed."""
    if data.exists() and any(data.iterdir()):
        if not (data / _MARK).exists():
            fail(f"{data} holds files that are not the demo's; name another directory with --data")
        shutil.rmtree(data)
    data.mkdir(parents=True, exist_ok=True)
    (data / _MARK).write_text("made by 'orbitmq demo'; its next run removes this directory\n")


async def _run(data: Path, orders: int, console: Console, *, with_spark: bool) -> Outcome:
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
                spark = await asyncio.to_thread(demo_spark.run, cluster.name_server, data)
                progress.advance(read)
    return Outcome(day.shop, replication, spark)


def _report(console: Console, outcome: Outcome) -> None:
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


def _say_where(console: Console, data: Path, *, with_spark: bool) -> None:
    parquet = f", Parquet in {data / 'parquet'}" if with_spark else ""
    stores = f"stores in {data / 'master'} and {data / 'slave'}"
    console.print(f"files: {stores}{parquet}, log in {data / 'orbitmq.log'}", soft_wrap=True)


def _report_spark(console: Console, spark: demo_spark.SparkResult) -> None:
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

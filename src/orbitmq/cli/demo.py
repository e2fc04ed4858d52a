"""``orbitmq demo``: runs the shop of ``orbitmq.examples``. Prints any differences and then exits with code 1."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from orbitmq.cli.servers import fail
from orbitmq.examples import shop_spark
from orbitmq.examples.shop_day import report, run_day
from orbitmq.runtime.logs import configure_logging

__all__ = ["demo_command"]

_MARK: Final = ".orbitmq-demo"
"""File that marks a directory as the demo's own, so that the next run may delete it."""


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
    help="Directory for stores, log and Parquet files; files of an earlier demo are removed.",
)
def demo_command(orders: int, spark: bool | None, data: Path) -> None:
    """A shop on orbitmq: orders, payments, delays, transactions, a slave, Spark, and a check of everything."""
    lacking = "" if spark is False else shop_spark.missing()
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
        outcome = asyncio.run(run_day(data, orders, console, with_spark=with_spark))
    except (RuntimeError, TimeoutError) as error:
        fail(f"the demo stopped: {error}")
    report(console, outcome)
    differences = outcome.differences()
    for difference in differences:
        console.print(f"[red]mismatch[/] {difference}")
    _say_where(console, data, with_spark=with_spark)
    verdict = "[red]not as sent[/]" if differences else "everything checked"
    console.print(f"{verdict} in {time.monotonic() - started_s:.1f} s")
    sys.exit(1 if differences else 0)


def _make_room(data: Path) -> None:
    """Create an empty directory for the demo.

    Replaces the directory of an earlier run, but exits if the directory holds other files.
    """
    if data.exists() and any(data.iterdir()):
        if not (data / _MARK).exists():
            fail(f"{data} holds files that are not the demo's; name another directory with --data")
        shutil.rmtree(data)
    data.mkdir(parents=True, exist_ok=True)
    (data / _MARK).write_text("made by 'orbitmq demo'; its next run removes this directory\n")


def _say_where(console: Console, data: Path, *, with_spark: bool) -> None:
    parquet = f", Parquet in {data / 'parquet'}" if with_spark else ""
    stores = f"stores in {data / 'master'} and {data / 'slave'}"
    console.print(f"files: {stores}{parquet}, log in {data / 'orbitmq.log'}", soft_wrap=True)

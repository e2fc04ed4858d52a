"""Runs the demo like a new user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orbitmq.client import TransactionState
from orbitmq.examples import shop_spark
from orbitmq.examples.shop import ORDERS, MinuteRow, Order, Shop
from orbitmq.examples.shop_day import Outcome
from orbitmq.examples.shop_servers import Replication

ALIKE = Replication(10, 10, "a", "a")


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orbitmq.cli.main", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.slow
def test_demo_without_spark_ends_by_itself_with_everything_checked(tmp_path: Path) -> None:
    data = tmp_path / "demo"
    done = demo("--orders", "150", "--no-spark", "--data", str(data))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything checked" in done.stdout
    assert "ERROR" not in (data / "orbitmq.log").read_text()
    for folder in ("master", "slave"):
        assert list((data / folder / "commitlog").iterdir())


@pytest.mark.slow
def test_demo_keeps_its_hands_off_files_that_are_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = demo("--no-spark", "--data", str(tmp_path))
    assert done.returncode == 1
    assert "not the demo's" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.slow
def test_demo_asked_for_spark_without_java_says_what_to_do(tmp_path: Path) -> None:
    done = demo("--spark", "--data", str(tmp_path / "demo"), PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 1
    assert "needs Java 17" in done.stderr
    assert "--no-spark" in done.stderr


@pytest.mark.slow
def test_demo_without_java_runs_the_rest_and_says_so(tmp_path: Path) -> None:
    done = demo("--orders", "30", "--data", str(tmp_path / "demo"), PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The Spark part is skipped: it needs Java 17 or later" in done.stdout
    assert "everything checked" in done.stdout
    assert "Parquet" not in done.stdout


def half_a_day() -> Shop:
    """Two orders, one paid, and no message lost."""
    shop = Shop(
        book={name: Order.numbered(number, 2) for number, name in enumerate(("order-00000", "order-00001"))},
        sent_payments={"order-00000"},
        sent_stock={"order-00000": TransactionState.COMMIT, "order-00001": TransactionState.ROLLBACK},
        paid={"order-00000"},
        closed={"order-00001"},
    )
    shop.orders.update(shop.book)
    shop.confirmed["order-00000"] += 1
    shop.by_clerk.update(("clerk-1", "clerk-2", "clerk-3"))
    return shop


def test_day_on_which_all_went_well_has_no_differences() -> None:
    shop = half_a_day()
    assert Outcome(shop, ALIKE, None).differences() == []
    paid = shop.book["order-00000"].cents
    assert shop.minutes() == [MinuteRow("09:00", 1, 1, 0, paid), MinuteRow("09:05", 1, 0, 1, 0)]


def test_orders_differ_and_are_the_same_in_every_run() -> None:
    orders = [Order.numbered(number, 1_000) for number in range(1_000)]
    assert orders == [Order.numbered(number, 1_000) for number in range(1_000)]
    assert 770 < sum(order.is_paid for order in orders) < 830
    assert len({order.cents for order in orders}) > 500
    assert {order.minute for order in orders} == {f"09:{minute:02d}" for minute in range(10)}


def test_differences_name_what_is_missing() -> None:
    shop = half_a_day()
    del shop.orders["order-00001"]
    shop.closed.clear()
    shop.confirmed["order-00001"] += 1
    shop.early.append("order-00001")
    texts = "\n".join(Outcome(shop, ALIKE, None).differences())
    assert "orders received: 1 of 2; missing ['order-00001']" in texts
    assert "orders closed as unpaid: 0 of 1" in texts
    assert "stock confirmations: 2 of 1; missing [], unexpected ['order-00001']" in texts
    assert "closed before their time" in texts
    assert "payments" not in texts


def test_slave_that_lags_or_differs_and_idle_clerks_are_differences() -> None:
    shop = half_a_day()
    assert "has 9 bytes" in Outcome(shop, Replication(10, 9, "a", "b"), None).differences()[0]
    assert "the logs differ" in Outcome(shop, Replication(10, 10, "a", "b"), None).differences()[0]
    del shop.by_clerk["clerk-3"]
    assert Outcome(shop, ALIKE, None).differences() == ["only 2 of three clerks got orders"]


def test_what_spark_finds_is_compared_row_by_row() -> None:
    shop = half_a_day()
    rows = {"ShopOrders": 2, "ShopPayments": 1, "ShopClosedOrders": 1}
    right = shop_spark.SparkResult(rows, shop.minutes(), 1.0, 1.0)
    assert Outcome(shop, ALIKE, right).differences() == []
    fewer = shop_spark.SparkResult({**rows, ORDERS: 1}, shop.minutes()[:1], 1.0, 1.0)
    texts = Outcome(shop, ALIKE, fewer).differences()
    assert texts == [
        "Spark read 1 rows of ShopOrders, 2 were sent",
        "Spark's table differs: 1 minutes instead of 2",
    ]

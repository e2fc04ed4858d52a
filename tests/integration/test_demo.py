"""The demo as a newcomer runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from orbitmq.cli.demo import Shop
from orbitmq.client import TransactionState


def test_demo_ends_by_itself_with_everything_checked(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orbitmq.cli.main", "demo", "--orders", "60", "--keep", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything checked" in done.stdout
    assert "ERROR" not in (tmp_path / "orbitmq.log").read_text()


def test_shop_names_what_differs() -> None:
    shop = Shop(sent_orders={"a", "b"}, sent_payments={"a"}, sent_stock={"a": TransactionState.COMMIT})
    shop.orders["a"] += 1
    shop.paid.add("a")
    texts = "\n".join(shop.differences())
    assert "orders received: 1 of 2; missing ['b']" in texts
    assert "orders closed as unpaid: 0 of 1" in texts
    assert "stock confirmations: 0 of 1" in texts
    assert "payments" not in texts

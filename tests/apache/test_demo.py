"""The whole demo, with Spark. It is in this folder because it needs Java."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.apache.artifacts import require

pytestmark = [pytest.mark.apache, pytest.mark.slow]


def test_demo_with_spark_ends_by_itself_with_everything_checked(tmp_path: Path) -> None:
    require()
    data = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "orbitmq.cli.main", "demo", "--orders", "200", "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Orders by minute, by Spark" in done.stdout
    assert "everything checked" in done.stdout
    assert list((data / "parquet").glob("topic=ShopOrders/*.parquet"))

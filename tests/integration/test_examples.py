"""Every example that needs no web framework runs to its end against our broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orbitmq.testing import run_broker

ROOT = Path(__file__).resolve().parents[2]
ENDINGS = {
    "quickstart": "received 'hello ",
    "asyncio_pipeline": "100 results, sum 9900",
    "transaction": "TransactionState.COMMIT",
    "exactly_once": "balance 50",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_example_runs_to_its_end(name: str) -> None:
    with run_broker() as broker:
        ended = subprocess.run(
            [sys.executable, str(ROOT / "examples" / f"{name}.py"), broker.name_server],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 0, ended.stderr
    assert ENDINGS[name] in ended.stdout

"""SECURITY.md names the test of each attack; each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_test_that_the_threat_model_names_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    files = set(re.findall(r"`(tests/[\w/]+\.py)`", text))
    names = set(re.findall(r"`(test_\w+)`", text))
    assert len(files) > 5
    assert len(names) > 30
    assert [path for path in sorted(files) if not (ROOT / path).is_file()] == []
    defined = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        defined.update(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    assert sorted(names - defined) == []

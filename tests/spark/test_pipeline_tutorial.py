"""The last step of the tutorial: from an empty folder to a tested pipeline, by the commands and files it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.slow

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orbitmq", "pipeline", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_the_pipeline_of_the_tutorial_passes_its_test_and_fails_when_it_is_changed(
    fast_jvm: None, tmp_path: Path
) -> None:
    step = TUTORIAL.read_text("utf-8").partition("## 8. ")[2].partition("\n## ")[0]
    pipeline, cases = re.findall(r"^```yaml\n(.*?)^```", step, re.DOTALL | re.MULTILINE)
    [shown] = re.findall(r"^```console\n(.*?)^```", step, re.DOTALL | re.MULTILINE)
    (tmp_path / "orders.yaml").write_text(pipeline)
    (tmp_path / "orders.test.yaml").write_text(cases)
    command, *printed = shown.splitlines()
    assert command == "$ orbitmq pipeline test orders.yaml"
    done = run(tmp_path, "test", "orders.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    seconds = re.compile(r"\d+\.\d s")
    assert [seconds.sub("", line) for line in done.stdout.splitlines()] == [
        seconds.sub("", line) for line in printed
    ]
    (tmp_path / "orders.yaml").write_text(pipeline.replace("price > 0", "price >= -1"))
    changed = run(tmp_path, "test", "orders.yaml", "--junit", "report.xml")
    assert changed.returncode == 1
    assert '  + {"id": "order-2", "price": -1.0}' in changed.stdout
    assert changed.stdout.endswith("0 passed, 1 failed\n")
    assert ElementTree.parse(tmp_path / "report.xml").getroot().get("failures") == "1"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "orders.test.yaml",
        "orders.yaml",
        "report.xml",
    ]


def test_a_command_that_cannot_start_leaves_with_2(tmp_path: Path) -> None:
    missing = run(tmp_path, "test", "orders.yaml")
    assert (missing.returncode, missing.stderr) == (2, "orbitmq: orders.yaml: there is no such file\n")
    (tmp_path / "orders.yaml").write_text("name: orders")
    without = run(tmp_path, "test", "orders.yaml")
    assert without.returncode == 2
    assert "orders.test.yaml: there are no test cases" in without.stderr

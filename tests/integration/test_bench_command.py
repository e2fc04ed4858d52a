"""``orbitmq bench`` runs the benchmarks it finds, shows the results, and stores them with commit and machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RECORD = """
def measure(scale: float = 1.0) -> dict[str, float]:
    return {"encode": 1.5 * scale}
"""
BROKER = """
async def measure() -> dict[str, float]:
    return {"send": 12.25, "count": 1000}
"""
SERVERS = """
def run(seconds: float = 6.0, *, ours_only: bool = False) -> dict[str, dict[str, float]]:
    results = {"orbitmq": {"rate": seconds}}
    if not ours_only:
        results["apache-5.5.0"] = {"rate": seconds / 2}
    return results
"""
BROKEN = """
def run() -> None:
    raise RuntimeError("needs java, mvn")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Returns a source tree with benchmarks that take no time."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for name, text in (
        ("micro_record", RECORD),
        ("micro_broker", BROKER),
        ("namesrv", SERVERS),
        ("broker", BROKEN),
    ):
        (folder / f"{name}.py").write_text(text)
    return tmp_path


def bench(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "orbitmq.cli.main", "bench", *arguments)
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=60, check=False)


def test_micro_benchmarks_are_shown_and_written(tree: Path) -> None:
    ended = bench(tree, "micro")
    assert ended.returncode == 0, ended.stderr
    for text in ("micro_record", "encode", "1.500", "send", "12.250", "1,000"):
        assert text in ended.stdout
    report = json.loads((tree / "build" / "bench" / "micro.json").read_text())
    assert report["results"] == {
        "micro_record": {"encode": 1.5},
        "micro_broker": {"send": 12.25, "count": 1000},
    }
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["python"].startswith("3.")
    assert report["commit"] == "unknown"


def test_servers_stand_side_by_side_and_options_reach_them(tree: Path) -> None:
    target = tree / "figures.json"
    ended = bench(tree, "namesrv", "--seconds", "3", "--json", str(target))
    assert ended.returncode == 0, ended.stderr
    header = next(line for line in ended.stdout.splitlines() if "orbitmq" in line)
    assert "apache-5.5.0" in header
    assert json.loads(target.read_text())["results"]["namesrv"] == {
        "orbitmq": {"rate": 3.0},
        "apache-5.5.0": {"rate": 1.5},
    }
    alone = bench(tree, "namesrv", "--ours-only", "--json", str(target))
    assert "apache" not in alone.stdout
    assert json.loads(target.read_text())["results"]["namesrv"] == {"orbitmq": {"rate": 6.0}}


def test_benchmark_that_cannot_run_says_why_and_ends_with_1(tree: Path) -> None:
    ended = bench(tree, "broker")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-2:] == [
        "orbitmq: broker: needs java, mvn",
        "orbitmq: nothing of broker could be measured",
    ]


def test_all_measures_what_it_can_and_names_the_rest(tree: Path) -> None:
    (tree / "benchmarks" / "client.py").write_text("async def measure(seconds: float) -> None: ...\n")
    ended = bench(tree, "all")
    assert ended.returncode == 0, ended.stderr
    assert "orbitmq: broker: needs java, mvn" in ended.stderr
    assert "python -m benchmarks.client" in ended.stderr
    report = json.loads((tree / "build" / "bench" / "all.json").read_text())
    assert sorted(report["results"]) == ["micro_broker", "micro_record", "namesrv"]


def test_part_without_a_benchmark_is_named(tree: Path) -> None:
    ended = bench(tree, "ha")
    assert ended.returncode == 1
    assert "no benchmark of ha" in ended.stderr

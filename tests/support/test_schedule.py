"""Tests the order in which workers of pytest-xdist run the files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from tests.support.schedule import NICE, next_file

ROOT = Path(__file__).parents[2]
FILES = [
    "tests/unit/store/test_a.py",
    "tests/integration/test_b.py",
    "tests/apache/test_c.py",
    "tests/spark/test_d.py",
    "tests/conformance/test_e.py",
]


@pytest.mark.parametrize(
    ("worker", "order"),
    [(0, "daebc"), (1, "caebd"), (2, "ebadc"), (3, "aebdc"), (4, "daebc")],
)
def test_workers_begin_with_other_folders_and_end_with_short_files(worker: int, order: str) -> None:
    left = list(FILES)
    taken = ""
    while left:
        taken += (chosen := next_file(left, worker))[-4]
        left.remove(chosen)
    assert taken == order


@pytest.mark.slow
def test_run_with_four_workers_gives_each_its_own_folder_first(tmp_path: Path) -> None:
    for file in FILES:
        path = tmp_path / file
        path.parent.mkdir(parents=True)
        body = "    with open('ran', 'a') as ran:\n        print(worker_id, __name__, os.nice(0), file=ran)\n"
        path.write_text(
            "import os\n" + "".join(f"def test_{number}(worker_id):\n{body}" for number in range(4))
        )
    options = ["-n", "4", "--dist", "loadfile", "-p", "tests.support.schedule", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--import-mode=importlib",
            *options,
            "--rootdir",
            str(tmp_path),
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = defaultdict(list)
    priorities: dict[str, int] = {}
    for line in (tmp_path / "ran").read_text().splitlines():
        worker, name, priority = line.split()
        ran[worker].append(name[-1])
        priorities[worker] = int(priority)
    assert [ran[f"gw{number}"][0] for number in range(4)] == list("dcea")
    assert sorted(name for names in ran.values() for name in names) == sorted("abcde" * 4)
    own = os.nice(0)
    assert [priorities[f"gw{number}"] for number in range(4)] == [min(own + more, 19) for more in NICE]

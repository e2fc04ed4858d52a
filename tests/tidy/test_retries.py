"""Which failed tests run again: those beside JVMs and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.run_all import is_beside_jvm, verdict

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("node_id", "markers", "expected"),
    [
        ("tests/apache/test_pop.py::test_a", (), True),
        ("tests/spark/test_sink.py::test_a", (), True),
        ("tests/console/test_browser.py::test_a[ours]", (), True),
        ("tests/integration/test_spark_reading.py::test_a", (), False),
        ("tests/conformance/test_sending.py::test_a[apache-5.5.0]", ("apache",), True),
        ("tests/conformance/test_sending.py::test_a[ours]", (), False),
        ("tests/unit/spark/test_arrow.py::test_a", (), False),
        ("tests/fault/test_kill_minus_9.py::test_a", ("slow",), False),
    ],
)
def test_tests_beside_jvms_may_run_again(node_id: str, markers: tuple[str, ...], expected: bool) -> None:
    assert is_beside_jvm(node_id, markers) is expected


def test_failures_are_parted_by_what_may_run_again() -> None:
    assert verdict({"a": True, "b": True, "c": True}, ["b", "x"]) == (["b"], ["a", "c"])


@pytest.mark.slow
def test_failure_without_a_jvm_is_final_and_one_beside_a_jvm_gets_two_more_runs(tmp_path: Path) -> None:
    """Runs of real projects: a test that passes in some run, marked and not."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nmarkers = ["apache: beside a JVM"]\n'
    )
    for name in ("__init__.py", "run_all.py"):
        source = ROOT / "tests" / name
        (tmp_path / "tests" / name).write_text(source.read_text() if source.exists() else "")
    hook = (ROOT / "tests" / "conftest.py").read_text()
    head = "import pytest\nfrom tests.run_all import CACHE_KEY, is_beside_jvm\n\n"
    (tmp_path / "tests" / "conftest.py").write_text(head + hook[hook.index("def pytest_collection_finish") :])
    flaky = "{mark}def test_flaky():\n    from pathlib import Path\n    seen = Path('seen')\n"
    flaky += "    runs = seen.read_text() if seen.exists() else ''\n    seen.write_text(runs + 'x')\n"
    flaky += "    assert len(runs) == {failures}\n"
    marked = "import pytest\n\n@pytest.mark.apache\n"
    for mark, failures, expected, words in (
        (marked, 1, 0, "needed another run (passed then)"),
        (marked, 2, 0, "needed another run (passed then)"),
        (marked, 3, 1, "needed another run (failed again)"),
        ("", 1, 1, "nothing is retried"),
    ):
        (tmp_path / "seen").unlink(missing_ok=True)
        (tmp_path / "tests" / "test_flaky.py").write_text(flaky.format(mark=mark, failures=failures))
        run = subprocess.run(
            [sys.executable, "-m", "tests.run_all", "-q"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"},
        )
        assert run.returncode == expected, run.stdout + run.stderr
        assert words in run.stdout
        assert "test_flaky" in run.stdout.partition(words)[2]

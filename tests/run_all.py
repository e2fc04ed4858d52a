"""``python -m tests.run_all``: every test, and once more what failed beside a JVM.

Two processes of pytest-xdist share the files, a whole file each time: most tests wait for servers, so one process
leaves a core idle. ``python -m tests.run_all -n 0`` runs in one process.

A JVM that starts or collects garbage on two cores can keep a test waiting longer than any limit that still finds
faults. So tests beside one (``BESIDE_JVM``, or the marker ``apache``) run again when they fail, alone and at most
twice, and those that needed it are listed at the end. Every other failure is final: a retry would hide our races.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

__all__ = ["BESIDE_JVM", "CACHE_KEY", "is_beside_jvm", "verdict"]

BESIDE_JVM: Final = ("tests/apache/", "tests/spark/", "tests/console/")
"""Folders whose tests have a JVM (or a browser) beside them; the marker ``apache`` says so for others."""
CACHE_KEY: Final = "orbitmq/beside_jvm"
_CACHE: Final = Path(".pytest_cache") / "v"
_TESTS_FAILED: Final = 1
_RETRIES: Final = 2
_TWO_PROCESSES: Final = ("-n", "2", "--dist", "loadfile")


def is_beside_jvm(node_id: str, markers: Iterable[str] = ()) -> bool:
    """Whether a failed test may run again."""
    return "apache" in markers or node_id.startswith(BESIDE_JVM)


def verdict(failed: Iterable[str], beside_jvm: Iterable[str]) -> tuple[list[str], list[str]]:
    """Failed tests in two lists: those that may run again, and those whose failure is final."""
    may = set(beside_jvm)
    again = sorted(one for one in failed if one in may)
    return again, sorted(one for one in failed if one not in may)


def _cached(key: str) -> object:
    try:
        return json.loads((_CACHE / key).read_text())
    except FileNotFoundError:
        return None


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def main(arguments: list[str]) -> int:
    """The exit code of the run."""
    code = _pytest(*_TWO_PROCESSES, *arguments)
    if code != _TESTS_FAILED:
        return code
    failed, beside = _cached("cache/lastfailed"), _cached(CACHE_KEY)
    assert isinstance(failed, Mapping), "pytest keeps the failed tests in its cache"
    assert isinstance(beside, list)
    again, final = verdict(failed, beside)
    if final:
        print(
            f"--- {len(final)} failed that have no JVM beside them, so nothing is retried:", *final, sep="\n"
        )
        return code
    for _ in range(_RETRIES):
        print(f"--- once more, alone: {len(again)} tests beside JVMs failed ---", flush=True)
        code = _pytest(*arguments, "--last-failed", "--last-failed-no-failures", "none")
        print(f"--- needed another run ({'failed again' if code else 'passed then'}):", *again, sep="\n")
        if code != _TESTS_FAILED:
            break
        failed = _cached("cache/lastfailed")
        assert isinstance(failed, Mapping)
        again = sorted(failed)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``python -m tests.support.mutants [NAME...]``: breaks the code on purpose and shows whether a test notices.

Each mutant is applied to a copy of ``src`` in a temporary folder, and only the tests that should notice it are run
against that copy. All those tests are first run against an unchanged copy: a test that fails there proves nothing.
The exit code is 1 if a mutant survived. ``--list`` only prints the names. ``tests/tidy`` checks that every mutant
still fits the code.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.mutant_table import MUTANTS, Mutant

__all__ = ["Outcome", "apply", "main", "misfits", "table"]

_ROOT: Final = Path(__file__).parents[2]
_PYTEST: Final = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--target=ours")
_TESTS_FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The test results for one mutant."""

    mutant: Mutant
    code: int
    wall_s: float
    noticed_by: str

    @property
    def noticed(self) -> bool:
        return self.code == _TESTS_FAILED


def misfits(mutants: Sequence[Mutant], root: Path = _ROOT) -> Iterator[str]:
    """Yields one line per edit whose old text is not in its file exactly once."""
    for mutant in mutants:
        for edit in mutant.edits:
            path = root / edit.file
            count = path.read_text("utf-8").count(edit.old) if path.exists() else 0
            if count != 1:
                yield (
                    f"mutant {mutant.name!r}: its old text is {count} times in {edit.file}; adapt the edit in "
                    "tests/support/mutant_table.py"
                )


def apply(mutant: Mutant, root: Path) -> None:
    """Changes the files below ``root``."""
    for problem in misfits([mutant], root):
        raise ValueError(problem)
    for edit in mutant.edits:
        path = root / edit.file
        path.write_text(path.read_text("utf-8").replace(edit.old, edit.new), "utf-8")


def _run(tests: Sequence[str], mutant: Mutant | None = None) -> tuple[int, float, str]:
    """Returns pytest's exit code, the seconds it took, and the first test that failed."""
    with tempfile.TemporaryDirectory(prefix="orbitmq-mutant-") as folder:
        root = Path(folder)
        shutil.copytree(_ROOT / "src", root / "src")  # with the .pyc files of unchanged modules
        if mutant is not None:
            apply(mutant, root)
        begin = time.monotonic()
        process = subprocess.run(
            [*_PYTEST, *tests],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(root / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
    failed = [line for line in process.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return process.returncode, time.monotonic() - begin, failed[0].split()[1] if failed else ""


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yields one row per mutant."""
    yield "| mutant | outcome | s | first test that failed |"
    yield "| --- | --- | --- | --- |"
    for one in outcomes:
        word = "noticed" if one.noticed else f"SURVIVED (pytest ended with {one.code})"
        yield f"| {one.mutant.name} | {word} | {one.wall_s:.0f} | {one.noticed_by} |"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 1 if a mutant survived, 2 if one does not fit or the tests fail without one."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.mutants", description="break the code and see which test notices"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="the mutants to run; all without one")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"unknown mutants: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    if options.list:
        print(*(mutant.name for mutant in chosen), sep="\n")  # noqa: T201 - a command
        return 0
    if problems := list(misfits(chosen)):
        print(*problems, sep="\n", file=sys.stderr)  # noqa: T201 - a command
        return 2
    code, _, failed = _run(sorted({test for mutant in chosen for test in mutant.tests}))
    if code:
        print(f"the tests fail without a mutant: {failed or code}", file=sys.stderr)  # noqa: T201 - a command
        return 2
    outcomes = []
    for mutant in chosen:
        outcomes.append(Outcome(mutant, *_run(mutant.tests, mutant)))
        word = "noticed" if outcomes[-1].noticed else "survived"
        print(f"{mutant.name}: {word}", file=sys.stderr, flush=True)  # noqa: T201 - a command
    print(*table(outcomes), sep="\n")  # noqa: T201 - a command
    return 0 if all(outcome.noticed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

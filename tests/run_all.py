"""``python -m tests.run_all``: every test that ``make test`` runs, each once.

Four processes of pytest-xdist share the files, a whole file each time: most tests wait for servers, so two processes
leave each of two cores idle for nearly two thirds of the time. ``python -m tests.run_all -n 0`` runs in one process.
Failed tests are not repeated, because a retry would hide our races: a test that cannot be made deterministic belongs
to ``make soak``, with its reason in ``tests/support/tiers.py``.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

_PROCESSES: Final = ("-n", "4", "--dist", "loadfile")


def main(arguments: list[str]) -> int:
    """Returns the exit code of the run."""
    return subprocess.run([sys.executable, "-m", "pytest", *_PROCESSES, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

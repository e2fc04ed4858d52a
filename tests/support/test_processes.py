"""Tests that children can be interrupted even if the test run ignores SIGINT."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.support.processes import interruptible_children

SHOW = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


def shown() -> str:
    return subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True).stdout


def test_children_of_a_background_job_can_be_interrupted() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert shown() == "False\n", "an ignored signal is inherited"
        with interruptible_children():
            assert shown() == "True\n"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

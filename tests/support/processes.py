"""Starts child processes the same way whether the test run has a terminal or is a background job."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["interruptible_children"]


@contextlib.contextmanager
def interruptible_children() -> Iterator[None]:
    """Starts processes inside this block with the default action for SIGINT.

    A shell starts background jobs with SIGINT ignored, every child inherits that, and Python then raises no
    KeyboardInterrupt. A signal with a handler is reset to its default in a new program, so a handler is installed
    here temporarily. ``preexec_fn`` would run Python code between fork and exec, which is unsafe with threads. Call
    it from the main thread.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

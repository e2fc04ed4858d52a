"""``orbitmq run --reload``: runs a worker as a child process and restarts it when its source changes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

__all__ = ["run_and_reload"]

_LOOK_S: Final = 0.5
_LEFT_OUT: Final = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "build"})
_FILES_MAX: Final = 20_000


def run_and_reload(command: Sequence[str], root: Path) -> int:
    """Run the worker until a signal arrives. Returns its exit code.

    Handlers may finish before the worker is replaced. A worker that ends by itself, for example because of an error
    at import, is restarted after the next change.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Cached bytecode counts as current if the source has the same size and was changed in the same second.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}

    def start() -> subprocess.Popen[bytes]:
        # In its own process group, so Ctrl-C reaches only this process, which signals the child once.
        return subprocess.Popen(command, start_new_session=True, env=environment)

    child = start()
    seen = _times(root)
    try:
        while not stop.wait(_LOOK_S):
            now = _times(root)
            if now == seen:
                continue
            changed = sorted(path for path in now.keys() | seen.keys() if now.get(path) != seen.get(path))
            seen = now
            click.echo(f"changed {changed[0]}, starting again", err=True)
            _end(child)
            child = start()
    finally:
        code = _end(child)
    return max(0, code)


def _end(child: subprocess.Popen[bytes]) -> int:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    return child.wait()


def _times(root: Path) -> dict[str, int]:
    """Returns the modification time of each Python file below ``root``, in nanoseconds."""
    times: dict[str, int] = {}
    for directory, folders, files in os.walk(root):
        folders[:] = [folder for folder in folders if folder not in _LEFT_OUT]
        for name in files:
            if name.endswith(".py") and len(times) < _FILES_MAX:
                path = os.path.join(directory, name)
                try:
                    times[os.path.relpath(path, root)] = os.stat(path).st_mtime_ns
                except OSError:
                    pass  # removed meanwhile
    return times

"""``orbitmq run --reload``: which files count, and how a child is ended and replaced."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orbitmq.cli import reload


class _Child:
    def __init__(self, code: int | None = None) -> None:
        self.code = code
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self.code = -number

    def wait(self) -> int:
        assert self.code is not None
        return self.code


class _Stop:
    """An event that is set after some looks; each look runs one step."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)

    def wait(self, seconds: float) -> bool:
        if not self.steps:
            return True
        self.steps.pop(0)()
        return False

    def set(self) -> None:
        self.steps.clear()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[_Child]:
    started: list[_Child] = []

    def popen(command: list[str], *, start_new_session: bool, env: dict[str, str]) -> _Child:
        assert (command, start_new_session) == (["worker"], True)
        assert env["PYTHONDONTWRITEBYTECODE"] == "1"
        started.append(_Child())
        return started[-1]

    monkeypatch.setattr("orbitmq.cli.reload.subprocess.Popen", popen)
    monkeypatch.setattr("orbitmq.cli.reload.signal.signal", lambda *_: None)
    return started


def _run(monkeypatch: pytest.MonkeyPatch, root: Path, *steps: Any) -> int:
    monkeypatch.setattr("orbitmq.cli.reload.threading.Event", lambda: _Stop(*steps))
    return reload.run_and_reload(["worker"], root)


def test_change_ends_the_child_gracefully_and_starts_another(
    children: list[_Child],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = tmp_path / "handler.py"
    source.write_text("1")
    os.utime(source, ns=(1, 1))
    code = _run(monkeypatch, tmp_path, lambda: None, lambda: os.utime(source, ns=(2, 2)), lambda: None)
    assert [child.signals for child in children] == [[signal.SIGTERM]] * 2
    assert capsys.readouterr().err == "changed handler.py, starting again\n"
    assert code == 0, "a child that was stopped by us has not failed"


def test_child_that_ended_by_itself_is_started_again_only_after_a_change(
    children: list[_Child], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def crash() -> None:
        children[-1].code = 3

    code = _run(monkeypatch, tmp_path, crash, lambda: None, lambda: (tmp_path / "new.py").touch())
    assert len(children) == 2
    assert (children[0].signals, children[1].signals) == ([], [signal.SIGTERM])
    assert code == 0


def test_exit_code_is_that_of_the_last_child(
    children: list[_Child], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def crash() -> None:
        children[-1].code = 3

    assert _run(monkeypatch, tmp_path, crash) == 3


def test_only_sources_outside_of_environments_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.py", "pkg/b.py", "notes.txt", ".venv/c.py", "pkg/__pycache__/d.py", "node_modules/e.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert set(reload._times(tmp_path)) == {"a.py", "pkg/b.py"}
    monkeypatch.setattr(reload, "_FILES_MAX", 1)
    assert len(reload._times(tmp_path)) == 1

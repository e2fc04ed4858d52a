"""``orbitmq dlq``: what it selects, prints, asks and exits with. The dead letters are written here."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.admin.scripted import Scripted
from tests.unit.admin.test_deadletters import letter

from orbitmq.admin.deadletters import DeadGroups, DeadLetter, DeadLetters
from orbitmq.cli import dlq
from orbitmq.errors import OrbitError, TopicNotFound
from orbitmq.record.reasons import REASON


class _Letters:
    """Two letters of any group; keeps what was asked and changed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = letter(1, **{REASON: "closed"})
        self.letters = [first, letter(2, "")]
        self.failure: OrbitError | None = None
        self.outcomes = ["new1", "new2"]
        self.asked: list[dict[str, Any]] = []
        self.sent: list[tuple[str, float]] = []
        self.marked: list[tuple[list[str], str]] = []
        monkeypatch.setattr(dlq, "open_admin", lambda *_: Scripted())
        for name in ("each_dead_letter", "dead_letters", "dead_groups", "resend_paced", "mark_done"):
            monkeypatch.setattr(f"orbitmq.admin.deadletters.{name}", getattr(self, name))

    async def each_dead_letter(self, _: object, group: str, **wanted: Any) -> AsyncIterator[DeadLetter]:
        self.asked.append({"group": group, **wanted})
        if self.failure is not None:
            raise self.failure
        for one in self.letters:
            yield one

    async def dead_letters(self, _: object, group: str, **wanted: Any) -> DeadLetters:
        self.asked.append({"group": group, **wanted})
        if self.failure is not None:
            raise self.failure
        return DeadLetters(letters=self.letters, cursor="", scanned=2, available=2)

    async def dead_groups(self, _: object) -> DeadGroups:
        return DeadGroups(groups=[])

    async def resend_paced(
        self, _: object, group: str, letters: list[DeadLetter], *, topic: str, per_second: float
    ) -> AsyncIterator[tuple[DeadLetter, str]]:
        self.sent.append((topic, per_second))
        for one, outcome in zip(letters, self.outcomes, strict=True):
            yield one, outcome

    async def mark_done(self, _: object, group: str, ids: list[str], done: str) -> None:
        self.marked.append((ids, done))


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> _Letters:
    return _Letters(monkeypatch)


def run(*arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(dlq.dlq_commands, arguments, input=typed)


def test_listed_letter_has_its_origin_state_and_reason_without_control_characters(letters: _Letters) -> None:
    letters.letters = [letter(1, **{REASON: "x"})]
    letters.letters[0].reason = "bad \x1b[31m\nline"
    first, second = run("list", "g").output.splitlines()
    assert first == "m1  1970-01-01 00:00:00  tries=3  from=orders  open  x"
    assert second == "    bad  [31m line"


def test_group_without_dead_letters_is_not_a_failure(letters: _Letters) -> None:
    letters.failure = TopicNotFound("%DLQ%g")
    done = run("list", "g")
    assert (done.exit_code, done.stderr) == (0, "the group has no dead letters\n")
    assert run("list").output == "no group has dead letters\n"


def test_other_failure_is_one_line_and_exits_with_one(letters: _Letters) -> None:
    letters.failure = OrbitError("no answer")
    done = run("list", "g")
    assert (done.exit_code, done.stderr) == (1, "orbitmq: no answer\n")


def test_letter_that_is_not_found_fails_show(letters: _Letters) -> None:
    assert json.loads(run("show", "g", "m1").output.splitlines()[0])["originTopic"] == "orders"
    letters.letters = []
    done = run("show", "g", "m9")
    assert (done.exit_code, done.stderr) == (1, "orbitmq: group g has no such dead letter\n")


@pytest.mark.parametrize("command", ["resend", "drop"])
def test_change_that_names_no_letters_is_refused(letters: _Letters, command: str) -> None:
    assert run(command, "g", typed="y\n").exit_code == 2
    assert (letters.asked, letters.sent, letters.marked) == ([], [], [])


def test_resend_selects_by_its_options_and_keeps_its_rate(letters: _Letters) -> None:
    done = run("resend", "g", "m1", "--text", "a", "--reason", "b", "--to", "T", "--rate", "7")
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "2 sent, 0 failed")
    assert letters.asked == [{"group": "g", "ids": ("m1",), "text": "a", "reason": "b"}]
    assert letters.sent == [("T", 7.0)]


def test_resend_of_which_one_fails_exits_with_one(letters: _Letters) -> None:
    letters.outcomes = ["new1", "!no route"]
    done = run("resend", "g", "--all")
    assert (done.exit_code, done.stdout) == (1, "m1 sent as new1\n1 sent, 1 failed\n")
    assert done.stderr == "m2 failed: no route\n"


def test_dry_run_names_the_targets_and_sends_nothing(letters: _Letters) -> None:
    assert run("resend", "g", "--all", "--dry-run").output.splitlines() == [
        "m1 would go to orders",
        "m2 would go to ?",
        "2 dead letters; nothing was sent",
    ]
    assert letters.sent == []


def test_letters_are_dropped_only_after_a_yes(letters: _Letters) -> None:
    refused = run("drop", "g", "--all", typed="n\n")
    assert (refused.exit_code, letters.marked) == (1, [])
    assert "Drop 2 dead letters of g?" in refused.output
    assert run("drop", "g", "--all", "--yes").output == "2 dropped\n"
    assert letters.marked == [(["o1", "o2"], "dropped")]
    letters.letters = []
    assert run("drop", "g", "--all").output == "nothing to drop\n"


def test_export_has_one_letter_per_line(letters: _Letters, tmp_path: Path) -> None:
    file = tmp_path / "letters.ndjson"
    assert run("export", "g", "--all", "-o", str(file)).output == ""
    assert [json.loads(line)["message"]["messageId"] for line in file.read_text().splitlines()] == [
        "m1",
        "m2",
    ]
    assert letters.asked[0]["with_done"] is True

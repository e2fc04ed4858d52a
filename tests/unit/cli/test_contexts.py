"""``orbitmq context``: what is saved, who may read it, and which context a command gets."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from orbitmq.cli.contexts import CONTEXT_VARIABLE, Context, context_commands, current_context


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(CONTEXT_VARIABLE, raising=False)
    return tmp_path / "orbitmq"


def run(*arguments: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(context_commands, arguments, input=typed)


def test_first_saved_context_is_used_and_the_second_is_not(folder: Path) -> None:
    assert run("set", "one", "-n", "a:1").output == "context one saved, in use\n"
    assert run("set", "two", "-n", "b:2;c:3", "--tls").output == "context two saved\n"
    assert current_context() == Context("a:1")
    assert current_context("two") == Context("b:2;c:3", tls=True)
    assert run("use", "two").output == "context two in use\n"
    assert current_context() == Context("b:2;c:3", tls=True)


def test_saved_contexts_can_be_read_by_their_owner_only(folder: Path) -> None:
    run("set", "one", "-n", "a:1", "--accessKey", "alice", "--secretKey", "s3cret")
    [file] = folder.iterdir()
    assert file.name == "contexts.json", "the temporary file was renamed"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_secret_key_that_is_left_out_is_asked_for_and_not_echoed(folder: Path) -> None:
    done = run("set", "one", "-n", "a:1", "--accessKey", "alice", typed="typed-secret\n")
    assert "typed-secret" not in done.output
    assert current_context() == Context("a:1", "alice", "typed-secret")


def test_certificates_to_trust_are_saved_with_their_absolute_path(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("set", "one", "-n", "a:1", "--tlsCa", "ca.pem")
    assert current_context() == Context("a:1", tls_ca=str(tmp_path / "ca.pem"))


def test_list_marks_the_context_in_use_and_never_prints_secrets(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("set", "plain", "-n", "a:1")
    run("set", "full", "-n", "b:2", "--accessKey", "alice", "--secretKey", "s3cret", "--tls")
    shown = run("list").output
    assert shown == "  full  b:2 tls signed\n* plain  a:1\n"
    monkeypatch.setenv(CONTEXT_VARIABLE, "full")
    assert run("list").output == "* full  b:2 tls signed\n  plain  a:1\n"
    rows = json.loads(run("list", "--json").output)
    assert rows["full"] == {"current": True, "nameServers": "b:2", "accessKey": "alice"}


def test_variable_selects_a_context_over_the_one_in_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("set", "one", "-n", "a:1")
    run("set", "two", "-n", "b:2")
    monkeypatch.setenv(CONTEXT_VARIABLE, "two")
    assert current_context() == Context("b:2")
    assert current_context("one") == Context("a:1"), "a name overrides the variable"


def test_unknown_context_is_refused_by_every_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("set", "one", "-n", "a:1")
    for command in ("use", "remove"):
        refused = run(command, "other")
        assert (refused.exit_code, "no context 'other'" in refused.output) == (1, True)
    monkeypatch.setenv(CONTEXT_VARIABLE, "other")
    with pytest.raises(click.ClickException, match="no context 'other'"):
        current_context()


def test_removed_context_in_use_leaves_no_context_in_use(folder: Path) -> None:
    run("set", "one", "-n", "a:1")
    run("set", "two", "-n", "b:2")
    assert run("remove", "one").output == "context one removed\n"
    assert current_context() is None
    assert run("set", "three", "-n", "c:3").output == "context three saved, in use\n"


def test_without_a_file_there_is_no_context_and_none_is_created(folder: Path) -> None:
    assert current_context() is None
    assert run("list").output == ""
    assert not folder.exists()


@pytest.mark.parametrize("content", ["{", '{"contexts": {"one": {}}}', '{"contexts": 3}'])
def test_damaged_file_is_named_in_one_line(folder: Path, content: str) -> None:
    folder.mkdir()
    (folder / "contexts.json").write_text(content)
    refused = run("list")
    assert refused.exit_code == 1
    assert refused.output.startswith(f"Error: {folder / 'contexts.json'} cannot be read: ")
    assert refused.output.count("\n") == 1

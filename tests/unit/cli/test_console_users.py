"""``orbitmq console --add-user`` with the password from standard input."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from orbitmq.cli.console import console_command
from orbitmq.console.security import UserFile


def test_user_is_added_with_the_password_from_standard_input(tmp_path: Path) -> None:
    users = tmp_path / "users"
    words = ["--users", str(users), "--add-user", "anna", "--role", "operator", "--password-stdin"]
    result = CliRunner().invoke(console_command, words, input="far from home\n")
    assert result.exit_code == 0, result.output
    assert "Password" not in result.output
    role = UserFile(users).check("anna", "far from home")
    assert role is not None
    assert role.name == "OPERATOR"


def test_empty_password_from_standard_input_is_refused(tmp_path: Path) -> None:
    users = tmp_path / "users"
    words = ["--users", str(users), "--add-user", "anna", "--password-stdin"]
    result = CliRunner().invoke(console_command, words, input="\n")
    assert result.exit_code != 0
    assert "no password on standard input" in result.output
    assert not users.exists()

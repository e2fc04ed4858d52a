"""Declarations and help of the short commands. Tests that need a broker are in tests/integration."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from orbitmq.cli import everyday
from orbitmq.cli.admin_kit.declare import Command
from orbitmq.cli.everyday import COMMANDS
from orbitmq.cli.main import main

EVERY = [(group, command) for group, commands in COMMANDS.items() for command in commands]


@pytest.mark.parametrize(("group", "command"), EVERY, ids=lambda one: getattr(one, "name", one))
def test_help_names_every_flag_and_the_connection(group: str, command: Command) -> None:
    done = CliRunner().invoke(main, [group, command.name, "--help"])
    assert done.exit_code == 0, done.output
    for flag in command.flags:
        assert (flag.key.upper() if flag.by_place else flag.names[-1]) in done.output
    assert "--json" in done.output


@pytest.mark.parametrize("group", COMMANDS)
def test_help_of_a_group_lists_its_commands(group: str) -> None:
    done = CliRunner().invoke(main, [group, "--help"])
    assert all(f"  {command.name} " in done.output for command in COMMANDS[group])


def test_missing_argument_is_named() -> None:
    done = CliRunner().invoke(main, ["topic", "describe"])
    assert (done.exit_code, "Missing argument 'TOPIC'" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(None, ""), (-5, "0 s"), (59_999, "59 s"), (61_000, "1 min"), (7_200_000, "2 h"), (200_000_000, "2 d")],
)
def test_ages_are_in_units_that_people_read(milliseconds: int | None, text: str) -> None:
    assert everyday._age(milliseconds) == text


def test_groups_of_commands_are_click_groups() -> None:
    for name in COMMANDS:
        assert isinstance(main.get_command(click.Context(main), name), click.Group)

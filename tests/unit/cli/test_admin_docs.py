"""docs/admin.md matches the tool."""

from __future__ import annotations

import re
from pathlib import Path

from orbitmq.cli.admin import AREAS, declarations
from orbitmq.cli.admin_kit.reference import keys_table

PAGE = (Path(__file__).parents[3] / "docs" / "admin.md").read_text("utf-8")
COMMANDS = [command for area in AREAS for command in declarations(area)]


def test_table_of_json_keys_is_that_of_the_results() -> None:
    _, _, table = PAGE.partition("a test holds it -->\n\n")
    assert table == keys_table(COMMANDS), "run `python -m orbitmq.cli.admin_kit.reference` and put it there"


def test_commands_named_in_the_text_exist_and_those_left_out_do_not() -> None:
    known = {command.name for command in COMMANDS}
    named = set(re.findall(r"orbitmq admin (\w+)", PAGE)) - {"completion"}
    assert named <= known
    absent = re.search(r"^Not here: (.*?)\. For features", PAGE, re.DOTALL | re.MULTILINE)
    assert absent is not None
    left_out = set(re.findall(r"`(\w+)`", absent[1]))
    assert left_out
    assert not left_out & known


def test_flags_used_in_the_examples_are_declared() -> None:
    by_name = {command.name: command for command in COMMANDS}
    for name, rest in re.findall(r"^orbitmq admin (\w+)([^#\n]*)", PAGE, re.MULTILINE):
        if name not in by_name:
            continue
        flags = {flag for one in by_name[name].flags for flag in one.names} | {"-n", "--help", "--json"}
        assert set(re.findall(r"(?<= )--?[a-zA-Z]+", rest)) <= flags, name

"""``orbitmq admin``: declarations, parsing, printing, errors. Tests that need a cluster are in tests/integration."""

from __future__ import annotations

import asyncio
import io
import json
import re
import subprocess
import sys
from collections import Counter
from datetime import datetime
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from orbitmq.cli.admin import AREAS, admin_commands, declarations
from orbitmq.cli.admin_kit import run as run_module
from orbitmq.cli.admin_kit.connect import CONNECTION_KEYS, connection_options, open_admin
from orbitmq.cli.admin_kit.declare import Command
from orbitmq.cli.admin_kit.explain import nearest
from orbitmq.cli.admin_kit.output import (
    Lines,
    Part,
    Table,
    flat,
    java_map,
    moment,
    pairs,
    print_parts,
    second,
    table,
)
from orbitmq.cli.admin_kit.run import build
from orbitmq.cli.admin_kit.times import parse_time

COMMANDS = [command for area in AREAS for command in declarations(area)]
NOBODY = "127.0.0.1:1"

APACHE_ONLY = {
    "addBroker",
    "cleanBrokerMetadata",
    "electMaster",
    "getBrokerEpoch",
    "getColdDataFlowCtrInfo",
    "getControllerConfig",
    "getControllerMetaData",
    "getSyncStateSet",
    "removeBroker",
    "removeColdDataFlowCtrGroupConfig",
    "resetMasterFlushOffset",
    "setCommitLogReadAheadMode",
    "switchTimerEngine",
    "updateColdDataFlowCtrGroupConfig",
    "updateControllerConfig",
}


def run(*arguments: str, env: dict[str, str | None] | None = None) -> Result:
    clean: dict[str, str | None] = {
        "NAMESRV_ADDR": None,
        "ORBITMQ_ACCESS_KEY": None,
        "ORBITMQ_SECRET_KEY": None,
    }
    return CliRunner().invoke(admin_commands, arguments, env=clean | (env or {}))


# -- declarations ------------------------------------------------------------------------------------------


def test_table_of_areas_names_exactly_the_declarations_in_their_order() -> None:
    for area, names in AREAS.items():
        assert names == tuple(command.name for command in declarations(area)), area


def test_command_names_are_unique_and_many() -> None:
    names = [command.name for command in COMMANDS]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert len(names) >= 80


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_command_has_flags_that_do_not_clash_and_texts(command: Command) -> None:
    names = [name for flag in command.flags for name in flag.names]
    shared = [name for option in connection_options() for name in option.opts]
    assert [name for name, count in Counter(names + shared).items() if count > 1] == []
    assert command.help.endswith((".", ")."))
    assert all(flag.help for flag in command.flags)
    assert set(command.one_of) <= {flag.key for flag in command.flags}
    built = build(command)
    keys = {param.name for param in built.params}
    assert keys >= set(CONNECTION_KEYS)


def typed_names(text: str) -> set[str]:
    """Returns the options at the beginning of the lines of a help text."""
    lines = re.findall(r"^  (-[\w-]+(?:, -[\w-]+)*)", text, re.MULTILINE)
    return {name for line in lines for name in line.split(", ")}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_of_a_command_names_its_flags_and_the_connection(command: Command) -> None:
    result = run(command.name, "--help")
    assert result.exit_code == 0
    own, _, shared = result.stdout.partition("\nConnection:\n")
    assert typed_names(own) == {name for flag in command.flags for name in flag.names} | {"-h", "--help"}
    assert all(typed_names(shared) & set(option.opts) for option in connection_options())
    assert ("Only Apache's servers" in result.stdout.replace("\n  ", " ")) == (command.name in APACHE_ONLY)


@pytest.mark.parametrize("name", [command.name for command in declarations("auth")])
def test_help_of_user_and_access_list_commands_does_not_claim_a_refusal(name: str) -> None:
    assert "Only Apache's servers" not in run(name, "--help").stdout.replace("\n  ", " ")


def test_help_of_the_group_lists_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    listed = {
        line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ") and line.split()
    }
    assert {command.name for command in COMMANDS} <= listed


# -- what was typed ----------------------------------------------------------------------------------------


def test_misspelt_command_is_answered_with_near_names() -> None:
    result = run("topiclist")
    assert result.exit_code == 2
    assert "Did you mean topicList" in result.stderr
    assert "See `orbitmq admin --help`" in run("zzzzzz").stderr


def test_command_without_broker_and_cluster_says_which_flags_it_needs() -> None:
    result = run("brokerStatus")
    assert result.exit_code == 2
    assert "-b/--brokerAddr or -c/--clusterName" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["resetOffsetByTime", "-g", "g", "-t", "t", "-s", "yesterday"], "is not a time"),
        (["resetOffsetByTime", "-g", "g", "-t", "t", "-s", "0", "-q", "1"], "-b BROKER and -q QUEUE"),
        (["sendMessage", "-t", "t", "-p", "x", "-i", "1"], "needs its broker"),
        (["consumeMessage", "-t", "t", "-i", "1"], "needs its broker"),
        (["consumeMessage", "-t", "t", "-o", "1"], "needs its queue"),
        (["printMsg", "-t", "t", "-c", "no-such"], "is not a known encoding"),
        (["queryMsgById", "-t", "t", "-i", "x", "-f", "no-such"], "is not a known encoding"),
        (["updateOrderConf", "-t", "t", "-m", "put"], "put needs a value"),
        (["updateOrderConf", "-t", "t", "-m", "change"], "'change' is not one of"),
        (["removeBroker", "-c", NOBODY, "-b", "only-a-name"], "clusterName:brokerName:brokerId"),
        (["updateUser", "-b", NOBODY, "-u", "bob"], "nothing to change"),
        (["topicList", "--accessKey", "a"], "belong together"),
        (["topicStatus"], "Missing option"),
        (["changeRole", "-b", NOBODY, "-r", "KING"], "'KING' is not one of"),
    ],
)
def test_wrong_use_leaves_with_2_and_says_what_is_wrong(arguments: list[str], text: str) -> None:
    result = run(*arguments, "-n", NOBODY)
    assert result.exit_code == 2, result.output
    assert text in " ".join(result.stderr.split())


def test_without_a_name_server_the_usual_one_is_asked() -> None:
    assert open_admin({}, {}).name_servers == ["127.0.0.1:9876"]
    assert open_admin({}, {"NAMESRV_ADDR": "a:1;b:2"}).name_servers == ["a:1", "b:2"]


def test_name_server_that_does_not_answer_is_said_with_what_to_do() -> None:
    result = run("topicList", "-n", NOBODY)
    assert result.exit_code == 3
    assert "-n HOST:PORT or the variable NAMESRV_ADDR" in result.stderr
    assert "`orbitmq up` starts one" in result.stderr


@pytest.mark.parametrize("spelling", ["-n", "--namesrvAddr", "--namesrv-addr", "--namesrv"])
def test_name_server_option_has_one_spelling_in_the_help_and_takes_all(spelling: str) -> None:
    result = run("topicList", spelling, NOBODY)
    assert f"no answer from the name server at {NOBODY}" in result.stderr
    assert "  -n, --namesrvAddr HOST:PORT;..." in run("topicList", "--help").stdout


def test_name_server_comes_from_the_variable_the_group_or_the_command() -> None:
    for result in (
        run("topicList", env={"NAMESRV_ADDR": NOBODY}),
        run("-n", NOBODY, "topicList"),
        run("topicList", "-n", NOBODY, env={"NAMESRV_ADDR": "127.0.0.1:2"}),
        run("-n", "127.0.0.1:2", "topicList", "-n", NOBODY),
    ):
        assert result.exit_code == 3
        assert f"name server at {NOBODY}" in result.stderr
        assert "`orbitmq up` starts one" in result.stderr


def test_broker_that_does_not_answer_is_said_with_what_to_check() -> None:
    result = run("brokerStatus", "-b", NOBODY)
    assert result.exit_code == 3
    assert f"broker at {NOBODY}" in result.stderr
    assert "brokerIP1" in result.stderr


def test_error_as_json_has_its_own_form() -> None:
    result = run("topicList", "--json", "-n", NOBODY)
    assert result.exit_code == 3
    assert result.stdout == ""
    error = json.loads(result.stderr)["error"]
    assert sorted(error) == ["code", "hints", "message"]
    assert error["code"] is None


def test_files_that_are_not_there_are_an_error_not_a_traceback() -> None:
    result = run("updateTopicList", "-b", NOBODY, "-f", "no-such-file.json")
    assert result.exit_code == 1
    assert "no-such-file.json" in result.stderr
    missing = run("topicList", "--tls", "--tlsCa", "no-such-file.pem", "-n", NOBODY)
    assert missing.exit_code == 2


def test_keys_and_tls_reach_the_session(tmp_path: Any) -> None:
    admin = open_admin({"access_key": "a", "timeout_s": 2.5, "tls": True}, {"ORBITMQ_SECRET_KEY": "s"})
    assert admin.options.credentials is not None
    assert (admin.options.credentials.access_key, admin.options.credentials.secret_key) == ("a", "s")
    assert admin.options.tls is not None
    assert admin.options.timeout_s == 2.5
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    result = run("topicList", "--tlsCa", str(broken), "-n", NOBODY)
    assert result.exit_code == 1
    assert "TLS" in result.stderr


# -- values ------------------------------------------------------------------------------------------------


def test_keys_come_from_the_tools_file_of_mqadmin_when_nothing_else_names_them(tmp_path: Any) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "tools.yml").write_text("accessKey: from-file\nsecretKey: its-secret\n")
    environment = {"ROCKETMQ_HOME": str(tmp_path)}
    credentials = open_admin({}, environment).options.credentials
    assert credentials is not None
    assert (credentials.access_key, credentials.secret_key) == ("from-file", "its-secret")
    given = open_admin({"access_key": "a", "secret_key": "b"}, environment).options.credentials
    assert given is not None
    assert given.access_key == "a"
    (tmp_path / "conf" / "tools.yml").write_text("accessKey: from-file\n")
    assert open_admin({}, environment).options.credentials is None


def test_times_are_read_in_all_forms_mqadmin_has() -> None:
    local = datetime(2026, 1, 31, 23, 59, 58).astimezone()
    whole = int(local.timestamp()) * 1000
    assert parse_time("now", 42) == 42
    assert parse_time(" 1794788825797 ", 0) == 1794788825797
    assert parse_time("-1", 0) == -1
    assert parse_time("2026-01-31#23:59:58:123", 0) == whole + 123
    assert parse_time("2026-01-31#23:59:58", 0) == whole
    assert parse_time("2026-01-31T23:59:58", 0) == whole
    assert parse_time("2026-01-31 23:59:58.123", 0) == whole + 123
    assert parse_time("2026-01-31T23:59:58+00:00", 0) == parse_time("2026-02-01T00:59:58+01:00", 0)
    assert parse_time("-15m", 1_000_000) == 100_000
    assert parse_time("-2d", 172_800_001) == 1
    for wrong in ("", "2026-01-32", "-15w", "2026-13-01#00:00:00:000", "1.5"):
        with pytest.raises(click.UsageError):
            parse_time(wrong, 0)


def test_moments_are_local_time_and_zero_is_none() -> None:
    local = datetime(2026, 1, 31, 23, 59, 58).astimezone()
    milliseconds = int(local.timestamp()) * 1000 + 7
    assert moment(milliseconds) == "2026-01-31 23:59:58,007"
    assert second(milliseconds) == "2026-01-31 23:59:58"
    assert (moment(0), second(0)) == ("", "N/A")


def test_near_names_ignore_case_and_leave_out_the_name_itself() -> None:
    assert nearest("Orders", ["orders", "other", "payments"])[0] == "orders"
    assert nearest("orders", ["orders"]) == []
    assert nearest("zzz", ["orders"]) == []


def test_values_print_as_java_prints_them() -> None:
    assert [flat(value) for value in (True, False, None, 1, "x", [1, "a"])] == [
        "true",
        "false",
        "",
        "1",
        "x",
        "[1, a]",
    ]
    assert java_map({"a": 1, "b": True}) == "{a=1, b=true}"
    assert pairs({"key": 1}, width=5).lines == ["key  : 1"]


class Row(msgspec.Struct):
    name: str
    size: int


def test_plain_table_has_hashes_before_titles_and_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("a", 1), Row("long-name", 22)]
    print_parts([table(rows, {"Name": "name", "Size": lambda row: row.size * 2}), Lines(["done"])])
    assert capsys.readouterr().out == "#Name      #Size\na          2\nlong-name  44\ndone\n"


def test_table_without_rows_shows_its_titles(capsys: pytest.CaptureFixture[str]) -> None:
    print_parts([Table(("A", "B"), [])])
    assert capsys.readouterr().out == "#A  #B\n"


def test_names_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_parts([table([Row("\x1b[31mred\r", 1)], {"Name": "name"}), Lines(["\x07bell"])])
    assert not set(capsys.readouterr().out) & {"\x1b", "\r", "\x07"}


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, parts: list[Part], columns: int, *, wide: bool = False
) -> list[str]:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", str(columns))
    print_parts(parts, wide=wide)
    return [click.unstyle(line) for line in screen.getvalue().splitlines()]


def test_wide_table_is_folded_on_a_terminal_and_no_word_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["c" * 20, "7", "x" * 30, "", "z"], ["c", "11", "x", "y" * 60, "z"]]
    wide = Table(("Name", "QID", "Third", "Fourth", "Fifth"), rows)
    lines = on_a_terminal(monkeypatch, [wide], 60)
    assert lines == [
        "Name                  QID  Third",
        f"{'c' * 20}    7  {'x' * 30}",
        "    Fifth z",
        f"{'c':20}   11  x",
        f"    Fourth {'y' * 60}",
        "    Fifth z",
    ]
    assert on_a_terminal(monkeypatch, [wide], 200)[0].split() == ["Name", "QID", "Third", "Fourth", "Fifth"]
    assert on_a_terminal(monkeypatch, [wide], 60, wide=True)[0].startswith("#Name")


def test_columns_and_lines_for_people_stay_out_of_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts: list[Part] = [
        Table(("A", "Ours"), [["1", "2"]], human=frozenset({"Ours"})),
        Lines(["mine", "rmq_sys_x"], frozenset({"rmq_sys_x"}), "system topics; --all shows them"),
    ]
    print_parts(parts)
    assert capsys.readouterr().out == "#A\n1\nmine\nrmq_sys_x\n"
    assert on_a_terminal(monkeypatch, parts, 80) == [
        "A  Ours",
        "1     2",
        "mine",
        "(1 system topics; --all shows them)",
    ]


def test_long_line_is_broken_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = on_a_terminal(monkeypatch, [Lines(["word " * 20 + "e" * 70])], 50)
    assert all(len(line) <= 50 for line in lines[:-1])
    assert lines[-1] == "    " + "e" * 70


# -- the shell ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_whole_command(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_ORBITMQ_COMPLETE" in result.stdout
    assert shell in result.stdout


def test_completion_of_another_shell_is_refused() -> None:
    assert run("completion", "tcsh").exit_code == 2


@pytest.mark.slow
def test_command_starts_without_what_it_does_not_need() -> None:
    """A command that prints into a pipe and sends no message needs neither rich nor the client, which are half of its
    start-up time.
    """
    script = (
        "import sys; from click.testing import CliRunner; from orbitmq.cli.admin import admin_commands;"
        f"CliRunner().invoke(admin_commands, ['topicStatus', '-t', 'x', '-n', '{NOBODY}']);"
        "heavy = ('rich', 'orbitmq.client', 'uvloop', 'orbitmq.broker', 'orbitmq.cli.admin_areas.auth');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


class Terminal(io.StringIO):
    """Reports that it is interactive."""

    def isatty(self) -> bool:
        return True


def shown_progress(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *, shown: bool = True) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(run_module, "_STARTED_OVER_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")

    async def work() -> None:
        with run_module._progress(shown=shown) as step:
            if step is not None:
                for done in range(4):
                    step("topics", done, 3)

    asyncio.run(work())
    return stream.getvalue()


def test_long_work_shows_its_progress_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "topics" in shown_progress(monkeypatch, Terminal())
    assert shown_progress(monkeypatch, io.StringIO()) == ""
    assert shown_progress(monkeypatch, Terminal(), shown=False) == ""

"""``orbitmq store``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.golden.data import extract, messages

from orbitmq.cli.store import store_commands


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extract("store-clean", tmp_path_factory.mktemp("golden"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(store_commands, [str(argument) for argument in arguments])


def lines(result: Result) -> list[dict[str, object]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_verify_of_a_good_store_leaves_with_0(root: Path) -> None:
    result = run("verify", root)
    assert result.exit_code == 0
    assert "no errors" in result.output
    assert "1450 records" in result.output
    report = json.loads(run("verify", root, "--json").output)
    assert (report["record_count"], report["error_count"]) == (1450, 0)


def test_verify_of_a_damaged_store_leaves_with_1_and_names_the_place(tmp_path: Path) -> None:
    store = extract("store-clean", tmp_path)
    log = store / "commitlog" / f"{0:020d}"
    record = messages("store-clean")["records"][3]
    content = bytearray(log.read_bytes())
    content[record["commitLogOffset"] + 90] ^= 1
    log.write_bytes(content)
    result = run("verify", store)
    assert result.exit_code == 1
    assert f"log offset {record['commitLogOffset']}" in result.output
    report = json.loads(run("verify", store, "--json").output)
    assert report["findings"][0]["area"] == "log"


@pytest.mark.parametrize(
    "command", [["verify"], ["dump", "segments"], ["dump", "checkpoint"], ["dump", "records"]]
)
def test_directory_without_a_store_leaves_with_2_and_one_line(command: list[str], tmp_path: Path) -> None:
    result = run(*command, tmp_path)
    assert result.exit_code == 2
    assert "holds no store" in result.output
    assert len(result.output.splitlines()) == 1


def test_dump_as_json_has_a_line_for_each_thing(root: Path) -> None:
    known = messages("store-clean")
    assert [row["logOffset"] for row in lines(run("dump", "segments", root, "--json"))] == [0, 1048576]
    records = lines(run("dump", "records", root, "--json", "--limit", 0))
    assert [row["logOffset"] for row in records] == [one["commitLogOffset"] for one in known["records"]]
    assert "body" not in records[0] or records[0]["body"] is None
    of_topic = lines(run("dump", "records", root, "--json", "--topic", "GoldenTx", "--body"))
    assert {row["topic"] for row in of_topic} == {"GoldenTx"}
    assert of_topic[0]["body"]
    assert len(lines(run("dump", "queues", root, "--json"))) == len(known["consumeQueues"])
    units = lines(run("dump", "units", root, "--topic", "GoldenBulk", "--queue", 0, "--start", 690, "--json"))
    assert [row["queueOffset"] for row in units] == list(range(690, 700))
    files = lines(run("dump", "index", root, "--json"))
    assert [row["entryCount"] for row in files] == [999, 999, 911]
    name = str(files[0]["path"]).rpartition("/")[2]
    assert len(lines(run("dump", "index", root, "--entries", name, "--json", "--limit", 7))) == 7
    assert lines(run("dump", "checkpoint", root, "--json"))[0]["abort"] is False


@pytest.mark.parametrize(
    "command",
    [
        ["segments"],
        ["records", "--limit", "5"],
        ["records", "--limit", "5", "--body"],
        ["queues"],
        ["units", "--topic", "GoldenT", "--queue", "0"],
        ["index"],
        ["checkpoint"],
    ],
)
def test_dump_is_readable(root: Path, command: list[str]) -> None:
    result = run("dump", command[0], root, *command[1:])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) >= 2


def test_dump_says_when_there_is_more(root: Path) -> None:
    assert "more; --limit 0" in run("dump", "records", root, "--limit", 3).output
    assert "more; --limit 0" not in run("dump", "queues", root).output


def test_unknown_index_file_is_refused(root: Path) -> None:
    result = run("dump", "index", root, "--entries", "20000101000000000")
    assert result.exit_code == 2
    assert "no index file" in result.output

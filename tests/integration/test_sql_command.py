"""``orbitmq sql`` over a real broker: its output and files, and what a statement cannot reach."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pytest
from click.testing import CliRunner, Result

from orbitmq.arrow.query import query
from orbitmq.cli.sql import sql_command
from orbitmq.client import Message
from orbitmq.client.sync import Producer
from orbitmq.errors import ConfigError
from orbitmq.spark.schema import COLUMNS
from orbitmq.testing import RunningBroker, run_broker

pytestmark = pytest.mark.slow

COUNT = 300
_ALL = COLUMNS


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker(enablePropertyFilter=True) as running:
        running.create_topic("orders", queue_count=2)
        with Producer("fill", running.name_server) as producer:
            producer.send_batch(
                [
                    Message(
                        topic="orders",
                        body=b'{"id": %d}' % number,
                        keys=f"k{number}",
                        tags="A" if number % 3 else "B",
                        properties={"price": str(number)},
                    )
                    for number in range(COUNT)
                ]
            )
            producer.send(Message(topic="binary", body=b"\xff\x00"))
        yield running


@pytest.fixture(autouse=True)
def _same_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # The command exports its connection; the variables are set here so that they are restored after each test.
    for name in ("ORBITMQ_NAMESRV", "ORBITMQ_TLS"):
        monkeypatch.setenv(name, "")


def sql(broker: RunningBroker, text: str, *more: str) -> Result:
    return CliRunner().invoke(sql_command, ["-n", broker.name_server, text, *more])


def rows(broker: RunningBroker, text: str, *more: str) -> list[dict[str, Any]]:
    done = sql(broker, text, "--format", "json", *more)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_table_is_printed(broker: RunningBroker) -> None:
    done = sql(broker, "select tags, count(*) as n from topic('orders') group by tags order by tags")
    assert done.exit_code == 0, done.output
    cells = [line.split("│")[1:-1] for line in done.stdout.splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in cells] == [["A", "200"], ["B", "100"]]
    short = sql(broker, "select keys from topic('orders')", "--rows", "2")
    assert "first 2 rows" in short.stdout


def test_arguments_reach_the_broker(broker: RunningBroker) -> None:
    [few] = rows(broker, "select count(*) n from topic('orders', tags => 'B')")
    assert few == {"n": 100}
    priced = rows(broker, "select keys from topic('orders', filter => 'price < 2') order by 1")
    assert priced == [{"keys": "k0"}, {"keys": "k1"}]
    assert rows(broker, "select count(*) n from topic('orders', since => '2100-01-01')") == [{"n": 0}]


@pytest.mark.parametrize(
    "text",
    [
        "select count(*) n, min(keys) k from {0}",
        "select sum(c) n from (select #4 c from {0})",
        "select n, a from (select keys, queue_id, topic from {0}) t(a, b, c), (select 7 n) order by a limit 2",
        "select t.d from {0} t(a, b, c, d, e, f, g) where g = 'k7' or c > 5",
        "select count(*) n from (select * from {0} union all by name select keys from {0})",
        "select a.keys from {0} a natural join {0} b where a.tags = 'B' order by 1 limit 3",
        "select properties['price'] p from {0} where decode(body)->>'$.id' = '9'",
        "select count(columns('.*_id')) from {0}",
        "select max(k) m from (select keys k, rank() over (partition by tags order by keys) r from {0}) where r < 9",
    ],
)
def test_reading_fewer_columns_changes_no_answer(
    broker: RunningBroker, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rows(broker, text.format("topic('orders')"))
    monkeypatch.setattr("orbitmq.arrow.query._columns", lambda connection, statement: _ALL)
    assert found == rows(broker, text.format("topic('orders')"))
    assert found


def test_only_needed_columns_are_decoded(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    from orbitmq.arrow import query as module

    asked: list[tuple[str, ...]] = []
    plan = module._columns

    def noted(connection: Any, statement: str) -> tuple[str, ...]:
        asked.append(plan(connection, statement))
        return asked[-1]

    monkeypatch.setattr(module, "_columns", noted)
    rows(broker, "select keys from topic('orders') where queue_id = 1 and tags = 'A'")
    rows(broker, "select count(*) from topic('orders')")
    assert asked == [("queue_id", "keys", "tags"), ("topic",)]


def test_files_are_whole_and_of_the_form_of_their_name(broker: RunningBroker, tmp_path: Path) -> None:
    text = "select keys, body, properties, store_timestamp from topic('orders', filter => 'price = 5')"
    for name in ("rows.csv", "rows.json", "rows.parquet"):
        done = sql(broker, text, "--output", str(tmp_path / name))
        assert done.exit_code == 0, done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv", "rows.json", "rows.parquet"]
    [line] = csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text()))
    [item] = [json.loads(one) for one in (tmp_path / "rows.json").read_text().splitlines()]
    assert line["body"] == item["body"] == '{"id": 5}'
    assert item["properties"]["price"] == "5"
    assert pq.read_table(tmp_path / "rows.parquet").column("body").to_pylist() == [b'{"id": 5}']
    again = sql(broker, text, "--output", str(tmp_path / "rows.csv"))
    assert (again.exit_code, "choose another name" in again.stderr) == (2, True)
    failed = sql(broker, "select error('stop') from topic('orders')", "--output", str(tmp_path / "part.csv"))
    assert failed.exit_code == 1, failed.output
    assert not [path for path in tmp_path.iterdir() if "part" in path.name]


def test_a_body_that_is_no_text_is_base64(broker: RunningBroker) -> None:
    assert rows(broker, "select body from topic('binary')") == [{"body": "base64:/wA="}]


def test_a_store_is_read_by_the_name_it_was_given(broker: RunningBroker) -> None:
    store = ("--store", f"backup={broker.data / 'store'}")
    [found] = rows(broker, "select count(*) n from store('backup', topic => 'orders')", *store)
    assert found == {"n": COUNT}
    unknown = sql(broker, f"select * from store('{broker.data / 'store'}')", *store)
    assert unknown.exit_code == 2
    assert "stores: backup" in unknown.stderr


@pytest.mark.parametrize(
    "text",
    [
        "select * from read_text('/etc/hostname')",
        "select * from read_csv('/etc/hostname')",
        "select * from '/etc/hostname'",
        "select * from glob('/*')",
        "copy (select 1) to '{0}'",
        "export database '{0}'",
        "attach '{0}'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "create table t as select 1",
        "select 1; select 2",
        "explain select 1",
        "select * from query('copy (select 1) to ''{0}''')",
        "select * from rows",
        "pragma database_list",
        "not sql at all",
        "",
    ],
)
def test_a_statement_reaches_nothing_but_topics(broker: RunningBroker, tmp_path: Path, text: str) -> None:
    done = sql(broker, text.format(tmp_path / "written"))
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("orbitmq: ")
    assert list(tmp_path.iterdir()) == []


def test_the_configuration_of_the_database_is_locked(broker: RunningBroker) -> None:
    names = (
        "autoload_known_extensions",
        "enable_external_access",
        "lock_configuration",
        "python_enable_replacements",
    )
    wanted = ", ".join(f"'{name}'" for name in names)
    found = rows(broker, f"select name, value from duckdb_settings() where name in ({wanted}) order by 1")
    assert [one["value"] for one in found] == ["false", "false", "true", "false"]


def test_an_unknown_topic_is_said_by_its_name(broker: RunningBroker) -> None:
    done = sql(broker, "select * from topic('nothing')")
    assert done.exit_code == 2
    assert done.stderr.startswith("orbitmq: no such topic: nothing")
    assert "Traceback" not in done.stderr
    typo = sql(broker, "select kyes from topic('orders')")
    assert typo.exit_code == 2
    assert "kyes" in typo.stderr


def test_a_memory_limit_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory limit 'much'"), query("select 1", {}, memory="much"):
        pass

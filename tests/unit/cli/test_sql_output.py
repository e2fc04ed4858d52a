"""``orbitmq sql``: output formats, output files and exit codes, using fixed rows defined in this module."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no type hints
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # likewise
import pytest
from click.testing import CliRunner, Result

from orbitmq.arrow.query import QueryError
from orbitmq.cli import sql
from orbitmq.errors import ConfigError, OrbitError

ROWS = pa.table(
    {
        "name": ["a", "b,c", None],
        "body": [b"text", b"\xff\xfe", b""],
        "price": [1.5, float("nan"), float("inf")],
        "paid": [True, False, None],
        "at": [datetime(2026, 1, 31, 12, tzinfo=UTC), None, None],
        "list": [[1, 2], [], None],
        "map": pa.array([[("k", 1)], [("a", 2), ("b", 3)], None], pa.map_(pa.string(), pa.int64())),
    }
)


def rows() -> Any:
    return ROWS.to_reader(max_chunksize=2)


class _Queries:
    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], dict[str, str], str]] = []
        self.failure: Exception | None = None

    @contextmanager
    def query(
        self, text: str, settings: dict[str, str], *, stores: dict[str, str], memory: str
    ) -> Iterator[Any]:
        self.asked.append((text, settings, stores, memory))
        if self.failure is not None:
            raise self.failure
        yield rows()


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> _Queries:
    made = _Queries()
    monkeypatch.setattr(sql, "query", made.query)
    return made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(sql.sql_command, ["select 1", "-n", "ns:9876", *arguments])


def printed(form: str, most: int = 1000) -> str:
    file = io.StringIO()
    sql._printers(most)[form](rows(), file)
    return file.getvalue()


def test_json_has_one_valid_object_per_row() -> None:
    def refuse(name: str) -> None:
        pytest.fail(f"{name} is not JSON")

    first, second, third = (json.loads(line, parse_constant=refuse) for line in printed("json").splitlines())
    assert first == {
        "name": "a",
        "body": "text",
        "price": 1.5,
        "paid": True,
        "at": "2026-01-31T12:00:00+00:00",
        "list": [1, 2],
        "map": {"k": 1},
    }
    assert (second["body"], second["map"]) == ("base64://4=", {"a": 2, "b": 3})
    assert (second["price"], third["price"]) == ("nan", "inf")
    assert third["name"] is third["map"] is None


def test_csv_quotes_what_has_a_comma_and_leaves_nulls_empty() -> None:
    lines = printed("csv").splitlines()
    assert lines == [
        "name,body,price,paid,at,list,map",
        'a,text,1.5,true,2026-01-31T12:00:00+00:00,"[1, 2]","{""k"": 1}"',
        '"b,c",base64://4=,nan,false,,[],"{""a"": 2, ""b"": 3}"',
        ",,inf,,,,",
    ]


def test_table_says_when_it_leaves_rows_out() -> None:
    assert "first 2 rows; --rows shows more" in printed("table", 2)
    assert "--rows shows more" not in printed("table", 3)


def test_query_gets_its_stores_and_the_name_servers(queries: _Queries) -> None:
    done = run("--store", "old=/srv/store", "--memory-limit", "2GB", "--format", "csv")
    assert (done.exit_code, done.output.splitlines()[1][:6]) == (0, "a,text")
    assert queries.asked == [("select 1", {"name_servers": "ns:9876"}, {"old": "/srv/store"}, "2GB")]


@pytest.mark.parametrize("store", ["old", "=x", "old="])
def test_store_that_is_not_a_pair_is_refused(queries: _Queries, store: str) -> None:
    assert run("--store", store).exit_code == 2
    assert queries.asked == []


@pytest.mark.parametrize(
    ("failure", "code"), [(QueryError("no table"), 1), (ConfigError("no memory"), 2), (OrbitError("down"), 1)]
)
def test_failure_is_one_line_with_its_exit_code(queries: _Queries, failure: Exception, code: int) -> None:
    queries.failure = failure
    done = run()
    assert (done.exit_code, done.output) == (code, f"orbitmq: {failure}\n")


@pytest.mark.parametrize("name", ["rows.json", "rows.ndjson", "rows.CSV", "rows.parquet"])
def test_file_has_the_form_of_its_name_and_nothing_else_is_left(
    queries: _Queries, tmp_path: Path, name: str
) -> None:
    assert run("--output", str(tmp_path / name)).exit_code == 0
    [file] = tmp_path.iterdir()
    if name.endswith("parquet"):
        assert pq.read_table(file).num_rows == 3
    elif name == "rows.CSV":
        assert file.read_text().startswith("name,body")
    else:
        assert len([json.loads(line) for line in file.read_text().splitlines()]) == 3


def test_output_that_cannot_be_used_is_refused(queries: _Queries, tmp_path: Path) -> None:
    taken = tmp_path / "taken.csv"
    taken.write_text("mine")
    assert run("--output", str(taken)).exit_code == 2
    assert taken.read_text() == "mine"
    assert run("--output", str(tmp_path / "rows.txt")).exit_code == 2
    assert run("--format", "parquet").exit_code == 2
    lost = run("--output", str(tmp_path / "missing" / "rows.csv"))
    assert (lost.exit_code, "cannot be written" in lost.output) == (1, True)
    assert [file.name for file in tmp_path.iterdir()] == ["taken.csv"]

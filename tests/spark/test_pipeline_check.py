"""``orbitmq pipeline check``: each fault once, with its line and what to write instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orbitmq.pipeline.check import analyse, findings_text, line_of
from orbitmq.pipeline.load import load_pipeline
from orbitmq.pipeline.plan import make_plan
from orbitmq.pipeline.run import build_frames
from orbitmq.spark.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]

WRONG = """\
name: orders
namesrvAddr: 127.0.0.1:1
checkpoint: state
sources:
  orders: {kind: topic, topic: orders, columns: [body, keys]}
steps:
  - name: parsed
    kind: decode
    format: json
    schema: "id int, amount double"
  - name: bad_sql
    kind: sql
    query: SELEC keys FROM parsed
  - name: bad_rule
    kind: quality
    from: parsed
    rules:
      positive: value.amount + 1
      known: value.price > 0
  - name: good
    kind: sql
    query: SELECT keys AS id, value.amount, body FROM parsed
sinks:
  - {name: hidden, kind: console, from: bad_sql}
  - name: table
    kind: delta
    path: lake
    from: good
    key: idd
  - name: messages
    kind: topic
    topic: other
    from: good
    options: {inFlihgt: 3}
"""


def faults(spark: SparkSession, path: Path, text: str) -> list[str]:
    path.write_text(text)
    plan = make_plan(load_pipeline(path), path.parent)
    return list(findings_text(path, analyse(spark, plan)))


def test_every_fault_is_told_with_its_line(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    found = faults(spark, path, WRONG)
    told = {line.split(": ", 2)[0].rpartition(":")[2]: line for line in found}
    assert len(found) == len(told) == 4
    assert told["13"].split(": ", 2)[1] == "steps[1].query"
    assert "yntax error" in told["13"]
    assert told["18"].endswith("the rule gives double, not true or false")
    assert "there is no column 'idd' (did you mean 'id'?)" in told["29"]
    assert "did you mean 'inFlight'?" in told["30"]


def test_a_table_that_would_not_take_the_rows_is_told_before(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "lake"), pa.table({"id": [1, 2]}))
    text = WRONG[: WRONG.index("  - name: bad_sql")] + (
        "sinks:\n  - {name: table, kind: delta, path: lake, from: ids}\n"
    )
    text = text.replace(
        "sinks:", '  - {name: ids, kind: sql, query: "SELECT keys AS id FROM parsed"}\nsinks:'
    )
    [found] = faults(spark, tmp_path / "orders.yaml", text)
    assert "column 'id' is bigint in the table and string in the rows" in found


def test_an_iceberg_table_that_would_not_take_the_rows_is_told_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    import pyarrow as pa
    from pyiceberg.catalog import load_catalog

    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/ice",
    }
    text = WRONG[: WRONG.index("  - name: bad_sql")] + (
        '  - {name: ids, kind: sql, query: "SELECT keys AS id FROM parsed"}\n'
        f"sinks:\n  - {{name: table, kind: iceberg, table: shop.ids, properties: {json.dumps(properties)}}}\n"
    )
    assert faults(spark, tmp_path / "orders.yaml", text) == []
    assert not (tmp_path / "catalog.db").exists(), "looking makes nothing"
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("shop")
    assert faults(spark, tmp_path / "orders.yaml", text) == []
    catalog.create_table("shop.ids", pa.schema([("id", pa.int64())]))
    [found] = faults(spark, tmp_path / "orders.yaml", text)
    assert "column 'id' is bigint in the table and string in the rows" in found


def test_lines_are_found_in_toml_and_json(tmp_path: Path) -> None:
    toml = 'name = "x"\n[sources.orders]\ntopic = "o"\n[[steps]]\nname = "a"\n[[steps]]\nname = "b"\nquery = "q"\n'
    assert line_of(Path("a.toml"), toml, "sources.orders.topic") == 3
    assert line_of(Path("a.toml"), toml, "steps[1].query") == 8
    assert line_of(Path("a.toml"), toml, "steps[0].query") == 4
    text = '{"name": "x",\n "steps": [\n {"name": "a"},\n {"name": "b",\n "query": "q"}]}'
    assert line_of(Path("a.json"), text, "steps[1].query") == 5
    assert line_of(Path("a.json"), text, "sinks") == 1


STATEMENTS = [
    "INSERT OVERWRITE DIRECTORY '{there}' USING parquet SELECT count(*) AS n FROM orders",
    "WITH o AS (SELECT keys FROM orders) INSERT OVERWRITE DIRECTORY '{there}' USING csv SELECT keys FROM o",
    "FROM orders INSERT OVERWRITE DIRECTORY '{there}' USING csv SELECT keys",
    "DROP VIEW orders",
    "CREATE OR REPLACE TEMPORARY VIEW other AS SELECT * FROM orders",
    "SET spark.orders = 1",
    "SHOW orders",
    "SELECT * FROM orders; DROP VIEW orders",
    "EXECUTE IMMEDIATE 'DROP VIEW ' || ? USING 'x' AS orders",
    "BEGIN DROP VIEW orders; END",
    "EXPLAIN SELECT * FROM orders",
    "SELECT keys FROM orders) INSERT OVERWRITE DIRECTORY '{there}' USING csv (SELECT keys FROM orders",
]
ONE_STEP = """\
name: orders
mode: batch
sources:
  orders: {{kind: parquet, path: rows, schema: "keys string, at timestamp"}}
steps:
  - name: good
    kind: sql
    query: {query}
sinks:
  - {{name: shown, kind: console, from: good}}
"""


def test_a_statement_that_is_not_a_query_is_refused_and_not_executed(
    spark: SparkSession, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "kept").write_text("kept")
    (tmp_path / "rows").mkdir()
    path = tmp_path / "orders.yaml"
    for statement in STATEMENTS:
        text = ONE_STEP.format(query=json.dumps(statement.format(there=there)))
        found = faults(spark, path, text)
        assert len(found) == 1, (statement, found)
        assert found[0].startswith(f"{path}:8: steps[0].query: "), found
        with pytest.raises(SpecError, match=r"steps\[0\].query"):
            build_frames(spark, make_plan(load_pipeline(path), tmp_path))
    assert [file.name for file in there.iterdir()] == ["kept"]
    assert spark.catalog.tableExists("orders"), "the view of the source"
    assert spark.conf.get("spark.orders", "unset") == "unset"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT keys, at FROM orders;",
        "WITH o AS (SELECT keys FROM orders) SELECT * FROM o ORDER BY keys -- ; DROP VIEW orders",
        "(SELECT keys FROM orders) UNION ALL VALUES (')') /* orders */",
        "FROM orders |> WHERE keys = 'DROP' |> SELECT keys",
        "TABLE orders",
    ],
)
def test_every_form_of_a_query_is_accepted(spark: SparkSession, tmp_path: Path, query: str) -> None:
    assert faults(spark, tmp_path / "orders.yaml", ONE_STEP.format(query=json.dumps(query))) == []


STREAM = """\
name: orders
checkpoint: state
sources:
  orders: {{kind: parquet, path: rows, schema: "keys string, at timestamp"}}
steps:
  - {{name: late, kind: watermark, column: at, delay: 1 minute}}
  - {{name: good, kind: sql, query: "{query}"}}
sinks:
  - name: table
    kind: delta
    path: lake
    from: good
    outputMode: {mode}
"""


@pytest.mark.parametrize(
    ("query", "mode", "reason"),
    [
        ("SELECT keys, count(*) AS n FROM orders GROUP BY keys", "append", "watermark"),
        ("SELECT keys FROM orders ORDER BY keys", "append", "Sorting is not supported"),
        ("SELECT a.keys FROM orders a LEFT JOIN late b ON a.keys = b.keys", "append", "join"),
        ("SELECT keys FROM orders", "complete", "mode is not supported for no streaming aggregations"),
        ("SELECT keys, count(*) AS n FROM orders GROUP BY keys", "complete", ""),
        ("SELECT window.end, count(*) AS n FROM late GROUP BY window(at, '1 minute')", "append", ""),
        ("SELECT keys FROM orders", "append", ""),
    ],
)
def test_what_only_streams_forbid_is_told(
    spark: SparkSession, tmp_path: Path, query: str, mode: str, reason: str
) -> None:
    found = faults(spark, tmp_path / "orders.yaml", STREAM.format(query=query, mode=mode))
    assert len(found) == (1 if reason else 0), found
    if reason:
        assert reason in found[0]
        assert ":9: sinks[0]: " in found[0]
    assert not (tmp_path / "state").exists()

"""``orbitmq pipeline test``: steps over sample rows on Spark, without a broker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orbitmq.pipeline.cases import case_of
from orbitmq.pipeline.testing import Outcome, run_case
from orbitmq.testing.pipelines import assert_case, assert_pipeline, pipeline_cases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PIPELINE: dict[str, Any] = {
    "name": "orders",
    "namesrvAddr": "127.0.0.1:1",
    "checkpoint": "checkpoint",
    "parameters": {"least": 1},
    "sources": {
        "orders": {"kind": "topic", "topic": "orders"},
        "customers": {"kind": "parquet", "path": "customers", "static": True, "schema": "id int, since timestamp"},
    },
    "steps": [
        {
            "kind": "decode", "name": "decoded", "from": "orders", "format": "json",
            "schema": "id int, customer int, price decimal(10,2)", "flatten": True,
        },
        {"kind": "deduplicate", "name": "unique", "by": ["id"], "within": "10 minutes"},
        {
            "kind": "quality", "name": "good",
            "rules": {"decoded": "decode_error IS NULL", "priced": "price >= ${least}"},
            "deadLetter": {"topic": "orders_rejected"},
        },
        {
            "kind": "sql", "name": "joined",
            "query": "SELECT good.id, price, since FROM good JOIN customers ON customer = customers.id",
        },
    ],
    "sinks": [{"kind": "delta", "path": "table", "name": "lake"}],
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.json"
    path.write_text(json.dumps(PIPELINE))
    return path


def outcome(spark: SparkSession, file: Path, sources: Any, expect: Any, **given: Any) -> Outcome:
    return run_case(
        spark, file, case_of("case", {"customers": [], **sources}, expect, given, file.parent), {}
    )


def test_a_streaming_pipeline_is_tested_over_rows_and_nothing_is_written(
    spark: SparkSession, file: Path
) -> None:
    orders = [
        {"id": 1, "customer": 7, "price": 1.5},
        {"id": 1, "customer": 7, "price": 1.5},
        {"id": 2, "customer": 7, "price": 0.5},
        "no JSON",
        {
            "body": {"id": 3, "customer": 8, "price": 9},
            "keys": "k3",
            "store_timestamp": "2026-05-01T00:00:00",
        },
    ]
    sources = {"orders": orders, "customers": [{"id": 7, "since": "2026-05-01T10:00:00Z"}]}
    expect = {
        "lake": [{"id": 1, "price": 1.5, "since": "2026-05-01T12:00:00+02:00"}],
        "good": [
            {"id": 1, "keys": None, "store_timestamp": "2026-01-01T00:00:00Z"},
            {"id": 3, "keys": "k3", "store_timestamp": "2026-05-01T00:00:00Z"},
        ],
        "good_rejected": [
            {"id": 2, "failed_rules": ["priced"]},
            {"decode_error": "not JSON with these columns", "failed_rules": ["decoded", "priced"]},
        ],
        "good_dead_letters": [{"body": "no JSON"}, {"body": {"id": 2, "customer": 7, "price": 0.5}}],
    }
    found = outcome(spark, file, sources, expect)
    assert found.passed, list(found.lines())
    assert [path.name for path in file.parent.iterdir()] == ["orders.json"]
    fewer = outcome(spark, file, sources, {"good": [{"id": 1}, {"id": 2}, {"id": 3}]}, least="0.1")
    assert fewer.passed, list(fewer.lines())


def test_a_difference_is_told_by_row_and_column(spark: SparkSession, file: Path) -> None:
    found = outcome(
        spark, file, {"orders": [{"id": 1, "customer": 7, "price": 2}]}, {"good": [{"id": 1, "price": 3}]}
    )
    assert not found.passed
    assert list(found.lines()) == [
        "good: expected 1 row, found 1; 1 missing, 1 unexpected",
        '  ~ {"id": 1, "price": 3}',
        "      price: expected 3, found 2.0",
    ]


ONE = {"id": 1, "customer": 7, "price": 2}


@pytest.mark.parametrize(
    ("sources", "expect", "problem"),
    [
        ({}, {"good": [{"prize": 1}]}, "expect.good: there is no column 'prize' (did you mean 'price'?)"),
        ({"orders": [{"body": "", "queue_id": "x"}]}, {"good": []}, "sources.orders: a value does not fit"),
        ({"customers": [{"id": "x"}]}, {"joined": []}, "expect.joined: "),
    ],
)
def test_a_case_that_is_wrong_is_an_error_and_no_difference(
    spark: SparkSession, file: Path, sources: Any, expect: Any, problem: str
) -> None:
    found = outcome(spark, file, {"orders": [ONE], **sources}, expect)
    assert found.error.startswith(problem), found.error


def test_cases_next_to_the_file_run_in_pytest(spark: SparkSession, file: Path) -> None:
    sources: dict[str, Any] = {"orders": [ONE], "customers": []}
    case = {"name": "one", "sources": sources, "expect": {"good": [{"id": 1}]}}
    file.with_name("orders.test.json").write_text(json.dumps({"tests": [case]}))
    [read] = pipeline_cases(file)
    assert_case(spark, file, read)
    with pytest.raises(AssertionError, match="orders\\ngood: expected 0 rows, found 1"):
        assert_pipeline(spark, file, sources, {"good": []})
    assert_pipeline(spark, file, sources, {"good": []}, least=3)


def test_the_pytest_program_of_the_guide_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "pipelines.md"
    tests = page.read_text("utf-8").partition("\n## Tests\n")[2].partition("\n## ")[0]
    [cases] = re.findall(r"^```yaml\n(.*?)^```", tests, re.DOTALL | re.MULTILINE)
    [program] = re.findall(r"^```python\n(.*?)^```", tests, re.DOTALL | re.MULTILINE)
    decode = PIPELINE["steps"][0] | {"schema": "id int, price int"}
    priced = PIPELINE["steps"][2] | {"rules": {"priced": "price >= ${least}", "id": "id > 0"}}
    orders = {"orders": PIPELINE["sources"]["orders"]}
    document = PIPELINE | {"sources": orders, "steps": [decode, priced]}
    (tmp_path / "orders.yaml").write_text(json.dumps(document))  # JSON is YAML, too
    (tmp_path / "orders.test.yaml").write_text(cases)
    (tmp_path / "rejected.jsonl").write_text('{"body": "not JSON"}\n{"keys": "k2", "id": 2}\n')
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(program, "pipelines.md", "exec"), names)
    [case] = pipeline_cases("orders.yaml")
    names["test_orders"](spark, case)
    names["test_a_limit"](spark)

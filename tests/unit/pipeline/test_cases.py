"""Test cases of pipelines: files to rows, rows to messages, and the comparison with its messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from orbitmq.pipeline.cases import Case, case_of, cases_file, compare, load_cases, message_rows
from orbitmq.pipeline.testing import Outcome, junit, plan_of_case
from orbitmq.spark.errors import SpecError

CASES = """
tests:
  - name: keeps paid orders
    set: {limit: 5, strict: true}
    sources: {orders: [{id: 1}, {body: {id: 2}, keys: k}, "no JSON"]}
    expect: {good: [{id: 1}]}
  - sources: {orders: rows.jsonl}
    expect: {good: want.json}
"""


def test_cases_are_read_from_the_file_next_to_the_pipeline(tmp_path: Path) -> None:
    assert cases_file(Path("a/orders.yaml")) == Path("a/orders.test.yaml")
    (tmp_path / "rows.jsonl").write_text('{"id":  1}\n\nno JSON\n[1]\n')
    (tmp_path / "want.json").write_text('[{"id": 1}]')
    file = tmp_path / "orders.test.yaml"
    file.write_text(CASES)
    first, second = load_cases(file)
    assert (first.name, first.given) == ("keeps paid orders", {"limit": "5", "strict": "true"})
    assert first.expect == {"good": [{"id": 1}]}
    assert (second.name, second.expect) == ("tests[1]", {"good": [{"id": 1}]})
    bodies = [row["body"] for row in message_rows(second.sources["orders"], "orders", "")]
    assert bodies == [b'{"id":  1}', b"no JSON", b"[1]"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("test: []", "a list under tests"),
        ("tests: []", "a list under tests"),
        ("tests: [1]", "a case is a mapping"),
        ("tests: [{expects: {}}]", "unknown field 'expects' .did you mean 'expect'"),
        ("tests: [{expect: {}}]", "expect: expected a mapping"),
        ("tests: [{expect: {good: [1]}}]", "an expected row is a mapping"),
        ("tests: [{expect: {good: none.jsonl}}]", "cannot be read"),
        ("tests: [{name: a, expect: {b: []}}, {name: a, expect: {b: []}}]", "two cases have the name 'a'"),
    ],
)
def test_a_file_of_cases_that_is_wrong_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "orders.test.yaml"
    file.write_text(text)
    with pytest.raises(SpecError, match=problem):
        load_cases(file)


def test_a_row_with_a_body_is_a_message_and_any_other_the_body() -> None:
    first, second, third = message_rows(
        [
            {"body": "x", "tags": "A", "properties": {"price": 3}, "store_timestamp": "2026-05-01T10:00:00"},
            {"id": 1},
            {"body": None},
        ],
        "orders",
        "sources.orders",
    )
    assert (first["body"], first["tags"], first["properties"]) == (b"x", "A", [("price", "3")])
    assert first["store_timestamp"].isoformat() == "2026-05-01T10:00:00+00:00"
    assert (second["body"], second["queue_offset"], second["topic"]) == (b'{"id": 1}', 1, "orders")
    assert third["body"] is None
    with pytest.raises(
        SpecError, match=r"sources.orders\[0\]: messages have no column 'tag' .did you mean 'tags'"
    ):
        message_rows([{"body": "", "tag": "A"}], "orders", "sources.orders")
    with pytest.raises(SpecError, match="not a time"):
        message_rows([{"body": "", "born_timestamp": "late"}], "orders", "")


def test_rows_in_any_order_with_more_columns_are_equal() -> None:
    found: list[Any] = [{"id": 2, "at": "2026-01-01T00:00:00Z", "x": 1}, {"id": 1, "at": None, "x": 1}]
    assert compare("good", [{"id": 1}, {"id": 2, "at": "2026-01-01T01:00:00+01:00"}], found) is None
    assert compare("good", [{"body": {"a": 1}}], [{"body": '{"a":1}'}]) is None
    assert compare("good", [], []) is None


def test_a_row_that_fits_several_leaves_the_right_one_to_others() -> None:
    found = [{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 2, "b": 3}]
    assert compare("good", [{"a": 1}, {"b": 2}, {"b": 3}], found) is None
    assert compare("good", [{"b": 3}, {"a": 1}, {"b": 2}], found) is None
    assert compare("good", [{"b": 2}, {"b": 2}, {"a": 1}], found) is not None
    assert compare("good", [{"c": None}], [{"a": 1}]) is not None


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ([{"a": 1}], [{"a": 1}, {"a": 1}]),
        ([{"a": 1}, {"a": 1}], [{"a": 1}]),
        ([{"a": 1}], [{"a": True}]),
        ([], [{}]),
    ],
)
def test_repeated_rows_and_types_count(expected: list[Any], found: list[Any]) -> None:
    assert compare("good", expected, found) is not None


def test_a_difference_pairs_rows_that_nearly_fit() -> None:
    difference = compare(
        "good",
        [{"id": 1, "price": 5}, {"id": 9, "price": 9}],
        [{"id": 1, "price": 6}, {"id": 3, "price": 3}],
    )
    assert difference is not None
    assert list(difference.lines()) == [
        "good: expected 2 rows, found 2; 2 missing, 2 unexpected",
        '  ~ {"id": 1, "price": 5}',
        "      price: expected 5, found 6",
        '  - {"id": 9, "price": 9}',
        '  + {"id": 3, "price": 3}',
    ]
    many = compare("good", [{"id": number} for number in range(100)], [])
    assert many is not None
    assert list(many.lines())[-1] == "  and 80 more lines"


def test_a_report_for_ci_has_each_case() -> None:
    case = Case("one", {}, {})
    difference = compare("good", [{"id": "\x01<"}], [])
    assert difference is not None
    report = junit("orders", [Outcome(case), Outcome(case, (difference,)), Outcome(case, error="no\nway")])
    suite = ElementTree.fromstring(report)
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert [[child.tag for child in one] for one in suite] == [[], ["failure"], ["error"]]
    assert "good: expected 1 row, found 0" in str(suite[1][0].get("message"))


PIPELINE = {
    "name": "orders",
    "namesrvAddr": "127.0.0.1:9876",
    "checkpoint": "c",
    "sources": {"orders": {"kind": "topic", "topic": "orders"}},
    "steps": [{"kind": "sql", "name": "good", "query": "SELECT body FROM orders"}],
    "sinks": [{"kind": "parquet", "path": "p", "name": "lake"}],
}


@pytest.mark.parametrize(
    ("sources", "expect", "problem"),
    [
        ({"order": []}, {"good": []}, "sources.order: .*did you mean 'orders'"),
        ({}, {"good": []}, "sources.orders: needs sample rows"),
        ({"orders": []}, {"god": []}, "expect.god: .*did you mean 'good'"),
    ],
)
def test_names_that_the_pipeline_does_not_have_are_refused(
    tmp_path: Path, sources: Any, expect: Any, problem: str
) -> None:
    file = tmp_path / "orders.json"
    file.write_text(json.dumps(PIPELINE))
    with pytest.raises(SpecError, match=problem):
        plan_of_case(file, case_of("a", sources, expect, {}, tmp_path), {})
    plan = plan_of_case(file, case_of("a", {"orders": []}, {"lake": []}, {}, tmp_path), {})
    assert not any(relation.streaming for relation in plan.relations)
    assert plan.pipeline.mode == "batch"

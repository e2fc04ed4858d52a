"""Pipelines as projects of Spark Declarative Pipelines: what they contain, and why others do not fit."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orbitmq.cli.pipeline import pipeline_commands

FITS = """
name: orders
namesrvAddr: 127.0.0.1:9876
accessKey: me
secretKey: hidden-word
checkpoint: state
sources:
  orders: {kind: topic, topic: orders, startingOffsets: earliest, columns: [body, msg_id, store_timestamp]}
steps:
  - {name: parsed, kind: decode, format: json, schema: "id bigint, price double"}
  - {name: good, kind: quality, rules: {readable: decode_error IS NULL, positive: value.price > 0}}
  - {name: small, kind: sql, query: "SELECT value.id, value.price FROM good"}
  - {name: bad, kind: sql, query: "SELECT body, 'x' AS tags FROM good_rejected"}
sinks:
  - {kind: parquet, name: lake, from: small, path: lake, partitionBy: [id]}
  - {kind: topic, name: refused, from: bad, topic: orders_refused}
"""


def export(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "orders.yaml"
    file.write_text(text)
    return CliRunner().invoke(
        pipeline_commands, ["export", str(file), "--spark-pipelines", str(tmp_path / "out")]
    )


def test_a_project_has_a_view_for_each_relation_and_no_secret(tmp_path: Path) -> None:
    result = export(tmp_path, FITS)
    assert result.exit_code == 0, result.output
    out = tmp_path / "out"
    assert (out / "spark-pipeline.yml").read_text().startswith("name: orders\nstorage: file:///")
    text = (out / "transformations" / "pipeline.py").read_text()
    names = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert names == [
        "orders", "parsed", "good", "good_rejected", "small", "bad", "lake_rows", "refused_rows",
    ]  # fmt: skip
    assert "hidden-word" not in text
    assert "os.environ['ORBITMQ_SECRET_KEY']" in text
    assert "WITH good AS (SELECT * FROM STREAM(good)) SELECT * FROM (" in text
    assert "dp.create_sink('refused', 'rocketmq'" in text
    again = export(tmp_path, FITS)
    assert again.exit_code == 2
    assert "is not empty" in again.output


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("kind: parquet, name: lake,", "kind: delta, name: lake,", "sinks[0]: Delta needs a connector"),
        ("{kind: parquet, name: lake, from: small, path: lake, partitionBy: [id]}",
         "{kind: delta, name: lake, from: small, path: lake, key: id}", "sinks[0]: needs a connector that can MERGE"),
        ("topic: orders_refused}", "topic: r, mode: transactional}", "sinks[1]: mode: transactional keeps its log"),
        ("value.price > 0}}", "value.price > 0}, deadLetter: {topic: dead}}", "steps[1]: good: dead letters have"),
        ('price double"}', 'price double"}\n  - {name: once, kind: deduplicate, within: 1 hour}',
         "steps[1]: once: Spark resolves its columns"),
        ('price double"}', 'price double", flatten: true}', "steps[0]: parsed: flatten and onError"),
    ],
)  # fmt: skip
def test_a_part_that_does_not_fit_is_named_with_the_reason(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    result = export(tmp_path, FITS.replace(old, new))
    assert result.exit_code == 2
    assert reason in result.output, result.output
    assert not (tmp_path / "out").exists()

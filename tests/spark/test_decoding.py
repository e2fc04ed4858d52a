"""Bodies with the id of a registered schema become columns in Spark."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from tests.spark.registry_kit import framed, run_registry

from orbitmq.errors import ConfigError
from orbitmq.spark.decoding.columns import decode
from orbitmq.spark.decoding.registry import SchemaNotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.apache]


def test_bodies_of_a_registry_become_columns_in_spark(spark: SparkSession) -> None:
    old: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    new = {**old, "fields": [*old["fields"], {"name": "note", "type": "string", "default": "none"}]}
    content = {"type": "object", "properties": {"id": {"type": "integer"}, "tags": {"type": "array"}}}
    with run_registry() as registry:
        first = registry.register("orders-value", json.dumps(old))
        registry.register("orders-value", json.dumps({**new, "fields": new["fields"]}))
        number = registry.register("events-value", json.dumps(content), "JSON")
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, old, {"id": 5})
        rows = [(1, bytearray(framed(first, stream.getvalue()))), (2, bytearray(b"nothing")), (3, None)]
        frame = spark.createDataFrame(rows, "row int, body binary").repartition(2)
        found = decode(frame, registry.url, subject="orders-value")
        assert found.dtypes[2:] == [("value", "struct<id:int,note:string>"), ("decode_error", "string")]
        values = {row.row: (row.value, row.decode_error) for row in found.collect()}
        assert values[1] == ((5, "none"), None)
        assert "no header" in values[2][1]
        assert values[3] == (None, "no body")

        texts = [framed(number, b'{"id": 7, "tags": ["a", {"b": 1}]}'), framed(number, b"{"), b"{}", None]
        bodies = [(row, None if text is None else bytearray(text)) for row, text in enumerate(texts)]
        frame = spark.createDataFrame(bodies, "row int, body binary")
        found = decode(frame, registry.url, subject="events-value", into="event", errors="problem")
        events = {row.row: (row.event, row.problem) for row in found.collect()}
        assert events[0] == ((7, ["a", '{"b":1}']), None)
        assert events[1] == (None, "not JSON with these columns")
        assert "no header" in events[2][1]
        assert events[3] == (None, "no body")

        with pytest.raises(SchemaNotFound):
            decode(frame, registry.url, subject="unknown")
        with pytest.raises(ConfigError, match="column 'row' is int"):
            decode(frame, registry.url, subject="events-value", column="row")
        with pytest.raises(ConfigError, match="only Protobuf"):
            decode(frame, registry.url, subject="events-value", message="x.Y")

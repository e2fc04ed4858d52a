"""``orbitmq pipeline table``: turns a topic into a table with a generated pipeline.

The same command resumes where it stopped, because its progress is stored next to the table and each micro-batch is
committed together with its number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from orbitmq.spark.errors import SpecError

__all__ = ["TableRequest", "table_document"]

_MESSAGE: Final = (
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "msg_id",
    "keys",
    "tags",
    "body",
    "properties",
    "born_timestamp",
    "store_timestamp",
)
_ORIGIN: Final = ("broker", "queue_id", "queue_offset", "store_timestamp")
"""Columns of the message that a decoded row keeps, with an underscore prefix."""
_BATCH_ROWS: Final = 1_000_000
_UPSERT_ROWS: Final = 100_000
"""The most rows of a batch that may replace others, because these pass through the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """The arguments of the command."""

    topic: str
    form: str
    path: str
    name_servers: str
    schema: str = ""
    """A file, or the address of a schema registry."""
    subject: str = ""
    """Subject in the registry; by default ``<topic>-value``."""
    message: str = ""
    framing: str = "none"
    key: str = ""
    partition: str = "day"
    dead_letter: str = ""
    checkpoint: str = ""
    trigger: str = ""
    compact_every: str = ""
    keep_versions: str = ""
    rows_max: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the topic format."""
    catalog: Mapping[str, str] = field(default_factory=dict)
    """Properties of an Iceberg catalog; empty means a catalog next to the table."""


def table_document(request: TableRequest) -> dict[str, Any]:
    """Returns the generated pipeline in the form of a parsed file. Raises ``SpecError``."""
    if request.form == "parquet" and request.key:
        raise SpecError("--key", "plain files cannot be replaced row by row: use --to delta or --to iceberg")
    if request.form == "parquet" and (request.compact_every or request.keep_versions):
        raise SpecError("--compact-every", "is for --to delta and --to iceberg")
    if request.dead_letter and not (request.schema or request.key):
        raise SpecError("--dead-letter", "a message without decoding and key cannot be rejected")
    if request.dead_letter == request.topic:
        raise SpecError("--dead-letter", "is the topic that is read: it would feed itself")
    steps, columns = _steps(request)
    known = {"startingOffsets": "earliest", **request.options}
    start = known.pop("startingOffsets")
    source: dict[str, Any] = {
        "kind": "topic",
        "topic": request.topic,
        "startingOffsets": start,
        "columns": columns,
        "maxOffsetsPerTrigger": request.rows_max or (_UPSERT_ROWS if request.key else _BATCH_ROWS),
        "options": known,
    }
    return {
        "name": "table",
        "namesrvAddr": request.name_servers,
        "checkpoint": request.checkpoint or f"{request.path}/_checkpoint",
        **({"trigger": request.trigger} if request.trigger else {}),
        "sources": {"messages": source},
        "steps": steps,
        "sinks": [_sink(request)],
    }


def _steps(request: TableRequest) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the steps, and the message columns that they read."""
    steps: list[dict[str, Any]] = []
    rules: dict[str, str] = {}
    selected = [f"`{name}`" for name in _MESSAGE]
    key = f"`{request.key}`"
    columns = list(_MESSAGE)
    if request.schema:
        decode = {"name": "decoded", "kind": "decode", **_decoding(request)}
        decode["onError"] = "keep" if request.dead_letter else "fail"
        steps.append(decode)
        rules["readable"] = "decode_error IS NULL"
        key = f"value.{key}"
        selected = ["value.*", *(f"`{name}` AS `_{name}`" for name in _ORIGIN)]
    if request.key:
        rules["has_key"] = f"{key} IS NOT NULL"
    relation = steps[-1]["name"] if steps else "messages"
    if request.dead_letter:
        letter = {"topic": request.dead_letter}
        steps.append({"name": "checked", "kind": "quality", "rules": rules, "deadLetter": letter})
        relation = "checked"
    steps.append({"name": "rows", "kind": "sql", "query": f"SELECT {', '.join(selected)} FROM {relation}"})
    return steps, columns


def _decoding(request: TableRequest) -> dict[str, Any]:
    """Returns the options of the decode step, for a registry or, depending on its name, a schema file."""
    if request.schema.startswith(("http://", "https://")):
        found = {
            "format": "registry",
            "registry": request.schema,
            "subject": request.subject or f"{request.topic}-value",
        }
        return {**found, "message": request.message}
    if request.subject:
        raise SpecError("--subject", "is for a registry: --schema http://host:port")
    path = Path(request.schema)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SpecError("--schema", f"{request.schema} cannot be read: {error.strerror}") from error
    if path.suffix == ".avsc":
        return {"format": "avro", "schema": content.decode("utf-8"), "framing": request.framing}
    if path.suffix in (".desc", ".pb", ".protoset"):
        if not request.message:
            raise SpecError("--message", "a descriptor set holds many messages: name one, as in shop.Order")
        return {"format": "protobuf", "schemaFile": str(path.resolve()), "message": request.message}
    if path.suffix in (".ddl", ".sql", ".txt", ".json"):
        text = content.decode("utf-8").strip()
        if path.suffix == ".json" and "fields" not in json.loads(text):
            raise SpecError(
                "--schema", f"{request.schema} is not a Spark schema: write columns as in CREATE TABLE"
            )
        return {"format": "json", "schema": text}
    raise SpecError(
        "--schema",
        f"{request.schema}: the name ends with .avsc (Avro), .desc or .pb (a Protobuf descriptor set), or .ddl "
        "(columns as in CREATE TABLE, for JSON bodies)",
    )


def _sink(request: TableRequest) -> dict[str, Any]:
    parts: list[str] = {"none": [], "day": ["date"], "hour": ["date", "hour"]}[request.partition]
    if request.key:
        parts = []  # a row that is replaced may change its day
    if request.form == "parquet":
        return {
            "kind": "parquet",
            "path": request.path,
            "partitionBy": parts,
            "layout": "plain",
            "name": "table",
        }
    common = {
        "name": "table",
        "partitionBy": parts,
        **{
            name: value
            for name, value in (
                ("key", request.key),
                ("compactEvery", request.compact_every),
                ("keepVersions", request.keep_versions),
            )
            if value
        },
    }
    if request.form == "delta":
        return {"kind": "delta", "path": request.path, **common}
    if request.catalog:
        return {
            "kind": "iceberg",
            "table": f"rocketmq.{_name(request.topic)}",
            "properties": dict(request.catalog),
            "location": request.path,
            **common,
        }
    if "://" in request.path and not request.path.startswith("file://"):
        raise SpecError(
            "--catalog", "a table that is not on this machine needs a catalog: --catalog uri=http://..."
        )
    bare = request.path.removeprefix("file://")
    return {
        "kind": "iceberg",
        "table": f"rocketmq.{_name(request.topic)}",
        "properties": {"type": "sql", "uri": f"sqlite:///{bare}/catalog.db", "warehouse": f"file://{bare}"},
        "location": f"file://{bare}",
        **common,
    }


def _name(topic: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in topic)

"""Decodes Debezium's change events. They may be envelopes or flattened records, either in JSON, with or without
schemas in the messages, or in Avro with the schemas of a registry.

An event becomes an operation, a position in the order of the source, and a row of the requested columns. Messages
that do not change a row (heartbeats, transaction and schema messages, logical messages) are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.spark.decoding.debezium_avro import AvroEvents
from orbitmq.spark.decoding.debezium_values import (
    BadValue,
    Node,
    Reading,
    converter,
    is_unavailable,
    json_value,
)
from orbitmq.spark.decoding.registry import RegistryAccess

__all__ = ["DELETE", "TRUNCATE", "ChangeDecoder", "ChangeForm", "position_of"]

DELETE: Final = "d"
TRUNCATE: Final = "t"
_CHANGES: Final = frozenset("rcudt")
_PREFIX: Final = "__"
_TRANSACTION: Final = frozenset({"status", "id", "event_count", "data_collections"})
_DIGITS: Final = re.compile(r"\d+")
_OUTPUT: Final = (
    ("op", pa.string()),
    ("position", pa.string()),
    ("changed_at", pa.timestamp("us", tz="UTC")),
    ("unavailable", pa.list_(pa.string())),
)


@dataclass(frozen=True, slots=True)
class ChangeForm:
    """The options for reading change events."""

    table: str = ""
    """Only events of this table (``table``, ``schema.table`` or ``database.schema.table``); empty means all
    tables."""
    order_by: tuple[str, ...] = ()
    """The fields that order flattened records. Without them, the position added by ``add.fields`` is used."""
    unknown_fields: str = "fail"
    reading: Reading = field(default_factory=Reading)
    registry: RegistryAccess | None = None
    """Bodies are Avro with Confluent's header and the schemas of this registry; without it they are JSON."""


class _Change(NamedTuple):
    op: str
    position: str | None
    changed_at: int | None
    row: Mapping[str, Any]
    nodes: Mapping[str, Node]


class ChangeDecoder:
    """Decodes batches of bodies and message keys into rows of ``columns``."""

    def __init__(self, columns: pa.Schema, form: ChangeForm) -> None:
        self._form = form
        self._avro = None if form.registry is None else AvroEvents(form.registry)
        units = form.reading.units
        self._columns = {
            one.name: converter(one.type, units.get(one.name, ""), form.reading) for one in columns
        }
        output = [pa.field(name, kind) for name, kind in _OUTPUT]
        self.arrow_type = pa.struct([pa.field("row", pa.struct(list(columns))), *output])

    def decode(self, bodies: Sequence[bytes | None], keys: Sequence[str | None]) -> tuple[pa.Array, pa.Array]:
        """Returns a row or an error for each message, and neither for messages that are not changes. Raises
        ``RegistryUnavailable``."""
        if self._avro is not None:
            self._avro.learn(bodies)
        rows: list[dict[str, Any] | None] = []
        errors: list[str | None] = []
        for body, key in zip(bodies, keys, strict=True):
            row, error = None, None
            try:
                if (change := self._change(body, key)) is not None:
                    row = self._row(change)
            except BadValue as bad:
                error = str(bad)
            except (ValueError, RecursionError) as bad:
                error = f"not {'JSON' if self._avro is None else 'Avro'} of Debezium: {bad}"
            rows.append(row)
            errors.append(error)
        return pa.array(rows, self.arrow_type), pa.array(errors, pa.string())

    # -- one event -------------------------------------------------------------------------------------

    def _change(self, body: bytes | None, key: str | None) -> _Change | None:
        payload, schema = self._read(body) if body else (None, None)
        if payload is None:
            row, nodes = _key_row(key)
            return _Change(DELETE, None, None, row, nodes) if row else None
        if not isinstance(payload, dict):
            raise BadValue("the event is not a JSON object")
        if isinstance(payload.get("source"), dict):
            return self._envelope(payload, schema, key)
        if payload.keys() == {"ts_ms"} or payload.keys() >= _TRANSACTION or "ddl" in payload:
            return None
        return self._flattened(payload, schema, key)

    def _read(self, body: bytes) -> tuple[Any, Node]:
        return _payload(json_value(body)) if self._avro is None else self._avro.read(body)

    def _envelope(self, payload: Mapping[str, Any], schema: Node, key: str | None) -> _Change | None:
        op, source = payload.get("op"), payload["source"]
        if op not in _CHANGES or not self._wanted(source):
            return None
        moment = _microseconds(source)
        position = position_of(source, payload.get("transaction"))
        side = "before" if op == DELETE else "after"
        if op == TRUNCATE:
            if position is None:
                raise BadValue(
                    "the truncate has no position in its source, so earlier and later rows cannot be distinguished"
                )
            return _Change(op, position, moment, {}, {})
        row = _row_of(payload.get(side))
        nodes = _nodes(_below(schema, side))
        if op == DELETE:
            return _Change(op, position, moment, *_with_key(row, nodes, key))
        if not row:
            raise BadValue(f"the event has no row in {side!r}")
        return _Change(op, position, moment, row, nodes)

    def _flattened(self, payload: Mapping[str, Any], schema: Node, key: str | None) -> _Change | None:
        meta = {
            name.removeprefix(_PREFIX): value for name, value in payload.items() if name.startswith(_PREFIX)
        }
        source = meta | {name.removeprefix("source_"): value for name, value in meta.items()}
        if not self._wanted(source):
            return None
        if self._form.order_by:
            position = _ordered(payload, self._form.order_by)
        else:
            position = position_of(source, {"total_order": meta.get("transaction_total_order")})
        if position is None:
            raise BadValue(
                "the flattened record has no field that orders it, so a late event could replace a newer row: set "
                "add.fields=op,lsn (PostgreSQL), op,file,pos,row (MySQL), op,commit_lsn,change_lsn (SQL Server) or "
                "op,commit_scn,scn (Oracle) of ExtractNewRecordState, or name the field with debezium.orderBy"
            )
        op = str(meta.get("op") or "u")
        if op not in _CHANGES:
            return None
        if str(meta.get("deleted")).lower() == "true":
            op = DELETE
        moment = _microseconds({name: meta.get(f"source_{name}") for name in ("ts_ms", "ts_us")})
        row = {name: value for name, value in payload.items() if not name.startswith(_PREFIX)}
        nodes = _nodes(schema)
        if op == DELETE:
            return _Change(op, position, moment, *_with_key(row, nodes, key))
        return _Change(op, position, moment, row, nodes)

    def _wanted(self, source: Mapping[str, Any]) -> bool:
        if not self._form.table:
            return True
        table, schema, database = (str(source.get(name) or "") for name in ("table", "schema", "db"))
        table = table or str(source.get("collection") or "")
        if not table:
            raise BadValue(
                "the record does not name its table: add table to add.fields, or leave debezium.table out"
            )
        names = {table, f"{schema}.{table}", f"{database}.{table}", f"{database}.{schema}.{table}"}
        return self._form.table in names

    def _row(self, change: _Change) -> dict[str, Any]:
        placeholder = self._form.reading.placeholder
        if self._form.unknown_fields == "fail" and change.op not in (DELETE, TRUNCATE):
            unknown = [name for name in change.row if name not in self._columns]
            if unknown:
                raise BadValue(
                    f"the row has a field {unknown[0]!r} that the schema does not have: add a column, or set "
                    "debezium.unknownFields: ignore"
                )
        found: dict[str, Any] = {
            "op": change.op,
            "position": change.position,
            "changed_at": change.changed_at,
        }
        missing: list[str] = []
        for name, convert in self._columns.items():
            value = change.row.get(name)
            if value is not None and is_unavailable(value, placeholder):
                missing.append(name)
                value = None
            try:
                found[name] = None if value is None else convert(value, change.nodes.get(name))
            except BadValue as error:
                if change.op != DELETE:
                    raise BadValue(f"column {name}: {error}") from None
                found[name] = None  # only the key matters, and a key without a value is rejected
        return {
            "row": found,
            "op": change.op,
            "position": change.position,
            "changed_at": change.changed_at,
            "unavailable": missing,
        }


# -- parts of an event ---------------------------------------------------------------------------------


def _payload(document: Any) -> tuple[Any, Node]:
    if isinstance(document, dict) and document.keys() == {"schema", "payload"}:
        return document["payload"], document["schema"]
    return document, None


def _below(schema: Node, name: str) -> Node:
    """Returns the schema of a struct's field."""
    return next((one for one in (schema or {}).get("fields") or () if one.get("field") == name), None)


def _nodes(schema: Node) -> dict[str, Node]:
    return {one.get("field"): one for one in (schema or {}).get("fields") or ()}


def _row_of(side: Any) -> dict[str, Any]:
    """Returns the fields of ``before`` or ``after``; empty for null. MongoDB's connector sends documents as JSON
    text."""
    found = json_value(side) if isinstance(side, str) else side
    return found if isinstance(found, dict) else {}


def _key_row(key: str | None) -> tuple[dict[str, Any], dict[str, Node]]:
    """Returns the fields of a message key and their schemas; both are empty if the key is not one of Debezium's."""
    try:
        payload, schema = _payload(json_value(key)) if key else (None, None)
    except ValueError:
        return {}, {}
    return (payload, _nodes(schema)) if isinstance(payload, dict) else ({}, {})


def _with_key(
    row: Mapping[str, Any], nodes: Mapping[str, Node], key: str | None
) -> tuple[dict[str, Any], dict[str, Node]]:
    """Returns the known fields of a deleted row and their schemas. The key is needed because ``before`` may be null,
    or contain nulls outside of the key.

    Raises ``BadValue`` if both are missing.
    """
    fields, described = _key_row(key)
    if not row and not fields:
        raise BadValue("the delete names no row: before is null and the message has no key")
    known = {name: value for name, value in row.items() if value is not None}
    return {**fields, **known}, {**described, **nodes}


def _microseconds(source: Mapping[str, Any]) -> int | None:
    if isinstance(micros := source.get("ts_us"), int) and micros:
        return micros
    millis = source.get("ts_ms")
    return millis * 1000 if isinstance(millis, int) and millis else None


# -- order ---------------------------------------------------------------------------------------------


def position_of(source: Mapping[str, Any], transaction: Any) -> str | None:
    """Returns the position of an event in its source, as text that sorts in event order, or None if the source has no
    position.

    For PostgreSQL, it is the second number of ``sequence``, which incremental snapshots also have, or else ``lsn``.
    For MySQL and MariaDB, it is the file, position and row; for SQL Server and Db2, the commit and change LSN; for
    Oracle, the SCN of the commit; for MongoDB, the time and ordinal.
    """
    place = _sequence(source.get("sequence")) or _padded(source.get("lsn"))
    if place is None and source.get("file") and source.get("pos") is not None:
        number = _DIGITS.findall(str(source["file"]))
        place = _joined(number[-1] if number else 0, source["pos"], source.get("row") or 0)
    if place is None and source.get("commit_lsn"):
        place = ".".join(
            str(one)
            for one in (
                source["commit_lsn"],
                source.get("change_lsn") or "",
                _padded(source.get("event_serial_no") or 0),
            )
        )
    if place is None and source.get("change_lsn"):
        place = str(source["change_lsn"])
    if place is None and (source.get("commit_scn") or source.get("scn")):
        place = _joined(
            source.get("commit_scn") or source["scn"], source.get("scn") or 0, source.get("ssn") or 0
        )
    if place is None and source.get("ord") is not None and source.get("ts_ms"):
        place = _joined(source["ts_ms"], source["ord"])
    order = transaction.get("total_order") if isinstance(transaction, Mapping) else None
    if place is None or order is None:
        return place
    return f"{place}.{_padded(order)}"


def _sequence(text: Any) -> str | None:
    if not isinstance(text, str):
        return None
    try:
        numbers = json.loads(text)
    except ValueError:
        return None
    return _padded(numbers[-1]) if isinstance(numbers, list) and numbers else None


def _padded(value: Any) -> str | None:
    """Returns a number as text of a fixed length, so that it sorts numerically."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    return f"{int(text):020d}" if _DIGITS.fullmatch(text) else None


def _joined(*numbers: Any) -> str | None:
    parts = [_padded(one) for one in numbers]
    return None if None in parts else ".".join(str(one) for one in parts)


def _ordered(payload: Mapping[str, Any], names: Sequence[str]) -> str | None:
    parts: list[str] = []
    for name in names:
        if (value := payload.get(name)) is None:
            return None
        parts.append(_padded(value) or str(value))
    return ".".join(parts)

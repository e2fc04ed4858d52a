"""Converts JSON Schema to Spark columns.

A value without a Spark type (a free-form object, a union, a list of mixed types) becomes a string with its JSON text,
as in Spark's ``from_json``.
"""

from __future__ import annotations

import json
from typing import Any, Final

from orbitmq.spark.errors import SpecError

__all__ = ["columns_of"]

_SIMPLE: Final = {"integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN", "string": "STRING"}
_ANYTHING: Final = "STRING"
_DEPTH_MAX: Final = 64


def columns_of(text: str) -> str:
    """Returns the schema's columns in the syntax of CREATE TABLE. Raises ``SpecError`` unless it is an object with
    properties."""
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError("", f"the JSON schema is not JSON: {error}") from error
    node = _resolved(root, root, ())[0]
    properties = node.get("properties") if isinstance(node, dict) else None
    if not isinstance(properties, dict) or not properties:
        raise SpecError("", "the JSON schema is not that of an object with properties: it has no columns")
    return ", ".join(f"{_quoted(name)} {_kind(root, one, ())}" for name, one in properties.items())


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _resolved(root: Any, node: Any, above: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    """Resolves a reference. Where a schema contains itself, it becomes an empty schema, which accepts anything."""
    while isinstance(node, dict) and isinstance(node.get("$ref"), str):
        reference = node["$ref"]
        if reference in above or not reference.startswith("#"):
            return {}, above
        above = (*above, reference)
        node = root
        for part in filter(None, reference[1:].split("/")):
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or key not in node:
                raise SpecError("", f"the JSON schema refers to {reference}, which it does not define")
            node = node[key]
    return node, above


def _kind(root: Any, node: Any, above: tuple[str, ...]) -> str:
    node, above = _resolved(root, node, above)
    if not isinstance(node, dict) or len(above) > _DEPTH_MAX:
        return _ANYTHING
    for choice in ("oneOf", "anyOf"):
        if isinstance(node.get(choice), list):
            some = [one for one in node[choice] if not (isinstance(one, dict) and one.get("type") == "null")]
            return _kind(root, some[0], above) if len(some) == 1 else _ANYTHING
    kind = node.get("type")
    if isinstance(kind, list):
        some = [one for one in kind if one != "null"]
        kind = some[0] if len(some) == 1 else "number" if set(some) == {"integer", "number"} else None
    if kind == "array":
        items = node.get("items")
        return f"ARRAY<{_kind(root, items, above) if isinstance(items, dict) else _ANYTHING}>"
    if kind == "object":
        properties, others = node.get("properties"), node.get("additionalProperties")
        if isinstance(properties, dict) and properties:
            fields = (f"{_quoted(name)}: {_kind(root, one, above)}" for name, one in properties.items())
            return f"STRUCT<{', '.join(fields)}>"
        return (
            f"MAP<STRING, {_kind(root, others, above)}>" if isinstance(others, dict) and others else _ANYTHING
        )
    return _SIMPLE.get(kind, _ANYTHING) if isinstance(kind, str) else _ANYTHING

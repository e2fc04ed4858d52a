"""Code shared by the areas: base classes of results, and conversion of Apache's property texts."""

from __future__ import annotations

import msgspec

from orbitmq.runtime.options import parse_properties

__all__ = ["Change", "Changed", "Result", "properties_text", "read_properties"]


class Result(msgspec.Struct, kw_only=True, rename="camel"):
    """The result of a function. Its JSON keys, in camel case, are kept stable."""


class Change(Result, kw_only=True):
    """A change made by one server."""

    target: str
    """The address of the server."""
    action: str
    detail: str = ""


class Changed(Result, kw_only=True):
    """All changes made by one call."""

    changes: list[Change]


def read_properties(body: bytes, source: str) -> dict[str, str]:
    """Returns the settings in an answer, in the order of the answer. ``source`` is the server to name in errors."""
    return dict(parse_properties(body.decode("utf-8", "replace"), source).values)


def properties_text(properties: dict[str, str]) -> bytes:
    """Returns settings in the form that servers read, one per line."""
    return "".join(f"{key}={_one_line(value)}\n" for key, value in properties.items()).encode()


def _one_line(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")

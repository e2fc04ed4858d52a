"""What the areas share: the base of results, and reading of Apache's property texts."""

from __future__ import annotations

import msgspec

from orbitmq.runtime.options import parse_properties

__all__ = ["Change", "Changed", "Result", "properties_text", "read_properties"]


class Result(msgspec.Struct, kw_only=True, rename="camel"):
    """What a function found or did. Its JSON keys, in camel case, are kept stable."""


class Change(Result, kw_only=True):
    """Something that was done in one place."""

    target: str
    """The address of the server that did it."""
    action: str
    detail: str = ""


class Changed(Result, kw_only=True):
    """Everything one call changed."""

    changes: list[Change]


def read_properties(body: bytes, source: str) -> dict[str, str]:
    """The settings in an answer, in its order. ``source`` names them in an error."""
    return dict(parse_properties(body.decode("utf-8", "replace"), source).values)


def properties_text(properties: dict[str, str]) -> bytes:
    """Settings as servers read them, one a line."""
    return "".join(f"{key}={_one_line(value)}\n" for key, value in properties.items()).encode()


def _one_line(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")

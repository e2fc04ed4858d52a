"""Lists the keys of ``--json``. They are generated from the result types, so that the document always matches the
tool.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from orbitmq.admin import Result
from orbitmq.cli.admin_kit.declare import Command

__all__ = ["json_keys", "keys_table"]


def json_keys(result: type[Result]) -> list[str]:
    """Returns every key of a result, such as ``topics[].cluster``.

    Brackets stand for lists, and a star for keys that are data.
    """
    return list(_keys(result, ""))


def _keys(struct: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(struct)
    for name, key in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
        yield from _below(hints[name], prefix + key)


def _below(hint: Any, path: str) -> Iterator[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        # Wire types are documented with the protocol; the tool's own results are listed in full.
        if issubclass(hint, Result):
            yield from _keys(hint, path + ".")
        else:
            yield path
    elif origin is list:
        yield from _below(arguments[0], path + "[]")
    elif origin is dict:
        yield f"{path}.*"
    elif arguments and (inner := [one for one in arguments if one is not type(None)]) and len(inner) == 1:
        yield from _below(inner[0], path)
    else:
        yield path


def _grouped(keys: list[str]) -> str:
    """Groups keys by parent, so that a parent such as ``brokers[]`` is written only once."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        parent, _, leaf = key.rpartition(".")
        groups.setdefault(parent, []).append("`*`" if leaf == "*" else leaf)
    return "; ".join(
        f"`{parent}.` {', '.join(leaves)}" if parent else ", ".join(leaves)
        for parent, leaves in groups.items()
    )


def keys_table(commands: list[Command]) -> str:
    """Returns commands and their keys as a Markdown table. Commands with the same keys share a row."""
    rows: dict[str, list[str]] = {}
    for command in commands:
        keys = " *or* ".join(_grouped(json_keys(result)) for result in command.results)
        rows.setdefault(keys, []).append(command.name)
    lines = [f"| {', '.join(names)} | {keys} |" for keys, names in rows.items()]
    return "\n".join(["| commands | keys |", "| --- | --- |", *lines]) + "\n"


def main() -> None:
    """Print the table for docs/admin.md."""
    from orbitmq.cli.admin import AREAS, declarations

    click.echo(keys_table([command for area in AREAS for command in declarations(area)]), nl=False)


if __name__ == "__main__":
    main()

"""Results as text: tables with mqadmin's columns, plain into a pipe, by rich on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import click

from orbitmq.admin.base import Changed

__all__ = [
    "Lines",
    "Part",
    "Table",
    "changed",
    "flat",
    "java_map",
    "moment",
    "pairs",
    "print_parts",
    "second",
    "table",
]

Value = str | Callable[[Any], object]
"""An attribute, or a function of the row."""


@dataclass(frozen=True, slots=True)
class Table:
    titles: tuple[str, ...]
    rows: list[list[str]]
    header: bool = True


@dataclass(frozen=True, slots=True)
class Lines:
    lines: list[str]


Part = Table | Lines


def _cell(row: Any, value: Value) -> str:
    found = getattr(row, value) if isinstance(value, str) else value(row)
    return flat(found)


def flat(value: object) -> str:
    """A value as Java prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(flat(one) for one in value)}]"
    return "" if value is None else str(value)


def table(rows: Iterable[Any], columns: Mapping[str, Value], *, header: bool = True) -> Table:
    """Rows under the titles of ``columns``."""
    cells = [[_cell(row, value) for value in columns.values()] for row in rows]
    return Table(tuple(columns), cells, header)


def pairs(values: Mapping[str, object], separator: str = ": ", width: int = 0) -> Lines:
    """One ``key: value`` a line."""
    return Lines([f"{key:<{width}}{separator}{flat(value)}" for key, value in values.items()])


def changed(result: Changed, _: object = None) -> list[Part]:
    """What was done, a line for each place."""
    return [Lines([f"{c.target}  {c.action}  {c.detail}".rstrip() for c in result.changes])]


def moment(milliseconds: int) -> str:
    """Local time with milliseconds; empty for 0."""
    if milliseconds <= 0:
        return ""
    return f"{datetime.fromtimestamp(milliseconds // 1000).astimezone():%Y-%m-%d %H:%M:%S},{milliseconds % 1000:03d}"


def second(milliseconds: int) -> str:
    """Local time in seconds; ``N/A`` for 0."""
    if milliseconds <= 0:
        return "N/A"
    return f"{datetime.fromtimestamp(milliseconds // 1000).astimezone():%Y-%m-%d %H:%M:%S}"


def java_map(values: Mapping[Any, Any]) -> str:
    """``{a=1, b=2}``."""
    return "{" + ", ".join(f"{key}={flat(value)}" for key, value in values.items()) + "}"


_SAFE: Final = str.maketrans(dict.fromkeys((*range(9), *range(11, 32), 127), "�"))
"""Names and bodies come from anybody: nothing in them may steer the terminal."""


def print_parts(parts: Sequence[Part]) -> None:
    """Print on standard output."""
    for number, part in enumerate(parts):
        if number and isinstance(part, Table) and part.header:
            click.echo()
        if isinstance(part, Lines):
            for line in part.lines:
                click.echo(line.translate(_SAFE))
        elif sys.stdout.isatty():
            _print_rich(part)
        else:
            _print_plain(part)


def _print_plain(part: Table) -> None:
    rows = [[f"#{title}" for title in part.titles], *part.rows] if part.header else part.rows
    widths = [max((len(row[index]) for row in rows), default=0) for index in range(len(part.titles))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.translate(_SAFE).rstrip())


def _print_rich(part: Table) -> None:
    from rich.console import Console  # a tenth of the start of a command that prints into a pipe
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, pad_edge=False, header_style="bold", show_header=part.header)
    for index, title in enumerate(part.titles):
        numeric = bool(part.rows) and all(_is_number(row[index]) for row in part.rows)
        shown.add_column(title, justify="right" if numeric else "left", overflow="fold")
    for row in part.rows:
        # Text, not markup: names come from anybody.
        shown.add_row(*(Text(cell.translate(_SAFE)) for cell in row))
    Console().print(shown)


def _is_number(cell: str) -> bool:
    return cell.replace(".", "", 1).lstrip("-").isdigit()

"""Formats results as text: tables with mqadmin's columns, in full width for a pipe and fitted to a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import click

from orbitmq.admin.base import Changed
from orbitmq.cli.admin_kit.screen import screen_lines, table_lines, terminal_width

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
"""The value of a column: the name of an attribute of the row, or a function of the row."""


@dataclass(frozen=True, slots=True)
class Table:
    titles: tuple[str, ...]
    rows: list[list[str]]
    header: bool = True
    human: frozenset[str] = frozenset()
    """Titles of columns that mqadmin does not have. They are shown on a terminal but omitted in a pipe."""


@dataclass(frozen=True, slots=True)
class Lines:
    lines: list[str]
    hidden: frozenset[str] = frozenset()
    """Lines that are omitted on a terminal. Only their number is shown there."""
    hint: str = ""
    """Text to show after the number of omitted lines."""


Part = Table | Lines


def _cell(row: Any, value: Value) -> str:
    found = getattr(row, value) if isinstance(value, str) else value(row)
    return flat(found)


def flat(value: object) -> str:
    """Formats a value as Java does."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(flat(one) for one in value)}]"
    return "" if value is None else str(value)


def table(
    rows: Iterable[Any],
    columns: Mapping[str, Value],
    *,
    header: bool = True,
    human: frozenset[str] = frozenset(),
) -> Table:
    """Builds a table with the given columns."""
    cells = [[_cell(row, value) for value in columns.values()] for row in rows]
    return Table(tuple(columns), cells, header, human)


def pairs(values: Mapping[str, object], separator: str = ": ", width: int = 0) -> Lines:
    """Formats values as lines of the form ``key: value``."""
    return Lines([f"{key:<{width}}{separator}{flat(value)}" for key, value in values.items()])


def changed(result: Changed, _: object = None) -> list[Part]:
    """Formats changes, one line per change and server."""
    return [Lines([f"{c.target}  {c.action}  {c.detail}".rstrip() for c in result.changes])]


def moment(milliseconds: int) -> str:
    """Formats a time in milliseconds as local time with milliseconds; empty for 0."""
    if milliseconds <= 0:
        return ""
    return f"{datetime.fromtimestamp(milliseconds // 1000).astimezone():%Y-%m-%d %H:%M:%S},{milliseconds % 1000:03d}"


def second(milliseconds: int) -> str:
    """Formats a time in milliseconds as local time with seconds; ``N/A`` for 0."""
    if milliseconds <= 0:
        return "N/A"
    return f"{datetime.fromtimestamp(milliseconds // 1000).astimezone():%Y-%m-%d %H:%M:%S}"


def java_map(values: Mapping[Any, Any]) -> str:
    """Formats a map as Java does: ``{a=1, b=2}``."""
    return "{" + ", ".join(f"{key}={flat(value)}" for key, value in values.items()) + "}"


_SAFE: Final = str.maketrans(dict.fromkeys((*range(9), *range(11, 32), 127), "�"))
"""Translation that replaces control characters. Names and bodies are untrusted and must not control the terminal."""


def print_parts(parts: Sequence[Part], *, wide: bool = False) -> None:
    """Print parts on standard output, fitted to a terminal, or like mqadmin in a pipe or with ``wide``."""
    width = terminal_width() if sys.stdout.isatty() and not wide else 0
    for number, part in enumerate(parts):
        if number and isinstance(part, Table) and part.header:
            click.echo()
        lines = _lines(part, width) if isinstance(part, Lines) else _table(part, width)
        for line in lines:
            click.echo(line)


def _lines(part: Lines, width: int) -> Iterator[str]:
    for line in part.lines:
        if not width:
            yield line.translate(_SAFE)
        elif line not in part.hidden:
            yield from screen_lines(line.translate(_SAFE), width)
    if width and part.hidden:
        yield f"({len(part.hidden)} {part.hint})"


def _table(part: Table, width: int) -> Iterator[str]:
    if not width:
        yield from _plain(part)
        return
    # Names are untrusted: they are sanitized first, and never parsed as markup.
    rows = [[cell.translate(_SAFE) for cell in row] for row in part.rows]
    lines = table_lines(part.titles, rows, width)
    title = next(lines)
    if part.header:
        yield click.style(title, bold=True)
    yield from lines


def _plain(part: Table) -> Iterator[str]:
    kept = [index for index, title in enumerate(part.titles) if title not in part.human]
    rows = [[row[index] for index in kept] for row in part.rows]
    if part.header:
        rows.insert(0, [f"#{part.titles[index]}" for index in kept])
    widths = [max((len(row[index]) for row in rows), default=0) for index in range(len(kept))]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield line.translate(_SAFE).rstrip()

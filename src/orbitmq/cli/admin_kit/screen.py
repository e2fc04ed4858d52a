"""Tables for people, which fit the width of the terminal without cutting words.

If a table is too wide, its first columns remain a table, and the other values follow each row as ``title value``
pairs on indented lines. With ``--wide`` or into a pipe, mqadmin's own lines are printed instead.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence

__all__ = ["WIDTH_MIN", "screen_lines", "table_lines", "terminal_width"]

WIDTH_MIN = 40
_GAP = "  "
_INDENT = "    "


def terminal_width() -> int:
    """Returns the number of columns of the terminal, or the value of ``COLUMNS``."""
    return max(WIDTH_MIN, shutil.get_terminal_size((80, 24)).columns)


def screen_lines(text: str, width: int) -> list[str]:
    """Breaks a line of text between words. A word that is longer than a line stays whole."""
    if len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=indent + _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def table_lines(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yields the lines of a table, beginning with the titles."""
    widths = [
        max(len(title), *(len(row[index]) for row in rows)) if rows else len(title)
        for index, title in enumerate(titles)
    ]
    shown = _columns_that_fit(widths, width)
    numeric = [bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(titles))]
    yield _line(titles, widths, numeric, shown)
    for row in rows:
        yield _line(row, widths, numeric, shown)
        pairs = [f"{titles[index]} {row[index]}" for index in range(shown, len(titles)) if row[index].strip()]
        yield from _packed(pairs, width)


def _columns_that_fit(widths: Sequence[int], width: int) -> int:
    total = -len(_GAP)
    for number, one in enumerate(widths):
        total += one + len(_GAP)
        if total > width:
            return max(1, number)
    return len(widths)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool], count: int) -> str:
    shown = (
        cells[index].rjust(widths[index]) if numeric[index] else cells[index].ljust(widths[index])
        for index in range(count)
    )
    return _GAP.join(shown).rstrip()


def _packed(pairs: Sequence[str], width: int) -> Iterator[str]:
    """Yields lines with as many pairs as fit, without breaking a pair."""
    line = ""
    for pair in pairs:
        if line and len(_INDENT) + len(line) + len(_GAP) + len(pair) > width:
            yield _INDENT + line
            line = pair
        else:
            line = f"{line}{_GAP}{pair}" if line else pair
    if line:
        yield _INDENT + line


def _is_number(cell: str) -> bool:
    return cell.replace(".", "", 1).lstrip("-").isdigit()

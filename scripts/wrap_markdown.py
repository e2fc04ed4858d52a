"""Wraps prose in Markdown files at 120 characters. Code, tables, headings and single long words stay as they are.

Usage: python scripts/wrap_markdown.py FILE...
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

WIDTH: Final = 120
_ITEM: Final = re.compile(r"^(\s*)((?:[-*+]|\d+[.)])\s+)(.*)$")
_ALONE: Final = re.compile(r"^\s*(\||#|<|!\[|>|\[[^\]]+\]:|---|===|\*\*\*)")


def wrapped(text: str) -> str:
    """Returns the text with every overlong paragraph and list item wrapped again."""
    lines = text.split("\n")
    return "\n".join(_wrapped(lines))


def _wrapped(lines: list[str]) -> Iterator[str]:
    position = 0
    in_item = False
    while position < len(lines):
        line = lines[position]
        if line.lstrip().startswith("```"):
            end = _end_of_fence(lines, position)
            yield from lines[position:end]
            position = end
            continue
        item = _ITEM.match(line)
        in_item = bool(item) or (in_item and (not line.strip() or line.startswith(" ")))
        # Four spaces mean code, except in a list item, where they may be its second line.
        if not line.strip() or _ALONE.match(line) or (line.startswith("    ") and not in_item):
            yield line
            position += 1
            continue
        if in_item and not item and line.startswith("        "):
            yield line
            position += 1
            continue
        end = _end_of_paragraph(lines, position)
        yield from _paragraph(lines[position:end], item)
        position = end


def _end_of_fence(lines: list[str], start: int) -> int:
    for position in range(start + 1, len(lines)):
        if lines[position].lstrip().startswith("```"):
            return position + 1
    return len(lines)


def _end_of_paragraph(lines: list[str], start: int) -> int:
    for position in range(start + 1, len(lines)):
        line = lines[position]
        if not line.strip() or _ITEM.match(line) or _ALONE.match(line) or line.lstrip().startswith("```"):
            return position
        if line.endswith(("  ", "\\")):
            return position + 1
    return len(lines)


def _paragraph(lines: list[str], item: re.Match[str] | None) -> list[str]:
    if all(len(line) <= WIDTH for line in lines):
        return lines
    if item:
        first, rest = item[1] + item[2], " " * len(item[1] + item[2])
        words = [item[3], *(line.strip() for line in lines[1:])]
    else:
        first = rest = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        words = [line.strip() for line in lines]
    return textwrap.wrap(
        " ".join(words),
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        old = path.read_text("utf-8")
        new = wrapped(old)
        if new != old:
            path.write_text(new, "utf-8")
            sys.stdout.write(f"wrapped {name}\n")

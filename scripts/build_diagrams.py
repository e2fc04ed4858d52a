"""Writes the diagrams of ARCHITECTURE.md that are derived from the code.

Usage: python -m scripts.build_diagrams

A diagram is the code block after ``<!-- diagram: NAME -->``. A test fails when one is stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.tidy.rules import IMPORTS, may_import

DOCUMENT: Final = Path(__file__).parent.parent / "ARCHITECTURE.md"
_ENTRY_POINTS: Final = frozenset({"__main__", "sync"})
"""Modules of one line, left out."""


def imports() -> str:
    """Returns packages as nodes, and an arrow to each package that no other import already implies."""
    lines = ["graph TD"]
    for package, direct in IMPORTS.items():
        if package in _ENTRY_POINTS:
            continue
        implied = {name for other in direct for name in may_import(other) - {other}}
        lines += [f"    {package} --> {name}" for name in sorted(direct - implied)]
    return "\n".join(lines)


DIAGRAMS: Final[Mapping[str, Callable[[], str]]] = {"imports": imports}


def updated(text: str) -> str:
    """Returns the document with every diagram updated to the current code."""
    for name, draw in DIAGRAMS.items():
        found = re.findall(rf"<!-- diagram: {name} -->\n\n```mermaid\n(.*?)\n```", text, re.DOTALL)
        assert len(found) == 1, f"{DOCUMENT.name} has {len(found)} diagrams named {name}"
        text = text.replace(found[0], draw())
    return text


def main() -> None:
    DOCUMENT.write_text(updated(DOCUMENT.read_text()))


if __name__ == "__main__":
    main()

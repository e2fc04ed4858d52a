"""The modules of the console import one another in one direction, type checks included."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import orbitmq.console

ROOT = Path(orbitmq.console.__file__).parent


def imports(path: Path) -> set[str]:
    """Returns the modules of the console that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("orbitmq.console"):
            found.add(node.module or "")
            found.update(f"{node.module}.{name.name}" for name in node.names)
    return found


def test_console_has_no_import_cycle() -> None:
    modules = {
        ".".join(("orbitmq.console", *path.relative_to(ROOT).with_suffix("").parts)): path
        for path in ROOT.rglob("*.py")
        if path.name != "__init__.py"
    }
    graph = {name: imports(path) & modules.keys() for name, path in modules.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules)

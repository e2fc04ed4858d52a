"""A module of these packages never imports itself through others, not even in a function or for type checking."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tests.tidy.rules import Source

PACKAGES: Final = frozenset({"admin", "cli", "console", "examples", "pipeline", "spark"})


def _name(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(tree: ast.Module) -> Iterator[str]:
    """Every name that an import could mean: ``from a import b`` is ``a.b`` or ``a``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
            yield node.module


def _reached(start: str, imports: Mapping[str, frozenset[str]]) -> frozenset[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name in imports[waiting.pop()] - reached:
            reached.add(name)
            waiting.append(name)
    return frozenset(reached)


def check_cycles(sources: Iterable[Source]) -> Iterator[str]:
    """import-cycle."""
    modules = {_name(source.path): source for source in sources if source.package in PACKAGES}
    imports: dict[str, frozenset[str]] = {}
    for name, source in modules.items():
        # A module imports its own package's __init__ without a word; what that re-exports does not count.
        parents = {name.rpartition(".")[0]}
        imports[name] = frozenset(
            one for one in _imported(source.tree) if one in modules and one != name and one not in parents
        )
    for name in modules:
        if name in _reached(name, imports):
            through = sorted(one for one in imports[name] if name in _reached(one, imports))
            yield f"import-cycle: {modules[name].path}: {name} needs itself through {', '.join(through)}"

"""Finds calls such as ``topic('orders', since => '2026-11-19')`` in SQL and replaces them with view names.

DuckDB has no table functions in Python, so the calls are replaced before it parses the statement. Text in strings,
quoted names and comments is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from orbitmq.errors import ConfigError

__all__ = ["Relation", "find_relations"]

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<text>[eE]?'(?:[^'\\]|''|\\.)*')
      | (?P<quoted>"(?:[^"]|"")*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<number>\d+)
      | (?P<arrow>=>|:=)
      | (?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_ARGUMENTS: Final = {
    "topic": ("since", "until", "tags", "filter", "group"),
    "store": ("topic", "since", "until"),
}
_VIEW: Final = "orbitmq_relation_{}"


@dataclass(frozen=True, slots=True)
class Relation:
    """One call such as ``topic('orders')``, and the view that replaces it."""

    view: str
    kind: str
    """``topic`` or ``store``."""
    name: str
    arguments: dict[str, str | int]


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


def find_relations(sql: str) -> tuple[str, list[Relation]]:
    """Returns the statement with its calls replaced by view names, and the calls. Equal calls share a view.

    Raises ``ConfigError`` for unknown arguments and for arguments that are not literals.
    """
    tokens = list(_tokens(sql))
    views: dict[str, Relation] = {}
    parts: list[str] = []
    done = at = 0
    while at < len(tokens):
        token = tokens[at]
        kind = token.text.lower()
        called = at + 1 < len(tokens) and tokens[at + 1].text == "("
        named = at > 0 and tokens[at - 1].text == "."
        if token.kind != "word" or kind not in _ARGUMENTS or not called or named:
            at += 1
            continue
        end = _end(tokens, at + 1, kind)
        name, arguments = _call(kind, tokens[at + 2 : end])
        key = repr((kind, name, sorted(arguments.items())))
        found = views.setdefault(key, Relation(_VIEW.format(len(views)), kind, name, arguments))
        parts += [sql[done : token.start], found.view]
        done, at = tokens[end].end, end + 1
    return "".join([*parts, sql[done:]]), list(views.values())


def _tokens(sql: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(sql):
        kind = found.lastgroup if found.lastgroup != "tag" else "quoted"
        if kind != "space":
            yield _Token(str(kind), found[0], found.start(), found.end())


def _end(tokens: list[_Token], start: int, kind: str) -> int:
    for at in range(start + 1, len(tokens)):
        if tokens[at].text == "(":
            break
        if tokens[at].text == ")":
            return at
    raise ConfigError(f"{kind}(...) takes literals only: {_usage(kind)}")


def _call(kind: str, tokens: list[_Token]) -> tuple[str, dict[str, str | int]]:
    groups: list[list[_Token]] = [[]]
    for token in tokens:
        if token.text == ",":
            groups.append([])
        else:
            groups[-1].append(token)
    first, *rest = groups
    if len(first) != 1 or first[0].kind != "text":
        raise ConfigError(f"{kind}(...) begins with a name in single quotes: {_usage(kind)}")
    arguments: dict[str, str | int] = {}
    for group in rest:
        literal = group[2] if len(group) == 3 and group[1].kind == "arrow" else None
        if literal is None or literal.kind not in ("text", "number"):
            raise ConfigError(f"arguments of {kind}(...) are NAME => LITERAL: {_usage(kind)}")
        name = group[0].text.lower()
        if name not in _ARGUMENTS[kind]:
            raise ConfigError(f"{kind}(...) has no argument {group[0].text!r}: {_usage(kind)}")
        arguments[name] = int(literal.text) if literal.kind == "number" else _text(literal.text)
    return _text(first[0].text), arguments


def _text(literal: str) -> str:
    if literal[0] in "eE":
        raise ConfigError(f"{literal}: text with escapes is not accepted here")
    return literal[1:-1].replace("''", "'")


def _usage(kind: str) -> str:
    more = ", ".join(f"{name} => ..." for name in _ARGUMENTS[kind])
    return f"{kind}('NAME', {more})"

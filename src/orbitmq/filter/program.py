"""Compiles the tree of an expression to the program that kernels evaluate (``orbitmq.kernel.sql_program``)."""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct
from typing import Final

import msgspec

from orbitmq.filter.parsing import parse
from orbitmq.filter.tree import (
    And,
    Cast,
    Constant,
    Equal,
    In,
    Logic,
    Node,
    Not,
    Or,
    Order,
    Property,
    TextTest,
    TextTestKind,
    Void,
)
from orbitmq.kernel import Filter
from orbitmq.kernel.java_numbers import Kind
from orbitmq.kernel.sql_program import Op

__all__ = ["Expression", "compile_expression", "encode_program"]

_COUNT: Final = Struct(">I")
_INTEGER: Final = Struct(">Bq")
_DOUBLE: Final = Struct(">Bd")
_ORDERS: Final = {"<": Op.LESS, "<=": Op.LESS_EQUAL, ">": Op.GREATER, ">=": Op.GREATER_EQUAL}
_TESTS: Final = {
    (TextTestKind.CONTAINS, False): Op.CONTAINS,
    (TextTestKind.CONTAINS, True): Op.NOT_CONTAINS,
    (TextTestKind.STARTSWITH, False): Op.STARTSWITH,
    (TextTestKind.STARTSWITH, True): Op.NOT_STARTSWITH,
    (TextTestKind.ENDSWITH, False): Op.ENDSWITH,
    (TextTestKind.ENDSWITH, True): Op.NOT_ENDSWITH,
}
_SHORT_CHARS_MAX: Final = 1024
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class Expression(msgspec.Struct, frozen=True):
    """A compiled SQL92 expression that can select messages."""

    text: str
    tree: Logic
    filter: Filter
    ignored_from: int | None
    """The position of text after the expression, which Apache ignores, too; None if there is none."""


def compile_expression(text: str) -> Expression:
    """Returns the compiled expression, from a cache if possible. Raises ``SubscriptionParseFailed``."""
    return _compile_short(text) if len(text) <= _SHORT_CHARS_MAX else _compile_long(text)


@lru_cache(maxsize=1024)
def _compile_short(text: str) -> Expression:
    return _compile(text)


@lru_cache(maxsize=32)
def _compile_long(text: str) -> Expression:
    # Few are cached: each takes up to a megabyte, and any client may send them.
    return _compile(text)


def _compile(text: str) -> Expression:
    parsed = parse(text)
    return Expression(text, parsed.tree, Filter(None, encode_program(parsed.tree)), parsed.ignored_from)


def encode_program(tree: Logic) -> bytes:
    """Returns the program of a tree, in the form that kernels evaluate."""
    parts: list[bytes] = []
    _write(tree, parts)
    return b"".join(parts)


def _write(node: Node, parts: list[bytes]) -> None:
    match node:
        case Property() | Cast():
            parts += (_code(Op.PROPERTY if isinstance(node, Property) else Op.CAST), _text(node.name))
        case Constant():
            parts.append(_constant(node))
        case Not() | Void():
            parts.append(_code(Op.NOT if isinstance(node, Not) else Op.VOID))
            _write(node.operand, parts)
        case And() | Or():
            parts += (_code(Op.AND if isinstance(node, And) else Op.OR), _COUNT.pack(len(node.terms)))
            for term in node.terms:
                _write(term, parts)
        case Equal() | Order():
            parts.append(_code(Op.EQUAL if isinstance(node, Equal) else _ORDERS[node.operator]))
            _write(node.left, parts)
            _write(node.right, parts)
        case In():
            parts += (_code(Op.NOT_IN if node.negated else Op.IN), _text(node.name))
            parts.append(_COUNT.pack(len(node.texts)))
            parts += map(_text, sorted(node.texts))
        case TextTest():
            parts.append(_code(_TESTS[node.test, node.negated]))
            _write(node.operand, parts)
            parts.append(_text(node.text))


def _code(code: Op) -> bytes:
    return bytes((code,))


def _text(text: str) -> bytes:
    # No property equals half a surrogate pair, and none contains 0x02, which ends a value.
    raw = _SURROGATE.sub("\x02", text).encode()
    return _COUNT.pack(len(raw)) + raw


def _constant(constant: Constant) -> bytes:
    match constant.kind, constant.value:
        case Kind.TEXT, str(text):
            return _code(Op.TEXT) + _text(text)
        case Kind.INT, int(number):
            return _INTEGER.pack(Op.INT, number)
        case Kind.LONG, int(number):
            return _INTEGER.pack(Op.LONG, number)
        case Kind.DOUBLE, float(number):
            return _DOUBLE.pack(Op.DOUBLE, number)
        case Kind.BOOL, bool(value):
            return _code(Op.TRUE if value else Op.FALSE)
    assert constant.value is None, constant
    return _code(Op.NULL)

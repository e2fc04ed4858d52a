"""The meaning of a tree, written for reading (Apache: the ``evaluate`` methods).

``compiler`` makes the same faster; tests hold the two together, and this one against Apache's own answers.
"""

from __future__ import annotations

from collections.abc import Callable

from orbitmq.filter.coercion import Kind, Value, compare
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

__all__ = ["evaluate"]

Find = Callable[[str], str | None]
"""Text of a property by name; None when it is not there."""


def evaluate(node: Logic, find: Find) -> bool | None:
    """True, false or null. Raises ``Unreadable``."""
    match node:
        case And() | Or():
            return _chain(node, find)
        case Not():
            value = evaluate(node.operand, find)
            return None if value is None else not value
        case Equal():
            return _equal(node, find)
        case Order():
            return _order(node, find)
        case In():
            text = find(node.name)
            return None if text is None else (text in node.texts) != node.negated
        case TextTest():
            return _text_test(node, find)
        case Cast():
            return None if find(node.name) is None else False
        case Constant():
            assert node.value is None or isinstance(node.value, bool)
            return node.value


def _chain(node: And | Or, find: Find) -> bool | None:
    """The first term that decides ends it; a null lets the rest be looked at."""
    deciding = isinstance(node, Or)
    unknown = False
    for term in node.terms:
        value = evaluate(term, find)
        if value is deciding:
            return deciding
        unknown |= value is None
    return None if unknown else not deciding


def _value(node: Node, find: Find) -> tuple[Value, Kind]:
    match node:
        case Property():
            return find(node.name), Kind.TEXT
        case Constant():
            return node.value, node.kind
        case Void():
            evaluate(node.operand, find)
            return None, Kind.NULL
        case _:
            return evaluate(node, find), Kind.BOOL


def _equal(node: Equal, find: Find) -> bool | None:
    left, left_kind = _value(node.left, find)
    right, right_kind = _value(node.right, find)
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    return compare(left, left_kind, right, right_kind) == 0


def _order(node: Order, find: Find) -> bool | None:
    left, left_kind = _value(node.left, find)
    if left is None:
        return None
    right, right_kind = _value(node.right, find)
    if right is None:
        return None
    if left_kind is right_kind is Kind.TEXT:
        # Texts have no order; two properties are compared as fractions.
        sign = compare(left, Kind.DOUBLE, right, Kind.DOUBLE)
    else:
        sign = compare(left, left_kind, right, right_kind)
    match node.operator:
        case "<":
            return sign < 0
        case "<=":
            return sign <= 0
        case ">":
            return sign > 0
        case _:
            return sign >= 0


def _text_test(node: TextTest, find: Find) -> bool:
    value, _ = _value(node.operand, find)
    if not node.text or not isinstance(value, str):
        return False
    match node.test:
        case TextTestKind.CONTAINS:
            holds = node.text in value
        case TextTestKind.STARTSWITH:
            holds = value.startswith(node.text)
        case TextTestKind.ENDSWITH:
            holds = value.endswith(node.text)
    return holds != node.negated

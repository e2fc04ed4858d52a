"""The expression tree (Apache: the classes of ``filter.expression``).

Numbers occur only as literals, so the type of every operand is known before any message is: a property is text, a
comparison is a truth value, a literal has its own type. ``parsing`` builds the nodes and refuses what Apache refuses,
so every tree is meaningful.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from orbitmq.kernel.java_numbers import Kind, Value

__all__ = [
    "And",
    "Cast",
    "Constant",
    "Equal",
    "In",
    "Logic",
    "Node",
    "Not",
    "Or",
    "Order",
    "Property",
    "TextTest",
    "TextTestKind",
    "Void",
    "depth",
    "is_truth",
]


class Property(msgspec.Struct, frozen=True, gc=False):
    """The text of a property, or null."""

    name: str


class Constant(msgspec.Struct, frozen=True, gc=False):
    """A literal, or a literal with its sign applied."""

    value: Value
    kind: Kind
    signed: bool = False
    """It had a sign: such operands escape Apache's checks of literals."""


class Equal(msgspec.Struct, frozen=True, gc=False):
    """``=``; the left operand decides the result for null."""

    left: Node
    right: Node
    depth: int


class Order(msgspec.Struct, frozen=True, gc=False):
    """``<``, ``<=``, ``>`` or ``>=``, always of numbers."""

    operator: str
    left: Node
    right: Node


class Not(msgspec.Struct, frozen=True, gc=False):
    operand: Logic
    depth: int


class And(msgspec.Struct, frozen=True, gc=False):
    terms: tuple[Logic, ...]
    depth: int


class Or(msgspec.Struct, frozen=True, gc=False):
    terms: tuple[Logic, ...]
    depth: int


class In(msgspec.Struct, frozen=True, gc=False):
    name: str
    texts: frozenset[str]
    negated: bool


class TextTestKind(Enum):
    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


class TextTest(msgspec.Struct, frozen=True, gc=False):
    """Never null: false for anything that is not text, negated or not."""

    test: TextTestKind
    operand: Node
    text: str
    negated: bool
    depth: int


class Cast(msgspec.Struct, frozen=True, gc=False):
    """A property used as a truth value. Its text never is one: false when the property exists, else null."""

    name: str


class Void(msgspec.Struct, frozen=True, gc=False):
    """A condition after a sign: evaluated, since it may fail, then null."""

    operand: Logic
    depth: int


Logic = Equal | Order | Not | And | Or | In | TextTest | Cast | Constant
Node = Logic | Property | Void


def is_truth(node: Node) -> bool:
    """Whether the node is a truth value by itself (Apache: ``BooleanExpression``)."""
    if isinstance(node, Constant):
        return not node.signed and node.kind in (Kind.BOOL, Kind.NULL)
    return not isinstance(node, Property | Void)


def depth(node: Node) -> int:
    """The nesting depth of this node, itself included."""
    return node.depth if isinstance(node, Equal | Not | And | Or | TextTest | Void) else 1

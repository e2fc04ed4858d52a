"""The expression tree (Apache: the classes of ``filter.expression``).

Numbers occur only as literals, so every operand's type is known when the expression is parsed: a property is text, a
comparison is a truth value, and a literal has its own type. ``parsing`` builds the nodes and rejects what Apache
rejects, so every tree is valid.
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
    """Whether a sign was applied. Apache's checks of literals skip such operands."""


class Equal(msgspec.Struct, frozen=True, gc=False):
    """A comparison with ``=``. Two nulls are equal. Otherwise a null on the left gives null, and a null on the right
    gives false."""

    left: Node
    right: Node
    depth: int


class Order(msgspec.Struct, frozen=True, gc=False):
    """A comparison of numbers with ``<``, ``<=``, ``>`` or ``>=``."""

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
    """A test of text, which is never null. It is false for an operand that is not text, even if negated."""

    test: TextTestKind
    operand: Node
    text: str
    negated: bool
    depth: int


class Cast(msgspec.Struct, frozen=True, gc=False):
    """A property used as a truth value: false if the property exists, otherwise null. Its text is never true."""

    name: str


class Void(msgspec.Struct, frozen=True, gc=False):
    """A condition after a sign. Its value is null, but it is evaluated, because it may fail."""

    operand: Logic
    depth: int


Logic = Equal | Order | Not | And | Or | In | TextTest | Cast | Constant
Node = Logic | Property | Void


def is_truth(node: Node) -> bool:
    """Returns whether the node is a truth value by itself (Apache: ``BooleanExpression``)."""
    if isinstance(node, Constant):
        return not node.signed and node.kind in (Kind.BOOL, Kind.NULL)
    return not isinstance(node, Property | Void)


def depth(node: Node) -> int:
    """Returns the nesting depth of a node, including the node itself."""
    return node.depth if isinstance(node, Equal | Not | And | Or | TextTest | Void) else 1

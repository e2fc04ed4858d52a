"""Evaluates SQL92 programs like Apache's broker was observed to do (Apache: ``evaluate``).

The format is described in ``orbitmq.kernel.sql_program``. Logic is three-valued. Text that cannot be converted to the
number it is compared with ends the evaluation of the whole expression (``Unreadable``), and the message is not
selected.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from orbitmq.kernel.java_numbers import Kind, Unreadable, Value, compare
from orbitmq.kernel.sql_program import DEPTH_MAX, Op

__all__ = ["Node", "evaluate", "parse_program", "properties_of", "selects"]

_COUNT: Final = Struct(">I")
_INTEGER: Final = Struct(">q")
_DOUBLE: Final = Struct(">d")
_ORDERS: Final = (Op.LESS, Op.LESS_EQUAL, Op.GREATER, Op.GREATER_EQUAL)
_TEXT_TESTS: Final = (
    Op.CONTAINS,
    Op.NOT_CONTAINS,
    Op.STARTSWITH,
    Op.NOT_STARTSWITH,
    Op.ENDSWITH,
    Op.NOT_ENDSWITH,
)
_NO_CONDITIONS: Final = (Op.PROPERTY, Op.INT, Op.LONG, Op.DOUBLE, Op.TEXT, Op.VOID)

Node = tuple[Any, ...]
"""The operation, then its operands in the order of the format; names are bytes, the texts of IN a frozenset."""


class _Reader:
    def __init__(self, program: bytes) -> None:
        self._program = program
        self._at = 0
        self.node_count = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._program)

    def _bytes(self, size: int) -> bytes:
        data = self._program[self._at : self._at + size]
        if len(data) != size:
            raise ValueError("an SQL program ends too early")
        self._at += size
        return data

    def _number(self) -> int:
        (number,) = _COUNT.unpack(self._bytes(_COUNT.size))
        return int(number)

    def _text(self) -> str:
        try:
            return self._bytes(self._number()).decode()
        except UnicodeDecodeError:
            raise ValueError("an SQL program holds a text that is not UTF-8") from None

    def _name(self) -> bytes:
        name = self._bytes(self._number())
        if not name or b"\x01" in name or b"\x02" in name:
            raise ValueError("an SQL program names a property that cannot exist")
        return name

    def condition(self, depth: int) -> Node:
        node = self.node(depth)
        if node[0] in _NO_CONDITIONS:
            raise ValueError("an SQL program has a value in place of a condition")
        return node

    def node(self, depth: int) -> Node:
        self.node_count += 1
        if depth > DEPTH_MAX:
            raise ValueError(f"an SQL program is nested more than {DEPTH_MAX} deep")
        code = self._bytes(1)[0]
        match code:
            case Op.PROPERTY | Op.CAST:
                return code, self._name()
            case Op.TEXT:
                return code, self._text()
            case Op.NULL | Op.TRUE | Op.FALSE:
                return (code,)
            case Op.INT | Op.LONG:
                return code, *_INTEGER.unpack(self._bytes(_INTEGER.size))
            case Op.DOUBLE:
                return code, *_DOUBLE.unpack(self._bytes(_DOUBLE.size))
            case Op.VOID | Op.NOT:
                return code, self.condition(depth + 1)
            case Op.AND | Op.OR:
                return code, [self.condition(depth + 1) for _ in range(self._number())]
            case Op.IN | Op.NOT_IN:
                return code, self._name(), frozenset(self._text() for _ in range(self._number()))
            case _ if code == Op.EQUAL or code in _ORDERS:
                return code, self.node(depth + 1), self.node(depth + 1)
            case _ if code in _TEXT_TESTS:
                return code, self.node(depth + 1), self._text()
        raise ValueError(f"an SQL program holds the unknown operation {code}")


def parse_program(program: bytes) -> tuple[Node, int]:
    """Returns the root node of a program and the number of its nodes. Raises ``ValueError``."""
    reader = _Reader(program)
    root = reader.condition(1)
    if not reader.is_at_end:
        raise ValueError("an SQL program has data after its end")
    return root, reader.node_count


def properties_of(raw: bytes) -> dict[bytes, str]:
    """Returns values by name. If two pairs have the same name, the later one counts. Pairs with an empty name or
    value are ignored. Invalid UTF-8 becomes U+FFFD, like in Java."""
    properties: dict[bytes, str] = {}
    for pair in raw.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name and value:
            properties[name] = value.decode("utf-8", "replace")
    return properties


def selects(root: Node, raw: bytes) -> bool:
    """Whether a message with this property text is selected."""
    try:
        return evaluate(root, properties_of(raw)) is True
    except Unreadable:
        return False


def evaluate(node: Node, properties: Mapping[bytes, str]) -> bool | None:
    """Returns the value of a condition: True, False or, for null, None. Raises ``Unreadable``."""
    code = node[0]
    match code:
        case Op.AND | Op.OR:
            return _chain(node, properties)
        case Op.NOT:
            value = evaluate(node[1], properties)
            return None if value is None else not value
        case Op.EQUAL:
            return _equal(node, properties)
        case Op.IN | Op.NOT_IN:
            text = properties.get(node[1])
            return None if text is None else (text in node[2]) == (code == Op.IN)
        case Op.CAST:
            return None if node[1] not in properties else False
        case Op.TRUE | Op.FALSE:
            return bool(code == Op.TRUE)
        case Op.NULL:
            return None
        case _ if code in _ORDERS:
            return _order(node, properties)
    return _text_test(node, properties)


def _chain(node: Node, properties: Mapping[bytes, str]) -> bool | None:
    """Evaluate ``AND`` or ``OR``. Stops at the first deciding term; after a null the remaining terms are still
    evaluated."""
    deciding = bool(node[0] == Op.OR)
    unknown = False
    for term in node[1]:
        value = evaluate(term, properties)
        if value is deciding:
            return deciding
        unknown |= value is None
    return None if unknown else not deciding


def _value(node: Node, properties: Mapping[bytes, str]) -> tuple[Value, Kind]:
    match node[0]:
        case Op.PROPERTY:
            return properties.get(node[1]), Kind.TEXT
        case Op.INT:
            return node[1], Kind.INT
        case Op.LONG:
            return node[1], Kind.LONG
        case Op.DOUBLE:
            return node[1], Kind.DOUBLE
        case Op.TEXT:
            return node[1], Kind.TEXT
        case Op.VOID:
            evaluate(node[1], properties)
            return None, Kind.NULL
    return evaluate(node, properties), Kind.BOOL


def _equal(node: Node, properties: Mapping[bytes, str]) -> bool | None:
    """Compare for equality. Two nulls are equal; otherwise a null on the left gives null, and one on the right gives
    false."""
    left, left_kind = _value(node[1], properties)
    right, right_kind = _value(node[2], properties)
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    return compare(left, left_kind, right, right_kind) == 0


def _order(node: Node, properties: Mapping[bytes, str]) -> bool | None:
    code = node[0]
    left, left_kind = _value(node[1], properties)
    if left is None:
        return None
    right, right_kind = _value(node[2], properties)
    if right is None:
        return None
    if left_kind is right_kind is Kind.TEXT:
        # Texts have no order, so two properties are compared as fractions.
        left_kind = right_kind = Kind.DOUBLE
    sign = compare(left, left_kind, right, right_kind)
    if code == Op.LESS:
        return sign < 0
    if code == Op.LESS_EQUAL:
        return sign <= 0
    return sign > 0 if code == Op.GREATER else sign >= 0


def _text_test(node: Node, properties: Mapping[bytes, str]) -> bool:
    """Evaluate a text test. Never null: anything that is not a text gives false, whether the test is negated or
    not."""
    code, operand, part = node
    value, _ = _value(operand, properties)
    if not part or not isinstance(value, str):
        return False
    if code in (Op.CONTAINS, Op.NOT_CONTAINS):
        holds = part in value
    elif code in (Op.STARTSWITH, Op.NOT_STARTSWITH):
        holds = value.startswith(part)
    else:
        holds = value.endswith(part)
    return holds == (code in (Op.CONTAINS, Op.STARTSWITH, Op.ENDSWITH))

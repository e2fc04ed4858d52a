"""From text to tree (Apache: ``SelectorParser``), with Apache's checks and a position in every complaint.

Two habits of Apache's parser are kept, because consumers rely on what it accepts: it stops behind the first whole
expression and never looks at the rest beyond one word (``b = 'x' LIMIT 5`` is ``b = 'x'``), and it refuses 0.0.
``Parsed.ignored_from`` tells where the rest begins, so that the broker can warn.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from orbitmq.errors import SubscriptionParseFailed
from orbitmq.filter.coercion import INT_MAX, LONG_MAX, Kind, Unreadable, compare
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
    depth,
    is_truth,
)

if TYPE_CHECKING:
    from lark import Lark, Token

__all__ = ["DEPTH_MAX", "EXPRESSION_CHARS_MAX", "Parsed", "parse"]

EXPRESSION_CHARS_MAX: Final = 65_536
DEPTH_MAX: Final = 200
"""Of nested conditions; parentheses alone and chains of AND or OR do not count."""

_KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)

GRAMMAR: Final = r"""
    start: disjunction
    ?disjunction: conjunction | disjunction OR conjunction -> either
    ?conjunction: equality | conjunction AND equality      -> both
    ?equality: comparison
        | equality EQUAL comparison     -> equal
        | equality UNEQUAL comparison   -> not_equal
        | equality IS NULL          -> is_null
        | equality IS NOT NULL      -> is_not_null
    ?comparison: unary
        | comparison ORDER unary                            -> order
        | comparison text_test STRING                       -> contains
        | comparison NOT text_test STRING                   -> not_contains
        | comparison BETWEEN unary AND unary                -> between
        | comparison NOT BETWEEN unary AND unary            -> not_between
        | comparison IN "(" STRING ("," STRING)* ")"        -> in_list
        | comparison NOT IN "(" STRING ("," STRING)* ")"    -> not_in_list
    !text_test: CONTAINS | STARTSWITH | ENDSWITH
    ?unary: primary
        | "+" unary     -> positive
        | "-" unary     -> negative
        | NOT unary     -> negation
    ?primary: "(" disjunction ")"
        | STRING  -> text
        | INTEGER -> integer
        | FLOAT   -> fraction
        | TRUE    -> true
        | FALSE   -> false
        | NULL    -> null
        | NAME    -> name

    EQUAL: "="
    UNEQUAL.2: "<>"
    ORDER: "<=" | ">=" | "<" | ">"
    STRING: /'(?:''|[^'])*'/
    FLOAT.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
    INTEGER: /0|[1-9][0-9]*[lL]?/
    NAME: /[a-zA-Z_$][a-zA-Z0-9_$]*/
    %declare NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH

    BLANKS: /[ \t\n\r\f]+/
    LINE_COMMENT.3: /--[^\n\r]*(?:\r\n|\n|\r)/
    BLOCK_COMMENT.3: /\/\*[^*]*\*(?:\*|[^*\/][^*]*\*)*\//
    %ignore BLANKS
    %ignore LINE_COMMENT
    %ignore BLOCK_COMMENT
"""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A tree, and where the text behind it begins that Apache ignores; None when there is none."""

    tree: Logic
    ignored_from: int | None


def parse(expression: str) -> Parsed:
    """Raises ``SubscriptionParseFailed`` with the position of the fault, counted from 1."""
    from lark import UnexpectedCharacters, UnexpectedToken

    if len(expression) > EXPRESSION_CHARS_MAX:
        raise SubscriptionParseFailed(
            f"the SQL92 expression has {len(expression)} characters, at most {EXPRESSION_CHARS_MAX} are allowed"
        )
    try:
        try:
            return Parsed(_tree_of(expression), None)
        except UnexpectedToken as error:
            position = error.token.start_pos
            if error.token.type == "$END" or position is None or "$END" not in error.accepts:
                raise _unexpected(expression, error.token, error.accepts) from None
            return Parsed(_tree_of(expression[:position]), position)
    except UnexpectedCharacters as error:
        position = int(error.pos_in_stream)  # type: ignore[call-overload]  # declared as None only
        character = expression[position]
        what = "a text without its closing quote" if character == "'" else f"the character {character!r}"
        raise _failed(expression, position, f"{what} cannot stand here") from None
    except _Refused as error:
        raise _failed(expression, error.position, error.reason) from None


class _Refused(Exception):
    """A whole expression that means nothing."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


def _failed(expression: str, position: int, reason: str) -> SubscriptionParseFailed:
    line = expression.count("\n", 0, position) + 1
    column = position - (expression.rfind("\n", 0, position) + 1) + 1
    where = f"column {column}" if "\n" not in expression else f"line {line}, column {column}"
    near = expression[max(0, position - 20) : position + 20]
    return SubscriptionParseFailed(f"bad SQL92 expression: {reason} ({where}, near {near!r})")


_SHOWN: Final = {
    "NAME": "a property",
    "STRING": "a 'text'",
    "INTEGER": "a number",
    "FLOAT": "a number",
    "ORDER": "<, <=, >, >=",
    "LPAR": "(",
    "RPAR": ")",
    "EQUAL": "=",
    "UNEQUAL": "<>",
    "COMMA": ",",
    "PLUS": "a number",
    "MINUS": "a number",
    "$END": "the end",
}


def _unexpected(expression: str, token: Token, expected: set[str]) -> SubscriptionParseFailed:
    wanted = ", ".join(sorted({_SHOWN.get(name, name) for name in expected}))
    if token.type == "$END":
        return _failed(expression, len(expression), f"it ends where this must follow: {wanted}")
    return _failed(expression, token.start_pos or 0, f"{str(token)!r} where this may stand: {wanted}")


def _tree_of(expression: str) -> Logic:
    tree: Any = _parser().parse(expression)
    assert is_truth(tree)
    return tree  # type: ignore[no-any-return]  # lark is untyped here


@lru_cache(maxsize=1)
def _parser() -> Lark:
    # Imported and built at the first expression: most brokers never see one, and this takes 0.1 s.
    from lark import Lark

    def keyword(token: Token) -> Token:
        upper = token.upper() if token.isascii() else ""
        return token.update(type=upper) if upper in _KEYWORDS else token

    return Lark(
        GRAMMAR,
        parser="lalr",
        lexer="basic",
        transformer=_builder(),
        lexer_callbacks={"NAME": keyword},
        propagate_positions=False,
    )


def _builder() -> Any:
    """The functions lark calls for each rule, as a transformer."""
    from lark import Transformer, v_args

    methods = {name: method for name, method in vars(_Rules).items() if not name.startswith("__")}
    return v_args(inline=True)(type("Builder", (Transformer,), methods))()


def _truth(node: Node, position: int) -> Logic:
    if isinstance(node, Property):
        return Cast(node.name)
    if isinstance(node, Void) or not is_truth(node):
        raise _Refused(position, "a condition is needed here, not a value")
    return node


def _deeper(position: int, *nodes: Node) -> int:
    level = 1 + max(map(depth, nodes))
    if level > DEPTH_MAX:
        raise _Refused(position, f"conditions are nested more than {DEPTH_MAX} deep")
    return level


def _check_order(node: Node, position: int) -> None:
    if isinstance(node, Constant) and not node.signed:
        if node.kind not in (Kind.INT, Kind.LONG, Kind.DOUBLE):
            raise _Refused(
                position, "only numbers and properties can be compared by <, <=, >, >= and BETWEEN"
            )
    elif is_truth(node) and not isinstance(node, Constant):
        raise _Refused(position, "a condition cannot be compared by <, <=, >, >= and BETWEEN")


_NULL: Final = Constant(None, Kind.NULL)


class _Rules:
    """One method per rule of the grammar; positions come from the operators."""

    def start(self, node: Node) -> Logic:
        return _truth(node, 0)

    def either(self, left: Node, operator: Token, right: Node) -> Logic:
        return _chain(Or, left, operator, right)

    def both(self, left: Node, operator: Token, right: Node) -> Logic:
        return _chain(And, left, operator, right)

    # Equality.
    def equal(self, left: Node, operator: Token, right: Node) -> Logic:
        position = _at(operator)
        for node in (left, right):
            if isinstance(node, Constant) and not node.signed and node.value is None:
                raise _Refused(position, "nothing is equal to NULL; IS NULL asks for it")
        if (
            isinstance(left, Constant)
            and isinstance(right, Constant)
            and not left.signed
            and not right.signed
            and is_truth(left)
            and not is_truth(right)
        ):
            raise _Refused(position, "TRUE or FALSE cannot be compared with this literal")
        return Equal(left, right, _deeper(position, left, right))

    def not_equal(self, left: Node, operator: Token, right: Node) -> Logic:
        return _not(self.equal(left, operator, right))

    def is_null(self, operand: Node, *_: Token) -> Logic:
        return Equal(operand, _NULL, _deeper(0, operand))

    def is_not_null(self, operand: Node, *_: Token) -> Logic:
        return _not(self.is_null(operand))

    # Comparison.
    def order(self, left: Node, operator: Token, right: Node) -> Logic:
        return _order(str(operator), left, right, _at(operator))

    def between(self, value: Node, keyword: Token, low: Node, _and: Token, high: Node) -> Logic:
        position = _at(keyword)
        if isinstance(low, Constant) and isinstance(high, Constant) and not (low.signed or high.signed):
            _check_range(low, high, position)
        return _chain(And, _order(">=", value, low, position), keyword, _order("<=", value, high, position))

    def not_between(
        self, value: Node, keyword: Token, _between: Token, low: Node, _and: Token, high: Node
    ) -> Logic:
        position = _at(keyword)
        return _chain(Or, _order("<", value, low, position), keyword, _order(">", value, high, position))

    def text_test(self, keyword: Token) -> Token:
        return keyword

    def contains(self, operand: Node, keyword: Token, literal: Token) -> Logic:
        return _text_test(operand, keyword, literal, negated=False)

    def not_contains(self, operand: Node, _not: Token, keyword: Token, literal: Token) -> Logic:
        return _text_test(operand, keyword, literal, negated=True)

    def in_list(self, operand: Node, keyword: Token, *literals: Token) -> Logic:
        return _in(operand, _at(keyword), literals, negated=False)

    def not_in_list(self, operand: Node, keyword: Token, _in_token: Token, *literals: Token) -> Logic:
        return _in(operand, _at(keyword), literals, negated=True)

    # Signs.
    def positive(self, operand: Node) -> Node:
        return operand

    def negative(self, operand: Node) -> Node:
        if isinstance(operand, Constant) and operand.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE):
            assert isinstance(operand.value, int | float)
            return Constant(-operand.value, operand.kind, signed=True)
        if is_truth(operand) and not isinstance(operand, Constant):
            assert not isinstance(operand, Property | Void)
            return Void(operand, _deeper(0, operand))
        return operand if isinstance(operand, Void) else Constant(None, Kind.NULL, signed=True)

    def negation(self, keyword: Token, operand: Node) -> Logic:
        return _not(_truth(operand, _at(keyword)))

    # Literals.
    def text(self, literal: Token) -> Node:
        return Constant(_unquoted(literal), Kind.TEXT)

    def integer(self, literal: Token) -> Node:
        digits = literal.rstrip("lL")
        if len(digits) > 19 or int(digits) > LONG_MAX:
            raise _Refused(_at(literal), f"{digits[:30]} is beyond the largest integer {LONG_MAX}")
        value = int(digits)
        return Constant(value, Kind.INT if value <= INT_MAX else Kind.LONG)

    def fraction(self, literal: Token) -> Node:
        value = float(literal)
        if not 0 < value < float("inf"):
            raise _Refused(
                _at(literal), f"{literal[:30]} is zero or too large as a fraction; write 0 for zero"
            )
        return Constant(value, Kind.DOUBLE)

    def true(self, _token: Token) -> Node:
        return Constant(True, Kind.BOOL)

    def false(self, _token: Token) -> Node:
        return Constant(False, Kind.BOOL)

    def null(self, _token: Token) -> Node:
        return _NULL

    def name(self, token: Token) -> Node:
        return Property(str(token))


def _chain(kind: type[And] | type[Or], left: Node, operator: Token, right: Node) -> Logic:
    position = _at(operator)
    terms: list[Logic] = []
    for node in (_truth(left, position), _truth(right, position)):
        # Flat, so that a thousand alternatives are one level and not a thousand.
        terms += node.terms if isinstance(node, kind) else (node,)
    return kind(tuple(terms), _deeper(position, *terms))


def _check_range(low: Constant, high: Constant, position: int) -> None:
    if low.value is None or high.value is None:
        raise _Refused(position, "NULL cannot be a limit of BETWEEN")
    try:
        inverted = compare(high.value, high.kind, low.value, low.kind) < 0
    except Unreadable as error:
        raise _Refused(position, f"the limits of BETWEEN cannot be compared: {error}") from None
    if inverted:
        raise _Refused(position, "the first limit of BETWEEN is above the second")


def _at(token: Token) -> int:
    return token.start_pos or 0


def _unquoted(literal: Token) -> str:
    return str(literal)[1:-1].replace("''", "'")


def _not(operand: Logic) -> Logic:
    if isinstance(operand, Not):
        return operand.operand
    return Not(operand, _deeper(0, operand))


def _order(operator: str, left: Node, right: Node, position: int) -> Logic:
    _check_order(left, position)
    _check_order(right, position)
    return Order(operator, left, right)


def _text_test(operand: Node, keyword: Token, literal: Token, *, negated: bool) -> Logic:
    test = TextTestKind(keyword.upper())
    return TextTest(test, operand, _unquoted(literal), negated, _deeper(_at(keyword), operand))


def _in(operand: Node, position: int, literals: tuple[Token, ...], *, negated: bool) -> Logic:
    if not isinstance(operand, Property):
        raise _Refused(position, "IN needs a property to its left")
    return In(operand.name, frozenset(map(_unquoted, literals)), negated)

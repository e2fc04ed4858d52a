"""Parses text to a tree (Apache: ``SelectorParser``), with Apache's checks. Every error names its position. ::

    disjunction  conjunction (OR conjunction)*
    conjunction  equality (AND equality)*
    equality     comparison (= comparison | <> comparison | IS [NOT] NULL)*
    comparison   unary (< unary | <= unary | > unary | >= unary | [NOT] BETWEEN unary AND unary
                 | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text | [NOT] IN (text, ...))*
    unary        (+ | - | NOT)* (literal | property | "(" disjunction ")")

Two habits of Apache's parser are kept, because consumers rely on what it accepts. It stops after the first whole
expression and never reads the rest beyond one word, so ``b = 'x' LIMIT 5`` is ``b = 'x'``. And it rejects 0.0.
``Parsed.ignored_from`` tells where the ignored text begins, so that the broker can warn.

A heartbeat or a pull may contain any expression, and it is parsed on the event loop. So the number of words is
limited such that the longest expression takes less than 20 ms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from orbitmq.errors import SubscriptionParseFailed
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
from orbitmq.kernel.java_numbers import INT_MAX, LONG_MAX, Kind, Unreadable, compare

__all__ = ["DEPTH_MAX", "EXPRESSION_CHARS_MAX", "WORDS_MAX", "Parsed", "parse"]

EXPRESSION_CHARS_MAX: Final = 65_536
WORDS_MAX: Final = 4096
"""Words in an expression: names, literals, operators, brackets, commas."""
DEPTH_MAX: Final = 100
"""Depth of nested conditions and of nested parentheses; chains of AND or OR do not count."""

_KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)
_BLANKS: Final = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*(?:\r\n|\n|\r)|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*")
_WORD: Final = re.compile(
    r"(?P<NAME>[a-zA-Z_$][a-zA-Z0-9_$]*)"
    r"|(?P<STRING>'(?:''|[^'])*')"
    r"|(?P<FLOAT>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<INTEGER>0|[1-9][0-9]*[lL]?)"
    r"|(?P<MARK><>|<=|>=|[-+=<>(),])"
)
_END: Final = "the end"
_ORDERS: Final = ("<", "<=", ">", ">=")
_TESTS: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_OPERAND: Final = "a property, a 'text', a number, (, NOT, TRUE, FALSE, NULL"

# Precedence of operators.
_OR, _AND, _EQUALITY, _COMPARISON = 1, 2, 3, 4
_BINDING: Final = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys(("=", "<>", "IS"), _EQUALITY),
    **dict.fromkeys((*_ORDERS, *_TESTS, "BETWEEN", "IN", "NOT"), _COMPARISON),
}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A tree, and the position of any text after the expression, which Apache ignores; None if there is none."""

    tree: Logic
    ignored_from: int | None


def parse(expression: str) -> Parsed:
    """Returns the tree of an expression. Raises ``SubscriptionParseFailed`` with the position of the error, counted
    from 1."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise SubscriptionParseFailed(
            f"the SQL92 expression has {len(expression)} characters, at most {EXPRESSION_CHARS_MAX} are allowed"
        )
    try:
        parser = _Parser(expression)
        tree = _truth(parser.expression(_OR), 0)
        rest = parser.word
        return Parsed(tree, None if rest.kind == _END else rest.position)
    except _Refused as error:
        raise _failed(expression, error.position, error.reason) from None


class _Refused(Exception):
    """An expression that Apache rejects, or that exceeds a limit."""

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


class _Word(NamedTuple):
    kind: str
    """``NAME``, ``STRING``, ``FLOAT``, ``INTEGER`` or ``_END``. For keywords and punctuation, the text itself."""
    text: str
    position: int


class _Parser:
    """A parser that uses precedence climbing, with one word of lookahead."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._at = 0
        self._word_count = 0
        self._nested = 0
        self.word = self._read()

    # -- words -----------------------------------------------------------------------------------------

    def _read(self) -> _Word:
        blanks = _BLANKS.match(self._expression, self._at)
        assert blanks is not None
        start = blanks.end()
        if start == len(self._expression):
            return _Word(_END, "", start)
        self._word_count += 1
        if self._word_count > WORDS_MAX:
            raise _Refused(start, f"it has more than {WORDS_MAX} words")
        found = _WORD.match(self._expression, start)
        if found is None:
            character = self._expression[start]
            what = "an unclosed string" if character == "'" else f"the character {character!r}"
            raise _Refused(start, f"unexpected {what}")
        self._at = found.end()
        kind, text = str(found.lastgroup), found[0]
        if kind == "MARK":
            kind = text
        elif kind == "NAME" and (upper := text.upper()) in _KEYWORDS:
            kind = upper
        return _Word(kind, text, start)

    def _take(self) -> _Word:
        word = self.word
        self.word = self._read()
        return word

    def _expect(self, *kinds: str, shown: str = "") -> _Word:
        if self.word.kind not in kinds:
            raise self._unexpected(shown or ", ".join(kinds))
        return self._take()

    def _unexpected(self, wanted: str) -> _Refused:
        word = self.word
        if word.kind == _END:
            return _Refused(word.position, f"it ends where this must follow: {wanted}")
        return _Refused(word.position, f"{word.text!r} where this may stand: {wanted}")

    # -- operators -------------------------------------------------------------------------------------

    def expression(self, level: int) -> Node:
        """Parses operators that bind at least as tightly as ``level``, with their operands."""
        left = self._unary()
        highest = _COMPARISON
        while level <= (binding := _BINDING.get(self.word.kind, 0)) <= highest:
            highest = binding
            if binding == _COMPARISON:
                left = self._comparison(left)
            elif binding == _EQUALITY:
                left = self._equality(left)
            else:
                left = self._chain(left, And if binding == _AND else Or, binding)
        return left

    def _chain(self, left: Node, kind: type[And] | type[Or], binding: int) -> Logic:
        """Parses a chain of one operator into a single node, so that a thousand alternatives add only one level."""
        operator = self.word
        terms: list[Logic] = []
        _add_term(terms, kind, _truth(left, operator.position))
        while self.word.kind == operator.kind:
            position = self._take().position
            _add_term(terms, kind, _truth(self.expression(binding + 1), position))
        return kind(tuple(terms), _deeper(operator.position, *terms))

    def _equality(self, left: Node) -> Logic:
        operator = self._take()
        if operator.kind == "IS":
            negated = self.word.kind == "NOT"
            if negated:
                self._take()
            self._expect("NULL", shown="NULL" if negated else "NULL, NOT")
            is_null = Equal(left, _NULL, _deeper(operator.position, left))
            return _not(is_null) if negated else is_null
        equal = _equal(left, self.expression(_COMPARISON), operator.position)
        return _not(equal) if operator.kind == "<>" else equal

    def _comparison(self, left: Node) -> Logic:
        operator = self._take()
        position = operator.position
        if operator.kind in _ORDERS:
            return _order(operator.kind, left, self._unary(), position)
        negated = operator.kind == "NOT"
        if negated:
            operator = self._expect("BETWEEN", "IN", *_TESTS)
        if operator.kind == "BETWEEN":
            return self._between(left, position, negated=negated)
        if operator.kind == "IN":
            return self._in(left, position, negated=negated)
        text = _unquoted(self._expect("STRING", shown="a 'text'"))
        return TextTest(TextTestKind(operator.kind), left, text, negated, _deeper(position, left))

    def _between(self, value: Node, position: int, *, negated: bool) -> Logic:
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        if negated:
            outside: list[Logic] = [_order("<", value, low, position), _order(">", value, high, position)]
            return Or(tuple(outside), _deeper(position, *outside))
        if isinstance(low, Constant) and isinstance(high, Constant) and not (low.signed or high.signed):
            _check_range(low, high, position)
        inside: list[Logic] = [_order(">=", value, low, position), _order("<=", value, high, position)]
        return And(tuple(inside), _deeper(position, *inside))

    def _in(self, operand: Node, position: int, *, negated: bool) -> Logic:
        self._expect("(")
        texts = {_unquoted(self._expect("STRING", shown="a 'text'"))}
        while self._expect(",", ")").kind == ",":
            texts.add(_unquoted(self._expect("STRING", shown="a 'text'")))
        if not isinstance(operand, Property):
            raise _Refused(position, "IN needs a property to its left")
        return In(operand.name, frozenset(texts), negated)

    # -- operands --------------------------------------------------------------------------------------

    def _unary(self) -> Node:
        signs: list[_Word] = []
        while self.word.kind in ("+", "-", "NOT"):
            signs.append(self._take())
        node = self._primary()
        for sign in reversed(signs):
            if sign.kind == "-":
                node = _negative(node, sign.position)
            elif sign.kind == "NOT":
                node = _not(_truth(node, sign.position))
        return node

    def _primary(self) -> Node:
        word = self.word
        match word.kind:
            case "NAME":
                node: Node = Property(word.text)
            case "STRING":
                node = Constant(_unquoted(word), Kind.TEXT)
            case "INTEGER":
                node = _integer(word)
            case "FLOAT":
                node = _fraction(word)
            case "TRUE" | "FALSE":
                node = Constant(word.kind == "TRUE", Kind.BOOL)
            case "NULL":
                node = _NULL
            case "(":
                return self._parenthesis()
            case _:
                raise self._unexpected(_OPERAND)
        self._take()
        return node

    def _parenthesis(self) -> Node:
        position = self._take().position
        self._nested += 1
        if self._nested > DEPTH_MAX:
            raise _too_deep(position)
        node = self.expression(_OR)
        self._nested -= 1
        self._expect(")", shown=") or an operator")
        return node


_NULL: Final = Constant(None, Kind.NULL)


def _add_term(terms: list[Logic], kind: type[And] | type[Or], term: Logic) -> None:
    if isinstance(term, kind):
        terms += term.terms
    else:
        terms.append(term)


def _truth(node: Node, position: int) -> Logic:
    if isinstance(node, Property):
        return Cast(node.name)
    if isinstance(node, Void) or not is_truth(node):
        raise _Refused(position, "a condition is needed here, not a value")
    return node


def _deeper(position: int, *nodes: Node) -> int:
    level = 1 + max(map(depth, nodes))
    if level > DEPTH_MAX:
        raise _too_deep(position)
    return level


def _too_deep(position: int) -> _Refused:
    return _Refused(position, f"conditions or parentheses are nested more than {DEPTH_MAX} deep")


def _check_order(node: Node, position: int) -> None:
    if isinstance(node, Constant) and not node.signed:
        if node.kind not in (Kind.INT, Kind.LONG, Kind.DOUBLE):
            raise _Refused(
                position, "only numbers and properties can be compared by <, <=, >, >= and BETWEEN"
            )
    elif is_truth(node) and not isinstance(node, Constant):
        raise _Refused(position, "a condition cannot be compared by <, <=, >, >= and BETWEEN")


def _equal(left: Node, right: Node, position: int) -> Logic:
    for node in (left, right):
        if isinstance(node, Constant) and not node.signed and node.value is None:
            raise _Refused(position, "nothing equals NULL; use IS NULL")
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


def _order(operator: str, left: Node, right: Node, position: int) -> Logic:
    _check_order(left, position)
    _check_order(right, position)
    return Order(operator, left, right)


def _not(operand: Logic) -> Logic:
    if isinstance(operand, Not):
        return operand.operand
    return Not(operand, _deeper(0, operand))


def _negative(operand: Node, position: int) -> Node:
    if isinstance(operand, Constant) and operand.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE):
        assert isinstance(operand.value, int | float)
        return Constant(-operand.value, operand.kind, signed=True)
    if is_truth(operand) and not isinstance(operand, Constant):
        assert not isinstance(operand, Property | Void)
        return Void(operand, _deeper(position, operand))
    return operand if isinstance(operand, Void) else Constant(None, Kind.NULL, signed=True)


def _check_range(low: Constant, high: Constant, position: int) -> None:
    if low.value is None or high.value is None:
        raise _Refused(position, "NULL cannot be a limit of BETWEEN")
    try:
        inverted = compare(high.value, high.kind, low.value, low.kind) < 0
    except Unreadable as error:
        raise _Refused(position, f"the limits of BETWEEN cannot be compared: {error}") from None
    if inverted:
        raise _Refused(position, "the lower limit of BETWEEN is above the upper limit")


def _unquoted(word: _Word) -> str:
    return word.text[1:-1].replace("''", "'")


def _integer(word: _Word) -> Constant:
    digits = word.text.rstrip("lL")
    if len(digits) > 19 or int(digits) > LONG_MAX:
        raise _Refused(word.position, f"{digits[:30]} is beyond the largest integer {LONG_MAX}")
    value = int(digits)
    return Constant(value, Kind.INT if value <= INT_MAX else Kind.LONG)


def _fraction(word: _Word) -> Constant:
    value = float(word.text)
    if not 0 < value < float("inf"):
        raise _Refused(
            word.position, f"{word.text[:30]} is zero or too large as a fraction; write 0 for zero"
        )
    return Constant(value, Kind.DOUBLE)

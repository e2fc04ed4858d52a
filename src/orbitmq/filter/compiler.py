"""An expression as one Python function over the raw bytes of a record.

A pull looks at up to 800 messages for the few that it delivers, so what this costs per message is what an SQL
subscription costs. Four things make it fast: only the properties that are named are looked for, in the stored bytes
and just before the first condition that needs them; texts are compared as bytes; the whole expression is one
generated function, because every call of a closure would cost 0.05 us; and that function judges neighbours in the log
in one go (``Selector.select_block``), where a record that cannot match costs a single search. Literals enter the
source only as ``repr`` of bytes, integers and finite fractions, names of properties only inside such bytes.

Each condition has three forms: *holds* (true iff it is true), *fails* (true iff it is false) and *value* (with null).
Text that cannot be read as the number it is compared with raises ``Unreadable``, which ends the whole evaluation;
where a null would merely end a chain early, a later condition that may raise forbids the short form. What has no fast
form (conditions compared with conditions, very deep nesting) is left to ``evaluation``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812  it is raised as a class
from typing import Final

from orbitmq import codes
from orbitmq.filter.coercion import (
    INT_MAX,
    LONG_MAX,
    Kind,
    Unreadable,
    compare_doubles,
    read_double,
    read_integer,
)
from orbitmq.filter.evaluation import evaluate
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
    depth,
)
from orbitmq.filter.verdict_cache import SEARCHED_BYTES_MAX, BlockSelect, RememberingSelect
from orbitmq.record.layout import FIXED_V4, HOST_V6_BYTES, MAGIC_V1, MAGIC_V2
from orbitmq.record.properties import find_property

__all__ = ["Selector", "compile_selector"]

GENERATED_DEPTH_MAX: Final = 16
VALUE_TERMS_MAX: Final = 24
"""Longer chains in their three-valued form, or nested, would be too deep for Python's own compiler."""

LOOP_LINES_MAX: Final = 400
"""Python's compiler takes seconds for a loop with thousands of ways out of a round."""

_HEAD: Final = Struct(">4xI28xi44xi")
"""Magic, sys flag and body size of a record with IPv4 hosts."""
assert _HEAD.size == FIXED_V4.size
_HOST_FLAGS: Final = 0x30
_REPLACED: Final = "\ufffd"


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled expression."""

    expression: str
    matches: Callable[[memoryview], bool]
    """Whether a stored record is selected. Never raises for a record as the store gives it."""
    matches_properties: Callable[[bytes], bool]
    """The same for the property text alone."""
    select_block: BlockSelect
    """The same for many records at once, see ``BlockSelect``."""
    ignores_unique_key: bool
    """Whether messages that differ in their unique key alone are judged alike."""
    ignored_from: int | None
    """Where text begins that is not part of the expression (Apache ignores it, too); None when there is none."""

    def __call__(self, record: memoryview) -> bool:
        return self.matches(record)


@lru_cache(maxsize=1024)
def compile_selector(expression: str) -> Selector:
    """Raises ``SubscriptionParseFailed``."""
    parsed = parse(expression)
    tree = parsed.tree
    body: list[str] | None = None
    if depth(tree) <= GENERATED_DEPTH_MAX:
        try:
            body = _Generator().body(tree)
        except _NoFastForm:
            body = None
    needle = _needle(tree) if body is not None else b""
    matches, matches_properties, select_block = (
        _interpreted(tree) if body is None else _generated(body, needle)
    )
    ignores_unique_key = not any(name.endswith(codes.Property.UNIQUE_KEY) for name in _properties(tree))
    if ignores_unique_key:
        select_block = RememberingSelect(select_block, matches_properties, needle)
    return Selector(
        expression, matches, matches_properties, select_block, ignores_unique_key, parsed.ignored_from
    )


# What the generated code calls.
def record_properties(record: memoryview | bytes) -> bytes:
    """The property text of any record, with a 0x02 before and behind; for the forms the fast path leaves out."""
    magic, sys_flag = _HEAD.unpack_from(record)[:2]
    wide = HOST_V6_BYTES - 8
    at = FIXED_V4.size + (wide if sys_flag & 0x10 else 0) + (wide if sys_flag & 0x20 else 0)
    at += int.from_bytes(record[at - 4 : at], "big")
    at += 2 + int.from_bytes(record[at : at + 2], "big") if magic == MAGIC_V2 else 1 + record[at]
    return b"".join((b"\x02", record[at + 2 :], b"\x02"))


class _NoNumber:
    """Stands for a text that is no number: harmless until something is compared with it."""

    def _compare(self, _other: object) -> bool:
        raise Unreadable

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _compare
    __hash__ = object.__hash__


_NO_NUMBER: Final = _NoNumber()


def _integer(text: bytes, limit: int) -> int | _NoNumber:
    try:
        return read_integer(text.decode("utf-8", "replace"), limit)
    except Unreadable:
        return _NO_NUMBER


def _float(text: bytes) -> float | _NoNumber:
    """For comparisons with a finite literal, where NaN behaves as something above all numbers."""
    try:
        value = read_double(text.decode("utf-8", "replace"))
    except Unreadable:
        return _NO_NUMBER
    return value if value == value else float("inf")


def _order(left: bytes, right: bytes) -> int:
    return compare_doubles(
        read_double(left.decode("utf-8", "replace")), read_double(right.decode("utf-8", "replace"))
    )


def _unreadable() -> bool:
    raise Unreadable("a truth value cannot be compared with a text to its right")


_NAMES: Final[dict[str, object]] = {
    "StructError": StructError,
    "Unreadable": Unreadable,
    "find": find_property,
    "fraction": _float,
    "head": _HEAD.unpack_from,
    "integer": _integer,
    "order": _order,
    "record_properties": record_properties,
    "small": {b"%d" % number: number for number in range(1000)},  # found in a third of the time of reading
    "unreadable": _unreadable,
}

# A record too damaged to have properties is not delivered; a pull that failed at it would never get past it.
_FROM_RECORD: Final = f"""\
def matches(record):
    try:
        magic, sys_flag, size = head(record)
        if magic == {MAGIC_V1} and not sys_flag & {_HOST_FLAGS}:
            raw = b"\\x02" + record[{FIXED_V4.size + 3} + size + record[{FIXED_V4.size} + size]:]
            if raw[-1] != 2:
                raw += b"\\x02"
        else:
            raw = record_properties(record)
"""
_FROM_PROPERTIES: Final = """\
def matches_properties(properties):
    try:
        raw = b"\\x02" + properties + b"\\x02"
"""
_FROM_BLOCK: Final = f"""\
def select_block(block, log_offsets, sizes, base, count_max):
    found = []
    hit = -1
    for at, (start, size) in enumerate(zip(log_offsets, sizes)):
        start -= base
        end = start + size
        try:
            magic, sys_flag, topic = head(block, start)
            if magic == {MAGIC_V1} and not sys_flag & {_HOST_FLAGS}:
                topic += start + {FIXED_V4.size}
                text = topic + 3 + block[topic]
                if not start < text <= end:
                    continue
                raw = b"\\x02" + block[text:end]
                if raw[-1] != 2:
                    raw += b"\\x02"
            else:
                raw = record_properties(block[start:end])
"""
_SKIP: Final = f"""\
        if hit < start and len(block) <= {SEARCHED_BYTES_MAX} * len(sizes):
            hit = block.find(NEEDLE, start)
            if hit < 0:
                break
        if hit >= end:
            continue
"""
_FOUND: Final = ("found.append(at)", "if len(found) == count_max:", "    break", "continue")
_END: Final = "    except (Unreadable, IndexError, StructError):\n        return False\n"
_END_OF_BLOCK: Final = (
    "        except (Unreadable, IndexError, StructError):\n            continue\n    return found\n"
)

Functions = tuple[Callable[[memoryview], bool], Callable[[bytes], bool], BlockSelect]


def _generated(body: list[str], needle: bytes) -> Functions:
    lines = "".join(f"        {line}\n" for line in body)
    in_loop = "".join(f"            {line}\n" for line in _in_loop(body))
    block = _FROM_BLOCK
    if needle:
        head, test, rest = block.partition("        try:\n")
        block = f"{head}{_SKIP.replace('NEEDLE', repr(needle))}{test}{rest}"
    names = dict(_NAMES)
    source = f"{_FROM_RECORD}{lines}{_END}{_FROM_PROPERTIES}{lines}{_END}"
    if len(body) <= LOOP_LINES_MAX:
        source = f"{source}{block}{in_loop}{_END_OF_BLOCK}"
    exec(compile(source, "<SQL92 expression>", "exec"), names)
    if len(body) > LOOP_LINES_MAX:
        names["select_block"] = _one_after_the_other(names["matches"])  # type: ignore[arg-type]  # made by exec
    return names["matches"], names["matches_properties"], names["select_block"]  # type: ignore[return-value]  # made by exec


def _in_loop(body: list[str]) -> Iterator[str]:
    """Statements that return a result, as those that go on with the next record."""
    for line in body:
        statement = line.lstrip()
        margin = line[: len(line) - len(statement)]
        if not statement.startswith("return "):
            yield line
        elif statement == "return False":
            yield f"{margin}continue"
        elif statement == "return True":
            yield from (margin + part for part in _FOUND)
        else:
            yield f"{margin}if {statement.removeprefix('return ')}:"
            yield from (f"{margin}    {part}" for part in _FOUND)


def _needle(tree: Logic) -> bytes:
    """What every record that matches contains; empty when nothing is known. The first pair of a property text has no
    0x02 before it, the last one may have none behind."""
    for term in tree.terms if isinstance(tree, And) else (tree,):
        if isinstance(term, Equal) and _is_text_equality(term):
            return _pair(term)[1:-1]
    return b""


def _interpreted(tree: Logic) -> Functions:
    def matches(record: memoryview) -> bool:
        try:
            return select(record_properties(record))
        except (IndexError, StructError):
            return False

    def select(raw: bytes) -> bool:
        def find(name: str) -> str | None:
            value = find_property(raw, name.encode())
            return None if value is None else value.decode("utf-8", "replace")

        try:
            return evaluate(tree, find) is True
        except Unreadable:
            return False

    return matches, select, _one_after_the_other(matches)


def _one_after_the_other(matches: Callable[[memoryview], bool]) -> BlockSelect:
    def select_block(
        block: bytes, log_offsets: Sequence[int], sizes: Sequence[int], base: int, count_max: int
    ) -> list[int]:
        found: list[int] = []
        with memoryview(block) as view:
            for at, (start, size) in enumerate(zip(log_offsets, sizes, strict=True)):
                if matches(view[start - base : start - base + size]):
                    found.append(at)
                    if len(found) == count_max:
                        break
        return found

    return select_block


class _NoFastForm(Exception):
    pass


class _Generator:
    """Writes the source of one expression."""

    def __init__(self) -> None:
        self._variables: dict[str, str] = {}
        """By property."""
        self._numbers: dict[tuple[str, Kind], str] = {}
        """By property and the kind it is compared as: None where the property is not there."""
        self._temporary_count = 0

    def body(self, tree: Logic) -> list[str]:
        """Statements over ``raw`` that return whether the tree is true."""
        lines: list[str] = []
        if isinstance(tree, Or):
            *first, last = tree.terms
            for term in first:
                if isinstance(term, And) and len(term.terms) <= VALUE_TERMS_MAX and _null_ends_it(term.terms):
                    self._nest(term, lines)
                else:
                    self._look_up(term, lines)
                    lines += [f"if {self.holds(term, strict=True)}:", "    return True"]
            return lines + self.body(last)
        # From here on an unreadable property and a false condition end alike: nothing is delivered, so the order of
        # conditions is free. Equality with a text comes first: one search finds out that it is false.
        terms = tree.terms if isinstance(tree, And) else (tree,)
        for term in terms:
            if isinstance(term, Equal) and _is_text_equality(term):
                lines += [f"if raw.find({_pair(term)!r}) < 0:", "    return False"]
        *first, last = terms
        for term in first:
            self._look_up(term, lines)
            lines += [f"if not {self.holds(term, strict=False)}:", "    return False"]
        self._look_up(last, lines)
        return [*lines, f"return {self.holds(last, strict=False)}"]

    def _nest(self, node: And, lines: list[str]) -> None:
        """One of several alternatives, a term inside another, so that a false one saves the search for the rest."""
        variables, numbers = dict(self._variables), dict(self._numbers)
        margin = ""
        for term in node.terms:
            inner: list[str] = []
            self._look_up(term, inner)
            inner.append(f"if {self.holds(term, strict=True)}:")
            lines += [margin + line for line in inner]
            margin += "    "
            if len(margin) == 4:
                # What the first term needed is there for whatever follows; the rest only inside.
                variables, numbers = dict(self._variables), dict(self._numbers)
        lines.append(f"{margin}return True")
        self._variables, self._numbers = variables, numbers

    def _look_up(self, term: Logic, lines: list[str]) -> None:
        """Find the properties of a term that no term before it needed, and read the numbers in them."""
        for name in _properties(term):
            if name not in self._variables:
                self._variables[name] = variable = self._temporary()
                lines.append(_lookup(variable, name))
        for name, kind in _numbers(term):
            if (name, kind) not in self._numbers:
                self._numbers[name, kind] = number = self._temporary()
                lines.append(_read(number, self._variables[name], kind))

    # -- the three forms -------------------------------------------------------------------------------

    def holds(self, node: Logic, *, strict: bool) -> str:
        """An expression that is true iff the node is; ``strict``: and raises iff the node does."""
        match node:
            case Or():
                *first, last = node.terms
                parts = [self.holds(term, strict=True) for term in first]
                return f"({' or '.join([*parts, self.holds(last, strict=strict)])})"
            case And():
                if strict and not _null_ends_it(node.terms):
                    return f"({self.value(node)} is True)"
                return f"({' and '.join(self.holds(term, strict=strict) for term in node.terms)})"
            case Not():
                return self.fails(node.operand, strict=strict)
            case Equal(left=Property(name=left), right=Property(name=right)):
                return f"({self._variables[left]} == {self._variables[right]})"  # null equals null
            case In(negated=False) | Equal(left=Property(), right=Constant(kind=Kind.TEXT)):
                return self._leaf(node)[0]  # None is neither in a set of texts nor equal to one
            case _:
                test, nullable = self._leaf(node)
                return f"({nullable} is not None and {test})" if nullable else f"({test})"

    def fails(self, node: Logic, *, strict: bool) -> str:
        """An expression that is true iff the node is false."""
        match node:
            case And():
                *first, last = node.terms
                parts = [self.fails(term, strict=True) for term in first]
                return f"({' or '.join([*parts, self.fails(last, strict=strict)])})"
            case Or():
                if strict and not _null_ends_it(node.terms):
                    return f"({self.value(node)} is False)"
                return f"({' and '.join(self.fails(term, strict=strict) for term in node.terms)})"
            case Not():
                return self.holds(node.operand, strict=strict)
            case Equal(left=Property(name=left), right=Property(name=right)):
                variable = self._variables[left]
                return f"({variable} is not None and {variable} != {self._variables[right]})"
            case _:
                test, nullable = self._leaf(node)
                return f"({nullable} is not None and not {test})" if nullable else f"(not {test})"

    def value(self, node: Logic) -> str:
        """An expression that gives True, False or None."""
        match node:
            case And() | Or():
                return self._chain(node)
            case Not():
                name = self._temporary()
                return f"(None if ({name} := {self.value(node.operand)}) is None else not {name})"
            case Equal(left=Property(name=left), right=Property(name=right)):
                one, other = self._variables[left], self._variables[right]
                return f"((True if {other} is None else None) if {one} is None else {one} == {other})"
            case _:
                test, nullable = self._leaf(node)
                return f"(None if {nullable} is None else {test})" if nullable else f"({test})"

    def _chain(self, node: And | Or) -> str:
        if len(node.terms) > VALUE_TERMS_MAX:
            raise _NoFastForm
        deciding = isinstance(node, Or)
        names = [self._temporary() for _ in node.terms]
        parts = [
            f"{deciding} if ({name} := {self.value(term)}) is {deciding} else "
            for name, term in zip(names, node.terms, strict=True)
        ]
        unknown = " or ".join(f"{name} is None" for name in names)
        return f"({''.join(parts)}None if {unknown} else {not deciding})"

    def _temporary(self) -> str:
        self._temporary_count += 1
        return f"t{self._temporary_count}"

    # -- conditions ------------------------------------------------------------------------------------

    def _leaf(self, node: Logic) -> tuple[str, str]:
        """A test, and what is None when an absent property makes the node null; "" if none does."""
        match node:
            case Equal():
                return self._equal(node.left, node.right)
            case Order():
                return self._order(node)
            case In():
                variable = self._variables[node.name]
                texts = ", ".join(repr(_bytes(text)) for text in sorted(node.texts))
                return f"({variable} {'not in' if node.negated else 'in'} {{{texts}}})", variable
            case TextTest():
                return self._text_test(node), ""
            case Cast():
                return "False", self._variables[node.name]
            case Constant() if node.value is not None:
                return repr(node.value), ""
            case _:
                raise _NoFastForm

    def _equal(self, left: Node, right: Node) -> tuple[str, str]:
        match left, right:
            case Property(), Constant(value=None):
                return f"({self._variables[left.name]} is None)", ""
            case Property(), Constant(kind=Kind.BOOL):
                variable = self._variables[left.name]
                return f"(({variable}.lower() == b'true') is {right.value})", variable
            case Property(), Constant():
                return f"({self._operand(left.name, right.kind)} == {_literal(right)})", self._variables[
                    left.name
                ]
            case Constant(kind=Kind.BOOL), Property():
                return f"({self._variables[right.name]} is not None and unreadable())", ""
            case Constant(value=value), Property() if value is not None:
                variable = self._variables[right.name]
                operand = self._operand(right.name, left.kind)
                return f"({variable} is not None and {operand} == {_literal(left)})", ""
            case _:
                raise _NoFastForm

    def _order(self, node: Order) -> tuple[str, str]:
        match node.left, node.right:
            case Property() as left, Constant(value=value) as right if value is not None:
                operand = self._operand(left.name, right.kind)
                return f"({operand} {node.operator} {_literal(right)})", self._variables[left.name]
            case Constant(value=value) as left, Property() as right if value is not None:
                operand = self._operand(right.name, left.kind)
                return f"({_literal(left)} {node.operator} {operand})", self._variables[right.name]
            case Property() as left, Property() as right:
                one, other = self._variables[left.name], self._variables[right.name]
                return f"(order({one}, {other}) {node.operator} 0)", f"({one} and {other})"
            case _:
                raise _NoFastForm

    def _operand(self, name: str, kind: Kind) -> str:
        """The property in the form the literal beside it asks for."""
        return self._variables[name] if kind is Kind.TEXT else self._numbers[name, kind]

    def _text_test(self, node: TextTest) -> str:
        if not isinstance(node.operand, Property):
            raise _NoFastForm
        if not node.text:
            return "False"
        variable, text = self._variables[node.operand.name], repr(_bytes(node.text))
        match node.test:
            case TextTestKind.CONTAINS:
                test = f"{variable}.find({text}) >= 0"  # half the time of ``in``
            case TextTestKind.STARTSWITH:
                test = f"{variable}.startswith({text})"
            case TextTestKind.ENDSWITH:
                test = f"{variable}.endswith({text})"
        return f"({variable} is not None and {'not ' if node.negated else ''}({test}))"


def _lookup(variable: str, name: str) -> str:
    """As ``find_property`` does, without its call: the last pair of the name; an empty one is looked into there."""
    needle = b"\x02%b\x01" % name.encode()
    size = len(needle)
    return (
        f"{variable} = (raw[k + {size} : raw.find(b'\\x02', k + {size})] or find(raw, {name.encode()!r})) "
        f"if (k := raw.rfind({needle!r})) >= 0 else None"
    )


def _read(number: str, variable: str, kind: Kind) -> str:
    """Ordinary digits are read in place; everything else by Java's rules."""
    if kind is Kind.DOUBLE:
        fast, slow = f"float({variable}) if {variable}.isdigit()", f"fraction({variable})"
    else:
        limit, digits = (INT_MAX, 10) if kind is Kind.INT else (LONG_MAX, 19)
        fast = f"small[{variable}] if {variable} in small else int({variable}) "
        fast += f"if {variable}.isdigit() and len({variable}) < {digits}"
        slow = f"integer({variable}, {limit})"
    return f"{number} = None if {variable} is None else {fast} else {slow}"


def _is_text_equality(node: Equal) -> bool:
    return (
        isinstance(node.left, Property)
        and isinstance(node.right, Constant)
        and isinstance(node.right.value, str)
        and bool(node.right.value)
    )


def _pair(node: Equal) -> bytes:
    """What the property text must contain for the equality to hold."""
    assert isinstance(node.left, Property)
    assert isinstance(node.right, Constant)
    return b"\x02%b\x01%b\x02" % (node.left.name.encode(), _bytes(str(node.right.value)))


def _literal(constant: Constant) -> str:
    if isinstance(constant.value, str):
        return repr(_bytes(constant.value))
    assert isinstance(constant.value, int | float)
    return f"({constant.value!r})" if constant.value < 0 else repr(constant.value)


def _bytes(text: str) -> bytes:
    if _REPLACED in text:
        # Equal to broken UTF-8 once that has been decoded.
        raise _NoFastForm
    return text.encode("utf-8", "surrogatepass")


def _properties(node: Node) -> Iterator[str]:
    match node:
        case Property() | In() | Cast():
            yield node.name
        case And() | Or():
            for term in node.terms:
                yield from _properties(term)
        case Not() | Void() | TextTest():
            yield from _properties(node.operand)
        case Equal() | Order():
            yield from _properties(node.left)
            yield from _properties(node.right)
        case Constant():
            pass


def _numbers(node: Node) -> Iterator[tuple[str, Kind]]:
    """Properties compared with numbers, and as what; a property may occur several times."""
    match node:
        case And() | Or():
            for term in node.terms:
                yield from _numbers(term)
        case Not() | Void() | TextTest():
            yield from _numbers(node.operand)
        case Equal() | Order():
            sides = node.left, node.right
            for side, other in (sides, sides[::-1]):
                if isinstance(side, Property) and isinstance(other, Constant):
                    if other.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE):
                        yield side.name, other.kind
                else:
                    yield from _numbers(side)
        case _:
            pass


def _null_ends_it(terms: tuple[Logic, ...]) -> bool:
    """Whether a chain may stop at its first null: true if no later term can raise then.

    Apache looks at the later terms all the same, and one that cannot be read ends the whole evaluation. A term that
    is null because a property is absent leaves terms over that property alone with nothing to read.
    """
    absent: set[str] | None = None
    for term in terms:
        raising = _raising(term)
        if absent is not None and not raising <= absent:
            return False
        nulls = _nulls(term)
        if nulls is None:
            nulls = set()
        elif not nulls:
            continue
        absent = nulls if absent is None else absent & nulls
    return True


def _raising(node: Node) -> set[str]:
    """Properties whose text may make the evaluation of the node fail."""
    match node:
        case And() | Or():
            return set().union(*map(_raising, node.terms))
        case Not() | Void() | TextTest():
            return _raising(node.operand)
        case Equal(left=Constant(kind=Kind.BOOL), right=Property(name=name)):
            return {name}
        case Order(left=Property(), right=Property()):
            return set(_properties(node))
        case Equal() | Order():
            return {name for name, _ in _numbers(node)}
        case _:
            return set()


def _nulls(node: Logic) -> set[str] | None:
    """The property whose absence alone makes a condition null; empty when nothing does, None when it is not known."""
    match node:
        case Equal(left=Property(name=name), right=Constant(value=value)):
            return set() if value is None else {name}
        case Equal(left=Constant(), right=Property()) | TextTest(operand=Property()):
            return set()
        case (
            Order(left=Property(name=name), right=Constant())
            | Order(left=Constant(), right=Property(name=name))
        ):
            return {name}
        case In() | Cast():
            return {node.name}
        case Not():
            return _nulls(node.operand)
        case Constant():
            return None if node.value is None else set()
        case _:
            return None

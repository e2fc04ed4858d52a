"""Configuration: options that declare themselves, and the parser of Apache's ``.conf`` files.

A component's config is a frozen keyword-only dataclass whose fields are created by ``option``. The same declaration
parses, bounds and documents a value, and says whether it may change while the server runs. A file may contain
Apache's keys that have no effect here (an Apache file has hundreds): ``kept_without_effect`` keeps them. An unknown
key is refused with a suggestion. A bad value of a known key stops the start with an error that names file, line, key,
value and what is accepted. Numbers are clamped only where Apache clamps them too.

Files are read and written by the rules of Java's ``Properties``: lines end only at LF, CR or CR LF (not at a form
feed, a vertical tab, U+0085 or U+2028), and a value keeps its trailing blanks.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import logging
import re
import types
import typing
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from orbitmq.errors import ConfigError
from orbitmq.runtime.apache_options import refusal_of

__all__ = [
    "Option",
    "Properties",
    "config_from_properties",
    "decode_properties",
    "edit_properties",
    "escape_property",
    "given_without_effect",
    "has_control",
    "kept_without_effect",
    "option",
    "options_of",
    "parse_properties",
    "parse_value",
    "render_value",
    "unknown_option",
]

logger = logging.getLogger(__name__)

_METADATA_KEY = "orbitmq.option"
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Option:
    """A declared configuration value."""

    name: str
    """Attribute name of the dataclass field."""
    key: str
    """Apache's key in the ``.conf`` file, or our own where Apache has none."""
    type: Any
    default: Any
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    reload: bool
    clamp: bool
    """Move a number out of bounds to the nearest bound with a warning, like Apache, instead of refusing it."""
    secret: bool
    """Never printed, logged or returned."""
    without_effect: str
    """Why the value has no effect here, for a key accepted because Apache's files have it; else empty."""
    refused: Mapping[str, str]
    """Values that Apache accepts, each with the reason it is refused here."""
    doc: str


@dataclass(frozen=True, slots=True)
class Properties:
    """The keys and values of a ``.conf`` text, with the line of each key."""

    source: str
    values: Mapping[str, str]
    lines: Mapping[str, int]
    overrides: frozenset[str] = frozenset()
    """Keys that came from ``--set``; their line is the number of that option on the command line."""

    def where(self, key: str) -> str:
        """Returns the file and line of a key, for messages."""
        source = "--set" if key in self.overrides else self.source
        return f"{source}:{self.lines.get(key, 0)}"


def option(
    default: Any,
    *,
    apache: str,
    doc: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    reload: bool = False,
    clamp: bool = False,
    secret: bool = False,
    without_effect: str = "",
    refused: Mapping[str, str] | None = None,
) -> Any:
    """Returns a dataclass field that is also a documented, bounded configuration key."""
    metadata = {
        _METADATA_KEY: {
            "key": apache,
            "doc": doc,
            "low": low,
            "high": high,
            "choices": choices,
            "reload": reload,
            "clamp": clamp,
            "secret": secret,
            "without_effect": without_effect,
            "refused": refused or {},
        }
    }
    return dataclasses.field(default=default, metadata=metadata, kw_only=True)


def options_of(config_type: type[Any]) -> Iterator[Option]:
    """Yields the options that a config dataclass declares, in order."""
    hints = typing.get_type_hints(config_type)
    for field in dataclasses.fields(config_type):
        declared = field.metadata.get(_METADATA_KEY)
        if declared is not None:
            yield Option(name=field.name, type=hints[field.name], default=field.default, **declared)


_BLANKS: Final = " \t\f"
"""White space in a properties text; other characters that Python calls white space are ordinary here."""
_LINE_END: Final = re.compile("\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class _LogicalLine:
    """A key with its value, which may span several lines, or a comment or blank line, which has no content."""

    first: int
    """Index of its first line."""
    end: int
    content: str


def _logical_lines(lines: list[str]) -> Iterator[_LogicalLine]:
    number = 0
    while number < len(lines):
        first = number
        line = lines[number].lstrip(_BLANKS)
        number += 1
        if not line or line[0] in "#!":
            yield _LogicalLine(first, number, "")
            continue
        while _is_continued(line):
            line = line[:-1]
            if number == len(lines):
                break
            line += lines[number].lstrip(_BLANKS)
            number += 1
        yield _LogicalLine(first, number, line)


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def parse_properties(text: str, source: str) -> Properties:
    """Read Java ``.properties`` text: ``key=value`` lines, ``#`` and ``!`` comments, ``\\`` continuations."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    for line in _logical_lines(_LINE_END.split(text)):
        if line.content:
            key, value = _split_pair(line.content)
            values[key] = value
            lines[key] = line.first + 1
    return Properties(source, values, lines)


def decode_properties(content: bytes) -> str:
    """Returns the text of a properties file. Java reads ISO 8859-1, but people write UTF-8, so valid UTF-8 is decoded
    as UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("iso-8859-1")


def edit_properties(text: str, changes: Mapping[str, str]) -> str:
    """Returns a properties text in which some values are replaced in place and new ones are appended."""
    left = dict(changes)
    lines = _LINE_END.split(text)
    if lines and not lines[-1]:
        lines.pop()
    result: list[str] = []
    last_line = parse_properties(text, "file").lines
    for line in _logical_lines(lines):
        key = _split_pair(line.content)[0] if line.content else None
        # Of a key given twice the last line counts, so that is the one replaced.
        if key is not None and key in changes and last_line[key] == line.first + 1:
            result.append(f"{escape_property(key, is_key=True)}={escape_property(changes[key])}")
            left.pop(key, None)
        else:
            result += lines[line.first : line.end]
    if (
        left
        and result
        and _is_continued(result[-1].lstrip(_BLANKS))
        and result[-1].lstrip(_BLANKS)[0] not in "#!"
    ):
        result.append("")  # the last line ends in a backslash, which must not swallow the next one
    result += [f"{escape_property(key, is_key=True)}={escape_property(value)}" for key, value in left.items()]
    return "\n".join(result) + "\n"


def escape_property(text: str, *, is_key: bool = False, ascii_only: bool = True) -> str:
    """Returns text escaped for a properties file, always as one line."""
    out: list[str] = []
    for char in text:
        if char in _ESCAPED:
            out.append(_ESCAPED[char])
        elif is_key and char in "=: #!":
            out.append("\\" + char)
        elif has_control(char) or (ascii_only and not char.isascii()):
            units = char.encode("utf-16-be", "surrogatepass")
            out += [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
        else:
            out.append(char)
    escaped = "".join(out)
    return "\\" + escaped if not is_key and escaped.startswith(" ") else escaped


def has_control(text: str) -> bool:
    """Whether ``text`` contains a control character or a line or paragraph separator, including non-ASCII ones."""
    if text.isascii() and text.isprintable():
        return False
    return any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in text)


def _split_pair(line: str) -> tuple[str, str]:
    escaped = False
    for index, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char in "=:":
            return _unescape(line[:index]), _unescape(line[index + 1 :].lstrip(_BLANKS))
        elif char in _BLANKS:
            rest = line[index:].lstrip(_BLANKS)
            if rest[:1] in ("=", ":"):
                rest = rest[1:].lstrip(_BLANKS)
            return _unescape(line[:index]), _unescape(rest)
    return _unescape(line), ""


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {value: "\\" + name for name, value in _ESCAPES.items()} | {"\\": "\\\\"}


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    index = 0
    while index < len(text):
        char = text[index]
        if char == "\\" and index + 1 < len(text):
            index += 1
            char = text[index]
            digits = text[index + 1 : index + 5]
            if char == "u" and len(digits) == 4 and all(d in "0123456789abcdefABCDEF" for d in digits):
                char = chr(int(digits, 16))
                index += 4
            else:
                char = _ESCAPES.get(char, char)
        out.append(char)
        index += 1
    # A character beyond the basic plane is written as two escapes.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def parse_value(declared: Option, text: str, where: str) -> Any:
    """Returns the typed value of ``text``. Raises a ``ConfigError`` that lists what is accepted."""
    reason = declared.refused.get(text.strip())
    if reason is not None:
        raise ConfigError(f"{where}: {declared.key}={text.strip()} is refused: {reason}")
    kind = declared.type
    if isinstance(kind, types.UnionType):
        kind = next(member for member in kind.__args__ if member is not type(None))
    try:
        value: Any
        if kind is bool:
            value = {"true": True, "false": False}[text.strip().lower()]
        elif kind is int:
            value = int(text.strip())
        elif kind is float:
            value = float(text.strip())
        elif isinstance(kind, type) and issubclass(kind, enum.Enum):
            value = kind(text.strip())
        elif kind is Path:
            value = Path(text.strip())
        else:
            value = text
    except (ValueError, KeyError):
        raise ConfigError(f"{where}: {declared.key}={text!r} is not {_accepted(declared, kind)}") from None
    if declared.clamp:
        value = _clamped(declared, value, where)
    # Written this way because NaN is neither below nor above any bound.
    too_low = declared.low is not None and not value >= declared.low
    too_high = declared.high is not None and not value <= declared.high
    if too_low or too_high or (declared.choices and value not in declared.choices):
        raise ConfigError(f"{where}: {declared.key}={text!r} is not {_accepted(declared, kind)}")
    return value


def _clamped(declared: Option, value: Any, where: str) -> Any:
    bound = value
    if declared.low is not None and value < declared.low:
        bound = type(value)(declared.low)
    elif declared.high is not None and value > declared.high:
        bound = type(value)(declared.high)
    if bound != value:
        logger.warning(
            "option out of bounds at=%s key=%s given=%s used=%s", where, declared.key, value, bound
        )
    return bound


def _accepted(declared: Option, kind: Any) -> str:
    if declared.choices:
        return "one of " + ", ".join(declared.choices)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    if kind is bool:
        return "true or false"
    name = "a whole number" if kind is int else "a number" if kind is float else "a text"
    if declared.low is not None and declared.high is not None:
        return f"{name} from {declared.low:g} to {declared.high:g}"
    if declared.low is not None:
        return f"{name} of at least {declared.low:g}"
    if declared.high is not None:
        return f"{name} of at most {declared.high:g}"
    return name


def config_from_properties(config_type: type[C], properties: Properties) -> tuple[C, list[str]]:
    """Build a config. Also returns the keys that no option declares, which the caller should report once."""
    by_key = {declared.key: declared for declared in options_of(config_type)}
    chosen: dict[str, Any] = {}
    unknown: list[str] = []
    for key, text in properties.values.items():
        declared = by_key.get(key)
        if declared is None:
            unknown.append(key)
            continue
        chosen[declared.name] = parse_value(declared, text, properties.where(key))
    return config_type(**chosen), unknown


def kept_without_effect(
    properties: Properties, unknown: Collection[str], declared: Collection[str], of_apache: Collection[str]
) -> dict[str, str]:
    """Returns those keys of ``unknown`` that are Apache's, with their values. They are kept and shown, but have no
    effect.

    Raises ``ConfigError`` for an unknown key, and for a value that requests something this server does not do,
    because neither may be ignored silently.
    """
    for key in unknown:
        if key not in of_apache:
            raise ConfigError(f"{properties.where(key)}: {unknown_option(key, {*declared, *of_apache})}")
        if reason := refusal_of(key, properties.values[key]):
            raise ConfigError(f"{properties.where(key)}: {reason}")
    return {key: properties.values[key] for key in unknown}


def given_without_effect(config: Any) -> dict[str, str]:
    """Returns the declared options that were set to a non-default value but have no effect here, as a map from key to
    value."""
    return {
        declared.key: render_value(getattr(config, declared.name))
        for declared in options_of(type(config))
        if declared.without_effect and getattr(config, declared.name) != declared.default
    }


def unknown_option(key: str, known: Collection[str]) -> str:
    """Returns an error text for an unknown key, which suggests the key that was probably meant."""
    folded = {name.lower(): name for name in sorted(known, reverse=True)}
    close = difflib.get_close_matches(key.lower(), folded, n=1, cutoff=0.75)
    hint = f"; did you mean {folded[close[0]]}?" if close else ""
    shown = key if not has_control(key) else repr(key)
    return f"there is no option {shown}{hint}"


def render_value(value: Any) -> str:
    """Returns a value as Apache prints it in a properties text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return str(value.value)
    return str(value)

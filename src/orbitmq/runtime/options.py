"""Configuration: options that declare themselves, and the reader of Apache's ``.conf`` files.

A component's config is a frozen keyword-only dataclass whose fields are made by ``option``. The same
declaration parses, bounds and documents a value, and says whether it may change while the server runs.
A file may carry keys we do not know (an Apache file has hundreds): each is reported once and ignored.
A bad value of a known key stops the start and names file, line, key, value and what is accepted.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from orbitmq.errors import ConfigError

__all__ = [
    "Option",
    "Properties",
    "config_from_properties",
    "option",
    "options_of",
    "parse_properties",
    "parse_value",
    "render_value",
]

_METADATA_KEY = "orbitmq.option"
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Option:
    """One declared configuration value."""

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
    doc: str


@dataclass(frozen=True, slots=True)
class Properties:
    """Keys and values of a ``.conf`` text, with the line each one came from."""

    source: str
    values: Mapping[str, str]
    lines: Mapping[str, int]


def option(
    default: Any,
    *,
    apache: str,
    doc: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    reload: bool = False,
) -> Any:
    """A dataclass field that is also a documented, bounded configuration key."""
    metadata = {
        _METADATA_KEY: {
            "key": apache,
            "doc": doc,
            "low": low,
            "high": high,
            "choices": choices,
            "reload": reload,
        }
    }
    return dataclasses.field(default=default, metadata=metadata, kw_only=True)


def options_of(config_type: type[Any]) -> Iterator[Option]:
    """The options a config dataclass declares, in order."""
    hints = typing.get_type_hints(config_type)
    for field in dataclasses.fields(config_type):
        declared = field.metadata.get(_METADATA_KEY)
        if declared is not None:
            yield Option(name=field.name, type=hints[field.name], default=field.default, **declared)


def parse_properties(text: str, source: str) -> Properties:
    """Read Java ``.properties`` text: ``key=value`` lines, ``#`` and ``!`` comments, ``\\`` continuations."""
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    pending = ""
    start = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not pending:
            if not line or line[0] in "#!":
                continue
            start = number
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2 == 1:
            pending += line[:-1]
            continue
        key, value = _split_pair(pending + line)
        pending = ""
        values[key] = value
        lines[key] = start
    if pending:
        key, value = _split_pair(pending)
        values[key] = value
        lines[key] = start
    return Properties(source, values, lines)


def _split_pair(line: str) -> tuple[str, str]:
    escaped = False
    for index, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char in "=:":
            return _unescape(line[:index].strip()), _unescape(line[index + 1 :].strip())
        elif char in " \t\f":
            rest = line[index:].lstrip()
            if rest[:1] in ("=", ":"):
                rest = rest[1:].lstrip()
            return _unescape(line[:index]), _unescape(rest)
    return _unescape(line.strip()), ""


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


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
    return "".join(out)


def parse_value(declared: Option, text: str, where: str) -> Any:
    """The typed value of ``text``, or a ``ConfigError`` that says what is accepted."""
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
    # Written this way round because "not a number" is neither below nor above any bound.
    too_low = declared.low is not None and not value >= declared.low
    too_high = declared.high is not None and not value <= declared.high
    if too_low or too_high or (declared.choices and value not in declared.choices):
        raise ConfigError(f"{where}: {declared.key}={text!r} is not {_accepted(declared, kind)}")
    return value


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
    """Build a config; also give the keys that nothing declared, for the caller to report once."""
    by_key = {declared.key: declared for declared in options_of(config_type)}
    chosen: dict[str, Any] = {}
    unknown: list[str] = []
    for key, text in properties.values.items():
        declared = by_key.get(key)
        if declared is None:
            unknown.append(key)
            continue
        where = f"{properties.source}:{properties.lines[key]}"
        chosen[declared.name] = parse_value(declared, text, where)
    return config_type(**chosen), unknown


def render_value(value: Any) -> str:
    """A value as Apache prints it in a properties text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return str(value.value)
    return str(value)

"""Test cases of a pipeline: sample rows as input, expected rows of relations as output. Values only, without Spark.

A case is ``{name, set, sources: {relation: rows}, expect: {relation: rows}}``. Rows are a list, or the name of a file
with one JSON value per line (or a JSON list). For a topic or a store, a row with a ``body`` is a message with these
columns. Any other row is the body itself: text stays unchanged, everything else becomes JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

from orbitmq.pipeline.load import read_document
from orbitmq.spark.errors import SpecError, did_you_mean
from orbitmq.spark.schema import COLUMNS

__all__ = [
    "Case",
    "Difference",
    "case_of",
    "cases_file",
    "compare",
    "load_cases",
    "message_rows",
    "read_rows",
]

_FIRST_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Store time of the first sample message; each further one is a second later."""
_SHOWN_MAX: Final = 20
_ROW_FIELDS: Final = ("name", "set", "sources", "expect")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One test case, with its rows loaded."""

    name: str
    sources: Mapping[str, Sequence[Any]]
    expect: Mapping[str, Sequence[Row]]
    given: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the pipeline file."""

    def __str__(self) -> str:
        return self.name


def cases_file(pipeline: Path) -> Path:
    """Returns the path of a pipeline's test cases, which are next to it: ``orders.test.yaml`` for ``orders.yaml``."""
    return pipeline.with_name(f"{pipeline.stem}.test{pipeline.suffix}")


def load_cases(file: Path) -> list[Case]:
    """Loads the cases of a file. Raises ``SpecError``."""
    document = read_document(file)
    entries = document.get("tests") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries or len(cast("dict[str, Any]", document)) > 1:
        raise SpecError(str(file), "test cases are a list under tests, and nothing else")
    cases = [_case(entry, file, f"tests[{number}]") for number, entry in enumerate(entries)]
    twice = [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    if twice:
        raise SpecError(f"{file}: tests", f"two cases have the name {twice[0]!r}")
    return cases


def _case(entry: Any, file: Path, path: str) -> Case:
    if not isinstance(entry, dict):
        raise SpecError(f"{file}: {path}", "a case is a mapping with name, sources and expect")
    for key in entry:
        if key not in _ROW_FIELDS:
            raise SpecError(f"{file}: {path}", f"unknown field {key!r}{did_you_mean(str(key), _ROW_FIELDS)}")
    given = entry.get("set") or {}
    if not isinstance(given, dict):
        raise SpecError(f"{file}: {path}.set", "expected a mapping of names to values")
    name = str(entry.get("name") or path)
    return case_of(
        name, entry.get("sources"), entry.get("expect"), given, file.parent, where=f"{file}: {path}"
    )


def case_of(
    name: str, sources: Any, expect: Any, given: Mapping[str, Any], directory: Path, *, where: str = ""
) -> Case:
    """Returns a case whose rows are lists or names of files below ``directory``. Raises ``SpecError``."""
    prefix = f"{where}." if where else ""
    read: list[dict[str, list[Any]]] = []
    for section, relations in (("sources", sources or {}), ("expect", expect)):
        if not isinstance(relations, Mapping) or (section == "expect" and not relations):
            raise SpecError(f"{prefix}{section}", "expected a mapping of relations to rows")
        read.append(
            {str(key): _rows(rows, directory, f"{prefix}{section}.{key}") for key, rows in relations.items()}
        )
    for relation, rows in read[1].items():
        if not all(isinstance(row, dict) for row in rows):
            raise SpecError(f"{prefix}expect.{relation}", "an expected row is a mapping of columns to values")
    texts = {
        str(key): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in given.items()
    }
    return Case(name, read[0], read[1], texts)


def _rows(rows: Any, directory: Path, path: str) -> list[Any]:
    if isinstance(rows, str | Path):
        return read_rows(directory / rows, path)
    if not isinstance(rows, list):
        raise SpecError(path, "expected a list of rows, or the name of a file")
    return rows


def read_rows(file: Path, path: str) -> list[Any]:
    """Returns the rows of a file, which is a JSON list or has one row per line. A line that is not JSON is text."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(path, f"{file} cannot be read: {error}") from None
    if file.suffix == ".json":
        try:
            listed = json.loads(text)
        except ValueError as error:
            raise SpecError(path, f"{file} is not JSON: {error}") from None
        if not isinstance(listed, list):
            raise SpecError(path, f"{file}: a list of rows is expected; one row per line is .jsonl")
        return listed
    return [_line(line) for line in text.splitlines() if line.strip()]


class _Line(dict[str, Any]):
    """A JSON object that keeps its original line, because a body is sent as it was written."""

    text = ""


def _line(line: str) -> Any:
    try:
        value = json.loads(line)
    except ValueError:
        return line
    if isinstance(value, dict):
        kept = _Line(value)
        kept.text = line
        return kept
    return line


# -- sample messages -----------------------------------------------------------------------------------


def message_rows(rows: Sequence[Any], topic: str, path: str) -> list[dict[str, Any]]:
    """Returns sample rows as messages with values for all columns. Raises ``SpecError`` for an unknown column."""
    return [_message(row, number, topic, f"{path}[{number}]") for number, row in enumerate(rows)]


def _message(row: Any, number: int, topic: str, path: str) -> dict[str, Any]:
    given = dict(row) if isinstance(row, dict) and "body" in row else {"body": row}
    for column in given:
        if column not in COLUMNS:
            raise SpecError(path, f"messages have no column {column!r}{did_you_mean(column, COLUMNS)}")
    moment = _FIRST_TIME + timedelta(seconds=number)
    message = {
        "topic": topic, "broker": "broker", "queue_id": 0, "queue_offset": number, "log_offset": 0,
        "msg_id": f"{number:032X}", "keys": None, "tags": None, "properties": {}, "born_timestamp": moment,
        "store_timestamp": moment, "born_host": "127.0.0.1:0", "store_host": "127.0.0.1:0", "reconsume_times": 0,
        "sys_flag": 0, "flag": 0,
    } | given  # fmt: skip
    message["body"] = _body(message["body"])
    for column in ("born_timestamp", "store_timestamp"):
        message[column] = _moment(message[column], f"{path}.{column}")
    if not isinstance(message["properties"], dict):
        raise SpecError(f"{path}.properties", "expected a mapping of names to values")
    message["properties"] = [(str(key), str(value)) for key, value in message["properties"].items()]
    return message


def _body(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, _Line):
        return value.text.encode()
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


def _moment(value: Any, path: str) -> datetime:
    if isinstance(value, int):
        return datetime.fromtimestamp(value / 1000, UTC)
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise SpecError(
            path, f"{value!r} is not a time: ISO 8601 or milliseconds since 1970 is accepted"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


# -- comparison ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between a relation's rows and the expected ones."""

    relation: str
    missing: tuple[Row, ...]
    unexpected: tuple[Row, ...]
    expected_count: int
    found_count: int

    def lines(self) -> Iterator[str]:
        """Yields the lines of a description, in which nearly equal rows are shown as pairs."""
        count = f"{self.expected_count} row{'' if self.expected_count == 1 else 's'}"
        yield (
            f"{self.relation}: expected {count}, found {self.found_count}; "
            f"{len(self.missing)} missing, {len(self.unexpected)} unexpected"
        )
        rest = list(self.unexpected)
        shown: list[str] = []
        for row in self.missing:
            near = max(rest, key=lambda other: _alike(row, other), default=None)
            if near is not None and _alike(row, near) * 2 >= len(row):
                rest.remove(near)
                shown.append(f"  ~ {_text(row)}")
                changed = (name for name in row if not _equal(row[name], near.get(name)))
                shown += [
                    f"      {name}: expected {_text(row[name])}, found {_text(near.get(name))}"
                    for name in changed
                ]
            else:
                shown.append(f"  - {_text(row)}")
        shown += [f"  + {_text(row)}" for row in rest]
        yield from shown[:_SHOWN_MAX]
        if len(shown) > _SHOWN_MAX:
            yield f"  and {len(shown) - _SHOWN_MAX} more lines"


def compare(relation: str, expected: Sequence[Row], found: Sequence[Row]) -> Difference | None:
    """Returns the difference, or None if there is none. Rows may be in any order, and only the columns named in an
    expected row are compared."""
    taken = _matched([[at for at, row in enumerate(found) if _fits(one, row)] for one in expected])
    missing = tuple(row for number, row in enumerate(expected) if number not in taken)
    used = set(taken.values())
    unexpected = tuple(row for at, row in enumerate(found) if at not in used)
    if not missing and not unexpected:
        return None
    return Difference(relation, missing, unexpected, len(expected), len(found))


def _fits(expected: Row, found: Row) -> bool:
    return all(name in found and _equal(value, found[name]) for name, value in expected.items())


def _matched(fits: Sequence[Sequence[int]]) -> dict[int, int]:
    """Matches as many expected rows as possible to found rows. Returns the indices of the found rows by those of the
    expected rows.

    A row that names few columns may fit several, so earlier choices are changed if that helps a later row (augmenting
    paths).
    """
    taken: dict[int, int] = {}
    owner: dict[int, int] = {}
    for start in range(len(fits)):
        came: dict[int, int] = {}
        waiting = [start]
        for number in waiting:
            free = None
            for at in fits[number]:
                if at not in came:
                    came[at] = number
                    if at not in owner:
                        free = at
                        break
                    waiting.append(owner[at])
            while free is not None:
                chooser = came[free]
                before = taken.get(chooser)
                taken[chooser], owner[free] = free, chooser
                free = None if chooser == start else before
            if start in taken:
                break
    return taken


def _alike(row: Row, other: Row) -> int:
    return sum(_equal(row[name], other.get(name)) for name in row)


def _equal(expected: Any, found: Any) -> bool:
    """Returns whether a value equals the expected one. Times may be spelled differently, and an expected object or
    list also matches text that contains it as JSON. True does not equal 1."""
    if isinstance(expected, dict | list) and isinstance(found, str):
        try:
            return bool(json.loads(found) == expected)
        except ValueError:
            return False
    if isinstance(expected, str) and isinstance(found, str) and found[:4].isdigit() and "T" in found:
        try:
            return _moment(expected, "") == _moment(found, "")
        except SpecError:
            return False
    return bool(expected == found) and isinstance(expected, bool) == isinstance(found, bool)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)

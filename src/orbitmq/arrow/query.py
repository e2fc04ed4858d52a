"""Runs one SQL query over topics and stores with DuckDB, which cannot read anything else.

The database is in memory. Before the statement is parsed, file and network access, extensions and Python variables
are switched off and the configuration is locked. Only a single ``SELECT`` runs. So an untrusted statement can read
only the topics and stores it names, with the permissions of the given credentials.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.dataset as pads  # type: ignore[import-untyped]  # the same

from orbitmq.arrow.relations import Relation, find_relations
from orbitmq.arrow.settings import TopicSettings
from orbitmq.arrow.tables import MessageTable, read_store, read_topic
from orbitmq.errors import ConfigError, OrbitError
from orbitmq.spark.schema import COLUMNS, arrow_schema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["QueryError", "query"]

_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
_SCAN: Final = "ARROW_SCAN"
_BATCH_ROWS: Final = 10_000


class QueryError(OrbitError):
    """A query failed while its rows were read."""


@contextmanager
def query(
    sql: str, settings: TopicSettings, *, stores: Mapping[str, str] | None = None, memory: str = ""
) -> Iterator[pa.RecordBatchReader]:
    """Opens a stream of the rows of a query, which runs while they are read.

    ``stores`` maps the names accepted by ``store('NAME')`` to directories, because a statement cannot name a path.
    ``memory`` limits DuckDB's memory (``2GB``); the default is 80 % of the machine's. Raises ``ConfigError`` for an
    invalid statement or one that is not a ``SELECT``, ``ModuleNotFoundError`` without DuckDB, ``QueryError`` while
    rows are read, and any error of ``read_topic``.
    """
    import duckdb

    statement, relations = find_relations(sql)
    tables = {one.view: _table(one, settings, stores or {}) for one in relations}
    failures: list[OrbitError] = []
    try:
        connection = duckdb.connect(config=_CONFIG | ({"memory_limit": memory} if memory else {}))
    except duckdb.Error as error:
        raise ConfigError(f"memory limit {memory!r}: {_first_line(error)}") from None
    with connection:
        try:
            empty = pads.dataset(arrow_schema().empty_table())
            for view in tables:
                connection.register(view, empty)
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("SET lock_configuration = true")
            _check(statement, duckdb)
            needed = _columns(connection, statement)
            for view, table in tables.items():
                connection.unregister(view)
                connection.register(view, _Padded(table, needed, failures))
        except duckdb.Error as error:
            raise ConfigError(_plain(error, relations)) from None
        try:
            yield connection.sql(statement).to_arrow_reader(_BATCH_ROWS)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if failures:  # DuckDB includes its traceback in the message
                raise failures[0] from error
            raise QueryError(_plain(error, relations)) from error


def _table(relation: Relation, settings: TopicSettings, stores: Mapping[str, str]) -> MessageTable:
    since, until = relation.arguments.get("since"), relation.arguments.get("until")
    given = {name: str(value) for name, value in relation.arguments.items() if name not in ("since", "until")}
    if relation.kind == "topic":
        if "filter" in given:
            given["sql"] = given.pop("filter")
        more: Any = {**settings, **given}
        start = "group" if "group" in given and since is None else since
        return read_topic(relation.name, start=start, stop=until, **more)
    if relation.name not in stores:
        known = ", ".join(sorted(stores)) or "none is given"
        raise ConfigError(
            f"there is no store {relation.name!r} (stores: {known}): --store NAME=DIRECTORY gives one"
        )
    bounds: Any = {"start": since, "stop": until, **given}
    return read_store(stores[relation.name], **bounds)


def _check(statement: str, duckdb: Any) -> None:
    parsed = duckdb.extract_statements(statement)
    if len(parsed) != 1 or parsed[0].type != duckdb.StatementType.SELECT:
        raise ConfigError("one SELECT is accepted, and nothing else")


# -- columns -------------------------------------------------------------------------------------------


def _columns(connection: DuckDBPyConnection, statement: str) -> tuple[str, ...]:
    """Returns the columns that the plan of a statement reads. DuckDB does not push columns down to streams, but it
    does so in plans over data sets."""
    [(_, plan)] = connection.execute(f"EXPLAIN (FORMAT JSON) {statement}").fetchall()
    needed: set[str] = set()
    for scan in _scans(json.loads(plan)):
        if "Projections" not in scan:
            return COLUMNS
        projected = scan["Projections"]
        needed.update([projected] if isinstance(projected, str) else projected)
        needed.update(re.findall(r"\w+", str(scan.get("Filters", ""))))
    return tuple(name for name in COLUMNS if name in needed) or COLUMNS[:1]


def _scans(nodes: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for node in nodes:
        if _SCAN in str(node.get("name")):
            yield node.get("extra_info", {})
        yield from _scans(node.get("children", ()))


class _Padded:
    """A table with all columns, where unneeded ones are null, so that positions and ``*`` keep their meaning."""

    def __init__(self, table: MessageTable, needed: Sequence[str], failures: list[OrbitError]) -> None:
        self._table = table.select(needed)
        self._failures = failures
        self._needed = frozenset(needed)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._padded()
        except OrbitError as error:
            self._failures.append(error)
            raise

    def _padded(self) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema()
        for batch in self._table.batches():
            columns = [
                batch.column(field.name)
                if field.name in self._needed
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader = pa.RecordBatchReader.from_batches(arrow_schema(), self._batches())
        return reader.__arrow_c_stream__(requested_schema)


# -- errors --------------------------------------------------------------------------------------------


def _plain(error: Exception, relations: Sequence[Relation]) -> str:
    text = str(error).strip()
    for relation in relations:
        text = text.replace(relation.view, f"{relation.kind}('{relation.name}')")
    return text


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]

"""``orbitmq sql``: runs a query over topics and stores, and prints the result or writes it to a file.

The exit code is 0 on success, 1 if the query failed while running, and 2 if it could not start.
"""

from __future__ import annotations

import base64
import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import click
import duckdb  # noqa: F401  # first: without it the command names the extra "sql", and not that of pyarrow

from orbitmq.arrow.query import QueryError, query
from orbitmq.cli.client_connection import ClientConnection, client_connection
from orbitmq.errors import ConfigError, OrbitError

__all__ = ["sql_command"]

_FAILED: Final = 1
_MISUSED: Final = 2
_FORMATS: Final = ("table", "csv", "json", "parquet")
_WIDTH_MAX: Final = 60


def _stores(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        name, separator, directory = value.partition("=")
        if not separator or not name or not directory:
            raise click.BadParameter(f"{value!r} is not NAME=DIRECTORY")
        found[name] = directory
    return found


@click.command("sql")
@click.argument("query_text", metavar="QUERY")
@click.option(
    "--store",
    "stores",
    multiple=True,
    callback=_stores,
    metavar="NAME=DIRECTORY",
    help="Directory that store('NAME') reads.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to this .csv, .json or .parquet file.",
)
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), help="Form of the output.  [default: table, or by name]"
)
@click.option(
    "--rows", type=click.IntRange(min=1), default=1000, show_default=True, help="Maximum rows to print."
)
@click.option(
    "--memory-limit",
    default="",
    metavar="SIZE",
    help="Memory limit of the query, such as 2GB.  [default: 80 %]",
)
@client_connection
def sql_command(query_text: str, connection: ClientConnection, **options: Any) -> None:
    """Run one SELECT over topics: "select tags, count(*) from topic('orders') group by tags".

    topic('NAME', since => '2026-11-19', until => ..., tags => 'A || B', filter => 'price > 10') reads a topic, and
    store('NAME') the directory of --store. Runs on DuckDB, without access to files or the network.
    """
    connection.export(os.environ)
    output: Path | None = options["output"]
    try:
        form = options["form"] or _form(output)
        if form == "parquet" and output is None:
            raise ConfigError("Parquet needs a file: --output rows.parquet")
        settings = {"name_servers": connection.name_servers}
        with query(query_text, settings, stores=options["stores"], memory=options["memory_limit"]) as rows:  # type: ignore[arg-type]  # one of its keys
            if output is None:
                _printers(options["rows"])[form](rows, sys.stdout)
            else:
                _write(rows, output, form, options["rows"])
    except (QueryError, ConfigError, OrbitError) as error:
        click.echo(f"orbitmq: {error}", err=True)
        sys.exit(_MISUSED if isinstance(error, ConfigError) else _FAILED)


def _form(output: Path | None) -> str:
    if output is None:
        return "table"
    form = output.suffix.removeprefix(".").lower()
    form = {"jsonl": "json", "ndjson": "json"}.get(form, form)
    if form not in _FORMATS[1:]:
        raise ConfigError(f"{output}: the name must end with .csv, .json or .parquet, or use --format")
    return form


def _write(rows: Any, output: Path, form: str, most: int) -> None:
    """Write the file atomically, so that a reader never sees part of it."""
    if output.exists():
        raise ConfigError(f"{output} exists; choose another name")
    with _partial(output) as path:
        if form == "parquet":
            import pyarrow.parquet as pq  # type: ignore[import-untyped]  # pyarrow has no type hints

            with pq.ParquetWriter(path, rows.schema, compression="zstd") as writer:
                for batch in rows:
                    writer.write_batch(batch)
        else:
            with path.open("w", encoding="utf-8", newline="") as file:
                _printers(most)[form](rows, file)


@contextmanager
def _partial(output: Path) -> Iterator[Path]:
    path = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        yield path
        os.replace(path, output)
    except OSError as error:
        raise QueryError(f"{output} cannot be written: {error}") from None
    finally:
        path.unlink(missing_ok=True)


# -- output formats ------------------------------------------------------------------------------------


def _printers(most: int) -> dict[str, Callable[[Any, IO[str]], None]]:
    return {
        "table": lambda rows, file: _print_table(rows, file, most),
        "csv": _write_csv,
        "json": _write_json,
    }


def _tuples(rows: Any) -> Iterator[tuple[Any, ...]]:
    for batch in rows:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _plain(value: Any) -> Any:
    """Converts a value for JSON.

    Bytes become text if they are UTF-8, otherwise Base64 with a prefix. ``nan`` and ``inf`` become text, because JSON
    has no such numbers.
    """
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return "base64:" + base64.b64encode(value).decode()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) and len(one) == 2 for one in value):  # a map
            return {str(_plain(key)): _plain(one) for key, one in value}
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _cell(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return ""
    if isinstance(plain, dict | list):
        return json.dumps(plain, ensure_ascii=False)
    return str(plain).lower() if isinstance(plain, bool) else str(plain)


def _write_csv(rows: Any, file: IO[str]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows.schema.names)
    writer.writerows([_cell(value) for value in row] for row in _tuples(rows))


def _write_json(rows: Any, file: IO[str]) -> None:
    names = rows.schema.names
    for row in _tuples(rows):
        values = {name: _plain(value) for name, value in zip(names, row, strict=True)}
        file.write(json.dumps(values, ensure_ascii=False) + "\n")


def _print_table(rows: Any, file: IO[str], most: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = list(islice(_tuples(rows), most + 1))
    table = Table()
    for name in rows.schema.names:
        table.add_column(Text(name), overflow="ellipsis", no_wrap=True, max_width=_WIDTH_MAX)
    for row in shown[:most]:
        table.add_row(*(Text(_cell(value)) for value in row))
    console = Console(file=file) if sys.stdout.isatty() else Console(file=file, width=240)
    console.print(table)
    if len(shown) > most:
        console.print(f"first {most:,} rows; --rows shows more, --output writes all")

"""Iceberg tables by ``pyiceberg``, without a connector in the JVM: append, replace, upsert, new and wider columns.

A table without a catalog server keeps its catalog beside it (``catalog.db``, SQLite). After each commit
``metadata/version-hint.text`` names the newest version as well, for readers that take a directory.
"""

from __future__ import annotations

import posixpath
import re
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.compute as pc  # type: ignore[import-untyped]  # the same
import pyarrow.fs as pafs  # type: ignore[import-untyped]  # the same

from orbitmq.pipeline.evolution import Evolution, align, evolve
from orbitmq.pipeline.lake import BatchKey, Upkeep, newest_column, newest_rows, write_files
from orbitmq.runtime.clock import SYSTEM_CLOCK
from orbitmq.spark.errors import EnvironmentFault, RunFailed
from orbitmq.spark.store.files import open_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from orbitmq.pipeline.spec import IcebergSink

__all__ = ["IcebergTableWriter"]

_SMALL_BYTES: Final = 32 * 1024 * 1024
_COMPACTED_BYTES_MAX: Final = 512 * 1024 * 1024
"""A partition is read into memory to be compacted, so a larger one is left alone."""
_PARTITION: Final = "_orbitmq_p{}"
_VERSION: Final = re.compile(r"(\d+)-")


class IcebergTableWriter:
    """Commits micro-batches to one table."""

    def __init__(self, sink: IcebergSink) -> None:
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NotInstalledError
        except ImportError:
            raise EnvironmentFault("Iceberg tables need pyiceberg: pip install 'orbitmq[lake]'") from None
        self._sink = sink
        self._upkeep = Upkeep(sink)
        if sink.properties.get("uri", "").startswith("sqlite:///") and sink.location:
            filesystem, root = open_location(sink.location)
            filesystem.create_dir(root, recursive=True)  # SQLite makes files, not directories
        try:
            self._catalog = load_catalog(sink.catalog, **sink.properties)
        except (ValueError, NotInstalledError) as error:
            raise EnvironmentFault(f"catalog {sink.catalog!r} cannot be opened: {error}") from error

    @classmethod
    def check(cls, sink: IcebergSink, frame: DataFrame) -> None:
        """Raise ``RunFailed`` when the table is there and would not take these columns. Makes nothing."""
        uri = sink.properties.get("uri", "")
        if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
            return
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = cls(sink)._catalog.load_table(sink.table)
        except (NoSuchNamespaceError, NoSuchTableError):
            return
        evolve(_columns(table), frame.schema, f"table {sink.table}")

    def write(self, frame: DataFrame, batch: BatchKey) -> int:
        """Commit a batch unless it was; rows that were added or, with a key, written."""
        table = self._open(frame.schema)
        note = f"orbitmq.batch.{batch.query}"
        if int(table.properties.get(note, "-1")) >= batch.number:
            return 0
        change = evolve(_columns(table), frame.schema, f"table {self._sink.table}")
        self._change(table, change)
        frame = align(frame, change.result)
        done = {note: str(batch.number)}
        rows = self._upsert(table, frame, done) if self._sink.key else self._add(table, frame, batch, done)
        self._upkeep.after_batch(lambda: self._compact(table))
        if self._sink.location:
            _hint(table)
        return rows

    def _open(self, columns: StructType) -> Any:
        from pyiceberg.exceptions import NoSuchTableError
        from pyspark.sql.pandas.types import to_arrow_schema

        self._catalog.create_namespace_if_not_exists(self._sink.table.rpartition(".")[0])
        try:
            table = self._catalog.load_table(self._sink.table)
        except NoSuchTableError:
            table = self._catalog.create_table(
                self._sink.table,
                to_arrow_schema(columns, timezone="UTC"),
                location=self._sink.location or None,
            )
        if table.current_snapshot() is None and self._sink.partition_by and not table.spec().fields:
            with table.update_spec() as update:
                for name in self._sink.partition_by:
                    update.add_identity(name)
        return table

    @staticmethod
    def _change(table: Any, change: Evolution) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        if change.added or change.widened:
            with table.update_schema() as update:
                update.union_by_name(to_arrow_schema(change.result, timezone="UTC"))

    def _add(self, table: Any, frame: DataFrame, batch: BatchKey, done: dict[str, str]) -> int:
        from pyiceberg.expressions import AlwaysTrue
        from pyspark.sql import functions as f

        # The columns must be in the files, too, and Spark leaves out those it partitions by: it gets copies.
        by = [table.schema().find_column_name(field.source_id) for field in table.spec().fields]
        copies = {_PARTITION.format(number): name for number, name in enumerate(by)}
        directory = f"{table.location().removesuffix('/')}/data/{batch.query}/{batch.number}"
        copied = frame.withColumns({copy: f.col(name) for copy, name in copies.items()})
        files = write_files(copied, directory, list(copies))
        if not files and self._sink.output_mode == "append":
            return 0
        with table.transaction() as change:
            if self._sink.output_mode == "complete" and table.current_snapshot() is not None:
                change.delete(AlwaysTrue())
            if files:
                change.add_files([f"{directory}/{file.path}" for file in files], check_duplicate_files=False)
            change.set_properties(done)
        return sum(file.row_count for file in files)

    def _upsert(self, table: Any, frame: DataFrame, done: dict[str, str]) -> int:
        rows = newest_rows(frame, self._sink)
        newest = newest_column(frame.columns, self._sink)
        if newest and rows.num_rows:
            rows = self._without_late(table, rows, newest)
        with table.transaction() as change:
            if rows.num_rows and table.current_snapshot() is None:
                change.append(rows)
            elif rows.num_rows:
                # Not the library's upsert: it compares rows with the columns of the last snapshot, which has none of
                # the columns that were added since. That no key was there before is no reason for a warning.
                keys = _expressions().In(self._sink.key, set(rows.column(self._sink.key).to_pylist()))
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="Delete operation did not match any records")
                    change.overwrite(rows, overwrite_filter=keys)
            change.set_properties(done)
        return int(rows.num_rows)

    def _without_late(self, table: Any, rows: pa.Table, newest: str) -> pa.Table:
        """The rows that are not older than what the table has of their keys: those came late, from another queue."""
        key = self._sink.key
        wanted = _expressions().In(key, set(rows.column(key).to_pylist()))
        known = table.scan(wanted, selected_fields=(key, newest)).to_arrow()
        if not known.num_rows:
            return rows
        known = known.rename_columns([key, "_known"]).cast(
            pa.schema([rows.schema.field(key), pa.field("_known", rows.schema.field(newest).type)])
        )
        joined = rows.join(known, key, join_type="left outer")
        late = pc.greater(joined.column("_known"), joined.column(newest))
        kept = joined.filter(pc.invert(pc.fill_null(late, False)))
        return kept.select(rows.column_names).cast(rows.schema)

    # -- upkeep ----------------------------------------------------------------------------------------

    def _compact(self, table: Any) -> str:
        words = _expressions()
        joined = 0
        by = [table.schema().find_column_name(field.source_id) for field in table.spec().fields]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for task in table.scan().plan_files():
            file = task.file
            group = tuple(file.partition[index] for index in range(len(by)))
            groups.setdefault(group, []).append(int(file.file_size_in_bytes))
        for group, sizes in groups.items():
            small = sum(size < _SMALL_BYTES for size in sizes)
            if small < 2 or sum(sizes) > _COMPACTED_BYTES_MAX:
                continue
            terms = [
                words.IsNull(name) if value is None else words.EqualTo(name, _value(table, name, value))
                for name, value in zip(by, group, strict=True)
            ]
            where = words.And(*terms) if len(terms) > 1 else terms[0] if terms else words.AlwaysTrue()
            table.overwrite(table.scan(where).to_arrow(), overwrite_filter=where)
            joined += len(sizes)
        text = f"files_joined={joined}"
        if self._upkeep.keep_s is not None:
            limit = datetime.now(UTC) - timedelta(seconds=self._upkeep.keep_s)
            table.maintenance.expire_snapshots().older_than(limit).commit()
            table.refresh()
            text += f" files_deleted={_drop_unnamed(table, limit)}"
        return text


def _expressions() -> Any:
    """Untyped: they take names and values, and are declared as if they took what they keep."""
    import pyiceberg.expressions

    return pyiceberg.expressions


def _value(table: Any, name: str, value: Any) -> Any:
    """A partition value as a literal: dates are numbers of days in a file's entry."""
    from pyiceberg.types import DateType

    if isinstance(table.schema().find_type(name), DateType) and isinstance(value, int):
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=value)).date().isoformat()
    return value


def _columns(table: Any) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(table.schema().as_arrow())


def _drop_unnamed(table: Any, limit: datetime) -> int:
    """Delete data files that no version names and that are older than the limit."""
    named = {_bare(path) for path in table.inspect.all_files().column("file_path").to_pylist()}
    filesystem, root = open_location(f"{table.location().removesuffix('/')}/data")
    gone = 0
    for info in filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True)):
        old = info.type == pafs.FileType.File and (info.mtime_ns or 0) < limit.timestamp() * 1e9
        if old and _bare(info.path) not in named:
            filesystem.delete_file(info.path)
            gone += 1
    return gone


def _bare(path: str) -> str:
    return re.sub(r"^[a-z0-9]+://", "", path)


def _hint(table: Any) -> None:
    """Say in the directory itself which version is the newest. A crash before this leaves the one before."""
    filesystem, newest = open_location(table.metadata_location)
    found = _VERSION.match(posixpath.basename(newest))
    if found is None:
        raise RunFailed(f"{newest} is no name of a version of an Iceberg table")
    directory, number = posixpath.dirname(newest), int(found[1])
    with filesystem.open_input_file(newest) as source:
        content = source.read()
    stamp = SYSTEM_CLOCK.now_ms()
    for name, data in (
        (f"v{number}.metadata.json", content),
        ("version-hint.text", str(number).encode()),
    ):
        unfinished = f"{directory}/.{name}.{stamp}"
        with filesystem.open_output_stream(unfinished) as target:
            target.write(data)
        filesystem.move(unfinished, f"{directory}/{name}")

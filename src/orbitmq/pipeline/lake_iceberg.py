"""Writes Iceberg tables with ``pyiceberg``, without a connector in the JVM. Supports append, replace, upsert, and new
and wider columns.

A table without a catalog server keeps its catalog next to it (``catalog.db``, SQLite). Each commit also writes the
newest version to ``metadata/version-hint.text``, for readers that open a directory.
"""

from __future__ import annotations

import logging
import posixpath
import re
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.compute as pc  # type: ignore[import-untyped]  # the same
import pyarrow.fs as pafs  # type: ignore[import-untyped]  # the same

from orbitmq.pipeline.evolution import Evolution, evolve
from orbitmq.pipeline.keyed import (
    ATTEMPTS,
    BATCH_ROWS_MAX,
    LiveFile,
    aligned,
    incoming_columns,
    key_names,
    may_use_driver,
    replace_rows,
)
from orbitmq.pipeline.lake import BatchKey, Maintenance, newest_column, newest_rows, write_files
from orbitmq.runtime.clock import SYSTEM_CLOCK
from orbitmq.spark.errors import EnvironmentFault, RunFailed
from orbitmq.spark.store.files import open_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from orbitmq.pipeline.spec import IcebergSink

__all__ = ["IcebergTableWriter", "drop_unnamed", "replace_files", "write_hint"]

logger = logging.getLogger(__name__)

_DRIVER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Smaller than for Delta, because the library's merge needs as much CPU as Spark at a million rows."""
_SMALL_BYTES: Final = 32 * 1024 * 1024
_COMPACTED_BYTES_MAX: Final = 512 * 1024 * 1024
"""A larger partition is not compacted, because compaction reads a partition into memory."""
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
        self._maintenance = Maintenance(sink)
        if sink.properties.get("uri", "").startswith("sqlite:///") and sink.location:
            filesystem, root = open_location(sink.location)
            filesystem.create_dir(root, recursive=True)  # SQLite creates files, but no directories
        try:
            self.catalog = load_catalog(sink.catalog, **sink.properties)
        except (ValueError, NotInstalledError) as error:
            raise EnvironmentFault(f"catalog {sink.catalog!r} cannot be opened: {error}") from error

    @classmethod
    def check(cls, sink: IcebergSink, frame: DataFrame) -> None:
        """Raises ``RunFailed`` if the table exists and would not accept these columns. Creates nothing."""
        uri = sink.properties.get("uri", "")
        if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
            return
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        try:
            table = cls(sink).catalog.load_table(sink.table)
        except (NoSuchNamespaceError, NoSuchTableError):
            return
        evolve(_columns(table), incoming_columns(frame, sink), f"table {sink.table}")

    def write(self, frame: DataFrame, batch: BatchKey) -> int:
        """Commits a batch unless it has already been committed. Returns the number of rows added or, for a table with
        a key, written."""
        incoming = incoming_columns(frame, self._sink)
        table = self._open(incoming)
        note = f"orbitmq.batch.{batch.query}"
        if int(table.properties.get(note, "-1")) >= batch.number:
            return 0
        change = evolve(_columns(table), incoming, f"table {self._sink.table}")
        self._change(table, change)
        frame = aligned(frame, change.result, self._sink)
        done = {note: str(batch.number)}
        if self._sink.key:
            rows = self._upsert(table, frame, change.result, batch, done)
        else:
            rows = self._add(table, frame, batch, done)
        self._maintenance.after_batch(lambda: self._compact(table))
        if self._sink.location:
            write_hint(table)
        return rows

    def _open(self, columns: StructType) -> Any:
        from pyiceberg.exceptions import NoSuchTableError
        from pyspark.sql.pandas.types import to_arrow_schema

        self.catalog.create_namespace_if_not_exists(self._sink.table.rpartition(".")[0])
        try:
            table = self.catalog.load_table(self._sink.table)
        except NoSuchTableError:
            table = self.catalog.create_table(
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

        # Partition columns must be in the files, too, but Spark leaves them out. So Spark partitions by copies.
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

    def _upsert(
        self, table: Any, frame: DataFrame, columns: StructType, batch: BatchKey, done: dict[str, str]
    ) -> int:
        """Replaces rows by key, and returns their number.

        If another writer, such as ``pipeline maintain``, replaced one of the files meanwhile, the commit is rejected
        and the batch is planned again.
        """
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        for attempt in range(ATTEMPTS):
            try:
                return self._upsert_once(table, frame, columns, batch, done)
            except (CommitFailedException, ValidationException) as error:
                logger.warning("commit conflict, replanned attempt=%d error=%s", attempt + 1, error)
            table.refresh()
            if any(int(table.properties.get(name, "-1")) >= int(number) for name, number in done.items()):
                return 0
        raise RunFailed(
            f"table {self._sink.table}: other writers replaced the files of a batch {ATTEMPTS} times while it was "
            "written. Start the query again to write it"
        )

    def _upsert_once(
        self, table: Any, frame: DataFrame, columns: StructType, batch: BatchKey, done: dict[str, str]
    ) -> int:
        sink, parts = self._sink, bool(table.spec().fields)
        if parts and not may_use_driver(sink, 0, 0):
            raise RunFailed(f"table {sink.table} is partitioned: such a table cannot be written here")
        if may_use_driver(sink, 0 if parts else _table_bytes(table), _DRIVER_BYTES_MAX):
            rows = newest_rows(frame, sink, BATCH_ROWS_MAX if sink.merge == "auto" and not parts else None)
            if rows is not None:
                return self._merge(table, rows, newest_column(frame.columns, sink), done)
        location = table.location().removesuffix("/")
        found = replace_rows(frame, columns, sink, location, batch, _live(table, key_names(sink)[0]))
        if found is None:
            return 0
        below = f"{location}/data/{batch.query}/{batch.number}"
        added = [f"{below}/{file.path}" for file in found.added]
        replace_files(table, [file.token for file in found.removed], added, done)
        return found.rows

    def _merge(self, table: Any, rows: pa.Table, newest: str, done: dict[str, str]) -> int:
        """Replaces rows by key in the driver, and returns the number of rows written."""
        if newest and rows.num_rows:
            rows = self._without_late(table, rows, newest)
        with table.transaction() as change:
            if rows.num_rows and table.current_snapshot() is None:
                change.append(rows)
            elif rows.num_rows:
                # Not the library's upsert, which uses the columns of the last snapshot and so misses columns added
                # since then. A key that is new does not need a warning.
                keys = _expressions().In(self._sink.key, set(rows.column(self._sink.key).to_pylist()))
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="Delete operation did not match any records")
                    change.overwrite(rows, overwrite_filter=keys)
            change.set_properties(done)
        return int(rows.num_rows)

    def _without_late(self, table: Any, rows: pa.Table, newest: str) -> pa.Table:
        """Returns the rows that are not older than the table's rows with the same keys. Older rows arrived late, from
        another queue."""
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

    # -- maintenance -----------------------------------------------------------------------------------

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
        if self._maintenance.keep_s is not None:
            limit = datetime.now(UTC) - timedelta(seconds=self._maintenance.keep_s)
            table.maintenance.expire_snapshots().older_than(limit).commit()
            table.refresh()
            text += f" files_deleted={drop_unnamed(table, limit)}"
        return text


def _expressions() -> Any:
    """Returns the module of expressions. Untyped, because its classes accept names and values but are annotated with
    the types that they store."""
    import pyiceberg.expressions

    return pyiceberg.expressions


def replace_files(table: Any, removed: list[Any], added: list[str], properties: dict[str, str]) -> None:
    """Removes and adds data files and sets properties in one commit.

    The library rejects the commit (``ValidationException``) if one of the removed files is no longer live, even when
    it retries the commit.
    """
    from pyiceberg.io.pyarrow import parquet_file_to_data_file
    from pyiceberg.table import TableProperties

    with table.transaction() as change:
        if change.table_metadata.name_mapping() is None:
            # The files have column names but no column ids.
            mapping = change.table_metadata.schema().name_mapping.model_dump_json()
            change.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
        if removed or added:
            with change.update_snapshot().overwrite() as update:
                for file in removed:
                    update.delete_data_file(file)
                for path in added:
                    update.append_data_file(parquet_file_to_data_file(table.io, change.table_metadata, path))
        if properties:
            change.set_properties(properties)


def _table_bytes(table: Any) -> int:
    snapshot = table.current_snapshot()
    summary = snapshot.summary if snapshot is not None else None
    return int(summary.additional_properties.get("total-files-size", 0)) if summary is not None else 0


def _live(table: Any, key: str) -> list[LiveFile]:
    """Returns the files of the newest version. Rejects data files that have delete files, which this writer never
    creates."""
    from pyiceberg.conversions import from_bytes

    found: list[LiveFile] = []
    if table.current_snapshot() is None:
        return found
    field = None if "." in key else table.schema().find_field(key, case_sensitive=False)
    for task in table.scan().plan_files():
        if task.delete_files:
            raise RunFailed(
                f"{task.file.file_path} has delete files of another writer: compact the table with that one"
            )
        low = high = None
        if field is not None:
            bounds = [
                (one or {}).get(field.field_id) for one in (task.file.lower_bounds, task.file.upper_bounds)
            ]
            low, high = (None if one is None else from_bytes(field.field_type, one) for one in bounds)
            if isinstance(high, str | bytes):
                low = high = None  # bounds of text may be truncated
        found.append(LiveFile(task.file.file_path, int(task.file.file_size_in_bytes), low, high, task.file))
    return found


def _value(table: Any, name: str, value: Any) -> Any:
    """Returns a partition value as a literal. In a file's entry, dates are stored as days."""
    from pyiceberg.types import DateType

    if isinstance(table.schema().find_type(name), DateType) and isinstance(value, int):
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=value)).date().isoformat()
    return value


def _columns(table: Any) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(table.schema().as_arrow())


def drop_unnamed(table: Any, limit: datetime) -> int:
    """Deletes data files that are older than the limit and belong to no version. Returns their number."""
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


def write_hint(table: Any) -> None:
    """Records the newest version in the directory itself. After a crash before this step, the hint still names the
    previous version."""
    filesystem, newest = open_location(table.metadata_location)
    found = _VERSION.match(posixpath.basename(newest))
    if found is None:
        raise RunFailed(f"{newest} is not the name of an Iceberg metadata version")
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

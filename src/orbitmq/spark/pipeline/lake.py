"""Delta and Iceberg tables, each micro-batch exactly once, without a connector in the JVM.

Spark's executors write the rows as Parquet files under ``data/<query>/<batch>`` of the table; nobody sees them yet.
The driver then makes one commit of the table that names the files *and* notes the number of the batch under the id of
the query. A batch that Spark repeats after a crash finds its number and does nothing, or finds files without a commit
and writes them again.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow.fs as pafs  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # as above

from orbitmq.spark.pipeline.errors import EnvironmentFault
from orbitmq.spark.store_files import open_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from orbitmq.spark.pipeline.spec import DeltaSink, IcebergSink

__all__ = ["BatchKey", "DeltaTableWriter", "IcebergTableWriter", "WrittenFile", "written_files"]

_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class BatchKey:
    """A micro-batch: the id of its query, which a checkpoint keeps over restarts, and its number."""

    query: str
    number: int


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file that Spark wrote and no table names yet."""

    path: str
    """Below the directory it was asked for in."""
    size_bytes: int
    modified_ms: int
    row_count: int
    partition: tuple[tuple[str, str | None], ...]


def written_files(directory: str) -> list[WrittenFile]:
    """The files below a directory that hold rows."""
    filesystem, root = open_location(directory)
    found: list[WrittenFile] = []
    for info in filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True)):
        if info.type != pafs.FileType.File or not info.base_name.endswith(".parquet"):
            continue
        rows = pq.read_metadata(info.path, filesystem=filesystem).num_rows
        path = posixpath.relpath(info.path, root)
        pairs = [part.partition("=") for part in posixpath.dirname(path).split("/") if "=" in part]
        partition = tuple(
            (name, None if value == _NULL_PARTITION else unquote(value)) for name, _, value in pairs
        )
        modified_ms = (info.mtime_ns or 0) // 1_000_000
        if rows:
            found.append(WrittenFile(path, info.size, modified_ms, rows, partition))
    return sorted(found, key=lambda one: one.path)


def _write(frame: DataFrame, directory: str, partition_by: list[str]) -> list[WrittenFile]:
    # Spark's default is INT96, which Iceberg does not know.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # Overwrite: what lies there is of an attempt at this batch that was not committed.
    frame.write.mode("overwrite").option("compression", "zstd").partitionBy(*partition_by).parquet(directory)
    return written_files(directory)


class DeltaTableWriter:
    """Appends batches to a Delta table, or replaces its content in output mode complete."""

    def __init__(self, sink: DeltaSink, path: str) -> None:
        try:
            import deltalake
        except ImportError:
            raise EnvironmentFault("Delta tables need deltalake: pip install 'orbitmq[lake]'") from None
        self._lake: Any = deltalake
        self._sink = sink
        self._path = path

    def write(self, frame: DataFrame, batch: BatchKey, partition_by: list[str]) -> int:
        """Commit a batch unless it was; rows that were added."""
        lake, options = self._lake, dict(self._sink.options) or None
        schema = lake.Schema.from_json(frame.schema.json())
        # Columns stay nullable: a table outlives the query that made it.
        table = lake.DeltaTable.create(
            self._path, schema, mode="ignore", partition_by=partition_by, storage_options=options
        )
        done = table.transaction_version(batch.query)
        if done is not None and done >= batch.number:
            return 0
        below = f"data/{batch.query}/{batch.number}"
        files = _write(frame, f"{self._path}/{below}", partition_by)
        if not files and self._sink.output_mode == "append":
            return 0
        from deltalake.transaction import AddAction

        actions = [
            AddAction(
                path=f"{below}/{file.path}",
                size=file.size_bytes,
                partition_values=dict(file.partition),
                modification_time=file.modified_ms,
                data_change=True,
                stats=f'{{"numRecords": {file.row_count}}}',
            )
            for file in files
        ]
        table.create_write_transaction(
            actions,
            "overwrite" if self._sink.output_mode == "complete" else "append",
            schema,
            partition_by,
            commit_properties=lake.CommitProperties(
                app_transactions=[lake.Transaction(batch.query, batch.number)]
            ),
        )
        return sum(file.row_count for file in files)


class IcebergTableWriter:
    """Appends batches to an Iceberg table, or replaces its content in output mode complete."""

    def __init__(self, sink: IcebergSink) -> None:
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.exceptions import NotInstalledError
        except ImportError:
            raise EnvironmentFault("Iceberg tables need pyiceberg: pip install 'orbitmq[lake]'") from None
        self._sink = sink
        try:
            self._catalog = load_catalog(sink.catalog, **sink.properties)
        except (ValueError, NotInstalledError) as error:
            raise EnvironmentFault(f"catalog {sink.catalog!r} cannot be opened: {error}") from error

    def write(self, frame: DataFrame, batch: BatchKey) -> int:
        """Commit a batch unless it was; rows that were added."""
        from pyiceberg.expressions import AlwaysTrue
        from pyspark.sql.pandas.types import to_arrow_schema

        namespace = self._sink.table.rpartition(".")[0]
        self._catalog.create_namespace_if_not_exists(namespace)
        columns = to_arrow_schema(frame.schema, timezone="UTC")
        table = self._catalog.create_table_if_not_exists(self._sink.table, columns)
        note = f"orbitmq.batch.{batch.query}"
        if int(table.properties.get(note, "-1")) >= batch.number:
            return 0
        directory = f"{table.location().removesuffix('/')}/data/{batch.query}/{batch.number}"
        files = _write(frame, directory, [])
        if not files and self._sink.output_mode == "append":
            return 0
        with table.transaction() as change:
            if self._sink.output_mode == "complete" and table.current_snapshot() is not None:
                change.delete(AlwaysTrue())
            if files:
                change.add_files([f"{directory}/{file.path}" for file in files], check_duplicate_files=False)
            change.set_properties({note: str(batch.number)})
        return sum(file.row_count for file in files)

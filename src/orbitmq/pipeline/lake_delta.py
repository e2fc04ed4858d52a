"""Writes Delta tables with ``deltalake``, without a connector in the JVM. Supports append, replace, upsert, and new
and wider columns."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
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
from orbitmq.pipeline.lake import BatchKey, Maintenance, WrittenFile, newest_column, newest_rows, write_files
from orbitmq.runtime.clock import SYSTEM_CLOCK
from orbitmq.spark.errors import EnvironmentFault, RunFailed
from orbitmq.spark.store.files import open_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from orbitmq.pipeline.spec import DeltaSink

__all__ = ["DeltaTableWriter"]

logger = logging.getLogger(__name__)

_DRIVER_BYTES_MAX: Final = 512 * 1024 * 1024
"""The library merges tables up to this size in the driver, which needs far less CPU there than Spark."""


class DeltaTableWriter:
    """Commits micro-batches to one table."""

    def __init__(self, sink: DeltaSink, path: str) -> None:
        try:
            import deltalake
        except ImportError:
            raise EnvironmentFault("Delta tables need deltalake: pip install 'orbitmq[lake]'") from None
        self._lake: Any = deltalake
        self._sink = sink
        self._path = path
        self._options = dict(sink.options) or None
        self._maintenance = Maintenance(sink)

    def write(self, frame: DataFrame, batch: BatchKey, partition_by: list[str]) -> int:
        """Commits a batch unless it has already been committed. Returns the number of rows added or, for a table with
        a key, written; 0 for a committed batch."""
        table = self._open(incoming_columns(frame, self._sink), partition_by)
        done = table.transaction_version(batch.query)
        if done is not None and done >= batch.number:
            return 0
        by = list(table.metadata().partition_columns)
        if self._sink.partition_by is not None and by != partition_by:
            raise RunFailed(
                f"table {self._path} is partitioned by {by}, not by {partition_by}: leave it as it is"
            )
        change = evolve(self._columns(table), incoming_columns(frame, self._sink), f"table {self._path}")
        table = self._changed(table, change, by)
        frame = aligned(frame, change.result, self._sink)
        note = self._lake.CommitProperties(
            app_transactions=[self._lake.Transaction(batch.query, batch.number)],
            # The library retries a commit after another writer's without checking the files it removes.
            max_commit_retries=0 if self._sink.key else None,
        )
        if self._sink.key:
            rows = self._upsert(table, frame, change.result, batch, note)
        else:
            rows = self._add(table, frame, batch, note)
        self._maintenance.after_batch(self._compact)
        return rows

    def check(self, frame: DataFrame) -> None:
        """Raises ``RunFailed`` if the table exists and would not accept these columns."""
        if self._lake.DeltaTable.is_deltatable(self._path, self._options):
            table = self._lake.DeltaTable(self._path, storage_options=self._options)
            evolve(self._columns(table), incoming_columns(frame, self._sink), f"table {self._path}")

    def _open(self, columns: StructType, partition_by: list[str]) -> Any:
        lake = self._lake
        if lake.DeltaTable.is_deltatable(self._path, self._options):
            return lake.DeltaTable(self._path, storage_options=self._options)
        from pyspark.sql.types import StructField, StructType

        # Columns are nullable, because a table outlives the query that created it.
        nullable = StructType([StructField(one.name, one.dataType) for one in columns.fields])
        schema = lake.Schema.from_json(nullable.json())
        return lake.DeltaTable.create(
            self._path, schema, mode="ignore", partition_by=partition_by, storage_options=self._options
        )

    @staticmethod
    def _columns(table: Any) -> StructType:
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(table.schema().to_json()))

    def _changed(self, table: Any, change: Evolution, by: list[str]) -> Any:
        """Returns the table with the columns that the rows need. A crash in between leaves an intact table that needs
        fewer changes."""
        lake = self._lake
        if change.added:
            from pyspark.sql.types import StructType

            fields = lake.Schema.from_json(StructType(list(change.added)).json()).fields
            table.alter.add_columns(list(fields))
        if change.widened:
            if bad := [one.name for one in change.widened if one.name in by]:
                raise RunFailed(f"table {self._path} is partitioned by {bad[0]!r}, whose type cannot change")
            # Readers of Delta disagree on files that are narrower than their column, so the files are rewritten.
            table = lake.DeltaTable(self._path, storage_options=self._options)
            lake.write_deltalake(
                table,
                _cast(table, self._path, change.result),
                mode="overwrite",
                schema_mode="overwrite",
                partition_by=by or None,
            )
        if change.added or change.widened:
            table = lake.DeltaTable(self._path, storage_options=self._options)
        return table

    def _add(self, table: Any, frame: DataFrame, batch: BatchKey, note: Any) -> int:
        by = list(table.metadata().partition_columns)
        below = f"data/{batch.query}/{batch.number}"
        files = write_files(frame, f"{self._path}/{below}", by)
        if not files and self._sink.output_mode == "append":
            return 0
        actions = [_add_action(file, below) for file in files]
        mode = "overwrite" if self._sink.output_mode == "complete" else "append"
        table.create_write_transaction(actions, mode, table.schema(), by, commit_properties=note)
        return sum(file.row_count for file in files)

    def _upsert(self, table: Any, frame: DataFrame, columns: StructType, batch: BatchKey, note: Any) -> int:
        """Replaces rows by key, and returns their number.

        If another writer, such as ``pipeline maintain``, replaced one of the files meanwhile, the commit is rejected
        and the batch is planned again.
        """
        from deltalake.exceptions import CommitFailedError

        for attempt in range(ATTEMPTS):
            try:
                return self._upsert_once(table, frame, columns, batch, note)
            except CommitFailedError as error:
                logger.warning("commit conflict, replanned attempt=%d error=%s", attempt + 1, error)
            table = self._lake.DeltaTable(self._path, storage_options=self._options)
            done = table.transaction_version(batch.query)
            if done is not None and done >= batch.number:
                return 0
        raise RunFailed(
            f"table {self._path}: other writers replaced the files of a batch {ATTEMPTS} times while it was written. "
            "Start the query again to write it"
        )

    def _upsert_once(
        self, table: Any, frame: DataFrame, columns: StructType, batch: BatchKey, note: Any
    ) -> int:
        sink, by = self._sink, list(table.metadata().partition_columns)
        if by and not may_use_driver(sink, 0, 0):
            raise RunFailed(f"table {self._path} is partitioned by {by}: such a table cannot be written here")
        live = [] if by else _live(table, self._path, key_names(sink)[0])
        if may_use_driver(sink, sum(file.size_bytes for file in live), _DRIVER_BYTES_MAX):
            rows = newest_rows(frame, sink, BATCH_ROWS_MAX if sink.merge == "auto" and not by else None)
            if rows is not None:
                return self._merge(table, rows, newest_column(frame.columns, sink), note)
        found = replace_rows(frame, columns, sink, self._path, batch, live)
        if found is None:
            return 0
        from deltalake.transaction import RemoveAction

        now = SYSTEM_CLOCK.now_ms()
        below = f"data/{batch.query}/{batch.number}"
        actions = [
            *(RemoveAction(file.token, True, now, file.size_bytes, {}) for file in found.removed),
            *(_add_action(file, below) for file in found.added),
        ]
        table.create_write_transaction(actions, "append", table.schema(), [], commit_properties=note)
        return found.rows

    def _merge(self, table: Any, rows: pa.Table, newest: str, note: Any) -> int:
        """Replaces rows by key in the driver, and returns the number of rows given."""
        if not rows.num_rows:
            return 0
        merge = table.merge(
            rows,
            f'target."{self._sink.key}" = source."{self._sink.key}"',
            source_alias="source",
            target_alias="target",
            commit_properties=note,
        )
        # A message older than its row came late, from another queue.
        newer = f'target."{newest}" IS NULL OR source."{newest}" >= target."{newest}"' if newest else None
        merge.when_matched_update_all(newer).when_not_matched_insert_all().execute()
        return int(rows.num_rows)

    def _compact(self) -> str:
        table = self._lake.DeltaTable(self._path, storage_options=self._options)
        found = table.optimize.compact()
        text = f"files_removed={found['numFilesRemoved']} files_added={found['numFilesAdded']}"
        if self._maintenance.keep_s is not None:
            hours = int(self._maintenance.keep_s // 3600)
            gone = table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
            text += f" files_deleted={len(gone)}"
        table.create_checkpoint()
        return text


def _add_action(file: WrittenFile, below: str) -> Any:
    from deltalake.transaction import AddAction

    bounds = file.bounds
    stats = {
        "numRecords": file.row_count,
        "minValues": bounds.low,
        "maxValues": bounds.high,
        "nullCount": bounds.nulls,
    }
    return AddAction(
        path=f"{below}/{file.path}",
        size=file.size_bytes,
        partition_values=dict(file.partition),
        modification_time=file.modified_ms,
        data_change=True,
        stats=json.dumps(stats),
    )


def _live(table: Any, path: str, key: str) -> list[LiveFile]:
    """Returns the files of a table version, with the bounds of one column."""
    actions = pa.table(table.get_add_actions(flatten=True))
    names = actions.column_names

    def column(name: str) -> list[Any]:
        return actions.column(name).to_pylist() if name in names else [None] * actions.num_rows

    rows = zip(column("path"), column("size_bytes"), column(f"min.{key}"), column(f"max.{key}"), strict=True)
    return [
        LiveFile(name if "://" in name else f"{path}/{name}", size, low, high, name)
        for name, size, low, high in rows
    ]


def _cast(table: Any, path: str, columns: StructType) -> pa.RecordBatchReader:
    """Returns a reader of all rows of a table, cast to other types."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(columns, timezone="UTC")
    # Read with a different library, because the one that writes cannot read at the same time.
    filesystem, root = open_location(path)
    dataset = table.to_pyarrow_dataset(filesystem=pafs.SubTreeFileSystem(root, filesystem))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in dataset.to_batches():
            arrays = [batch.column(field.name).cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())

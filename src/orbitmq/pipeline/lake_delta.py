"""Delta tables by ``deltalake``, without a connector in the JVM: append, replace, upsert, new and wider columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.fs as pafs  # type: ignore[import-untyped]  # the same

from orbitmq.pipeline.evolution import Evolution, align, evolve
from orbitmq.pipeline.lake import BatchKey, Upkeep, newest_column, newest_rows, write_files
from orbitmq.spark.errors import EnvironmentFault, RunFailed
from orbitmq.spark.store.files import open_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from orbitmq.pipeline.spec import DeltaSink

__all__ = ["DeltaTableWriter"]


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
        self._upkeep = Upkeep(sink)

    def write(self, frame: DataFrame, batch: BatchKey, partition_by: list[str]) -> int:
        """Commit a batch unless it was; rows that were added or, with a key, written."""
        table = self._open(frame.schema, partition_by)
        done = table.transaction_version(batch.query)
        if done is not None and done >= batch.number:
            return 0
        by = list(table.metadata().partition_columns)
        if self._sink.partition_by is not None and by != partition_by:
            raise RunFailed(
                f"table {self._path} is partitioned by {by}, not by {partition_by}: leave it as it is"
            )
        change = evolve(self._columns(table), frame.schema, f"table {self._path}")
        table = self._changed(table, change, by)
        frame = align(frame, change.result)
        note = self._lake.CommitProperties(
            app_transactions=[self._lake.Transaction(batch.query, batch.number)]
        )
        rows = self._upsert(table, frame, note) if self._sink.key else self._add(table, frame, batch, note)
        self._upkeep.after_batch(self._compact)
        return rows

    def check(self, frame: DataFrame) -> None:
        """Raise ``RunFailed`` when the table is there and would not take these columns."""
        if self._lake.DeltaTable.is_deltatable(self._path, self._options):
            table = self._lake.DeltaTable(self._path, storage_options=self._options)
            evolve(self._columns(table), frame.schema, f"table {self._path}")

    def _open(self, columns: StructType, partition_by: list[str]) -> Any:
        lake = self._lake
        if lake.DeltaTable.is_deltatable(self._path, self._options):
            return lake.DeltaTable(self._path, storage_options=self._options)
        from pyspark.sql.types import StructField, StructType

        # Columns are nullable: a table outlives the query that made it.
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
        """The table with the columns the rows need. A crash in between leaves one that is whole and asks for less."""
        lake = self._lake
        if change.added:
            from pyspark.sql.types import StructType

            fields = lake.Schema.from_json(StructType(list(change.added)).json()).fields
            table.alter.add_columns(list(fields))
        if change.widened:
            if bad := [one.name for one in change.widened if one.name in by]:
                raise RunFailed(f"table {self._path} is partitioned by {bad[0]!r}, whose type cannot change")
            # Readers of Delta disagree on files that are narrower than their column, so the files are written anew.
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
        from deltalake.transaction import AddAction

        by = list(table.metadata().partition_columns)
        below = f"data/{batch.query}/{batch.number}"
        files = write_files(frame, f"{self._path}/{below}", by)
        if not files and self._sink.output_mode == "append":
            return 0
        actions = [
            AddAction(
                path=f"{below}/{file.path}",
                size=file.size_bytes,
                partition_values=dict(file.partition),
                modification_time=file.modified_ms,
                data_change=True,
                stats=json.dumps(
                    {
                        "numRecords": file.row_count,
                        "minValues": file.bounds.low,
                        "maxValues": file.bounds.high,
                        "nullCount": file.bounds.nulls,
                    }
                ),
            )
            for file in files
        ]
        mode = "overwrite" if self._sink.output_mode == "complete" else "append"
        table.create_write_transaction(actions, mode, table.schema(), by, commit_properties=note)
        return sum(file.row_count for file in files)

    def _upsert(self, table: Any, frame: DataFrame, note: Any) -> int:
        rows = newest_rows(frame, self._sink)
        if not rows.num_rows:
            return 0
        newest = newest_column(frame.columns, self._sink)
        merge = table.merge(
            rows,
            f'target."{self._sink.key}" = source."{self._sink.key}"',
            source_alias="source",
            target_alias="target",
            commit_properties=note,
        )
        # A message that is older than its row came late, from another queue.
        newer = f'target."{newest}" IS NULL OR source."{newest}" >= target."{newest}"' if newest else None
        merge.when_matched_update_all(newer).when_not_matched_insert_all().execute()
        return int(rows.num_rows)

    def _compact(self) -> str:
        table = self._lake.DeltaTable(self._path, storage_options=self._options)
        found = table.optimize.compact()
        text = f"files_removed={found['numFilesRemoved']} files_added={found['numFilesAdded']}"
        if self._upkeep.keep_s is not None:
            hours = int(self._upkeep.keep_s // 3600)
            gone = table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
            text += f" files_deleted={len(gone)}"
        table.create_checkpoint()
        return text


def _cast(table: Any, path: str, columns: StructType) -> pa.RecordBatchReader:
    """All rows of a table with other types."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(columns, timezone="UTC")
    # Read with another library than the one that writes meanwhile, which cannot do both at once.
    filesystem, root = open_location(path)
    dataset = table.to_pyarrow_dataset(filesystem=pafs.SubTreeFileSystem(root, filesystem))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in dataset.to_batches():
            arrays = [batch.column(field.name).cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())

"""The keys deleted from a table of changes, with their positions, so that a late event cannot restore them.

They are stored in Parquet files next to the table. Each micro-batch has its own directory, which is written before
the table is committed. A file of an uncommitted batch does no harm, because the batch is repeated with the same
deletes.
"""

from __future__ import annotations

import posixpath
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow.fs as pafs  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.pipeline.lake import BatchKey
from orbitmq.pipeline.times import duration_s
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.store.files import open_location

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from orbitmq.pipeline.spec import DeltaSink, IcebergSink

_DEFAULT_MEMORY_S: Final = 7 * 24 * 3600.0

_FILES_MAX: Final = 64
_KEPT_AT: Final = "_kept_at"

__all__ = ["DIRECTORY", "DeletedKeys"]

DIRECTORY: Final = "_orbitmq_deleted"
"""Readers of Delta skip names with an underscore, and Iceberg reads only the files named in its metadata."""


class DeletedKeys:
    """Stores deleted keys and the last truncate for ``keep_s`` seconds."""

    def __init__(self, table: str, keys: list[str], keep_s: float, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._location = f"{table.removesuffix('/')}/{DIRECTORY}"
        self._columns = list(dict.fromkeys(key.split(".")[0] for key in keys))
        self._keep_s = keep_s
        self._clock = clock

    @classmethod
    def of(cls, sink: DeltaSink | IcebergSink, table: str) -> DeletedKeys:
        """Returns the deleted keys of a sink's table."""
        memory = duration_s(sink.remember_deletes) if sink.remember_deletes else _DEFAULT_MEMORY_S
        keys = [sink.key] if isinstance(sink.key, str) else list(sink.key)
        return cls(table, keys, memory)

    def read(self, session: SparkSession, columns: StructType, batch: BatchKey) -> DataFrame:
        """Returns the keys with ``_position`` and ``_changed_at``. Truncates have null keys. Keys of ``batch`` are
        left out, because its file may be written during the read."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType, StructType, TimestampType

        schema = StructType([one for one in columns.fields if one.name in self._columns])
        schema = schema.add("_position", StringType()).add("_changed_at", TimestampType())
        files = self._files(f"/{batch.query}/{batch.number}/")
        if not files:
            return session.createDataFrame([], schema)
        found = session.read.schema(schema.add(_KEPT_AT, TimestampType())).parquet(*files)
        return found.where(f.col(_KEPT_AT) >= self._oldest()).drop(_KEPT_AT)

    def _oldest(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000 - self._keep_s, UTC)

    def _files(self, without: str) -> list[str]:
        filesystem, root = open_location(self._location)
        oldest_ns = (self._clock.now_ms() - self._keep_s * 1000) * 1_000_000
        found = filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
        return [
            f"{self._location}/{posixpath.relpath(one.path, root)}"
            for one in found
            if one.base_name.endswith(".parquet")
            and without not in one.path
            and (one.mtime_ns or 0) >= oldest_ns
        ]

    def write(self, deleted: DataFrame, batch: BatchKey) -> None:
        """Stores the keys that a batch deletes."""
        self._write(deleted.withColumn(_KEPT_AT, self._now()), f"{batch.query}/{batch.number}")

    def _now(self) -> Column:
        from pyspark.sql import functions as f

        return f.lit(datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC))

    def _write(self, rows: DataFrame, below: str) -> None:
        chosen = rows.select(*[f"`{name}`" for name in self._columns], "_position", "_changed_at", _KEPT_AT)
        chosen.coalesce(1).write.mode("overwrite").parquet(f"{self._location}/{below}")

    def join(self, session: SparkSession, columns: StructType, batch: BatchKey) -> None:
        """Merges many files into one, so that a batch opens only a few. Skips the file of ``batch``, which may be
        written again.

        The old files are deleted after the new one is complete, so a crash in between only duplicates rows, which
        does no harm.
        """
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType, StructType, TimestampType

        files = self._files(f"/{batch.query}/{batch.number}/")
        if len(files) <= _FILES_MAX:
            return
        schema = StructType([one for one in columns.fields if one.name in self._columns])
        schema = schema.add("_position", StringType()).add("_changed_at", TimestampType())
        found = session.read.schema(schema.add(_KEPT_AT, TimestampType())).parquet(*files)
        self._write(found.where(f.col(_KEPT_AT) >= self._oldest()), f"joined/{uuid.uuid4().hex}")
        for file in files:
            filesystem, path = open_location(file)
            filesystem.delete_file(path)

    def forget(self) -> int:
        """Deletes expired files and returns their number."""
        filesystem, root = open_location(self._location)
        oldest_ns = (self._clock.now_ms() - self._keep_s * 1000) * 1_000_000
        found = filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
        old = [
            one.path for one in found if one.type == pafs.FileType.File and (one.mtime_ns or 0) < oldest_ns
        ]
        for path in old:
            filesystem.delete_file(path)
        return len(old)

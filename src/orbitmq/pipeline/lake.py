"""Shared parts of the lake tables: Spark writes files, and a commit adds them to the table.

Spark's executors write the rows of a micro-batch as Parquet files that do not belong to a table yet. The driver then
makes one commit that adds the files *and* records the batch number under the id of the query. If Spark repeats a
batch after a crash, it either finds the number and does nothing, or finds files without a commit and writes them
again.
"""

from __future__ import annotations

import logging
import math
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow.fs as pafs  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # as above

from orbitmq.pipeline.times import duration_s
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.errors import RunFailed
from orbitmq.spark.store.files import open_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from orbitmq.pipeline.spec import DeltaSink, IcebergSink

__all__ = [
    "BatchKey",
    "Bounds",
    "Maintenance",
    "WrittenFile",
    "column_bounds",
    "newest_rows",
    "write_files",
    "written_files",
]

logger = logging.getLogger(__name__)

_BOUNDED_COLUMNS: Final = 32
"""As many as Delta's own writers include."""
_BOUND_LENGTH_MAX: Final = 64
_NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_STORED: Final = ("_store_timestamp", "store_timestamp")
_OFFSETS: Final = ("_queue_offset", "queue_offset")


@dataclass(frozen=True, slots=True)
class BatchKey:
    """Identifies a micro-batch by the id of its query, which a checkpoint keeps across restarts, and its number."""

    query: str
    number: int


class Bounds(NamedTuple):
    """The bounds of a file's columns: minimum and maximum as JSON, and the number of nulls."""

    low: dict[str, int | float | str]
    high: dict[str, int | float | str]
    nulls: dict[str, int]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file written by Spark that does not belong to a table yet."""

    path: str
    """Relative to the directory it was requested for."""
    size_bytes: int
    modified_ms: int
    row_count: int
    partition: tuple[tuple[str, str | None], ...]
    bounds: Bounds


def written_files(directory: str) -> list[WrittenFile]:
    """Returns the non-empty files below a directory."""
    filesystem, root = open_location(directory)
    found: list[WrittenFile] = []
    for info in filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True)):
        if info.type != pafs.FileType.File or not info.base_name.endswith(".parquet"):
            continue
        footer = pq.read_metadata(info.path, filesystem=filesystem)
        path = posixpath.relpath(info.path, root)
        pairs = [part.partition("=") for part in posixpath.dirname(path).split("/") if "=" in part]
        partition = tuple(
            (name, None if value == _NULL_PARTITION else unquote(value)) for name, _, value in pairs
        )
        modified_ms = (info.mtime_ns or 0) // 1_000_000
        if footer.num_rows:
            found.append(
                WrittenFile(path, info.size, modified_ms, footer.num_rows, partition, column_bounds(footer))
            )
    return sorted(found, key=lambda one: one.path)


def column_bounds(footer: Any) -> Bounds:
    """Returns the bounds of a file's first columns, read from its Parquet footer. Only top-level numbers, short
    texts, dates and times have bounds, so readers do not skip files by other columns."""
    bounds = Bounds({}, {}, {})
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for index in range(min(footer.num_columns, _BOUNDED_COLUMNS)):
        name = footer.schema.column(index).path
        if footer.schema.column(index).max_repetition_level or "." in name:
            continue
        found = [group.column(index).statistics for group in groups]
        if not all(one is not None and one.has_null_count for one in found):
            continue
        bounds.nulls[name] = sum(one.null_count for one in found)
        filled = [one for one in found if one.num_values]
        if not filled or not all(one.has_min_max for one in filled):
            continue
        low = _bound(min(one.min for one in filled), up=False)
        high = _bound(max(one.max for one in filled), up=True)
        if low is not None and high is not None:
            bounds.low[name], bounds.high[name] = low, high
    return bounds


def _bound(value: object, *, up: bool) -> int | float | str | None:
    """Returns a bound in the form of Delta's protocol, in which times have milliseconds, or None for types without a
    bound."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str):
        return value if len(value) <= _BOUND_LENGTH_MAX else None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        if up and value.microsecond % 1000:
            value += timedelta(milliseconds=1)
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else None


def write_files(
    frame: DataFrame, directory: str, partition_by: list[str], compression: str = "zstd"
) -> list[WrittenFile]:
    """Makes Spark write the rows below a directory, and returns the written files."""
    # Spark's default is INT96, which Iceberg does not support.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # Overwrite the files of an earlier attempt at this batch that was not committed.
    writer = frame.write.mode("overwrite").option("compression", compression)
    writer.partitionBy(*partition_by).parquet(directory)
    return written_files(directory)


# -- upsert --------------------------------------------------------------------------------------------


def newest_column(columns: list[str], sink: DeltaSink | IcebergSink) -> str:
    """Returns the column whose maximum marks the newest row, or an empty text if there is none."""
    if sink.newest_by:
        if sink.newest_by not in columns:
            raise RunFailed(f"newestBy: there is no column {sink.newest_by!r} among {', '.join(columns)}")
        return sink.newest_by
    return next((name for name in _STORED if name in columns), "")


def newest_rows(frame: DataFrame, sink: DeltaSink | IcebergSink, rows_max: int | None) -> Any:
    """Returns the newest row of each key as an Arrow table, or None if there are more than ``rows_max`` rows.

    Raises ``RunFailed`` for a row without a key.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    key = sink.key
    assert isinstance(key, str), "several columns are for the executors"
    if key not in frame.columns:
        raise RunFailed(f"key: there is no column {key!r} among {', '.join(frame.columns)}")
    order = [newest_column(frame.columns, sink), *(name for name in _OFFSETS if name in frame.columns)]
    by = [f.col(name).desc_nulls_last() for name in order if name] or [f.monotonically_increasing_id().desc()]
    window = Window.partitionBy(key).orderBy(*by)
    newest = frame.withColumn("_orbitmq_place", f.row_number().over(window)).where("_orbitmq_place = 1")
    if rows_max is not None:
        newest = newest.limit(rows_max + 1)
    table = newest.drop("_orbitmq_place").toArrow()
    if table.column(key).null_count:
        raise RunFailed(
            f"a row has no {key!r}, which is the key of the table: reject such rows in a quality step, or with "
            "--dead-letter"
        )
    return None if rows_max is not None and table.num_rows > rows_max else table


# -- maintenance ---------------------------------------------------------------------------------------


class Maintenance:
    """Runs compaction and the deletion of old versions on the driver, between two batches."""

    def __init__(self, sink: DeltaSink | IcebergSink, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._every_s = duration_s(sink.compact_every) if sink.compact_every else None
        self.keep_s = duration_s(sink.keep_versions) if sink.keep_versions else None
        self._last = clock.monotonic()

    def after_batch(self, work: Callable[[], str]) -> None:
        """Runs maintenance if it is due. A failure is only a warning, because the table stays intact."""
        if self._every_s is None or self._clock.monotonic() - self._last < self._every_s:
            return
        self._last = self._clock.monotonic()
        try:
            logger.info("table compacted %s", work())
        except Exception as error:  # noqa: BLE001  # of a library; the next batch tries again when it is time
            logger.warning("table not compacted error=%s", error)

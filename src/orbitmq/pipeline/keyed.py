"""Replaces rows by key on the executors: Spark finds the files that contain the keys and writes new ones.

No row passes through the driver, which only handles the files and their bounds. It makes one commit that removes some
files and adds others. If files of the commit were replaced meanwhile, for example by ``pipeline maintain``, the
commit is rejected, and the caller plans again from the newest version.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from orbitmq.pipeline.changes import RESERVED, Changes, batch_facts, data_fields, table_columns
from orbitmq.pipeline.deleted import DeletedKeys
from orbitmq.pipeline.evolution import align
from orbitmq.pipeline.lake import BatchKey, WrittenFile, newest_column, write_files
from orbitmq.spark.errors import RunFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from orbitmq.pipeline.spec import DeltaSink, IcebergSink

__all__ = [
    "ATTEMPTS",
    "BATCH_ROWS_MAX",
    "LiveFile",
    "Rewrite",
    "aligned",
    "incoming_columns",
    "key_names",
    "may_use_driver",
    "replace_rows",
]

ATTEMPTS: Final = 5
"""How often a batch is planned again because its files were replaced meanwhile."""
BATCH_ROWS_MAX: Final = 200_000
"""The most rows of a batch that may pass through the driver."""

_FILE_BYTES: Final = 128 * 1024 * 1024
_GROUPS_MAX: Final = 2000
_PLACE: Final = "_orbitmq_file"
_ORDER: Final = ("_store_timestamp", "store_timestamp", "_queue_offset", "queue_offset")


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of the table version to rewrite."""

    location: str
    """A path that Spark can open."""
    size_bytes: int
    low: Any
    """Bounds of the first key column; None if unknown."""
    high: Any
    token: Any
    """What the table's library needs to remove the file."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A pending commit, with the files already written and the files they replace."""

    removed: Sequence[LiveFile]
    added: Sequence[WrittenFile]
    rows: int
    """Number of rows in the batch."""


def key_names(sink: DeltaSink | IcebergSink) -> list[str]:
    """Returns the key columns of a sink; empty for a table without a key."""
    return [sink.key] if isinstance(sink.key, str) and sink.key else list(sink.key)


def _column(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col(".".join(f"`{part}`" for part in name.split(".")))


def may_use_driver(sink: DeltaSink | IcebergSink, table_bytes: int, bytes_max: int) -> bool:
    """Returns whether the table's library merges a batch in the driver instead of the executors, which costs less for
    small tables."""
    if sink.scd or not isinstance(sink.key, str) or "." in sink.key or sink.merge == "executors":
        return False
    return sink.merge == "driver" or table_bytes <= bytes_max


def incoming_columns(frame: DataFrame, sink: DeltaSink | IcebergSink) -> StructType:
    """Returns the columns that a table needs for these rows."""
    return table_columns(frame.schema, sink.scd) if sink.scd else frame.schema


def aligned(frame: DataFrame, columns: StructType, sink: DeltaSink | IcebergSink) -> DataFrame:
    """Returns the rows with the columns of the table. Events also keep their own columns."""
    if not sink.scd:
        return align(frame, columns)
    from pyspark.sql import functions as f

    data = [f.col(f"`{one.name}`").cast(one.dataType).alias(one.name) for one in data_fields(columns)]
    return frame.select(*data, *[name for name in frame.columns if name in RESERVED])


@dataclass(frozen=True, slots=True)
class _Job:
    """One attempt to write a micro-batch."""

    sink: DeltaSink | IcebergSink
    table: str
    columns: StructType
    batch: BatchKey

    @property
    def keys(self) -> list[str]:
        return key_names(self.sink)

    @property
    def deleted(self) -> DeletedKeys:
        return DeletedKeys.of(self.sink, self.table)


def replace_rows(
    frame: DataFrame,
    columns: StructType,
    sink: DeltaSink | IcebergSink,
    table: str,
    batch: BatchKey,
    live: Sequence[LiveFile],
) -> Rewrite | None:
    """Writes replacements for the files that contain the batch's keys. Returns the pending commit, or None if the
    batch has no rows.

    ``live`` are the files of the newest version. Raises ``RunFailed`` for rows or events that cannot be written.
    """
    job = _Job(sink, table, columns, batch)
    frame = frame.persist()
    try:
        return _changed(frame, job, live) if sink.scd else _upserted(frame, job, live)
    finally:
        frame.unpersist()


# -- plain upserts -------------------------------------------------------------------------------------


def _upserted(frame: DataFrame, job: _Job, live: Sequence[LiveFile]) -> Rewrite | None:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    missing = f.greatest(*[_column(name).isNull().cast("int") for name in job.keys], f.lit(0))
    first = _column(job.keys[0])
    facts = frame.agg(
        f.count(f.lit(1)).alias("rows"),
        f.max(missing).alias("missing"),
        f.min(first).alias("low"),
        f.max(first).alias("high"),
    ).collect()[0]
    if not facts["rows"]:
        return None
    if facts["missing"]:
        raise RunFailed(
            f"a row has no {', '.join(map(repr, job.keys))}, which is the key of the table: reject such rows in a "
            "quality step, or with --dead-letter"
        )
    touched, old, rest = _split(frame, job, _within(live, facts["low"], facts["high"]))
    newest = newest_column(frame.columns, job.sink)
    names = [f"`{one.name}`" for one in job.columns.fields]
    rows = frame.select(*names, f.lit(1).alias("_from"))
    if old is not None:
        rows = rows.unionByName(old.select(*names, f.lit(0).alias("_from")))
    # Among equal rows the batch's wins, and within the batch the later message.
    order = [f.col(f"`{newest}`").desc_nulls_last()] if newest else []
    order.append(f.col("_from").desc())
    order += [
        f.col(f"`{name}`").desc_nulls_last() for name in _ORDER if name in frame.columns and name != newest
    ]
    last = Window.partitionBy(*[_column(name) for name in job.keys]).orderBy(*order)
    rows = rows.withColumn("_last", f.row_number().over(last)).where("_last = 1").select(*names)
    return Rewrite(touched, _written(rows, rest, job, touched), int(facts["rows"]))


# -- changes of a database -----------------------------------------------------------------------------


def _changed(frame: DataFrame, job: _Job, live: Sequence[LiveFile]) -> Rewrite | None:
    from pyspark.sql import functions as f

    facts = batch_facts(frame, job.keys, dict(frame.dtypes))
    if not facts.rows:
        return None
    session = frame.sparkSession
    if facts.truncates:
        touched: Sequence[LiveFile] = live
        old, rest = _read(session, job, live), None
    else:
        touched, old, rest = _split(frame, job, _within(live, facts.low, facts.high))
    known = job.deleted.read(session, job.columns, job.batch)
    wanted = _keys(frame.where("_op <> 't'"), job.keys)
    ends = _joined(known, wanted, job.keys, "left_semi")
    tops = _tops(job.keys)
    earlier = (
        known.where(_column(job.keys[0]).isNull()).select("_position", "_changed_at").distinct().collect()
    )
    for position, moment in {(one[0], one[1]) for one in earlier} | set(facts.truncates):
        of_all = frame.where("_op <> 't'").select(*tops)
        if old is not None and (position, moment) in facts.truncates:
            of_all = of_all.unionByName(old.select(*tops))
        end = of_all.distinct().select(
            *tops, f.lit(position).alias("_position"), f.lit(moment).cast("timestamp").alias("_changed_at")
        )
        ends = ends.unionByName(end)
    changes = Changes(job.columns, job.keys, job.sink.scd or 1, missing=job.sink.missing_values, facts=facts)
    final = changes.apply(frame, old, ends).persist()
    try:
        gone = final.where((f.col("_op") == "d") & (f.col("_from") == 1))
        gone = gone.select(*_tops(job.keys), "_position", "_changed_at")
        if facts.truncates:
            nothing = [f.lit(None).cast(job.columns[name].dataType).alias(name) for name in _names(job.keys)]
            mark = frame.where("_op = 't'").select(*nothing, "_position", f.col("_changed_at"))
            gone = gone.unionByName(mark)
        if not gone.isEmpty():
            job.deleted.write(gone, job.batch)
            job.deleted.join(session, job.columns, job.batch)
        rows = final.where("_op <> 'd'").select(*[f"`{one.name}`" for one in job.columns.fields])
        return Rewrite(touched, _written(rows, rest, job, touched), facts.rows)
    finally:
        final.unpersist()


def _names(keys: Sequence[str]) -> list[str]:
    """Returns the top-level columns that contain the keys."""
    return list(dict.fromkeys(key.split(".")[0] for key in keys))


def _tops(keys: Sequence[str]) -> list[str]:
    return [f"`{name}`" for name in _names(keys)]


# -- files ---------------------------------------------------------------------------------------------


def _within(live: Sequence[LiveFile], low: Any, high: Any) -> list[LiveFile]:
    """Returns the files that may contain keys of a batch, according to their bounds."""

    def may_hold(file: LiveFile) -> bool:
        try:
            return file.low is None or file.high is None or not (file.high < low or file.low > high)
        except TypeError:  # a bound in another form than the value, such as a date as text
            return True

    return [file for file in live if may_hold(file)]


def _keys(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    named = [_column(name).alias(f"_key_{number}") for number, name in enumerate(keys)]
    return frame.select(*named).distinct()


def _joined(frame: DataFrame, wanted: DataFrame, keys: Sequence[str], how: str) -> DataFrame:
    condition = None
    for number, name in enumerate(keys):
        term = _column(name) == wanted[f"_key_{number}"]
        condition = term if condition is None else condition & term
    return frame.join(wanted, condition, how)


def _read(session: SparkSession, job: _Job, files: Sequence[LiveFile]) -> DataFrame | None:
    if not files:
        return None
    return session.read.schema(job.columns).parquet(*[file.location for file in files])


def _split(
    frame: DataFrame, job: _Job, candidates: Sequence[LiveFile]
) -> tuple[Sequence[LiveFile], DataFrame | None, DataFrame | None]:
    """Returns the files that contain keys of the batch, the files' rows with these keys, and their other rows. The
    rows are None if there are no such files."""
    from pyspark.sql import functions as f

    if not candidates:
        return (), None, None
    named = frame if "_op" not in frame.columns else frame.where("_op <> 't'")
    wanted = _keys(named, job.keys)
    by_path = {_bare(file.location): file for file in candidates}
    columns = [one for one in job.columns.fields if one.name in _names(job.keys)]
    from pyspark.sql.types import StructType

    session = frame.sparkSession
    places = session.read.schema(StructType(columns)).parquet(*[file.location for file in candidates])
    places = places.withColumn(_PLACE, f.col("_metadata.file_path"))
    found = _joined(places, wanted, job.keys, "left_semi").select(_PLACE).distinct().collect()
    names = [_bare(unquote(row[0])) for row in found]
    if unknown := [name for name in names if name not in by_path]:
        raise RunFailed(f"Spark names a file {unknown[0]} that the table does not have")
    touched = [by_path[name] for name in names]
    if not touched:
        return (), None, None
    read = _read(session, job, touched)
    assert read is not None, "there are files"
    return touched, _joined(read, wanted, job.keys, "left_semi"), _joined(read, wanted, job.keys, "left_anti")


def _bare(location: str) -> str:
    """Returns a path in normal form, because Spark writes file:/x, tables write file:///x or /x, and s3a is s3."""
    scheme, separator, rest = location.partition(":")
    if not separator or "/" in scheme:
        return location
    if scheme == "file":
        return "/" + rest.lstrip("/")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}:{rest}"


def _written(
    rows: DataFrame, rest: DataFrame | None, job: _Job, touched: Sequence[LiveFile]
) -> list[WrittenFile]:
    names = [f"`{one.name}`" for one in job.columns.fields]
    found = rows.select(*names) if rest is None else rows.select(*names).unionByName(rest.select(*names))
    size = sum(file.size_bytes for file in touched)
    count = min(_GROUPS_MAX, max(1, math.ceil(size / _FILE_BYTES)))
    keys = [_column(name) for name in job.keys]
    # Partition by ranges of keys, so that later batches can skip files by their bounds.
    ordered = (
        found.repartitionByRange(count, *keys) if count > 1 else found.coalesce(1)
    ).sortWithinPartitions(*keys)
    return write_files(
        ordered, f"{job.table.removesuffix('/')}/data/{job.batch.query}/{job.batch.number}", []
    )

"""``orbitmq pipeline maintain``: joins small files of tables and deletes old versions while a stream writes to them.

Every commit names the files it replaces. If a stream has replaced one of these files meanwhile, the table's library
rejects the commit, and the rest of the table is planned again. The stream does the same with its commits. No Spark is
needed, because this process reads and writes the files, a few row groups at a time.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow has no types of its own
import pyarrow.dataset as ds  # type: ignore[import-untyped]  # the same
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # the same

from orbitmq.pipeline.deleted import DeletedKeys
from orbitmq.pipeline.lake_iceberg import IcebergTableWriter, drop_unnamed, replace_files, write_hint
from orbitmq.pipeline.plan import check_duration
from orbitmq.pipeline.spec import DeltaSink, IcebergSink
from orbitmq.pipeline.times import duration_s
from orbitmq.spark.errors import EnvironmentFault, RunFailed, SpecError, did_you_mean
from orbitmq.spark.store.files import open_location

if TYPE_CHECKING:
    from orbitmq.pipeline.plan import Plan

__all__ = ["Maintained", "maintain", "maintain_delta", "maintain_iceberg", "sinks_of_plan", "sinks_of_table"]

logger = logging.getLogger(__name__)

_TARGET_BYTES: Final = 128 * 1024 * 1024
_SMALL_BYTES: Final = _TARGET_BYTES // 2
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Maintained:
    """The result of the maintenance of one table."""

    removed: int
    """Number of files that were joined."""
    added: int
    deleted: int
    """Number of deleted files of old versions."""


def sinks_of_plan(plan: Plan, name: str) -> dict[str, DeltaSink | IcebergSink]:
    """Returns the table sinks of a pipeline by name, or only the one called ``name``, with absolute paths. Raises
    ``SpecError``."""
    found: dict[str, DeltaSink | IcebergSink] = {}
    for query in plan.queries:
        if isinstance(query.sink, DeltaSink):
            found[query.name] = msgspec.structs.replace(query.sink, path=plan.located(query.sink.path))
        elif isinstance(query.sink, IcebergSink):
            found[query.name] = query.sink
    if name and name not in found:
        raise SpecError("--sink", f"there is no table sink {name!r}{did_you_mean(name, found)}")
    if not found:
        raise SpecError("sinks", "the pipeline writes no Delta or Iceberg table")
    return {name: found[name]} if name else found


def sinks_of_table(path: str) -> dict[str, DeltaSink | IcebergSink]:
    """Returns the table in a directory, which is a Delta table, or an Iceberg table with its catalog next to it.
    Raises ``EnvironmentFault``."""
    bare = path.removeprefix("file://")
    if not Path(bare, "catalog.db").is_file():
        return {"table": DeltaSink(path=path)}
    from pyiceberg.catalog import load_catalog

    properties = {"type": "sql", "uri": f"sqlite:///{bare}/catalog.db", "warehouse": f"file://{bare}"}
    catalog = load_catalog("default", **properties)
    names = [".".join(table) for space in catalog.list_namespaces() for table in catalog.list_tables(space)]
    return {name: IcebergSink(table=name, properties=properties, location=f"file://{bare}") for name in names}


def maintain(sink: DeltaSink | IcebergSink, keep_versions: str) -> Maintained:
    """Maintains the table of a sink. ``keep_versions`` (``7 days``) overrides the sink's setting. Raises
    ``PipelineError``."""
    keep = keep_versions or sink.keep_versions
    check_duration(keep, "--keep-versions")
    keep_s = duration_s(keep) if keep else None
    if isinstance(sink, DeltaSink):
        return maintain_delta(sink, sink.path, keep_s)
    return maintain_iceberg(sink, keep_s)


def maintain_delta(sink: DeltaSink, path: str, keep_s: float | None = None) -> Maintained:
    """Joins the small files of a Delta table. With ``keep_s``, also deletes files of versions older than that many
    seconds.

    Raises ``PipelineError``.
    """
    try:
        import deltalake
        from deltalake.exceptions import CommitFailedError
    except ImportError:
        raise EnvironmentFault("Delta tables need deltalake: pip install 'orbitmq[lake]'") from None
    options = dict(sink.options) or None
    if not deltalake.DeltaTable.is_deltatable(path, options):
        raise EnvironmentFault(f"there is no Delta table at {path}")
    for attempt in range(_ATTEMPTS):
        table = deltalake.DeltaTable(path, storage_options=options)
        try:
            found = table.optimize.compact(target_size=_TARGET_BYTES)
        except CommitFailedError as error:
            logger.warning("commit conflict, replanned attempt=%d error=%s", attempt + 1, error)
            continue
        gone = 0
        if keep_s is not None:
            # Whole hours, rounded up, because younger files must stay.
            hours = -int(-keep_s // 3600)
            gone = len(table.vacuum(hours, dry_run=False, enforce_retention_duration=False))
            _forget(sink, path)
        table.create_checkpoint()
        return Maintained(int(found["numFilesRemoved"]), int(found["numFilesAdded"]), gone)
    raise _refused(path)


def maintain_iceberg(sink: IcebergSink, keep_s: float | None = None) -> Maintained:
    """Like ``maintain_delta``, for an Iceberg table."""
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException

    writer = IcebergTableWriter(sink)
    try:
        table = writer.catalog.load_table(sink.table)
    except NoSuchTableError:
        raise EnvironmentFault(f"there is no table {sink.table} in catalog {sink.catalog!r}") from None
    removed = added = 0
    refused = 0
    while (group := next(_groups(table), None)) is not None:
        path = _joined(table, group)
        try:
            replace_files(table, group, [path], {})
        except (CommitFailedException, ValidationException) as error:
            filesystem, place = open_location(path)
            filesystem.delete_file(place)
            refused += 1
            logger.warning("commit conflict, replanned attempt=%d error=%s", refused, error)
            if refused == _ATTEMPTS:
                raise _refused(sink.table) from error
        else:
            removed, added = removed + len(group), added + 1
        table.refresh()
    gone = 0
    if keep_s is not None:
        limit = datetime.now(UTC) - timedelta(seconds=keep_s)
        table.maintenance.expire_snapshots().older_than(limit).commit()
        table.refresh()
        gone = drop_unnamed(table, limit)
        _forget(sink, table.location())
    if sink.location:
        write_hint(table)
    return Maintained(removed, added, gone)


def _refused(name: str) -> RunFailed:
    return RunFailed(
        f"table {name}: a stream replaced the files that were being joined {_ATTEMPTS} times. The table is whole. "
        "Run this again, or while the stream has less to write"
    )


def _forget(sink: DeltaSink | IcebergSink, path: str) -> None:
    if sink.scd:
        DeletedKeys.of(sink, path).forget()


def _groups(table: Any) -> Iterator[list[Any]]:
    """Yields groups of small files to be joined. The files of a group are in one partition, and neighbours in the
    order of their first bound."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for task in table.scan().plan_files():
        file = task.file
        if not task.delete_files and file.file_size_in_bytes < _SMALL_BYTES:
            parts = tuple(file.partition[index] for index in range(len(table.spec().fields)))
            groups.setdefault((file.spec_id, *parts), []).append(file)
    for files in groups.values():
        files.sort(key=lambda file: (file.lower_bounds or {}).get(1, b""))
        chosen: list[Any] = []
        size = 0
        for file in files:
            if chosen and size + file.file_size_in_bytes > _TARGET_BYTES:
                if len(chosen) > 1:
                    yield chosen
                chosen, size = [], 0
            chosen.append(file)
            size += file.file_size_in_bytes
        if len(chosen) > 1:
            yield chosen


def _joined(table: Any, files: list[Any]) -> str:
    """Writes the rows of some files to one new file, and returns its path."""
    schema = _file_schema(table)
    places = [open_location(file.file_path) for file in files]
    path = f"{table.location().removesuffix('/')}/data/joined/{uuid.uuid4().hex}.parquet"
    filesystem, place = open_location(path)
    filesystem.create_dir(place.rpartition("/")[0], recursive=True)
    with pq.ParquetWriter(place, schema, filesystem=filesystem, compression="zstd") as target:
        for source, name in places:
            content = ds.dataset(name, filesystem=source, format="parquet")
            present = set(content.schema.names)
            for batch in content.to_batches(columns=[one.name for one in schema if one.name in present]):
                columns = [
                    batch.column(one.name).cast(one.type)
                    if one.name in present
                    else pa.nulls(batch.num_rows, one.type)
                    for one in schema
                ]
                target.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return path


def _file_schema(table: Any) -> pa.Schema:
    """Returns the table's columns without field ids, because our files are read by column name."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    found = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return pa.schema([pa.field(one.name, one.type) for one in found])

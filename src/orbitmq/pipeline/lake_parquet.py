"""Plain Parquet files, of which any reader sees only complete batches, each exactly once.

Spark writes a batch next to the table (``<path>.staging``). A list of its files and their final names commits the
batch. Once the list exists, the files are moved, either immediately or after a crash. Without the list, the batch is
written again.
"""

from __future__ import annotations

import json
import posixpath
from typing import TYPE_CHECKING, Any, Final

import pyarrow.fs as pafs  # type: ignore[import-untyped]  # pyarrow has no types of its own

from orbitmq.pipeline.evolution import align, evolve
from orbitmq.pipeline.lake import BatchKey, write_files
from orbitmq.spark.errors import RunFailed
from orbitmq.spark.store.files import open_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from orbitmq.pipeline.spec import ParquetSink

__all__ = ["ParquetTableWriter"]

_COLUMNS: Final = "_columns.json"
_LISTS_KEPT: Final = 10


class ParquetTableWriter:
    """Commits micro-batches to one directory."""

    def __init__(self, sink: ParquetSink, path: str) -> None:
        self._sink = sink
        self._path = path.rstrip("/")
        self._files, self._root = open_location(self._path)

    def write(self, frame: DataFrame, batch: BatchKey, partition_by: list[str]) -> int:
        """Commits a batch unless it has already been committed. Returns the number of rows added."""
        staging = f"{self._path}.staging/{batch.query}"
        _, staged_root = open_location(staging)
        listed = f"{staged_root}/{batch.number}.json"
        moves: list[tuple[str, str]] | None = self._json(listed)
        rows = 0
        if moves is None:
            frame = self._fitted(frame)
            files = write_files(frame, f"{staging}/{batch.number}", partition_by, self._sink.compression)
            moves = [
                (
                    f"{staged_root}/{batch.number}/{file.path}",
                    posixpath.join(
                        self._root,
                        posixpath.dirname(file.path),
                        f"{batch.query[:8]}-{batch.number:08d}-{number:05d}.parquet",
                    ),
                )
                for number, file in enumerate(files)
            ]
            rows = sum(file.row_count for file in files)
            self._save(listed, moves)
        for source, target in moves:
            if self._exists(source):
                self._files.create_dir(posixpath.dirname(target), recursive=True)
                self._files.move(source, target)
            elif not self._exists(target):
                raise RunFailed(f"{target} is listed in {listed} but missing; was it moved or deleted?")
        self._tidy(staged_root, batch.number)
        return rows

    def _fitted(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql.types import StructType

        known = self._json(f"{self._root}/{_COLUMNS}")
        change = evolve(
            StructType([]) if known is None else StructType.fromJson(known),
            frame.schema,
            f"table {self._path}",
        )
        if change.widened:
            one = change.widened[0]
            raise RunFailed(
                f"table {self._path}: column {one.name!r} becomes {one.dataType.simpleString()}. Plain files cannot "
                "change a type: use delta or iceberg, cast it in a step, or write to a new directory"
            )
        if change.added:
            self._save(f"{self._root}/{_COLUMNS}", change.result.jsonValue())
        return align(frame, change.result)

    def _tidy(self, root: str, number: int) -> None:
        if self._exists(f"{root}/{number}"):
            self._files.delete_dir(f"{root}/{number}")
        old = f"{root}/{number - _LISTS_KEPT}.json"
        if self._exists(old):
            self._files.delete_file(old)

    def _exists(self, path: str) -> bool:
        return bool(self._files.get_file_info(path).type != pafs.FileType.NotFound)

    def _json(self, path: str) -> Any:
        if not self._exists(path):
            return None
        with self._files.open_input_file(path) as file:
            return json.loads(file.read())

    def _save(self, path: str, value: Any) -> None:
        """Writes a file atomically."""
        self._files.create_dir(posixpath.dirname(path), recursive=True)
        with self._files.open_output_stream(f"{path}.unfinished") as file:
            file.write(json.dumps(value).encode())
        self._files.move(f"{path}.unfinished", path)

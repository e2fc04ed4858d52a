"""Tables of a lake as Arrow, for engines that have no reader of their own here.

DuckDB's extensions for Delta and Iceberg come from its own server, not from a package registry. So ``deltalake`` and
``pyiceberg`` resolve a table and hand it over.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_table(form: str, path: Path, topic: str) -> Any:
    """All rows."""
    if form == "delta":
        from deltalake import DeltaTable

        return DeltaTable(str(path)).to_pyarrow_table()
    if form == "iceberg":
        from pyiceberg.table import StaticTable

        # As a reader without the catalog: by the version that the directory itself names.
        version = (path / "metadata" / "version-hint.text").read_text()
        return StaticTable.from_metadata(f"file://{path}/metadata/v{version}.metadata.json").scan().to_arrow()
    import pyarrow.dataset as ds  # type: ignore[import-untyped]  # pyarrow has no types of its own

    files = [str(file) for file in path.rglob("*.parquet")]
    return ds.dataset(files, format="parquet").to_table()


def read_with_spark(spark: SparkSession, form: str, path: Path) -> DataFrame:
    """The files of the newest version, as Spark reads them.

    Spark's own readers of Delta and Iceberg are jars for one version of Spark each, and there is none of Iceberg for
    this one yet. Both kinds of table are written without delete files, so the data files of a version are its rows.
    """
    if form == "parquet":
        return spark.read.parquet(str(path))
    if form == "delta":
        from deltalake import DeltaTable

        files = [uri.removeprefix("file://") for uri in DeltaTable(str(path)).file_uris()]
    else:
        from pyiceberg.table import StaticTable

        version = (path / "metadata" / "version-hint.text").read_text()
        table = StaticTable.from_metadata(f"file://{path}/metadata/v{version}.metadata.json")
        tasks = list(table.scan().plan_files())
        assert not any(task.delete_files for task in tasks)
        files = [task.file.file_path.removeprefix("file://") for task in tasks]
    return spark.read.schema("id bigint, n int, city string").parquet(*files)

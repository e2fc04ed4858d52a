"""Decides how the columns of a table may change between writes, as arithmetic on Spark's types.

1. A column may be added at the end. Existing rows have null in it.
2. A type may become wider: an integer may become a longer one, a float a double, and a decimal may get more digits
   with the same scale.
3. Rows narrower than their column are cast to it.
Anything else (another type, a missing column, a change inside of a struct) stops the writer with an explanation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orbitmq.spark.errors import RunFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = ["Evolution", "align", "evolve"]

_INTEGERS: Final = ("byte", "short", "integer", "long")
_FLOATS: Final = ("float", "double")


@dataclass(frozen=True, slots=True)
class Evolution:
    """The changes that a table needs before the rows fit."""

    added: tuple[StructField, ...]
    widened: tuple[StructField, ...]
    """The fields with their new types."""
    result: StructType
    """The resulting columns of the table, all nullable."""


def evolve(table: StructType, rows: StructType, name: str) -> Evolution:
    """Returns the changes after which the table ``name`` accepts ``rows``. Raises ``RunFailed`` with the violated
    rule."""
    from pyspark.sql.types import StructField, StructType

    known = {field.name.lower(): field for field in table.fields}
    given = {field.name.lower(): field for field in rows.fields}
    if len(given) < len(rows.fields):
        raise RunFailed(f"{name}: the rows have two columns whose names differ only in case")
    missing = [field.name for key, field in known.items() if key not in given]
    if missing:
        raise RunFailed(
            f"{name}: the rows lack column {missing[0]!r}, which the table has. Select it (null AS "
            f"{missing[0]}), or write to a new table"
        )
    added: list[StructField] = []
    widened: list[StructField] = []
    fields: list[StructField] = []
    for key, old in known.items():
        new = given[key].dataType
        if _plain(new) == _plain(old.dataType) or is_wider(old.dataType, new):
            fields.append(StructField(old.name, old.dataType))
        elif is_wider(new, old.dataType):
            fields.append(StructField(old.name, new))
            widened.append(fields[-1])
        else:
            raise RunFailed(
                f"{name}: column {old.name!r} is {old.dataType.simpleString()} in the table and "
                f"{new.simpleString()} in the rows. A column may be added, and a type may become wider (int to "
                "bigint, float to double, more digits of a decimal), nothing else: cast it in a step, or write to a "
                "new table"
            )
    for key, field in given.items():
        if key not in known:
            fields.append(StructField(field.name, field.dataType))
            added.append(fields[-1])
    return Evolution(tuple(added), tuple(widened), StructType(fields))


def is_wider(new: DataType, old: DataType) -> bool:
    """Returns whether ``new`` is wider than ``old``: of the same kind, not equal, and able to represent all its
    values."""
    from pyspark.sql.types import DecimalType

    for ladder in (_INTEGERS, _FLOATS):
        if old.typeName() in ladder and new.typeName() in ladder:
            return ladder.index(new.typeName()) > ladder.index(old.typeName())
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return new.scale == old.scale and new.precision > old.precision
    return False


def _plain(kind: DataType) -> str:
    """Returns a type without nullability and metadata, which a table does not keep."""
    return kind.simpleString().lower()


def align(frame: DataFrame, columns: StructType) -> DataFrame:
    """Returns the rows with exactly these columns, in this order, cast to these types."""
    from pyspark.sql import functions as f

    return frame.select(
        *[f.col(f"`{one.name}`").cast(one.dataType).alias(one.name) for one in columns.fields]
    )

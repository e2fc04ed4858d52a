"""The column changes that a table accepts."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from orbitmq.pipeline.evolution import evolve
from orbitmq.spark.errors import RunFailed


def columns(**types: DataType) -> StructType:
    made = StructType()
    for name, kind in types.items():
        made = made.add(name, kind)
    return made


def test_equal_columns_in_any_order_change_nothing() -> None:
    change = evolve(columns(a=LongType(), b=StringType()), columns(b=StringType(), A=LongType()), "t")
    assert (change.added, change.widened) == ((), ())
    assert change.result.names == ["a", "b"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (IntegerType(), LongType()),
        (ShortType(), IntegerType()),
        (FloatType(), DoubleType()),
        (DecimalType(10, 2), DecimalType(18, 2)),
    ],
)
def test_types_become_wider_and_narrow_rows_fit_wide_columns(old: DataType, new: DataType) -> None:
    change = evolve(columns(a=old), columns(a=new, b=StringType()), "t")
    assert [(one.name, one.dataType) for one in change.widened] == [("a", new)]
    assert [one.name for one in change.added] == ["b"]
    back = evolve(columns(a=new), columns(a=old), "t")
    assert (back.widened, back.result["a"].dataType) == ((), new)


@pytest.mark.parametrize(
    ("table", "rows", "problem"),
    [
        (
            columns(a=LongType()),
            columns(a=StringType()),
            "column 'a' is bigint in the table and string in the rows",
        ),
        (columns(a=LongType()), columns(a=DoubleType()), "nothing else"),
        (columns(a=DecimalType(10, 2)), columns(a=DecimalType(12, 3)), "decimal"),
        (columns(a=LongType(), b=LongType()), columns(a=LongType()), "lack column 'b'"),
        (columns(a=LongType()), columns(a=LongType(), A=LongType()), "differ only in case"),
        (
            columns(a=columns(x=LongType())),
            columns(a=columns(x=LongType(), y=LongType())),
            "column 'a' is struct",
        ),
    ],
)
def test_everything_else_stops_with_a_sentence(table: StructType, rows: StructType, problem: str) -> None:
    with pytest.raises(RunFailed, match=problem):
        evolve(table, rows, "table t")

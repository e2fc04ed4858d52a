"""Applies changes of a database to rows with a key, keeping the current rows (SCD 1) or their history (SCD 2).

This module needs only Spark. It combines the events of a micro-batch with a table's rows for their keys, and returns
the new rows.

Rules
1. Events of a key are ordered by their position in the source, and events with equal positions by their order in the
   topic. In SCD 1 an event older than the table's row for its key changes nothing; in SCD 2 it is inserted into the
   history.
2. A deleted key is kept with its position (``deleted.py``), so that a late event does not restore it.
3. A truncate at position P deletes every key at P.
4. An event without a position (a tombstone, an incremental snapshot of MySQL) comes right after the previous event of
   its key in its queue, or else after the last event that the table has.
5. A value that was not sent because it did not change is taken from the previous event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orbitmq.spark.errors import RunFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec
    from pyspark.sql.types import StructField, StructType

__all__ = [
    "EVENT_COLUMNS",
    "RESERVED",
    "BatchFacts",
    "Changes",
    "batch_facts",
    "data_fields",
    "table_columns",
]

EVENT_COLUMNS: Final = ("_op", "_position", "_changed_at", "_unavailable")
_ORIGIN: Final = ("_topic", "_broker", "_queue_id", "_queue_offset", "_store_timestamp", "decode_error")
_HISTORY: Final = ("_valid_from", "_valid_to", "_end_position")
RESERVED: Final = frozenset({*EVENT_COLUMNS, *_ORIGIN, *_HISTORY})
_ORDER: Final = ("_base", "_from", "_rank", "_moment", "_queue", "_offset")
_TABLE, _BATCH = 0, 1
_BY_TOMBSTONE: Final = "~"
"""Suffix of ``_end_position`` if the version was closed by an event without its own position. Sorts after digits."""
_UNPLACED: Final = "+"
"""Separates a position from the topic position of an event without its own. Sorts before digits."""
_SENT_APART: Final = ("string", "binary", "array", "map", "struct")


def data_fields(columns: StructType) -> list[StructField]:
    """Returns the columns of the database, without those that describe the event, its message or the history."""
    return [one for one in columns.fields if one.name not in RESERVED]


def table_columns(events: StructType, scd: int) -> StructType:
    """Returns the columns that a table of such events needs."""
    from pyspark.sql.types import StringType, StructField, StructType, TimestampType

    found = StructType(data_fields(events)).add(StructField("_position", StringType()))
    if scd == 1:
        return found.add("_changed_at", TimestampType())
    times = found.add("_valid_from", TimestampType()).add("_valid_to", TimestampType())
    return times.add("_end_position", StringType())


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What the driver needs to know about a micro-batch."""

    rows: int
    truncates: list[tuple[str, Any]]
    """Positions and times of the truncates."""
    partial: bool
    """Whether some values were not sent."""
    moved: bool
    """Whether some of these belong to rows whose key changed."""
    low: Any
    high: Any
    """With ``low``, the bounds of the first key column."""


def batch_facts(events: DataFrame, keys: list[str], types: dict[str, str]) -> BatchFacts:
    """Returns the facts about a micro-batch. Raises ``RunFailed`` for events that cannot be applied."""
    from pyspark.sql import functions as f

    is_row = f.col("_op") != "t"
    partial = is_row & (f.size("_unavailable") > 0)
    no_key = is_row & f.greatest(*[_key(name).isNull().cast("int") for name in keys], f.lit(0)).cast(
        "boolean"
    )
    error = f.col("decode_error") if "decode_error" in types else f.lit(None).cast("string")
    found = events.agg(
        f.count(f.lit(1)).alias("rows"),
        f.collect_set(f.when(f.col("_op") == "t", f.struct("_position", "_changed_at"))).alias("truncates"),
        f.coalesce(f.bool_or(partial), f.lit(False)).alias("partial"),
        f.coalesce(f.bool_or(partial & (f.col("_op") == "c")), f.lit(False)).alias("moved"),
        f.min(_key(keys[0])).alias("low"),
        f.max(_key(keys[0])).alias("high"),
        f.coalesce(f.bool_or(no_key & error.isNull()), f.lit(False)).alias("no_key"),
        f.first(error, ignorenulls=True).alias("error"),
    ).collect()[0]
    if found["error"] is not None:
        raise RunFailed(
            f"an event cannot be decoded: {found['error']}. Correct the step, reject such events in a quality "
            "step, or set onError: drop"
        )
    if found["no_key"]:
        raise RunFailed(
            f"an event has no value for the key {', '.join(keys)}: name the columns of the primary key, and let the "
            "key of the message be sent, too"
        )
    return BatchFacts(
        rows=found["rows"],
        truncates=[(one[0], one[1]) for one in found["truncates"]],
        partial=found["partial"],
        moved=found["moved"],
        low=found["low"],
        high=found["high"],
    )


def _key(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col(".".join(f"`{part}`" for part in name.split(".")))


class Changes:
    """Applies the events of one micro-batch."""

    def __init__(
        self, columns: StructType, keys: list[str], scd: int, *, missing: str, facts: BatchFacts
    ) -> None:
        self._columns = columns
        self._data = [one.name for one in data_fields(columns)]
        self._apart = [
            one.name
            for one in data_fields(columns)
            if one.dataType.typeName() in _SENT_APART and one.name not in keys
        ]
        self._keys = keys
        self._scd = scd
        self._missing = missing
        self._facts = facts

    def apply(self, events: DataFrame, old: DataFrame | None, deleted: DataFrame) -> DataFrame:
        """Returns the new rows of these keys, and the deleted keys. For a deleted key, ``_op`` is ``d``, and
        ``_from`` is 1 if this batch deletes it.

        ``deleted`` has the keys, ``_position`` and ``_changed_at`` of earlier deletes and of truncates.
        """
        found = self._events(events).unionByName(self._deleted(deleted), allowMissingColumns=True)
        if old is not None:
            for part in self._old(old):
                found = found.unionByName(part, allowMissingColumns=True)
        placed = self._placed(found)
        if self._facts.partial:
            placed = self._completed(placed)
        return self._present(placed) if self._scd == 1 else self._history(placed)

    # -- events in order -------------------------------------------------------------------------------

    def _event(self, frame: DataFrame, op: Any, place: str, came: int, rank: int) -> DataFrame:
        from pyspark.sql import functions as f

        empty = f.array().cast("array<string>")
        given = frame.columns
        moment = f.unix_micros("_store_timestamp") if came and "_store_timestamp" in given else f.lit(None)
        return frame.select(
            *[f.col(f"`{name}`") for name in self._data],
            (op if op is not None else f.col("_op")).alias("_op"),
            f.col(place).alias("_own"),
            f.col("_changed_at"),
            (f.col("_unavailable") if came else empty).alias("_unavailable"),
            f.lit(came).alias("_from"),
            f.lit(rank).alias("_rank"),
            moment.cast("bigint").alias("_moment"),
            (f.col("_queue_id") if came and "_queue_id" in given else f.lit(0)).cast("int").alias("_queue"),
            (f.col("_queue_offset") if came and "_queue_offset" in given else f.lit(0))
            .cast("bigint")
            .alias("_offset"),
        )

    def _events(self, events: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        found = events.where(f.col("_op") != "t")
        if "_store_timestamp" in events.columns:
            found = found.withColumn("_changed_at", f.coalesce("_changed_at", "_store_timestamp"))
        return self._event(found, None, "_position", _BATCH, 0)

    def _deleted(self, deleted: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return deleted.select(
            *[f.col(f"`{name}`") for name in deleted.columns if name in self._data],
            f.lit("d").alias("_op"),
            f.col("_position").alias("_own"),
            f.col("_changed_at"),
            f.array().cast("array<string>").alias("_unavailable"),
            f.lit(_TABLE).alias("_from"),
            f.lit(0).alias("_rank"),
        )

    def _old(self, old: DataFrame) -> list[DataFrame]:
        from pyspark.sql import functions as f

        if self._scd == 2:
            old = old.withColumn("_changed_at", f.col("_valid_from"))
        parts = [self._event(old, f.lit("o"), "_position", _TABLE, 1)]
        if self._scd == 2:
            ended = old.where(f.col("_end_position").isNotNull()).withColumn(
                "_changed_at", f.col("_valid_to")
            )
            by_tombstone = f.col("_end_position").endswith(_BY_TOMBSTONE)
            own = f.rtrim(f.col("_end_position"), f.lit(_BY_TOMBSTONE))
            for rank, frame in ((0, ended.where(~by_tombstone)), (2, ended.where(by_tombstone))):
                parts.append(self._event(frame.withColumn("_end", own), f.lit("d"), "_end", _TABLE, rank))
        return parts

    def _by_key(self) -> WindowSpec:
        from pyspark.sql import Window

        return Window.partitionBy(*[_key(name) for name in self._keys])

    def _placed(self, events: DataFrame) -> DataFrame:
        """Returns the events with ``_base``, the position that orders them (rule 4)."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        own, came = f.col("_own"), f.col("_from")
        so_far = (
            self._by_key()
            .orderBy("_from", "_moment", "_queue", "_offset")
            .rowsBetween(Window.unboundedPreceding, Window.currentRow)
        )
        before = f.last(f.when(came == _BATCH, own), ignorenulls=True).over(so_far)
        known = f.max(f.when(came == _TABLE, own)).over(self._by_key())
        base = f.coalesce(own, before, known, f.lit(""))
        stamp = f.concat(
            f.substring_index(base, _UNPLACED, 1),
            f.lit(_UNPLACED),
            f.lpad(f.coalesce("_moment", f.lit(0)).cast("string"), 20, "0"),
            f.lit("."),
            f.lpad(f.coalesce("_offset", f.lit(0)).cast("string"), 20, "0"),
        )
        unplaced = own.isNull() & (f.col("_op") != "d")
        return events.withColumn("_base", f.when(unplaced, stamp).otherwise(base))

    # -- missing values --------------------------------------------------------------------------------

    def _completed(self, events: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        if self._facts.moved:
            # A changed key is a delete and a create at the same position, so the create takes over the values of the
            # deleted row.
            place = f.substring_index("_own", ".", 1)
            carried = self._carried(events, after_delete=True)
            batch = f.col("_from") == _BATCH
            left = carried.where(batch & (f.col("_op") == "d")).select(
                place.alias("_moved_at"),
                *[f.col(f"`_old_{name}`").alias(f"_left_{name}") for name in self._apart],
            )
            left = left.dropDuplicates(["_moved_at"])
            is_moved = batch & (f.col("_op") == "c") & (f.size("_unavailable") > 0)
            events = events.join(f.broadcast(left), is_moved & (place == f.col("_moved_at")), "left")
            got = f.array_compact(
                f.array(*[f.when(f.col(f"`_left_{name}`").isNotNull(), f.lit(name)) for name in self._apart])
            )
            for name in self._apart:
                wanted = f.array_contains("_unavailable", name) & f.col(f"`_left_{name}`").isNotNull()
                events = events.withColumn(
                    name, f.when(wanted, f.col(f"`_left_{name}`.v")).otherwise(f.col(f"`{name}`"))
                )
            events = events.withColumn("_unavailable", f.array_except("_unavailable", got))
        events = self._carried(events, after_delete=False)
        lost = []
        for name in self._apart:
            wanted, found = f.array_contains("_unavailable", name), f.col(f"`_old_{name}`")
            lost.append(f.when(wanted & found.isNull(), f.lit(name)))
            events = events.withColumn(name, f.when(wanted, found["v"]).otherwise(f.col(f"`{name}`")))
        return events.withColumn("_lost", f.array_compact(f.array(*lost)))

    def _position(self) -> Column:
        """Returns the position of a row that is kept, or raises an error in Spark if a value of the row is missing.
        In an event that came too late, missing values do no harm."""
        from pyspark.sql import functions as f

        if not self._facts.partial or self._missing != "fail":
            return f.col("_base")
        text = f.concat(
            f.lit("column "),
            f.array_join("_lost", ", "),
            f.lit(
                ": the value did not change and was not sent, and the table does not have it. Set REPLICA IDENTITY "
                "FULL for this table, take a snapshot, or set missingValues: empty"
            ),
        )
        lost = (f.col("_op") != "d") & (f.size("_lost") > 0)
        return f.when(lost, f.raise_error(text).cast("string")).otherwise(f.col("_base"))

    def _carried(self, events: DataFrame, *, after_delete: bool) -> DataFrame:
        """Returns the events with the last sent value of each column as ``_old_*``, in a struct so that null counts
        as a value."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        so_far = self._by_key().orderBy(*_ORDER).rowsBetween(Window.unboundedPreceding, Window.currentRow)
        is_row = f.col("_op") != "d"
        # Rows since the last delete are one life of a key. A delete belongs to the life it ends.
        lives = f.coalesce(f.sum((~is_row).cast("int")).over(so_far), f.lit(0))
        events = events.withColumn("_life", lives - (~is_row).cast("int") if after_delete else lives)
        from_here = (
            Window.partitionBy(*[_key(name) for name in self._keys], f.col("_life"))
            .orderBy(*_ORDER)
            .rowsBetween(Window.unboundedPreceding, Window.currentRow)
        )
        for name in self._apart:
            sent = is_row & ~f.array_contains("_unavailable", name)
            value = f.when(sent, f.struct(f.col(f"`{name}`").alias("v")))
            events = events.withColumn(f"_old_{name}", f.last(value, ignorenulls=True).over(from_here))
        return events

    # -- resulting rows --------------------------------------------------------------------------------

    def _present(self, events: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        last = self._by_key().orderBy(*[f.col(name).desc() for name in _ORDER])
        newest = events.withColumn("_last", f.row_number().over(last)).where("_last = 1")
        newest = newest.withColumn("_position", self._position())
        return newest.select(*[f.col(f"`{one.name}`") for one in self._columns.fields], "_op", "_from")

    def _history(self, events: DataFrame) -> DataFrame:
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        keys = [_key(name) for name in self._keys]
        place = Window.partitionBy(*keys, f.col("_base"))
        whole = place.orderBy(*_ORDER).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
        is_end = f.col("_op") == "d"
        # A tombstone has the time of its message, while the delete before it has that of the source.
        best = [f.col("_own").isNull(), *[f.col(one).desc() for one in _ORDER]]
        newest = Window.partitionBy(*keys, f.col("_base"), is_end).orderBy(*best)
        # Keep one version per position. It ends here if the last event of the position is a delete.
        events = (
            events.withColumn("_newest", f.row_number().over(newest))
            .withColumn("_has_row", f.max(~is_end).over(place))
            .withColumn("_ended", f.last("_op").over(whole) == "d")
            .withColumn(
                "_ended_at", f.last(f.when(is_end, f.col("_changed_at")), ignorenulls=True).over(whole)
            )
            .where((f.col("_newest") == 1) & (~is_end | ~f.col("_has_row")))
        )
        in_order = Window.partitionBy(*keys).orderBy("_base")
        following, final = f.lead("_base").over(in_order), f.lead("_base").over(in_order).isNull()
        ended = f.col("_ended") & ~is_end
        versions = (
            events.withColumn(
                "_end", f.when(ended, f.concat("_base", f.lit(_BY_TOMBSTONE))).otherwise(following)
            )
            .withColumn(
                "_until", f.when(ended, f.col("_ended_at")).otherwise(f.lead("_changed_at").over(in_order))
            )
            .withColumn("_final", final)
        )
        # Keep only the last delete of each key, to be recorded.
        kept = versions.where(~is_end | f.col("_final"))
        named = (
            kept.withColumn("_position", self._position())
            .withColumn("_valid_from", f.col("_changed_at"))
            .withColumn("_valid_to", f.col("_until"))
            .withColumn("_end_position", f.col("_end"))
        )
        return named.select(
            *[f.col(f"`{one.name}`") for one in self._columns.fields], "_op", "_from", "_changed_at"
        )

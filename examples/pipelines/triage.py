"""A step of dlq_triage.yaml: finds which group dead-lettered a message, where it came from, and what may be wrong
with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def classify(letters: DataFrame, late_hours: int = 24) -> DataFrame:
    """Adds ``group``, ``origin_topic``, ``origin_id`` and ``reason``; the first matching reason is used."""
    text = f.col("body").cast("string")
    age_hours = (f.unix_timestamp("store_timestamp") - f.unix_timestamp("born_timestamp")) / 3600
    reason = (
        f.when(f.length("body") == 0, "empty body")
        # Already rejected by a pipeline, which recorded the reason.
        .when(
            f.element_at("properties", "reject_rules").isNotNull(), f.element_at("properties", "reject_rules")
        )
        .when(text.rlike(r"^\s*[\[{]") & f.try_parse_json(text).isNull(), "broken JSON")
        .when(f.length("body") > 1024 * 1024, "very large body")
        .when(age_hours > late_hours, f"dead-lettered more than {late_hours} hours after it was sent")
        # Moving to the dead letters counts as an attempt.
        .when(f.col("reconsume_times") <= 1, "sent here at once by its consumer")
        .otherwise("handler failed every time")
    )
    return (
        letters.withColumn("group", f.regexp_replace("topic", "^%DLQ%", ""))
        .withColumn(
            "origin_topic",
            f.coalesce(
                f.element_at("properties", "DLQ_ORIGIN_TOPIC"), f.element_at("properties", "RETRY_TOPIC")
            ),
        )
        .withColumn(
            "origin_id",
            f.coalesce(
                f.element_at("properties", "UNIQ_KEY"),
                f.element_at("properties", "ORIGIN_MESSAGE_ID"),
                f.col("msg_id"),
            ),
        )
        .withColumn("reason", reason)
    )

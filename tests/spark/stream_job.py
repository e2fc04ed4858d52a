"""A program with one streaming query from a topic into Parquet, to be killed and started again.

python -m tests.spark.stream_job NAME_SERVER TOPIC DIRECTORY [once]
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def short_session() -> SparkSession:
    """Spark for a program that lives for seconds."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        # The second compiler would only cost.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -Xshare:auto")
        .getOrCreate()
    )


def main(name_server: str, topic: str, directory: str, once: str = "") -> None:
    spark = short_session()
    rows = (
        spark.readStream.format("rocketmq")
        .schema("queue_id int, queue_offset bigint, msg_id string, body binary")
        .options(namesrvAddr=name_server, topic=topic, startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=5000 if once else 500, minPartitions=3)
        .load()
    )
    writer = rows.writeStream.format("parquet").option("path", f"{directory}/rows")
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    query = (writer.trigger(availableNow=True) if once else writer).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

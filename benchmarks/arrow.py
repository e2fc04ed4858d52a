"""Reads a million messages with ``orbitmq.arrow`` and with our pull consumer, each in a separate process.

``python -m benchmarks.arrow [--rows N] [KIND ...]`` prints elapsed and CPU seconds and peak memory of each reader.
The broker runs in the benchmark's own process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from orbitmq.client import Message
from orbitmq.client.sync import Producer, PullConsumer
from orbitmq.testing import run_broker

TOPIC: Final = "orders"
BODY: Final = b'{"id": %d, "customer": "c%d", "note": "' + b"x" * 60 + b'"}'
BATCH: Final = 500


def fill(name_server: str, rows: int) -> None:
    """Sends messages of about 100 bytes with a key and a tag each, to four queues."""
    with Producer("benchmark", name_server) as producer:
        for first in range(0, rows, BATCH):
            producer.send_batch(
                [
                    Message(topic=TOPIC, body=BODY % (number, number % 997), keys=f"k{number}", tags="A")
                    for number in range(first, min(first + BATCH, rows))
                ]
            )


def _stream(*columns: str) -> Callable[[], int]:
    def read() -> int:
        from orbitmq.arrow import read_topic

        return sum(batch.num_rows for batch in read_topic(TOPIC, columns=columns or None).batches())

    return read


def _duckdb() -> int:
    import duckdb

    from orbitmq.arrow import read_topic

    with duckdb.connect() as connection:
        connection.register("orders", read_topic(TOPIC, columns=["body"]))
        query = "SELECT count(*), sum((decode(body)->>'$.id')::BIGINT) FROM orders"
        [(rows, _)] = connection.execute(query).fetchall()
    return int(rows)


def _polars() -> int:
    import polars as pl

    from orbitmq.arrow import read_topic

    return int(read_topic(TOPIC).polars().select(pl.col("keys").n_unique()).collect().item())


def _pandas() -> int:
    from orbitmq.arrow import read_topic

    return len(read_topic(TOPIC, columns=["queue_offset", "keys", "body"]).pandas())


def _consumer() -> int:
    rows = 0
    with PullConsumer("benchmark", os.environ["ORBITMQ_NAMESRV"]) as consumer:
        for queue in consumer.fetch_queues(TOPIC):
            offset, end = consumer.min_offset(queue), consumer.max_offset(queue)
            while offset < end:
                pulled = consumer.pull(queue, offset, 1024)
                rows += sum(message.body is not None for message in pulled.messages)
                offset = pulled.next_offset
    return rows


READERS: Final[dict[str, Callable[[], int]]] = {
    "all columns": _stream(),
    "offset and body": _stream("queue_offset", "body"),
    "keys": _stream("keys"),
    "duckdb": _duckdb,
    "polars": _polars,
    "pandas": _pandas,
    "pull consumer": _consumer,
}


def measure(kind: str) -> None:
    """Reads once and prints the cost as JSON."""
    begun = time.perf_counter()
    rows = READERS[kind]()
    used = resource.getrusage(resource.RUSAGE_SELF)
    result = {
        "reader": kind,
        "rows": rows,
        "seconds": round(time.perf_counter() - begun, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "peak_mib": used.ru_maxrss // 1024,
    }
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(READERS))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--measure", choices=list(READERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    with run_broker() as broker:
        broker.create_topic(TOPIC, queue_count=4)
        fill(broker.name_server, options.rows)
        for kind in options.kinds or READERS:
            command = [sys.executable, "-m", "benchmarks.arrow", "--measure", kind]
            environment = {**os.environ, "ORBITMQ_NAMESRV": broker.name_server}
            subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()

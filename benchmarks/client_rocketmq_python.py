"""The PyPI package ``rocketmq`` 0.4.4, a binding to the C++ client, under the same load (see ``benchmarks.client``).

    python client_rocketmq_python.py NAME_SERVER TOPIC BODY_BYTES BATCH SECONDS

Prints one JSON object. It starts new groups at the end; the caller sets the offsets of ``bench-pypi-readers`` to 0.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

IN_FLIGHT = 100


def figures(count: int, started: float, cpu: float) -> dict[str, float]:
    count = max(1, count)
    return {
        "messages_per_s": round(count / (time.perf_counter() - started)),
        "cpu_us_per_message": round((time.process_time() - cpu) * 1e6 / count, 2),
    }


def in_threads(thread_count: int, seconds: float, send: Callable[[], int]) -> dict[str, float]:
    counts: list[int] = []
    started, cpu = time.perf_counter(), time.process_time()

    def run() -> None:
        count = 0
        while time.perf_counter() < started + seconds:
            count += send()
        counts.append(count)

    threads = [threading.Thread(target=run) for _ in range(thread_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return figures(sum(counts), started, cpu)


def with_callbacks(
    client: Any, producer: Any, new_message: Callable[[], Any], seconds: float
) -> dict[str, float]:
    """100 on the way; a callback makes room for the next."""
    room = threading.Semaphore(IN_FLIGHT)
    stored = [0]

    def succeeded(result: Any) -> None:
        stored[0] += 1
        room.release()

    started, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() < started + seconds:
        room.acquire()
        producer.send_async(new_message(), succeeded, lambda error: room.release())
    for _ in range(IN_FLIGHT):
        room.acquire(timeout=10)
    return figures(stored[0], started, cpu)


def consumes(client: Any, name_server: str, topic: str, seconds: float) -> dict[str, float]:
    seen = [0]

    def count(message: Any) -> None:
        seen[0] += 1

    consumer = client.PushConsumer("bench-pypi-readers")
    consumer.set_namesrv_addr(name_server)
    consumer.subscribe(topic, count)
    consumer.start()
    deadline = time.perf_counter() + 30
    while not seen[0] and time.perf_counter() < deadline:
        time.sleep(0.01)  # its first rebalance takes its time; that is not counted
    before, started, cpu = seen[0], time.perf_counter(), time.process_time()
    time.sleep(seconds)
    result = figures(seen[0] - before, started, cpu)
    consumer.shutdown()
    return result


def main() -> None:
    # Not a dependency: the benchmark is told where it is installed.
    import importlib

    client: Any = importlib.import_module("rocketmq.client")
    name_server, topic = sys.argv[1:3]
    body, batch, seconds = b"x" * int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    producer = client.Producer("bench-pypi")
    producer.set_namesrv_addr(name_server)
    producer.start()

    def new_message() -> Any:
        message = client.Message(topic)
        message.set_body(body)
        return message

    def single() -> int:
        producer.send_sync(new_message())
        return 1

    def several() -> int:
        producer.send_batch([new_message() for _ in range(batch)])
        return batch

    for _ in range(200):
        single()
    results = {
        "sync": in_threads(1, seconds, single),
        "sync_8_threads": in_threads(8, seconds, single),
        "async_100": with_callbacks(client, producer, new_message, seconds),
        f"batch_{batch}": in_threads(4, seconds, several),
    }
    producer.shutdown()
    results["push"] = consumes(client, name_server, topic, seconds)
    print(json.dumps(results))


if __name__ == "__main__":
    main()

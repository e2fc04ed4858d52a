"""The PyPI package ``rocketmq`` 0.4.4, a binding to the C++ client, under the same load (see ``benchmarks.client``).

    python client_rocketmq_python.py NAME_SERVER TOPIC BODY_BYTES SECONDS

Prints one JSON object. It starts new groups at the end; the caller sets the offsets of ``bench-pypi-readers`` to 0.
Its asynchronous sends cannot be awaited; sends in 8 threads stand for them.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any


def main() -> None:
    # Not a dependency: the benchmark is told where it is installed.
    import importlib

    client: Any = importlib.import_module("rocketmq.client")
    name_server, topic, size, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    body = b"x" * size
    producer = client.Producer("bench-pypi")
    producer.set_namesrv_addr(name_server)
    producer.start()

    def new_message() -> Any:
        message = client.Message(topic)
        message.set_body(body)
        return message

    def send_until(deadline: float, batch_size: int, counts: list[int]) -> None:
        count = 0
        while time.perf_counter() < deadline:
            if batch_size == 1:
                producer.send_sync(new_message())
            else:
                producer.send_batch([new_message() for _ in range(batch_size)])
            count += batch_size
        counts.append(count)

    results: dict[str, dict[str, float]] = {}
    for name, thread_count, batch_size in (("sync", 1, 1), ("sync_8_threads", 8, 1), ("batch_32", 4, 32)):
        counts: list[int] = []
        started, cpu = time.perf_counter(), time.process_time()
        threads = [
            threading.Thread(target=send_until, args=(started + seconds, batch_size, counts))
            for _ in range(thread_count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sent = max(1, sum(counts))
        results[name] = {
            "messages_per_s": round(sent / (time.perf_counter() - started)),
            "cpu_us_per_message": round((time.process_time() - cpu) * 1e6 / sent, 2),
        }
    producer.shutdown()
    seen = [0]

    def count(message: Any) -> None:
        seen[0] += 1

    consumer = client.PushConsumer("bench-pypi-readers")
    consumer.set_namesrv_addr(name_server)
    consumer.subscribe(topic, count)
    consumer.start()
    deadline = time.perf_counter() + 20
    while not seen[0] and time.perf_counter() < deadline:
        time.sleep(0.01)  # its first rebalance takes its time; that is not counted
    before, started, cpu = seen[0], time.perf_counter(), time.process_time()
    time.sleep(seconds)
    got = max(1, seen[0] - before)
    results["push"] = {
        "messages_per_s": round(got / (time.perf_counter() - started)),
        "cpu_us_per_message": round((time.process_time() - cpu) * 1e6 / got, 2),
    }
    consumer.shutdown()
    print(json.dumps(results))


if __name__ == "__main__":
    main()

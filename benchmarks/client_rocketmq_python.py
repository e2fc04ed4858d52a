"""Runs the PyPI package ``rocketmq`` 0.4.4, a binding to the C++ client, under one load of ``benchmarks.client``.

    python client_rocketmq_python.py CASE NAME_SERVER TOPIC BODY_BYTES BATCH COUNTER_FILE

Runs until it is killed and keeps the number of messages completed in the file, as eight bytes, big-endian. The
package starts new groups at the end, so the caller sets the offsets of ``bench-pypi-readers`` to 0.

A queue with more than 1,000 messages in its cache is not pulled for a fixed second, even if the cache empties long
before. With fast handlers a push consumer spends most of its time paused. ``push_plain_no_pause`` raises the limit to
the highest value the client accepts, through a C++ method that the package does not expose.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

IN_FLIGHT: Final = 100
BATCHES_IN_FLIGHT: Final = 4
THREADS: Final = {
    "sync": 1,
    "sync_8_threads": 8,
    "batches": BATCHES_IN_FLIGHT,
    "batches_threads": BATCHES_IN_FLIGHT,
}
CACHE_MAX: Final = 65_534
SLEEP_S: Final = 0.001
WORKERS: Final = 20
"""Threads of the handlers that sleep, as many as ours has by default; by default there are as many as processors."""
_NUMBER: Final = struct.Struct(">q")

parts: list[list[int]] = []
"""Messages done, one number for each thread that counts."""


def publish(path: str) -> None:
    with open(path, "r+b") as file:
        shared = mmap.mmap(file.fileno(), _NUMBER.size)
    while True:
        time.sleep(0.01)
        _NUMBER.pack_into(shared, 0, sum(part[0] for part in parts))


def in_threads(count: int, send: Callable[[], int]) -> None:
    def run() -> None:
        part = [0]
        parts.append(part)
        while True:
            part[0] += send()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def with_callbacks(producer: Any, new_message: Callable[[], Any]) -> None:
    """Keeps 100 sends in flight; each callback makes room for the next."""
    room = threading.Semaphore(IN_FLIGHT)
    part = [0]
    parts.append(part)

    def succeeded(result: Any) -> None:
        part[0] += 1
        room.release()

    while True:
        room.acquire()
        producer.send_async(new_message(), succeeded, lambda error: room.release())


def raise_cache_limit(client: Any, consumer: Any) -> None:
    """Raises the limit of the cache. The handle of the C interface is the address of the C++ consumer."""
    method = client.dll._ZN8rocketmq21DefaultMQPushConsumer26setMaxCacheMsgSizePerQueueEi
    method.argtypes, method.restype = [ctypes.c_void_p, ctypes.c_int], None
    method(consumer._handle, CACHE_MAX)


def consume(client: Any, case: str, name_server: str, topic: str) -> None:
    part = [0]
    parts.append(part)
    local = threading.local()

    def count(message: Any) -> None:
        part[0] += 1

    def sleep(message: Any) -> None:
        time.sleep(SLEEP_S)
        if not hasattr(local, "part"):
            local.part = [0]
            parts.append(local.part)
        local.part[0] += 1

    consumer = client.PushConsumer("bench-pypi-readers")
    consumer.set_namesrv_addr(name_server)
    if case in ("push_sleep", "push_plain_sleep"):
        consumer.set_thread_count(WORKERS)
        consumer.subscribe(topic, sleep)
    else:
        consumer.subscribe(topic, count)
    if case == "push_plain_no_pause":
        raise_cache_limit(client, consumer)
    consumer.start()
    threading.Event().wait()


def main() -> None:
    # Not a dependency: its location is an argument.
    client: Any = importlib.import_module("rocketmq.client")
    case, name_server, topic = sys.argv[1:4]
    body, batch = b"x" * int(sys.argv[4]), int(sys.argv[5])
    threading.Thread(target=publish, args=(sys.argv[6],), daemon=True).start()
    if case.startswith("push"):
        consume(client, case, name_server, topic)
    producer = client.Producer("bench-pypi", timeout=30_000)  # it may be stopped for some seconds
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

    if case == "async_100":
        with_callbacks(producer, new_message)
    else:
        in_threads(THREADS[case], several if case.startswith("batches") else single)


if __name__ == "__main__":
    main()

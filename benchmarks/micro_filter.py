"""Measures the cost of each message that an SQL92 subscription evaluates, without a network: reads of a real store.

    python -m benchmarks.micro_filter

Prints nanoseconds of process CPU per evaluated message (best of several rounds). The messages and expressions are
those of ``benchmarks.filter``; in "every text new" each message has a unique order number.
"""

from __future__ import annotations

import tempfile
import time

from benchmarks.filter import EXPRESSIONS, TOPIC, _properties

from orbitmq.filter import compile_expression
from orbitmq.kernel import Filter
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage

HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
COUNT = 8_000
ROUNDS = 8


def _message(number: int, queue_id: int, *, new_text: bool) -> NewMessage:
    properties = _properties(number) + (b"order\x01%d\x02" % number if new_text else b"")
    return NewMessage(TOPIC, queue_id, b"x" * 100, properties, 1_794_773_001_075, HOST)


def _fill(store: MessageStore, queue_id: int, *, new_text: bool) -> None:
    messages = [_message(number, queue_id, new_text=new_text) for number in range(COUNT)]
    for first in range(0, COUNT, 500):
        store.append_batch(messages[first : first + 500])


def _read_all(store: MessageStore, queue_id: int, wanted: Filter) -> float:
    best = 1e9
    for _ in range(ROUNDS):
        started, offset = time.process_time(), 0
        while offset < COUNT:
            offset = store.read(TOPIC, queue_id, offset, 32, wanted=wanted).next_offset
        best = min(best, (time.process_time() - started) / COUNT * 1e9)
    return best


def measure() -> dict[str, float]:
    """Returns nanoseconds by expression and kind of messages."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="orbitmq-bench-") as root:
        store = MessageStore(StoreConfig(root=root))
        store.open()
        _fill(store, 0, new_text=False)
        _fill(store, 1, new_text=True)
        for name, expression in EXPRESSIONS.items():
            wanted = compile_expression(expression).filter
            figures[name] = _read_all(store, 0, wanted)
            figures[f"{name}, every text new"] = _read_all(store, 1, wanted)
        store.close()
    return figures


def main() -> None:
    for name, ns in measure().items():
        print(f"{name:45} {ns:7.0f} ns/message")


if __name__ == "__main__":
    main()

"""What a message costs that an SQL92 subscription looks at, without a network: reads of a real store.

    python -m benchmarks.micro_filter

Prints nanoseconds of process CPU per message looked at (best of several rounds), with records judged one by one, in
blocks, and by the numbers of their texts (messages that came while somebody read the queue). The messages and
expressions are those of ``benchmarks.filter``; in "every text new" each message has an order number of its own, so
that no answer can be remembered. Last: what noting the numbers adds to an append.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable

from benchmarks.filter import EXPRESSIONS, TOPIC, _properties

from orbitmq.filter import compile_selector
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import NewMessage

HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
COUNT = 8_000
ROUNDS = 8


def _message(number: int, queue_id: int = 0, *, new_text: bool = False) -> NewMessage:
    properties = _properties(number) + (b"order\x01%d\x02" % number if new_text else b"")
    return NewMessage(TOPIC, queue_id, b"x" * 100, properties, 1_794_773_001_075, HOST)


def _fill(store: MessageStore, queue_id: int, *, new_text: bool = False) -> float:
    """Nanoseconds per message."""
    messages = [_message(number, queue_id, new_text=new_text) for number in range(COUNT)]
    started = time.process_time()
    for first in range(0, COUNT, 500):
        store.append_batch(messages[first : first + 500])
    return (time.process_time() - started) / COUNT * 1e9


def _read_all(store: MessageStore, queue_id: int, predicate: Callable[[memoryview], bool]) -> float:
    best = 1e9
    for _ in range(ROUNDS):
        started, offset = time.process_time(), 1
        while offset < COUNT:
            offset = store.read(TOPIC, queue_id, offset, 32, predicate=predicate).next_offset
        best = min(best, (time.process_time() - started) / COUNT * 1e9)
    return best


def measure() -> dict[str, float]:
    """Nanoseconds by expression and way."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="orbitmq-bench-") as root:
        store = MessageStore(StoreConfig(root=root))
        store.open()
        _fill(store, 0)
        _fill(store, 1, new_text=True)
        store.append_batch([_message(0, 2), _message(0, 3)])
        live = compile_selector(EXPRESSIONS["all"])
        store.read(TOPIC, 2, 1, 32, predicate=live)
        with_numbers, without = _fill(store, 2), _fill(store, 3)
        for name, expression in EXPRESSIONS.items():
            selector = compile_selector(expression)
            figures[f"{name}, one by one"] = _read_all(store, 0, selector.matches)
            figures[f"{name}, in blocks"] = _read_all(store, 0, selector)
            figures[f"{name}, in blocks, every text new"] = _read_all(store, 1, selector)
            figures[f"{name}, by number"] = _read_all(store, 2, selector)
        figures["an append of many, numbers noted"] = with_numbers
        figures["an append of many, not noted"] = without
        store.close()
    return figures


def main() -> None:
    for name, ns in measure().items():
        print(f"{name:45} {ns:7.0f} ns/message")


if __name__ == "__main__":
    main()

"""Measures the cost of encoding and decoding a message, in microseconds: run it, or call ``measure`` for the results.

Each result is the CPU time of the best of several rounds, which reduces the influence of other work on the machine.
The message is a typical one: 128 bytes of body, 138 of properties, IPv4 hosts, 363 bytes stored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import process_time

import msgspec

from orbitmq.record.batch import encode_batch, split_batch
from orbitmq.record.codec import decode_record, decode_records, encode_record, encode_records
from orbitmq.record.hashing import java_hash_bytes, tags_code
from orbitmq.record.properties import decode_properties, find_property, set_property
from orbitmq.record.scan import scan

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
NOW_MS = 1_700_000_000_000
PROPERTIES = (
    b"UNIQ_KEY\x017F0000014676C0DEE0B0588B00000001\x02CLUSTER\x01DefaultCluster\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    b"KEYS\x01order-17\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
)
ROUNDS = 5


class Message(msgspec.Struct, gc=False):
    """The input of the store."""

    topic: str = "TopicA"
    queue_id: int = 3
    body: bytes = bytes(range(128))
    properties: bytes = PROPERTIES
    born_timestamp_ms: int = NOW_MS
    born_host: bytes = HOST
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0


def per_call(call: Callable[[], object], *, calls: int, items: int = 1) -> float:
    """Returns microseconds per item, from the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = process_time()
        for _ in range(calls):
            call()
        best = min(best, process_time() - start)
    return best / calls / items * 1e6


def measure(scale: float = 1.0) -> dict[str, float]:
    """Returns microseconds by name. ``scale`` makes the run shorter or longer; 1 takes about three seconds."""
    calls = max(int(20_000 * scale), 10)
    message = Message()
    messages, queue_offsets = [message] * 32, range(32)
    record = encode_record(message, 4, 5, NOW_MS, HOST)
    assert len(record) == 363, "the message every figure is about"
    pulled = record * 32
    segment = record * max(int(5_000 * scale), 32)
    batch = encode_batch([(0, message.body, PROPERTIES)] * 32)

    def walk(check_crc: bool) -> float:
        count = len(segment) // len(record)
        return per_call(
            lambda: sum(1 for _ in scan(segment, 0, len(segment), check_crc=check_crc)), calls=1, items=count
        )

    return {
        "encode one": per_call(lambda: encode_record(message, 4, 5, NOW_MS, HOST), calls=calls),
        "encode of 32": per_call(
            lambda: encode_records(messages, queue_offsets, 5, NOW_MS, HOST), calls=calls // 10, items=32
        ),
        "decode one": per_call(lambda: decode_record(record), calls=calls),
        "decode of 32": per_call(lambda: decode_records(pulled), calls=calls // 10, items=32),
        "scan with CRC": walk(True),
        "scan without CRC": walk(False),
        "split batch of 32": per_call(lambda: split_batch(batch), calls=calls // 10, items=32),
        "find property": per_call(lambda: find_property(PROPERTIES, b"TAGS"), calls=calls),
        "find property, absent": per_call(lambda: find_property(PROPERTIES, b"DELAY"), calls=calls),
        "set property": per_call(
            lambda: set_property(PROPERTIES, b"MSG_REGION", b"DefaultRegion"), calls=calls
        ),
        "decode properties": per_call(lambda: decode_properties(PROPERTIES), calls=calls),
        "tag code, memoised": per_call(lambda: tags_code(b"TagA"), calls=calls),
        "hash of 40 characters": per_call(
            lambda: java_hash_bytes(b"TopicAA#7F0000014676C0DEE0B0588B00000001"), calls=calls
        ),
    }


def main() -> None:
    """Prints the table."""
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    for name, microseconds in measure(scale).items():
        print(f"{name:24} {microseconds:8.3f} us")


if __name__ == "__main__":
    main()

"""Measures the CPU of the broker's send and pull paths without a network: frames in, replies out, real store on disk.

    python -m benchmarks.micro_broker [--profile]

Prints microseconds of process CPU per message. The operating system's share for the sockets is not included.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import random
import tempfile
import time
from collections.abc import Callable
from typing import Any

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.codes import SerializeType
from orbitmq.record.batch import encode_batch
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.store.config import StoreConfig
from orbitmq.transport.connection import Connection, ConnectionLimits
from orbitmq.wire.frame import encode_request

BODY = b"x" * 128
TOPIC = "BenchmarkTest"
GROUP = "benchmark_consumer"
PIPELINE = 64
CONNECTIONS = 64
BATCH = 32


class Sink:
    """A transport that discards all writes."""

    def __init__(self) -> None:
        self.written_bytes = 0

    def write(self, data: bytes) -> None:
        self.written_bytes += len(data)

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 50000) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass


def send_fields(number: int, *, batch: bool) -> dict[str, str]:
    return {
        "a": "benchmark_producer",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": str(number % 8),
        "f": "0",
        "g": "1794773001075",
        "h": "0",
        "i": f"UNIQ_KEY\x017F0000014676C0DEE0B0{number:012X}\x02WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "true" if batch else "false",
        "n": "broker-a",
    }


def send_chunks(form: SerializeType) -> list[bytes]:
    """Socket reads of 64 pipelined single sends."""
    return [
        b"".join(
            encode_request(310, i, send_fields(c * PIPELINE + i, batch=False), BODY, form)
            for i in range(PIPELINE)
        )
        for c in range(16)
    ]


def differing_chunks(form: SerializeType, *, keyed: bool) -> list[bytes]:
    """The same with unique keys of 56 characters (a host with IPv6). ``keyed``: KEYS, TAGS, a property and sizes
    differ."""
    rng = random.Random(1)
    chunks = []
    for c in range(16):
        frames = []
        for i in range(PIPELINE):
            number = c * PIPELINE + i
            properties = f"UNIQ_KEY\x01{number:056X}\x02WAIT\x01true\x02"
            body = BODY
            if keyed:
                own = f"TAGS\x01t{number % 7}\x02p\x01v{rng.randrange(10**6)}\x02"
                properties = f"KEYS\x01k{number}\x02{properties}{own}"
                body = b"x" * rng.randrange(50, 500)
            frames.append(
                encode_request(310, i, send_fields(number, batch=False) | {"i": properties}, body, form)
            )
        chunks.append(b"".join(frames))
    return chunks


def large_chunks(form: SerializeType) -> list[bytes]:
    """Socket reads of 64 sends of 1 KiB."""
    return [
        b"".join(
            encode_request(310, i, send_fields(c * PIPELINE + i, batch=False), b"x" * 1024, form)
            for i in range(PIPELINE)
        )
        for c in range(16)
    ]


def lone_chunks(form: SerializeType) -> list[bytes]:
    """Socket reads of one send; each is passed to all connections."""
    return [encode_request(310, c, send_fields(c, batch=False), BODY, form) for c in range(16)]


def batch_chunks(form: SerializeType) -> list[bytes]:
    """Socket reads of one batch of 32."""
    chunks = []
    for c in range(64):
        body = encode_batch(
            (0, BODY, f"UNIQ_KEY\x017F0000014676C0DEE0B0{c * BATCH + i:012X}\x02WAIT\x01true\x02".encode())
            for i in range(BATCH)
        )
        chunks.append(encode_request(320, c, send_fields(c, batch=True), body, form))
    return chunks


def heartbeat(form: SerializeType) -> bytes:
    """A push consumer registers its subscription."""
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": GROUP,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [{"subString": "*", "topic": TOPIC}],
        "unitMode": False,
    }
    body = {"clientID": "127.0.0.1@1", "consumerDataSet": [consumer], "producerDataSet": []}
    return encode_request(34, 1, {}, json.dumps(body).encode(), form)


def push_chunks(form: SerializeType, limit: int, per_read: int) -> list[bytes]:
    """Socket reads of ``per_read`` pulls of 32, with the fields of the Java push consumer over a backlog: it has
    registered its subscription in a heartbeat, and each pull commits an offset.
    """
    pulls: list[bytes] = []
    for offset in range(0, limit, 32):
        for queue_id in range(8):
            fields = {
                "consumerGroup": GROUP,
                "topic": TOPIC,
                "queueId": str(queue_id),
                "queueOffset": str(offset),
                "maxMsgNums": "32",
                "sysFlag": "3",
                "commitOffset": "0",
                "suspendTimeoutMillis": "15000",
                "subVersion": "0",
                "expressionType": "TAG",
                "maxMsgBytes": "262144",
                "bname": "broker-a",
            }
            pulls.append(encode_request(11, len(pulls), fields, b"", form))
    # Whole reads, so that each counts for the same number of messages.
    return [b"".join(pulls[at : at + per_read]) for at in range(0, len(pulls) - per_read + 1, per_read)]


def pull_chunks(form: SerializeType, limit: int) -> list[bytes]:
    """Socket reads of one pull of 32 from each of 8 queues, advancing with each read."""
    chunks = []
    for offset in range(0, limit, 32):
        for queue_id in range(8):
            fields = {
                "consumerGroup": GROUP,
                "topic": TOPIC,
                "queueId": str(queue_id),
                "queueOffset": str(offset),
                "maxMsgNums": "32",
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "15000",
                "subscription": "*",
                "subVersion": "0",
                "expressionType": "TAG",
                "maxMsgBytes": "262144",
            }
            chunks.append(encode_request(11, 1, fields, b"", form))
    return chunks


def _measure(
    name: str, feed: Callable[[bytes], None], chunks: list[bytes], per_chunk: int, rounds: int
) -> float:
    for chunk in chunks[: max(1, len(chunks) // 4)]:
        feed(chunk)
    started = time.process_time()
    for _ in range(rounds):
        for chunk in chunks:
            feed(chunk)
    return (time.process_time() - started) / (rounds * len(chunks) * per_chunk) * 1e6


async def measure() -> dict[str, float]:
    """Returns microseconds of CPU per message, by path."""
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory:
        config = BrokerConfig(listen_port=0, bind_host="127.0.0.1", public_host="127.0.0.1")
        async with Broker(config, StoreConfig(root=directory)) as broker:
            router = broker.main_router
            tasks = TaskOwner("bench")
            # The loop does not turn between reads here, so a connection must not wait for its next turn.
            connection = Connection(tasks=tasks, router=router, limits=ConnectionLimits(turn_bytes=1 << 62))
            connection.connection_made(Sink())  # type: ignore[arg-type]  # as much of a transport as is used
            feed = connection.data_received
            many = [Connection(tasks=tasks, router=router) for _ in range(CONNECTIONS)]
            for each in many:
                each.connection_made(Sink())  # type: ignore[arg-type]

            def feed_all(chunk: bytes) -> None:
                """The last of these sends fills the turn, so they are appended together."""
                for each in many:
                    each.data_received(chunk)

            for form in SerializeType:
                results[f"send {form.name}"] = _measure("send", feed, send_chunks(form), PIPELINE, 40)
                for name, keyed in (("56", False), ("mixed", True)):
                    chunks = differing_chunks(form, keyed=keyed)
                    results[f"send {name} {form.name}"] = _measure("send", feed, chunks, PIPELINE, 40)
                results[f"send 1 KiB {form.name}"] = _measure("send", feed, large_chunks(form), PIPELINE, 20)
                name = f"send, {CONNECTIONS} connections {form.name}"
                results[name] = _measure("send", feed_all, lone_chunks(form), CONNECTIONS, 20)
                results[f"batch {form.name}"] = _measure("batch", feed, batch_chunks(form), BATCH, 20)
            limit = min(broker.store.max_offset(TOPIC, queue) for queue in range(8)) - 32
            for form in SerializeType:
                chunks = pull_chunks(form, min(limit, 3200))
                results[f"pull {form.name}"] = _measure("pull", feed, chunks, 32, 5)
            feed(heartbeat(SerializeType.JSON))
            await asyncio.sleep(0)
            for per_read in (1, 8):
                # Java's client writes JSON by default.
                chunks = push_chunks(SerializeType.JSON, min(limit, 3200), per_read)
                name = f"push, {per_read} a read"
                results[name] = _measure("pull", feed, chunks, 32 * per_read, 5)
            await tasks.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    if arguments.profile:
        profile = cProfile.Profile()
        profile.runcall(asyncio.run, measure())
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        return
    for name, us in asyncio.run(measure()).items():
        print(f"{name:32} {us:6.2f} us/message")


if __name__ == "__main__":
    main()

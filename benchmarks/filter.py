"""Pulls filtered by SQL92: our broker and Apache's in one run, by one load generator.

    python -m benchmarks.filter [--seconds 1] [--rounds 3] [--readers 4] [--ours-only]

Both brokers get the same messages (four queues, two properties of interest among six, 100 bytes of body). A consumer
registers its expression by heartbeat, as the official push consumer does; one connection per queue then pulls from
the first message to the last, again and again. Counted are the messages the broker looked at and those it gave.
Figures of one machine under other load compare only with each other.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from tests.apache.harness import BENCH_JVM, LATEST, ApacheBroker, ApacheNamesrv, create_topic, missing_tools
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.apache.servers import create_group

from orbitmq.codes import RequestCode
from orbitmq.record.batch import encode_batch
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request

Broker = ApacheBroker | OrbitBroker
Namesrv = ApacheNamesrv | OrbitNamesrv

QUEUES: Final = 4
MESSAGES_PER_QUEUE: Final = 20_000
BATCH: Final = 500
TOPIC: Final = "Filtered"
EXPRESSIONS: Final = {
    "one in ten": "region = 'north' AND price > 79",
    "one in a thousand": "price = 7 AND shop = 'shop-7'",
    "all": "price >= 0",
    "long": "price BETWEEN 10 AND 19 AND region IN ('north', 'south', 'east') OR shop CONTAINS '99' OR missing = 5",
}


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), 10.0)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _call(connection: socket.socket, request: bytes) -> Frame:
    connection.sendall(request)
    decoder = FrameDecoder()
    while True:
        data = connection.recv(1 << 20)
        assert data, "the broker closed the connection"
        for frame in decoder.feed(data):
            if frame.is_response:  # and no notice that the group has changed
                return frame


def _properties(number: int) -> bytes:
    return (
        b"price\x01%d\x02region\x01%b\x02shop\x01shop-%d\x02UNIQ_KEY\x017F000001000018B4AAC2%012d\x02WAIT\x01true\x02TAGS\x01TagA\x02"
        % (number % 100, b"north" if number % 2 else b"south", number // 100 % 10, number)
    )


def _fill(connection: socket.socket) -> None:
    for queue_id in range(QUEUES):
        for first in range(0, MESSAGES_PER_QUEUE, BATCH):
            batch = encode_batch(
                (0, b"x" * 100, _properties(number)) for number in range(first, first + BATCH)
            )
            fields = {
                "a": "senders",
                "b": TOPIC,
                "c": "TBW102",
                "d": "4",
                "e": str(queue_id),
                "f": "0",
                "g": str(int(time.time() * 1000)),
                "h": "0",
                "i": "",
                "j": "0",
                "k": "false",
                "m": "true",
            }
            answer = _call(connection, encode_request(RequestCode.SEND_BATCH_MESSAGE, first, fields, batch))
            assert answer.code == 0, answer.remark


def _register(connection: socket.socket, group: str, expression: str) -> None:
    subscription = {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "SQL92",
        "subString": expression,
        "subVersion": 1,
        "tagsSet": [],
        "topic": TOPIC,
    }
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    body = {"clientID": f"bench@{group}", "consumerDataSet": [consumer], "producerDataSet": []}
    answer = _call(connection, encode_request(RequestCode.HEART_BEAT, 1, {}, json.dumps(body).encode()))
    assert answer.code == 0, answer.remark


class _Reader:
    """One queue, read round and round with one pull on the way."""

    def __init__(self, address: str, group: str, queue_id: int) -> None:
        self.connection = _connect(address)
        self.looked = self.given_bytes = 0
        self._group = group
        self._queue_id = queue_id
        self._offset = 0
        self._decoder = FrameDecoder()

    def send(self) -> None:
        fields = {
            "consumerGroup": self._group,
            "topic": TOPIC,
            "queueId": str(self._queue_id),
            "queueOffset": str(self._offset),
            "maxMsgNums": "32",
            "sysFlag": "0",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "1",
            "expressionType": "SQL92",
        }
        self.connection.sendall(encode_request(RequestCode.PULL_MESSAGE, 7, fields))

    def receive(self) -> None:
        for frame in self._decoder.feed(self.connection.recv(1 << 20)):
            assert frame.code in (0, 20), (frame.code, frame.remark)
            following = int(frame.ext_fields["nextBeginOffset"])
            self.looked += following - self._offset
            self.given_bytes += len(frame.body)
            self._offset = 0 if following >= MESSAGES_PER_QUEUE else following
            self.send()

    def finish(self) -> None:
        """Take the answer that is still on the way."""
        frames: list[Frame] = []
        while not frames:
            frames = self._decoder.feed(self.connection.recv(1 << 20))


class _Load:
    """One broker, filled, with one reader per queue for each expression."""

    def __init__(self, namesrv: Namesrv, broker: Broker, readers: int) -> None:
        self.broker = broker
        self.rounds: dict[str, list[dict[str, float]]] = {name: [] for name in EXPRESSIONS}
        create_topic(namesrv, broker, TOPIC, queue_count=QUEUES)
        self._connection = _connect(broker.address)
        self._readers: dict[str, list[_Reader]] = {}
        _fill(self._connection)
        for number, (name, expression) in enumerate(EXPRESSIONS.items()):
            group = f"readers-{number}"
            create_group(namesrv, broker, group)
            _register(self._connection, group, expression)
            self._readers[name] = [_Reader(broker.address, group, queue_id) for queue_id in range(readers)]

    def run(self, name: str, seconds: float) -> dict[str, float]:
        readers = self._readers[name]
        with selectors.DefaultSelector() as selector:
            for reader in readers:
                selector.register(reader.connection, selectors.EVENT_READ, reader)
                reader.send()
            looked, cpu = sum(reader.looked for reader in readers), self.broker.cpu_seconds()
            given, started = sum(reader.given_bytes for reader in readers), time.perf_counter()
            _run(selector, seconds)
            elapsed, cpu = time.perf_counter() - started, self.broker.cpu_seconds() - cpu
            looked = sum(reader.looked for reader in readers) - looked
            given = sum(reader.given_bytes for reader in readers) - given
            for reader in readers:
                reader.finish()
        return {
            "looked_at_per_s": looked / elapsed,
            "given_mib_per_s": given / elapsed / 2**20,
            "cpu_us_per_message": cpu / looked * 1e6,
        }

    def close(self) -> None:
        for readers in self._readers.values():
            for reader in readers:
                reader.connection.close()
        self._connection.close()


def _run(selector: selectors.DefaultSelector, seconds: float) -> None:
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        for key, _ in selector.select(1.0):
            key.data.receive()


def run(
    seconds: float = 1.0, *, rounds: int = 3, readers: int = QUEUES, ours_only: bool = False
) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by broker and expression, of each the round in the middle. Apache's only where Java is present."""
    with ExitStack() as stack:
        namesrv = stack.enter_context(OrbitNamesrv())
        broker = stack.enter_context(OrbitBroker(namesrv, enablePropertyFilter=True))
        loads = {"orbitmq": _Load(namesrv, broker, readers)}
        if not ours_only and not missing_tools():
            theirs = stack.enter_context(ApacheNamesrv(LATEST))
            apache = stack.enter_context(
                ApacheBroker(LATEST, theirs, jvm_args=BENCH_JVM, enablePropertyFilter=True)
            )
            loads[f"apache-{LATEST}"] = _Load(theirs, apache, readers)
        for name in EXPRESSIONS:  # a JIT needs some thousands of calls
            for load in loads.values():
                load.run(name, seconds)
        # In turns, so that what else the machine does meanwhile hits both alike.
        for _ in range(rounds):
            for name in EXPRESSIONS:
                for load in loads.values():
                    load.rounds[name].append(load.run(name, seconds))
        for load in loads.values():
            load.close()
    return {
        server: {name: _middle(figures) for name, figures in load.rounds.items()}
        for server, load in loads.items()
    }


def _middle(rounds: list[dict[str, float]]) -> dict[str, float]:
    return sorted(rounds, key=lambda figures: figures["looked_at_per_s"])[len(rounds) // 2]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="SQL92-filtered pulls, ours beside Apache's")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--readers", type=int, default=QUEUES, help="queues read at a time")
    parser.add_argument("--ours-only", action="store_true")
    chosen = parser.parse_args(arguments)
    results = run(chosen.seconds, rounds=chosen.rounds, readers=chosen.readers, ours_only=chosen.ours_only)
    for name in EXPRESSIONS:
        print(f"{name}: {EXPRESSIONS[name]}")
        for server, figures in results.items():
            print(
                f"  {server:14}" + "".join(f"{key} {value:14,.2f}   " for key, value in figures[name].items())
            )
    return results


if __name__ == "__main__":
    main()

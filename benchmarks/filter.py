"""Measures pulls filtered by SQL92: our broker and Apache's in one run, with one load generator.

    python -m benchmarks.filter [--seconds 1] [--rounds 5] [--ours-only] [--live-only]

Both brokers get the same messages (four queues, two properties of interest among six, 100 bytes of body). A consumer
registers its expression by heartbeat, as the official push consumer does, and pulls with one connection per queue. It
counts the messages that the broker evaluated and those it returned, in two cases:

live      four groups wait at the end of the queues, messages come, and each group pulls each of them once. The time
          of the sends is not counted, but given, for our broker prepares its answers then.
backlog   the messages were there before the first of the groups; pulled from the first to the last, again and again.

Results from a machine with other load are comparable only with each other.
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

from orbitmq.record.batch import encode_batch
from orbitmq.requests import RequestCode
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request

Broker = ApacheBroker | OrbitBroker
Namesrv = ApacheNamesrv | OrbitNamesrv

QUEUES: Final = 4
MESSAGES_PER_QUEUE: Final = 40_000
BATCH: Final = 500
TOPIC: Final = "Filtered"
BACKLOG: Final = "FilteredBacklog"
Figures = dict[str, float]
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
            if frame.is_response:  # and no notification that the group has changed
                return frame


def _properties(number: int) -> bytes:
    return (
        b"price\x01%d\x02region\x01%b\x02shop\x01shop-%d\x02UNIQ_KEY\x017F000001000018B4AAC2%012d\x02WAIT\x01true\x02TAGS\x01TagA\x02"
        % (number % 100, b"north" if number % 2 else b"south", number // 100 % 10, number)
    )


def _fill(connection: socket.socket, topic: str) -> None:
    for queue_id in range(QUEUES):
        for first in range(0, MESSAGES_PER_QUEUE, BATCH):
            batch = encode_batch(
                (0, b"x" * 100, _properties(number)) for number in range(first, first + BATCH)
            )
            fields = {
                "a": "senders",
                "b": topic,
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


def _register(connection: socket.socket, topic: str, group: str, expression: str) -> None:
    subscription = {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "SQL92",
        "subString": expression,
        "subVersion": 1,
        "tagsSet": [],
        "topic": topic,
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
    """One queue, with one pull in flight."""

    def __init__(self, address: str, topic: str, group: str, queue_id: int) -> None:
        self.connection = _connect(address)
        self.looked = self.given_bytes = self.offset = self.high = 0
        self._fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "maxMsgNums": "32",
            "sysFlag": "0",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "1",
            "expressionType": "SQL92",
        }
        self._decoder = FrameDecoder()

    def send(self) -> None:
        fields = self._fields | {"queueOffset": str(self.offset)}
        self.connection.sendall(encode_request(RequestCode.PULL_MESSAGE, 7, fields))

    def receive(self) -> bool:
        """Returns whether the response has arrived."""
        frames = self._decoder.feed(self.connection.recv(1 << 20))
        for frame in frames:
            # Found, none here (19: none even to evaluate), none matches
            assert frame.code in (0, 19, 20), (frame.code, frame.remark)
            following = int(frame.ext_fields["nextBeginOffset"])
            self.high = int(frame.ext_fields["maxOffset"])
            self.looked += following - self.offset
            self.given_bytes += len(frame.body)
            self.offset = following
        return bool(frames)


class Load:
    """One broker and one topic, with one reader per queue for each expression."""

    def __init__(self, namesrv: Namesrv, broker: Broker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.rounds: dict[str, list[Figures]] = {name: [] for name in EXPRESSIONS}
        self._namesrv = namesrv
        self._readers: dict[str, list[_Reader]] = {}
        create_topic(namesrv, broker, topic, queue_count=QUEUES)
        self._connection = _connect(broker.address)

    def fill(self) -> Figures:
        """Stores the messages and returns what that took."""
        started, cpu = time.perf_counter(), self.broker.cpu_seconds()
        _fill(self._connection, self.topic)
        count = QUEUES * MESSAGES_PER_QUEUE
        return {
            "sent_per_s": count / (time.perf_counter() - started),
            "cpu_us_per_message": (self.broker.cpu_seconds() - cpu) / count * 1e6,
        }

    def subscribe(self) -> None:
        """Starts the groups at the start of the queues."""
        for number, (name, expression) in enumerate(EXPRESSIONS.items()):
            group = f"readers-{self.topic}-{number}"
            create_group(self._namesrv, self.broker, group)
            _register(self._connection, self.topic, group, expression)
            self._readers[name] = [
                _Reader(self.broker.address, self.topic, group, queue_id) for queue_id in range(QUEUES)
            ]

    def run(self, name: str, seconds: float | None) -> Figures:
        """Pulls for that long, restarting at the end; None: to the end, once."""
        readers = self._readers[name]
        looked, given = (
            sum(reader.looked for reader in readers),
            sum(reader.given_bytes for reader in readers),
        )
        started, cpu = time.perf_counter(), self.broker.cpu_seconds()
        _pull(readers, None if seconds is None else started + seconds)
        elapsed, cpu = time.perf_counter() - started, self.broker.cpu_seconds() - cpu
        return {
            "looked": sum(reader.looked for reader in readers) - looked,
            "given_bytes": sum(reader.given_bytes for reader in readers) - given,
            "seconds": elapsed,
            "cpu_seconds": cpu,
        }

    def close(self) -> None:
        for readers in self._readers.values():
            for reader in readers:
                reader.connection.close()
        self._connection.close()


def _pull(readers: list[_Reader], deadline: float | None) -> None:
    """Pulls until the deadline or, without one, until a reader has reached the end of its queue."""
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader.connection, selectors.EVENT_READ, reader)
            reader.send()
        while selector.get_map():
            for key, _ in selector.select(5.0):
                reader = key.data
                if not reader.receive():
                    continue
                at_end = reader.offset >= reader.high
                if at_end and deadline is not None:
                    reader.offset = 0
                if at_end if deadline is None else time.perf_counter() >= deadline:
                    selector.unregister(reader.connection)
                else:
                    reader.send()


def _sum(rounds: list[Figures]) -> Figures:
    """Returns the rates of all rounds together: a round of the live case is shorter than a CPU clock of 10 ms can
    resolve.
    """
    looked, seconds = sum(one["looked"] for one in rounds), sum(one["seconds"] for one in rounds)
    return {
        "looked_at_per_s": looked / seconds,
        "given_mib_per_s": sum(one["given_bytes"] for one in rounds) / seconds / 2**20,
        "cpu_us_per_message": sum(one["cpu_seconds"] for one in rounds) / looked * 1e6,
    }


def _live(loads: dict[str, Load], rounds: int) -> dict[str, dict[str, Figures]]:
    filled: dict[str, list[Figures]] = {server: [] for server in loads}
    for load in loads.values():
        load.subscribe()
        for name in EXPRESSIONS:
            load.run(name, None)
    for turn in range(rounds + 2):  # two before it counts
        for server, load in loads.items():
            sent = load.fill()
            figures = {name: load.run(name, None) for name in EXPRESSIONS}
            if turn >= 2:
                filled[server].append(sent)
                for name, figure in figures.items():
                    load.rounds[name].append(figure)
    return {
        server: {name: _sum(figures) for name, figures in load.rounds.items()}
        | {"sends": {key: sum(one[key] for one in filled[server]) / rounds for key in filled[server][0]}}
        for server, load in loads.items()
    }


def _backlog(loads: dict[str, Load], seconds: float, rounds: int) -> dict[str, dict[str, Figures]]:
    for load in loads.values():
        load.fill()
        load.subscribe()
        for name in EXPRESSIONS:
            load.run(name, seconds)
    # Alternating, so that other work on the machine affects both alike.
    for _ in range(rounds):
        for name in EXPRESSIONS:
            for load in loads.values():
                load.rounds[name].append(load.run(name, seconds))
    return {
        server: {name: _sum(figures) for name, figures in load.rounds.items()}
        for server, load in loads.items()
    }


def run(
    seconds: float = 1.0, *, rounds: int = 5, ours_only: bool = False, live_only: bool = False
) -> dict[str, dict[str, Figures]]:
    """Returns the measurements by broker, then by case and expression. Apache's are included only where Java is
    present.
    """
    with ExitStack() as stack:
        names = stack.enter_context(OrbitNamesrv())
        ours = stack.enter_context(OrbitBroker(names, enablePropertyFilter=True))
        servers: dict[str, tuple[Namesrv, Broker]] = {"orbitmq": (names, ours)}
        if not ours_only and not missing_tools():
            theirs = stack.enter_context(ApacheNamesrv(LATEST))
            apache = stack.enter_context(
                ApacheBroker(LATEST, theirs, jvm_args=BENCH_JVM, enablePropertyFilter=True)
            )
            servers[f"apache-{LATEST}"] = (theirs, apache)
        cases: dict[str, dict[str, dict[str, Figures]]] = {}
        # The backlog first: it warms up Apache's JIT for the shorter runs of the live case.
        if not live_only:
            loads = {server: Load(*both, BACKLOG) for server, both in servers.items()}
            cases["backlog"] = _backlog(loads, seconds, rounds)
            for load in loads.values():
                load.close()
        loads = {server: Load(*both, TOPIC) for server, both in servers.items()}
        cases["live"] = _live(loads, rounds)
        for load in loads.values():
            load.close()
    return {
        server: {
            f"{case}, {name}": figures
            for case, by_server in cases.items()
            for name, figures in by_server[server].items()
        }
        for server in servers
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="SQL92-filtered pulls, compared with Apache")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round of the backlog")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--live-only", action="store_true")
    chosen = parser.parse_args(arguments)
    results = run(
        chosen.seconds, rounds=chosen.rounds, ours_only=chosen.ours_only, live_only=chosen.live_only
    )
    for name in next(iter(results.values())):
        print(f"{name}: {EXPRESSIONS.get(name.partition(', ')[2], '')}")
        for server, by_name in results.items():
            values = "".join(f"{key} {value:14,.2f}   " for key, value in by_name[name].items())
            print(f"  {server:14}{values}")
        first, *others = (next(iter(by_name[name].values())) for by_name in results.values())
        for other in others:
            print(f"  {'ratio':14}{first / other:.2f}")
    return results


if __name__ == "__main__":
    main()

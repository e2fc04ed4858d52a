"""Measures route queries: our name server and Apache's in one run, with one load generator.

    python -m benchmarks.namesrv [--seconds 6] [--ours-only]

The generator keeps a fixed number of requests in flight on each of a few connections and counts the bytes of the
responses (whose sizes it learns in a verified first round), so it costs far less than either server. Both servers
hold the same broker with the same topics. Start time is from the fork to the first response, best of three; memory is
read after the load. Results from a machine with other load are comparable only with each other.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import statistics
import struct
import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

from tests.apache.harness import BENCH_JVM, LATEST, ApacheNamesrv, missing_tools
from tests.apache.our_namesrv import OurNamesrv

from orbitmq.model.topic import TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies.registration import RegisterBrokerBody, TopicConfigWrapper, encode_registration
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request

CONNECTIONS: Final = 8
PIPELINE: Final = 32
TOPICS: Final = 256
SOLO_REQUESTS: Final = 1_000
STARTS: Final = 3


class Server(Protocol):
    """The server under test."""

    address: str

    def rss_bytes(self) -> int: ...
    def private_bytes(self) -> int: ...
    def cpu_seconds(self) -> float: ...


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), 10.0)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _answers(connection: socket.socket, count: int) -> tuple[list[Frame], int]:
    """Returns the next responses and their total number of bytes."""
    decoder = FrameDecoder()
    frames: list[Frame] = []
    size = 0
    while len(frames) < count:
        data = connection.recv(1 << 20)
        assert data, "the server closed the connection"
        size += len(data)
        frames += decoder.feed(data)
    assert len(frames) == count
    return frames, size


def _register(connection: socket.socket) -> None:
    """Registers a broker with its topics; it stays registered as long as the connection lives."""
    table = {
        f"topic-{number}": TopicConfig(topic_name=f"topic-{number}", read_queue_nums=8, write_queue_nums=8)
        for number in range(TOPICS)
    }
    body = encode_registration(
        RegisterBrokerBody(topic_config_serialize_wrapper=TopicConfigWrapper(topic_config_table=table))
    )
    fields = {
        "brokerName": "broker-a",
        "brokerAddr": "10.0.0.1:10911",
        "clusterName": "DefaultCluster",
        "haServerAddr": "10.0.0.1:10912",
        "brokerId": "0",
    }
    connection.sendall(encode_request(RequestCode.REGISTER_BROKER, 1, fields, body))
    [answer], _ = _answers(connection, 1)
    assert answer.code == 0, answer.remark


def _query(number: int) -> bytes:
    # Opaques of equal length keep all responses of a connection the same size.
    fields = {"topic": f"topic-{number % TOPICS}"}
    return encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, 100_000 + number, fields)


class _Load:
    """One connection with a burst of queries always in flight."""

    def __init__(self, address: str, first: int) -> None:
        self.connection = _connect(address)
        queries = [_query(first + number) for number in range(PIPELINE)]
        self.burst = b"".join(queries)
        self.connection.sendall(self.burst)
        frames, self.burst_answer_bytes = _answers(self.connection, PIPELINE)
        assert all(frame.code == 0 and len(json.loads(frame.body)["queueDatas"]) == 1 for frame in frames)
        self.waiting_bytes = 0
        self.finished = 0

    def send(self) -> None:
        self.connection.sendall(self.burst)
        self.waiting_bytes += self.burst_answer_bytes

    def receive(self) -> None:
        self.waiting_bytes -= len(self.connection.recv(1 << 20))
        if self.waiting_bytes == 0:
            self.finished += PIPELINE
            self.send()


def _throughput(server: Server, seconds: float) -> dict[str, float]:
    loads = [_Load(server.address, index * PIPELINE) for index in range(CONNECTIONS)]
    with selectors.DefaultSelector() as selector:
        for load in loads:
            selector.register(load.connection, selectors.EVENT_READ, load)
            load.send()
        _run(selector, seconds / 3)  # warm-up: a JIT needs some thousands of calls
        before, cpu_before, started = _finished(loads), server.cpu_seconds(), time.perf_counter()
        _run(selector, seconds)
        count = _finished(loads) - before
        elapsed, cpu = time.perf_counter() - started, server.cpu_seconds() - cpu_before
    for load in loads:
        load.connection.close()
    return {"queries_per_s": count / elapsed, "server_cpu_us_per_query": cpu / count * 1e6}


def _finished(loads: Sequence[_Load]) -> int:
    return sum(load.finished for load in loads)


def _run(selector: selectors.DefaultSelector, seconds: float) -> None:
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        for key, _ in selector.select(1.0):
            key.data.receive()


def _latency(server: Server) -> dict[str, float]:
    """Sends one request at a time over one connection."""
    with _connect(server.address) as connection:
        query = _query(0)
        times = []
        for _ in range(SOLO_REQUESTS):
            started = time.perf_counter()
            connection.sendall(query)
            (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
            connection.recv(size, socket.MSG_WAITALL)
            times.append((time.perf_counter() - started) * 1e6)
    times.sort()
    return {"p50_us": statistics.median(times), "p99_us": times[len(times) * 99 // 100]}


def measure(server: OurNamesrv | ApacheNamesrv, seconds: float) -> dict[str, float]:
    """Starts the server, loads it, and collects the results."""
    starts = []
    with server:
        for _ in range(STARTS):
            server.kill()
            started = time.perf_counter()
            server.start()
            starts.append(time.perf_counter() - started)
        idle_bytes = server.rss_bytes()
        broker = _connect(server.address)
        _register(broker)
        figures = _throughput(server, seconds) | _latency(server)
        figures |= {
            "start_s": min(starts),
            "idle_rss_mib": idle_bytes / 2**20,
            "rss_mib": server.rss_bytes() / 2**20,
            "private_mib": server.private_bytes() / 2**20,
        }
        broker.close()
    return figures


def run(seconds: float = 6.0, *, ours_only: bool = False) -> dict[str, dict[str, float]]:
    """Returns the results by server. Apache's is left out where Java is missing or not wanted."""
    results = {"orbitmq": measure(OurNamesrv(), seconds)}
    if not ours_only and not missing_tools():
        results[f"apache-{LATEST}"] = measure(ApacheNamesrv(LATEST, jvm_args=BENCH_JVM), seconds)
    return results


def show(results: dict[str, dict[str, float]]) -> None:
    """Prints a table, one column per server."""
    print(f"{'':26}" + "".join(f"{name:>16}" for name in results))
    for figure in next(iter(results.values())):
        print(f"{figure:26}" + "".join(f"{figures[figure]:16,.2f}" for figures in results.values()))


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--ours-only", action="store_true")
    options = parser.parse_args(arguments)
    results = run(options.seconds, ours_only=options.ours_only)
    show(results)
    return results


if __name__ == "__main__":
    main()

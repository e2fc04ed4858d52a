"""Measures a name server with 1,000 brokers of 500 topics and 10,000 clients: ours and Apache's, with one load
generator.

    python -m benchmarks.namesrv_scale [--brokers 1000] [--topics 500] [--clients 10000] [--seconds 30] [--ours-only]

Each topic is on ten brokers, so a route lists ten. Every broker keeps a connection and registers all its topics every
30 s, the default (``forceRegister``). Every client keeps a connection and queries the routes of five topics every 30
s, like official clients. All of that runs in real time. The benchmark measures the share of a core that the server
needs (CPU time of its process) and the latency of a query under this load.

Meanwhile a broker adds a topic from time to time. The time until a query shows it is the name server's share of a
route's age (a client adds its own period, 30 s). At the end brokers disconnect, and the benchmark measures how long
their names stay in the routes.
"""

from __future__ import annotations

import argparse
import heapq
import json
import resource
import selectors
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.apache.harness import BENCH_JVM, LATEST, ApacheNamesrv, missing_tools
from tests.apache.our_namesrv import OurNamesrv

from orbitmq.model.data_version import DataVersion
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies.registration import RegisterBrokerBody, TopicConfigWrapper, encode_registration
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request

PERIOD_S: Final = 30.0
"""Between registrations of a broker, and between questions of a client."""
SHARED_BY: Final = 10
TOPICS_ASKED: Final = 5
PROBE_S: Final = 2.0
ANSWER_S_MAX: Final = 60.0
GONE_COUNT: Final = 20


@dataclass(frozen=True, slots=True)
class Size:
    """The number of brokers, topics and clients."""

    brokers: int = 1_000
    topics: int = 500
    clients: int = 10_000
    seconds: float = 30.0

    @property
    def groups(self) -> int:
        """Returns the brokers in groups of ten; those of a group have the same topics."""
        return max(1, self.brokers // SHARED_BY)


def topic_name(group: int, number: int) -> str:
    return f"orders-{group:03}-topic-{number:04}"


def registration(size: Size, broker: int, version: int = 0, extra: str = "") -> bytes:
    """Returns the body of a broker's registration."""
    names = [topic_name(broker % size.groups, number) for number in range(size.topics)]
    if extra:
        names.append(extra)
    table = {
        name: TopicConfig(topic_name=name, read_queue_nums=8, write_queue_nums=8, perm=6) for name in names
    }
    wrapper = TopicConfigWrapper(
        data_version=DataVersion(counter=version, timestamp_ms=1_700_000_000_000), topic_config_table=table
    )
    return encode_registration(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))


class Line:
    """One connection of a broker or a client, with at most one outstanding request."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 30.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.decoder = FrameDecoder()
        self.sent_at = 0.0
        self.waiting = 0
        self.is_broker = False

    def ask(self, data: bytes) -> None:
        if not self.waiting:
            self.sent_at = time.perf_counter()
        self.waiting += 1
        self.socket.settimeout(ANSWER_S_MAX)
        self.socket.sendall(data)

    def take(self) -> list[Frame]:
        data = self.socket.recv(1 << 18)
        assert data, "the name server closed a connection"
        frames = self.decoder.feed(data)
        self.waiting -= len(frames)
        return frames

    def answer(self) -> Frame:
        """Waits for the outstanding response."""
        while True:
            frames = self.take()
            if frames:
                return frames[-1]


@dataclass(slots=True)
class Cluster:
    """All peers of one name server."""

    address: str
    size: Size
    brokers: list[Line] = field(default_factory=list)
    clients: list[Line] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    query_ms: list[float] = field(default_factory=list)
    register_ms: list[float] = field(default_factory=list)
    age_ms: list[float] = field(default_factory=list)
    version: int = 0
    probing: list[Line] = field(default_factory=list)

    def request(self, broker: int, body: bytes, opaque: int = 1) -> bytes:
        fields = {
            "brokerName": f"broker-{broker:04}",
            "brokerAddr": f"10.{broker >> 8}.{broker & 255}.1:10911",
            "clusterName": "DefaultCluster",
            "haServerAddr": f"10.{broker >> 8}.{broker & 255}.1:10912",
            "brokerId": "0",
            "compressed": "false",
        }
        return encode_request(RequestCode.REGISTER_BROKER, opaque, fields, body)

    def register_all(self) -> None:
        """Registers every broker for the first time, one after the other."""
        self.bodies = [registration(self.size, group) for group in range(self.size.groups)]
        for broker in range(self.size.brokers):
            line = Line(self.address)
            line.is_broker = True
            self.brokers.append(line)
            line.ask(self.request(broker, self.bodies[broker % self.size.groups]))
            answer = line.answer()
            assert answer.code == 0, answer.remark

    def connect_clients(self) -> None:
        self.clients = [Line(self.address) for _ in range(self.size.clients)]

    def query(self, topic: str, opaque: int = 1) -> bytes:
        return encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque, {"topic": topic})

    # -- the load in real time ---------------------------------------------------------------------------

    def _due(self) -> Iterator[tuple[float, str, int]]:
        """Yields the requests and their times within the measured period."""
        size = self.size
        for broker in range(size.brokers):
            yield from (
                (at, "register", broker) for at in _times(PERIOD_S * broker / size.brokers, size.seconds)
            )
        for client in range(size.clients):
            yield from ((at, "ask", client) for at in _times(PERIOD_S * client / size.clients, size.seconds))
        yield from ((at, "probe", int(at)) for at in _times(PROBE_S / 2, size.seconds, PROBE_S))

    def run(self) -> None:
        """Sends all requests at their times and measures the response times."""
        due = list(self._due())
        heapq.heapify(due)
        with selectors.DefaultSelector() as selector:
            for line in (*self.brokers, *self.clients):
                selector.register(line.socket, selectors.EVENT_READ, line)
            began = time.perf_counter()
            while due or any(line.waiting for line in self.clients):
                now = time.perf_counter() - began
                while due and due[0][0] <= now:
                    _, what, number = heapq.heappop(due)
                    self._say(what, number)
                wait = min(0.5, max(0.0, due[0][0] - (time.perf_counter() - began))) if due else 0.5
                for key, _ in selector.select(wait):
                    self._heard(key.data)
                assert now < self.size.seconds + ANSWER_S_MAX, "the name server does not keep up"

    def _say(self, what: str, number: int) -> None:
        size = self.size
        if what == "register":
            self.brokers[number].ask(self.request(number, self.bodies[number % size.groups]))
        elif what == "ask":
            group = number % size.groups
            line = self.clients[number]
            for index in range(TOPICS_ASKED):
                topic = topic_name(group, (number * 7 + index) % size.topics)
                line.ask(self.query(topic, index + 1))
        else:
            self.probe(number)

    def _heard(self, line: Line) -> None:
        frames = line.take()
        assert all(frame.code == 0 for frame in frames), [frame.remark for frame in frames]
        if not line.waiting:
            took = (time.perf_counter() - line.sent_at) * 1000
            (self.register_ms if line.is_broker else self.query_ms).append(took)

    def probe(self, number: int) -> None:
        """Adds a topic to a broker and records how long it takes until a query shows it."""
        self.version += 1
        extra = f"new-{self.version}"
        if not self.probing:
            self.probing = [Line(self.address), Line(self.address)]
        broker, asker = self.probing
        # A separate broker, so that the versions of the others are unchanged.
        body = registration(self.size, 0, self.version, extra)
        began = time.perf_counter()
        broker.ask(self.request(self.size.brokers + 1, body))
        while True:
            asker.ask(self.query(extra))
            if asker.answer().code == 0:
                break
        self.age_ms.append((time.perf_counter() - began) * 1000)
        broker.answer()

    def hang_up(self) -> float:
        """Returns the milliseconds until disconnected brokers are in no route any more; the last of several."""
        topic = topic_name(0, 0)
        gone = [index for index in range(self.size.brokers) if index % self.size.groups == 0][:GONE_COUNT]
        names = {f"broker-{index:04}" for index in gone}
        began = time.perf_counter()
        for index in gone:
            self.brokers[index].socket.close()
        line = Line(self.address)
        while time.perf_counter() - began < 150:
            line.ask(self.query(topic))
            answer = line.answer()
            if answer.code:
                break
            route = json.loads(answer.body)
            if not names & {data["brokerName"] for data in route["brokerDatas"]}:
                break
            time.sleep(0.005)
        return (time.perf_counter() - began) * 1000

    def close(self) -> None:
        for line in (*self.brokers, *self.clients, *self.probing):
            line.socket.close()


def _times(first: float, until: float, period: float = PERIOD_S) -> Iterator[float]:
    at = first
    while at < until:
        yield at
        at += period


def _part(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def measure(server: OurNamesrv | ApacheNamesrv, size: Size) -> dict[str, float]:
    """Starts the server, builds the cluster, runs the load, and collects the results."""
    with server:
        cluster = Cluster(server.address, size)
        try:
            before, began = server.cpu_seconds(), time.perf_counter()
            cluster.register_all()
            first_cpu, first_s = server.cpu_seconds() - before, time.perf_counter() - began
            brokers_rss = server.rss_bytes()
            cluster.connect_clients()
            before, began = server.cpu_seconds(), time.perf_counter()
            cluster.run()
            cpu, elapsed = server.cpu_seconds() - before, time.perf_counter() - began
            rss = server.rss_bytes()
            gone_ms = cluster.hang_up()
        finally:
            cluster.close()
    queries, registrations = sorted(cluster.query_ms), sorted(cluster.register_ms)
    return {
        "first_registration_cpu_ms": first_cpu / size.brokers * 1000,
        "all_registered_s": first_s,
        "steady_cpu_percent": 100 * cpu / elapsed,
        "registrations_per_s": len(registrations) / elapsed,
        "route_queries_per_s": TOPICS_ASKED * len(queries) / elapsed,
        "register_p50_ms": statistics.median(registrations),
        "register_p99_ms": _part(registrations, 0.99),
        "query_p50_ms": statistics.median(queries),
        "query_p99_ms": _part(queries, 0.99),
        "new_topic_seen_ms_p50": statistics.median(cluster.age_ms),
        "new_topic_seen_ms_max": max(cluster.age_ms),
        "dead_broker_gone_ms": gone_ms,
        "rss_mib_with_brokers": brokers_rss / 2**20,
        "rss_mib_with_clients": rss / 2**20,
    }


def run(size: Size = Size(), *, ours_only: bool = False) -> dict[str, dict[str, float]]:  # noqa: B008 - a frozen value
    """Returns the results by server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = size.brokers + size.clients + 200
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise RuntimeError(f"{needed} open files are needed, the limit is {hard}; fewer --clients would do")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results = {"orbitmq": measure(OurNamesrv(), size)}
    if not ours_only and not missing_tools():
        results[f"apache-{LATEST}"] = measure(ApacheNamesrv(LATEST, jvm_args=BENCH_JVM), size)
    return results


def show(results: dict[str, dict[str, float]]) -> None:
    """Prints a table, one column per server."""
    print(f"{'':28}" + "".join(f"{name:>16}" for name in results))
    for figure in next(iter(results.values())):
        print(f"{figure:28}" + "".join(f"{figures[figure]:16,.2f}" for figures in results.values()))


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--brokers", type=int, default=Size().brokers)
    parser.add_argument("--topics", type=int, default=Size().topics)
    parser.add_argument("--clients", type=int, default=Size().clients)
    parser.add_argument("--seconds", type=float, default=Size().seconds)
    parser.add_argument("--ours-only", action="store_true")
    options = parser.parse_args(arguments)
    size = Size(options.brokers, options.topics, options.clients, options.seconds)
    results = run(size, ours_only=options.ours_only)
    show(results)
    return results


if __name__ == "__main__":
    main()

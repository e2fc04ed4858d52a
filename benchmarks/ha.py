"""Compares replication with Apache 5.5.0 in one run: master and slave of one kind, one kind after the other.

    python -m benchmarks.ha [--seconds 10] [--ours-only] [--json FILE]

Three measurements of each: how fast a new slave copies a log of a few hundred MiB (messages of 1 KiB), how many sends
per second a SYNC_MASTER acknowledges to 64 threads of Apache's own producer, and how long one such send takes on an
otherwise idle pair (one connection, one send after the other). Apache gets inSyncReplicas=2, without which its
SYNC_MASTER does not wait for any slave. The results are meaningful only on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from tests.apache.artifacts import prepare
from tests.apache.harness import (
    BENCH_JVM,
    LATEST,
    ApacheBroker,
    ApacheNamesrv,
    Benchmark,
    create_topic,
    missing_tools,
    remoting_call,
)
from tests.apache.ours import OrbitBroker, OrbitNamesrv

Server = OrbitBroker | ApacheBroker
Namesrv = OrbitNamesrv | ApacheNamesrv
Figures = dict[str, float]

SEGMENT_BYTES: Final = 1024 * 1024 * 1024
BACKLOG_BYTES: Final = 200 * 1024 * 1024
THREADS: Final = 64
QUEUES: Final = 16
WARM_UP_S: Final = 6.0
LATENCIES: Final = 2_000
SEND_MESSAGE: Final = 10
GET_BROKER_RUNTIME_INFO: Final = 28
GET_MAX_OFFSET: Final = 30
GOALS: Final = {
    "copy of a log, MiB/s": (">=", 1.0),
    "SYNC_MASTER, messages/s": (">=", 1.0),
    "SYNC_MASTER send, p99 ms": ("<=", 1.0),
}
"""What ours divided by Apache's is meant to be."""


def _log_end(broker: Server) -> int:
    code, _, body = remoting_call(broker.address, GET_BROKER_RUNTIME_INFO, timeout_s=10)
    # An Apache broker under load occasionally refuses.
    return int(json.loads(body)["table"]["commitLogMaxOffset"]) if code == 0 else -1


def _queue_ends(broker: Server, topic: str) -> int:
    total = 0
    for queue_id in range(QUEUES):
        fields = {"topic": topic, "queueId": str(queue_id)}
        total += int(remoting_call(broker.address, GET_MAX_OFFSET, fields)[1]["offset"])
    return total


def _wait_for(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    deadline = time.perf_counter() + timeout_s
    while not condition():
        if time.perf_counter() > deadline:
            raise RuntimeError(f"waited {timeout_s} s for {what}")
        time.sleep(0.02)


def measure_copy(namesrv: Namesrv, master: Server, slave: Server) -> Figures:
    """Fills the master, starts the slave, and measures from the slave's first byte to its last."""
    create_topic(namesrv, master, "bench-copy", queue_count=QUEUES)
    with Benchmark("batch-producer", namesrv, topic="bench-copy", args=("-b", "32", "-s", "1024", "-w", "8")):
        _wait_for(lambda: _log_end(master) > BACKLOG_BYTES, 120.0, "the backlog")
    end = _log_end(master)
    if end < BACKLOG_BYTES:
        raise RuntimeError("the master does not say where its log ends")
    slave.start()
    _wait_for(lambda: _log_end(slave) > 0, 60.0, "the first byte of the copy")
    first, began = _log_end(slave), time.perf_counter()
    _wait_for(lambda: _log_end(slave) >= end, 120.0, "the end of the copy")
    return {"copy of a log, MiB/s": (end - first) / 2**20 / (time.perf_counter() - began)}


def measure_rate(namesrv: Namesrv, master: Server, seconds: float) -> Figures:
    """Runs Apache's producer against the pair."""
    topic = "bench-sync-master"
    create_topic(namesrv, master, topic, queue_count=QUEUES)
    with Benchmark("producer", namesrv, topic=topic, args=("-w", str(THREADS), "-s", "128")) as program:
        _wait_for(lambda: _queue_ends(master, topic) > 0, 30.0, "the first message")
        time.sleep(WARM_UP_S)
        first, began = _queue_ends(master, topic), time.perf_counter()
        time.sleep(seconds)
        rate = (_queue_ends(master, topic) - first) / (time.perf_counter() - began)
        failed = sum(report.failed for report in program.reports()[-1:])
    return {"SYNC_MASTER, messages/s": rate, "SYNC_MASTER, failed": failed}


def measure_latency(namesrv: Namesrv, master: Server) -> Figures:
    """Sends one message after the other over our own connection, the same bytes to both kinds."""
    topic = "bench-latency"
    create_topic(namesrv, master, topic, queue_count=1)
    host, _, port = master.address.rpartition(":")
    times_ms: list[float] = []
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rb")
        for opaque in itertools.count(1):
            began = time.perf_counter()
            connection.sendall(_send_frame(topic, opaque))
            (size,) = struct.unpack(">i", stream.read(4))
            answer = stream.read(size)
            times_ms.append((time.perf_counter() - began) * 1000)
            header_bytes = struct.unpack_from(">i", answer)[0] & 0xFFFFFF
            code = json.loads(answer[4 : 4 + header_bytes])["code"]
            if code != 0:
                raise RuntimeError(f"a send was answered with {code}")
            if opaque == LATENCIES:
                break
    kept = sorted(times_ms[LATENCIES // 4 :])
    return {
        "SYNC_MASTER send, median ms": statistics.median(kept),
        "SYNC_MASTER send, p99 ms": kept[int(len(kept) * 0.99)],
    }


def _send_frame(topic: str, opaque: int) -> bytes:
    fields = {
        "producerGroup": "bench",
        "topic": topic,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": str(int(time.time() * 1000)),
        "flag": "0",
        "properties": f"UNIQ_KEY\x01{opaque:032X}\x02WAIT\x01true\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "maxReconsumeTimes": "0",
        "batch": "false",
    }
    header = {"code": SEND_MESSAGE, "language": "JAVA", "version": 497, "opaque": opaque, "flag": 0}
    encoded = json.dumps(header | {"extFields": fields}).encode()
    body = b"x" * 128
    return struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body


@contextmanager
def _servers(kind: str) -> Iterator[tuple[Namesrv, Server, Server]]:
    """Starts a name server and a SYNC_MASTER, and prepares a slave that is not started yet."""
    master: dict[str, Any] = {"mappedFileSizeCommitLog": SEGMENT_BYTES, "brokerRole": "SYNC_MASTER"}
    slave = master | {"brokerRole": "SLAVE", "brokerId": 1}
    # Sends while there is no slave yet must not wait for one; the rate is measured when there is.
    replicas = {"inSyncReplicas": 2, "slaveTimeout": 3_000}
    with ExitStack() as stack:
        if kind == "orbitmq":
            ours = stack.enter_context(OrbitNamesrv())
            stack.enter_context(our_master := OrbitBroker(ours, **master))
            our_slave = OrbitBroker(ours, **slave)
            stack.callback(our_slave.close)
            yield ours, our_master, our_slave
        else:
            theirs = stack.enter_context(ApacheNamesrv(LATEST))
            stack.enter_context(their_master := ApacheBroker(LATEST, theirs, jvm_args=BENCH_JVM, **master))
            their_slave = ApacheBroker(LATEST, theirs, jvm_args=BENCH_JVM, **slave)
            stack.callback(their_slave.close)
            their_master.conf |= replicas
            yield theirs, their_master, their_slave


def measure(kind: str, seconds: float) -> Figures:
    """Returns all measurements of one kind of broker."""
    with _servers(kind) as (namesrv, master, slave):
        figures = measure_copy(namesrv, master, slave)
        if isinstance(master, ApacheBroker):
            # From here on with its number of replicas; without it, the master acknowledges alone.
            master.stop()
            master.start()
            _wait_for(lambda: 0 < _log_end(slave) == _log_end(master), 60.0, "the slave's return")
            time.sleep(6.0)
        figures |= measure_latency(namesrv, master)
        figures |= measure_rate(namesrv, master, seconds)
    return figures


def run(seconds: float = 10.0, *, ours_only: bool = False) -> dict[str, Figures]:
    """Returns the measurements by broker, and the ratios ours / Apache's."""
    missing = missing_tools()
    if missing:
        raise RuntimeError(f"the load comes from Apache's own programs, which need {', '.join(missing)}")
    prepare()
    results = {"orbitmq": measure("orbitmq", seconds)}
    if not ours_only:
        name = f"apache-{LATEST}"
        theirs = results[name] = measure(name, seconds)
        results["ratio"] = {
            figure: value / theirs[figure]
            for figure, value in results["orbitmq"].items()
            if theirs.get(figure)
        }
    return results


def show(results: dict[str, Figures]) -> None:
    """Prints a table: one row per measurement, one column per broker, the ratio and its goal."""
    print(f"{'':32}" + "".join(f"{name:>16}" for name in results) + "   goal")
    for figure in results["orbitmq"]:
        cells = "".join(
            f"{figures[figure]:16,.3f}" if figure in figures else f"{'':16}" for figures in results.values()
        )
        goal = ""
        ratio = results.get("ratio", {}).get(figure)
        if figure in GOALS and ratio is not None:
            sign, bound = GOALS[figure]
            met = ratio >= bound if sign == ">=" else ratio <= bound
            goal = f"   {sign} {bound:g} {'met' if met else 'MISSED'}"
        print(f"{figure:32}{cells}{goal}")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time of the load")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--json", help="write the figures there as well")
    options = parser.parse_args(arguments)
    results = run(options.seconds, ours_only=options.ours_only)
    show(results)
    if options.json is not None:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return results


if __name__ == "__main__":
    main()

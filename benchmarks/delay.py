"""Measures how fast delayed messages are stored and delivered: our broker and Apache's in one run, with one load
generator.

    python -m benchmarks.delay [--count 20000] [--rounds 3] [--ours-only]

Delay levels and timers of 5.x, 128 bytes of body, four queues, 64 sends in flight. *In* is the time until the last
send is answered. *Out* is the time in which all of them, already overdue, appear in their topic: the broker is paused
(SIGSTOP) until the last one is due, then resumed. Both brokers are treated alike; CPU is the broker's own.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from tests.apache.harness import BENCH_JVM, LATEST, ApacheBroker, ApacheNamesrv, create_topic, missing_tools
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.apache.servers import remoting_call

from orbitmq.requests import RequestCode
from orbitmq.wire.frame import FrameDecoder, encode_request

Broker = ApacheBroker | OrbitBroker
Namesrv = ApacheNamesrv | OrbitNamesrv

QUEUES: Final = 4
IN_FLIGHT: Final = 64
DELAY_S: Final = 15
LEVELS: Final = f"{DELAY_S}s"
OUT_TIMEOUT_S: Final = 120.0
KINDS: Final = ("delay level", "timer")


def _sends(topic: str, kind: str, count: int, due_ms: int) -> list[bytes]:
    delay = "DELAY\x011" if kind == "delay level" else f"TIMER_DELIVER_MS\x01{due_ms}"
    requests = []
    for number in range(count):
        fields = {
            "a": "senders",
            "b": topic,
            "c": "TBW102",
            "d": str(QUEUES),
            "e": str(number % QUEUES),
            "f": "0",
            "g": str(due_ms - DELAY_S * 1000),
            "h": "0",
            "i": f"UNIQ_KEY\x017F000001000018B4AAC2{number:012d}\x02WAIT\x01true\x02TAGS\x01TagA\x02{delay}\x02",
            "j": "0",
            "k": "false",
            "m": "false",
        }
        requests.append(encode_request(RequestCode.SEND_MESSAGE_V2, number, fields, b"x" * 128))
    return requests


def _send_all(address: str, requests: Sequence[bytes]) -> None:
    """Keeps ``IN_FLIGHT`` sends in flight; every response must be a success."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 30.0) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        decoder = FrameDecoder()
        sent = answered = 0
        while answered < len(requests):
            following = min(len(requests), answered + IN_FLIGHT)
            if following > sent:
                connection.sendall(b"".join(requests[sent:following]))
                sent = following
            data = connection.recv(1 << 18)
            assert data, "the broker closed the connection"
            for frame in decoder.feed(data):
                assert frame.code == 0, (frame.code, frame.remark)
                answered += 1


def _arrived(address: str, topic: str) -> int:
    total = 0
    for queue_id in range(QUEUES):
        place = {"topic": topic, "queueId": str(queue_id)}
        _, fields, _ = remoting_call(address, RequestCode.GET_MAX_OFFSET, place, timeout_s=30.0)
        total += int(fields["offset"])
    return total


def _measure(broker: Broker, topic: str, kind: str, count: int) -> dict[str, float]:
    due_ms = int(time.time() * 1000) + DELAY_S * 1000
    requests = _sends(topic, kind, count, due_ms)
    before, cpu, started = _arrived(broker.address, topic), broker.cpu_seconds(), time.perf_counter()
    _send_all(broker.address, requests)
    in_s, in_cpu = time.perf_counter() - started, broker.cpu_seconds() - cpu
    assert _arrived(broker.address, topic) == before, (
        "delivered before it was due: send fewer or delay longer"
    )
    # A level counts from the time of storing, so the last message is due DELAY_S after the last response.
    last_due_s = started + in_s + DELAY_S
    time.sleep(max(0.0, started + DELAY_S - 2.0 - time.perf_counter()))
    broker.pause()
    time.sleep(max(0.0, last_due_s + 0.5 - time.perf_counter()))
    cpu, resumed = broker.cpu_seconds(), time.perf_counter()
    broker.resume()
    while _arrived(broker.address, topic) < before + count:
        assert time.perf_counter() - resumed < OUT_TIMEOUT_S, "not all delayed messages came out"
        time.sleep(0.02)
    out_s, out_cpu = time.perf_counter() - resumed, broker.cpu_seconds() - cpu
    return {
        "in_per_s": count / in_s,
        "in_cpu_us": in_cpu / count * 1e6,
        "out_per_s": count / out_s,
        "out_cpu_us": out_cpu / count * 1e6,
    }


def run(
    count: int = 20_000, *, rounds: int = 3, ours_only: bool = False
) -> dict[str, dict[str, dict[str, float]]]:
    """Returns the measurements by broker and kind, the median round of each. Apache's are included only where Java is
    present.
    """
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    with ExitStack() as stack:
        # Apache refuses sends that wait 200 ms in its queue, which is easily reached while the JIT is cold; prevent
        # it here.
        namesrv = stack.enter_context(OrbitNamesrv())
        ours = OrbitBroker(namesrv, messageDelayLevel=LEVELS, brokerFastFailureEnable=False)
        brokers: dict[str, tuple[Namesrv, Broker]] = {"orbitmq": (namesrv, stack.enter_context(ours))}
        if not ours_only and not missing_tools():
            theirs = stack.enter_context(ApacheNamesrv(LATEST))
            apache = ApacheBroker(
                LATEST, theirs, jvm_args=BENCH_JVM, messageDelayLevel=LEVELS, brokerFastFailureEnable=False
            )
            brokers[f"apache-{LATEST}"] = (theirs, stack.enter_context(apache))
        for number in range(rounds + 1):  # the first is for the JIT
            for kind in KINDS:
                topic = f"Delayed{KINDS.index(kind)}"
                for name, (names, broker) in brokers.items():
                    if number == 0:
                        create_topic(names, broker, topic, queue_count=QUEUES)
                    figures = _measure(broker, topic, kind, count)
                    if number:
                        found.setdefault(name, {}).setdefault(kind, []).append(figures)
    return {
        name: {kind: _middle(figures) for kind, figures in kinds.items()} for name, kinds in found.items()
    }


def _middle(rounds: list[dict[str, float]]) -> dict[str, float]:
    return sorted(rounds, key=lambda figures: figures["out_per_s"])[len(rounds) // 2]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description="delayed messages in and out, compared with Apache")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ours-only", action="store_true")
    chosen = parser.parse_args(arguments)
    results = run(chosen.count, rounds=chosen.rounds, ours_only=chosen.ours_only)
    for kind in KINDS:
        print(kind)
        for server, figures in results.items():
            print(
                f"  {server:14}" + "".join(f"{key} {value:12,.1f}   " for key, value in figures[kind].items())
            )
    return results


if __name__ == "__main__":
    main()

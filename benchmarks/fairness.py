"""Measures how long a well-behaved sender waits while other producers flood the broker.

    python -m benchmarks.fairness [--seconds 5] [--producers 4] [--in-flight 2000] [--sync-flush] [--ours-only]
        [--json FILE]

One process floods: each of its connections keeps that many sends in flight and replaces every answered one. Another
process sends one message at a time and waits for each response; its waiting times are the result. Both use bare
frames and are the same for both brokers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any, Final

import uvloop
from benchmarks.windows import BENCH_JVM
from tests.apache.artifacts import prepare
from tests.apache.harness import LATEST, ApacheBroker, ApacheNamesrv, create_topic, missing_tools
from tests.apache.ours import OrbitBroker, OrbitNamesrv

from orbitmq.requests import RequestCode
from orbitmq.transport.client import RpcClient
from orbitmq.transport.connection import Connection

TOPIC: Final = "bench-fairness"
BODY: Final = b"x" * 128
TIMEOUT_S: Final = 30.0
P99_GOAL_MS: Final = 50.0


def _fields(number: int) -> dict[str, str]:
    return {
        "a": "fairness",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "e": str(number % 4),
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": f"UNIQ_KEY\x017F0000014676C0DEE0B0{number:012X}\x02WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "false",
    }


def _send(connection: Connection, number: int) -> asyncio.Future[Any]:
    return connection.call(RequestCode.SEND_MESSAGE_V2, None, BODY, timeout_s=TIMEOUT_S, ext=_fields(number))


async def _flood_one(address: str, in_flight: int, until: float, answers: dict[int, int]) -> None:
    client = RpcClient()
    try:
        connection = await client.connection(address)
        gone = asyncio.Semaphore(in_flight)
        number = 0

        def answered(call: asyncio.Future[Any]) -> None:
            gone.release()
            code = -1 if call.exception() is not None else int(call.result().code)
            answers[code] = answers.get(code, 0) + 1

        while time.perf_counter() < until:
            await gone.acquire()
            number += 1
            _send(connection, number).add_done_callback(answered)
            if number % 64 == 0:
                await asyncio.sleep(0)
        for _ in range(in_flight):
            await gone.acquire()
    finally:
        await client.close()


async def _flood(address: str, producers: int, in_flight: int, seconds: float) -> None:
    answers: dict[int, int] = {}
    until = time.perf_counter() + seconds
    await asyncio.gather(*(_flood_one(address, in_flight, until, answers) for _ in range(producers)))
    print(json.dumps(answers))


async def _polite(address: str, seconds: float) -> tuple[list[float], int]:
    """Returns the waiting times in milliseconds, and the number of refused sends."""
    waits: list[float] = []
    refused = 0
    client = RpcClient()
    try:
        connection = await client.connection(address)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            answer = await _send(connection, len(waits))
            waits.append((time.perf_counter() - began) * 1000)
            refused += answer.code != 0
            await asyncio.sleep(0.005)
    finally:
        await client.close()
    return waits, refused


def _figures(waits: list[float], refused: int) -> dict[str, float]:
    waits = sorted(waits)
    return {
        "sends": len(waits),
        "p50_ms": round(waits[len(waits) // 2], 2),
        "p99_ms": round(waits[min(len(waits) - 1, len(waits) * 99 // 100)], 2),
        "max_ms": round(waits[-1], 2),
        "refused": refused,
    }


def measure(
    broker: OrbitBroker | ApacheBroker, *, producers: int, in_flight: int, seconds: float
) -> dict[str, Any]:
    """Returns the waiting times alone and during the flood, and the responses to the flood."""
    alone = uvloop.run(_polite(broker.address, 1.0))
    flood = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.fairness",
            f"--flood={broker.address}",
            f"--producers={producers}",
            f"--in-flight={in_flight}",
            f"--seconds={seconds + 2}",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        time.sleep(1.5)  # until the flood has reached its peak
        during = uvloop.run(_polite(broker.address, seconds))
        printed, _ = flood.communicate(timeout=seconds + 60)
    finally:
        flood.kill()
    return {"alone": _figures(*alone), "during": _figures(*during), "flood": json.loads(printed)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=2000)
    parser.add_argument("--sync-flush", action="store_true", help="acknowledge only flushed messages")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--flood", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flood:
        uvloop.run(_flood(arguments.flood, arguments.producers, arguments.in_flight, arguments.seconds))
        return
    load = {
        "producers": arguments.producers,
        "in_flight": arguments.in_flight,
        "seconds": arguments.seconds,
    }
    flush = "SYNC_FLUSH" if arguments.sync_flush else "ASYNC_FLUSH"
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        ours = stack.enter_context(OrbitNamesrv())
        broker = stack.enter_context(OrbitBroker(ours, flushDiskType=flush))
        create_topic(ours, broker, TOPIC, queue_count=4)
        results["orbitmq"] = measure(broker, **load)
    if not arguments.ours_only and not missing_tools():
        prepare()
        with ExitStack() as stack:
            theirs = stack.enter_context(ApacheNamesrv(LATEST))
            apache = stack.enter_context(
                ApacheBroker(LATEST, theirs, jvm_args=BENCH_JVM, flushDiskType=flush)
            )
            create_topic(theirs, apache, TOPIC, queue_count=4)
            measure(apache, **load)  # warm
            results[f"apache-{LATEST}"] = measure(apache, **load)
    for name, figures in results.items():
        print(f"{name:14} alone {figures['alone']}")
        print(f"{name:14} during {figures['during']}")
        print(f"{name:14} flood answered {figures['flood']}")
    print(f"goal: p99 during the flood under {P99_GOAL_MS:.0f} ms")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()

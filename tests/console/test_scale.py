"""Large clusters and fast topics. The limits are of time, so this runs with `make soak`, on a quiet machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Final

import httpx
import pytest
from tests.console.kit import running_console

from orbitmq.admin import Admin
from orbitmq.admin.groups import update_group_list
from orbitmq.admin.topics import new_topic, update_topic_list
from orbitmq.client import Message, Producer
from orbitmq.client.sync import LoopThread
from orbitmq.console.serve import RunningConsole
from orbitmq.console.settings import ConsoleSettings
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.testing import RunningBroker, run_broker

pytestmark = [pytest.mark.slow, pytest.mark.soak]

TOPICS: Final = 5_000
GROUPS: Final = 2_000
SERVER_S: Final = 0.3
TAIL_S: Final = 5.0
RATE: Final = 20_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningBroker]:
    with run_broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


async def fill(broker: RunningBroker) -> None:
    async with Admin(broker.name_server) as admin:
        topics = [new_topic(f"topic-{number:04d}", read=1, write=1, perm=None) for number in range(TOPICS)]
        for start in range(0, TOPICS, 500):
            await update_topic_list(admin, topics[start : start + 500], broker=broker.address, cluster=None)
        groups = [SubscriptionGroupConfig(group_name=f"group-{number:04d}") for number in range(GROUPS)]
        await update_group_list(admin, groups, broker=broker.address, cluster=None)


@pytest.fixture(scope="module")
def console(cluster: RunningBroker, loop: LoopThread) -> Iterator[RunningConsole]:
    loop.run(fill(cluster))
    with running_console(loop, cluster.name_server, ConsoleSettings(sample_s=3600.0)) as running:
        deadline = time.monotonic() + 120
        while len(running.console.services.sampler.snapshot.topics) < TOPICS:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield running


@pytest.mark.parametrize(
    "path", ["/topics", "/topics?sort=-rate&page=40", "/topics?q=49", "/groups", "/groups?q=19"]
)
def test_list_of_a_large_cluster_takes_little_server_time(console: RunningConsole, path: str) -> None:
    with httpx.Client(base_url=console.url, timeout=60.0) as client:
        assert client.get(path).status_code == 200  # the first compiles the template
        took = []
        for _ in range(5):
            begin = time.perf_counter()
            answer = client.get(path)
            took.append(time.perf_counter() - begin)
            assert "<tbody>" in answer.text
    assert min(took) < SERVER_S, f"{path} took {min(took):.3f} s"


async def produce(broker: RunningBroker, stop: asyncio.Event) -> int:
    """As near to the rate as the machine comes."""
    sent = 0
    async with Producer("fast", broker.name_server) as producer:
        begin = asyncio.get_running_loop().time()
        while not stop.is_set():
            batch = [Message("fast", f"message {sent + number}") for number in range(200)]
            await producer.send_batch(batch)
            sent += len(batch)
            ahead = sent / RATE - (asyncio.get_running_loop().time() - begin)
            if ahead > 0:
                await asyncio.sleep(ahead)
    return sent


def test_tail_of_a_fast_topic_is_bounded_and_the_console_answers(
    cluster: RunningBroker, loop: LoopThread, console: RunningConsole
) -> None:
    cluster.create_topic("fast")
    sender = LoopThread()
    stop = sender.run(_event())
    sending = sender.submit(produce(cluster, stop))
    shown = arrived = 0
    slowest = 0.0
    try:
        with (
            httpx.Client(base_url=console.url, timeout=30.0) as client,
            httpx.Client(base_url=console.url, timeout=30.0) as other,
            client.stream("GET", "/topics/fast/tail.stream") as stream,
        ):
            begin = time.monotonic()
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    body = json.loads(line[6:])
                    assert len(body["rows"]) <= 50
                    shown += len(body["rows"])
                    arrived += body["arrived"]
                    asked = time.perf_counter()
                    assert other.get("/healthz").status_code == 200
                    slowest = max(slowest, time.perf_counter() - asked)
                if time.monotonic() - begin > TAIL_S:
                    break
    finally:
        sender.run(_set(stop))
        sent = sending.result(30)
        sender.close()
    rate = sent / TAIL_S
    assert arrived > 0.5 * sent, f"{arrived} counted of {sent}"
    assert 0 < shown <= 200 * (TAIL_S + 2)
    assert slowest < 1.0, f"an answer took {slowest:.3f} s at {rate:.0f} messages a second"


async def _event() -> asyncio.Event:
    return asyncio.Event()


async def _set(event: asyncio.Event) -> None:
    event.set()

"""``orbitmq up`` under load: both endpoints are scraped, and their values match the messages sent and consumed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.waiting import until

from orbitmq import (
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TransactionState,
)
from orbitmq.testing import run_broker

MESSAGES: Final = 3_000
BODY: Final = b"x" * 300
LARGE: Final = b"y" * 3_000  # below what a producer compresses
READY_S: Final = 120.0
Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=READY_S) as answer:
        text: str = answer.read().decode()
    return text


def scrape(address: str) -> Samples:
    """Returns samples by name and labels, without those of the metrics server itself."""
    common = {"cluster", "node_id", "node_type"}
    return {
        (
            sample.name,
            frozenset(item for item in sample.labels.items() if item[0] not in common),
        ): sample.value
        for family in text_string_to_metric_families(read(f"http://{address}/metrics"))
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    """Returns the sum of the samples of a name that have these labels."""
    wanted = labels.items()
    found = [number for (one, has), number in samples.items() if one == name and wanted <= has]
    assert found, f"no {name} with {labels}"
    return sum(found)


class Up:
    """A running ``orbitmq up``."""

    def __init__(self, process: subprocess.Popen[bytes], text: str) -> None:
        self.process = process
        self.text = text
        self.name_server = self._found(r"name server +(\S+)")
        self.broker_metrics, self.name_server_metrics = re.findall(r"metrics +http://(\S+)/metrics", text)

    def _found(self, pattern: str) -> str:
        found = re.search(pattern, self.text)
        assert found, self.text
        return found.group(1)

    def stop(self) -> str:
        """Presses Ctrl-C; returns the last output."""
        self.process.send_signal(signal.SIGINT)
        out, errors = self.process.communicate(timeout=READY_S)
        assert self.process.returncode == 0, errors.decode()
        return out.decode()


@contextlib.contextmanager
def up(data: Path) -> Iterator[Up]:
    command = [sys.executable, "-m", "orbitmq.cli.main", "up", "--data", str(data)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--broker-port", "0", "--metrics-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        text = ""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while "Try next" not in text:
                assert selector.select(READY_S), f"no ready text in time: {text!r}"
                piece = os.read(process.stdout.fileno(), 4096).decode()
                assert piece, process.stderr and process.stderr.read().decode()
                text += piece
        yield Up(process, text)
    finally:
        process.kill()
        process.communicate()


async def produce(name_server: str) -> None:
    async with Producer("shop", name_server) as producer:
        await producer.send(Message("Load", BODY))

        async def share() -> None:
            for _ in range((MESSAGES - 100) // 20):
                await producer.send(Message("Load", BODY))

        await asyncio.gather(*(share() for _ in range(20)))
        for _ in range(99):
            await producer.send(Message("Load", LARGE))


async def consume(name_server: str, count: int) -> int:
    """Consumes ``count`` messages; returns their total size in bytes."""
    consumer = PushConsumer("billing", name_server, from_where=ConsumeFromWhere.FIRST_OFFSET, rebalance_s=1.0)
    done = asyncio.Event()
    sizes: list[int] = []

    @consumer.listen("Load")
    async def handle(message: ReceivedMessage) -> None:
        sizes.append(len(message.body))
        if len(sizes) >= count:
            done.set()

    async with consumer, asyncio.timeout(READY_S):
        await done.wait()
    return sum(sizes)


@pytest.mark.slow
def test_figures_of_both_endpoints_under_load_are_what_was_sent_and_consumed(tmp_path: Path) -> None:
    with up(tmp_path) as servers:
        scrapes: list[Samples] = []
        over = threading.Event()

        def keep_scraping() -> None:
            while not over.is_set():
                for address in (servers.broker_metrics, servers.name_server_metrics):
                    samples = scrape(address)
                    if address == servers.broker_metrics:
                        scrapes.append(samples)

        watcher = threading.Thread(target=keep_scraping)
        watcher.start()
        try:
            asyncio.run(produce(servers.name_server))
            behind = scrape(servers.broker_metrics)
            body_bytes = asyncio.run(consume(servers.name_server, MESSAGES))
        finally:
            over.set()
            watcher.join()
        # Counters only grow while messages pass, and none is counted that was not sent.
        counts = [
            sum(
                n
                for (name, labels), n in one.items()
                if name == "rocketmq_messages_in_total" and ("topic", "Load") in labels
            )
            for one in scrapes
        ]
        assert counts == sorted(counts)
        assert len({count for count in counts if 0 < count < MESSAGES}) >= 2, "nothing was scraped under load"
        assert body_bytes == (MESSAGES - 99) * len(BODY) + 99 * len(LARGE)
        assert value(behind, "rocketmq_messages_in_total", topic="Load", message_type="normal") == MESSAGES

        until(
            lambda: (
                value(
                    scrape(servers.broker_metrics), "rocketmq_consumer_lag_messages", consumer_group="billing"
                )
                == 0
            ),
            "offsets of the consumer",
        )
        samples = scrape(servers.broker_metrics)
        assert value(samples, "rocketmq_messages_in_total", topic="Load") == MESSAGES
        assert (
            value(samples, "rocketmq_messages_out_total", topic="Load", consumer_group="billing") == MESSAGES
        )
        stored = value(samples, "rocketmq_throughput_in_total", topic="Load")
        assert stored == value(samples, "rocketmq_throughput_out_total", topic="Load")
        assert stored == value(samples, "rocketmq_message_size_sum", topic="Load")
        assert body_bytes < stored < body_bytes + MESSAGES * 400
        assert value(samples, "rocketmq_message_size_bucket", topic="Load", le="1024.0") == MESSAGES - 99
        assert value(samples, "rocketmq_message_size_bucket", topic="Load", le="4096.0") == MESSAGES
        assert value(samples, "rocketmq_consumer_inflight_messages", topic="Load") == 0
        assert value(samples, "rocketmq_consumer_ready_messages", topic="Load") == 0
        assert value(samples, "orbitmq_pulls_total", result="found") > 0
        assert value(samples, "process_resident_memory_bytes") > 1 << 20
        # The consumer is gone, but not its group: alerts depend on the lag of a group without members.
        assert value(samples, "rocketmq_consumer_lag_latency_milliseconds", consumer_group="billing") == 0

        names = scrape(servers.name_server_metrics)
        assert value(names, "orbitmq_namesrv_brokers", role="master") == 1
        assert value(names, "rocketmq_topic_number") >= 1
        assert value(names, "rocketmq_rpc_latency_milliseconds_count", request_code="register_broker") >= 1
        for address in (servers.broker_metrics, servers.name_server_metrics):
            assert read(f"http://{address}/healthz") == read(f"http://{address}/readyz") == "ok\n"


@pytest.mark.slow
def test_up_keeps_its_data_between_runs_and_stops_cleanly(tmp_path: Path) -> None:
    with up(tmp_path) as servers:
        assert "messages from before" not in servers.text

        async def send() -> None:
            async with Producer("shop", servers.name_server) as producer:
                for _ in range(7):
                    await producer.send(Message("Load", BODY))

        asyncio.run(send())
        assert "stopped" in servers.stop()
    assert not (tmp_path / "store" / "abort").exists()
    assert json.loads((tmp_path / "store" / "config" / "topics.json").read_text())["topicConfigTable"]["Load"]
    with up(tmp_path) as servers:
        assert "7 messages from before" in servers.text
        assert asyncio.run(consume(servers.name_server, 7)) == 7 * len(BODY)


@pytest.mark.slow
def test_broker_without_its_name_server_is_alive_and_not_ready() -> None:
    with run_broker(
        metricsExporterType="PROM", metricsPromExporterPort=0, namesrvAddr="127.0.0.1:1"
    ) as broker:
        assert read(f"http://{broker.metrics}/healthz") == "ok\n"
        with pytest.raises(urllib.error.HTTPError) as refused:
            read(f"http://{broker.metrics}/readyz")
        assert refused.value.code == 503
        assert "this broker is not registered with any name server" in refused.value.read().decode()


@pytest.mark.slow
def test_transactions_delays_and_dead_letters_are_told_apart() -> None:
    with run_broker(metricsExporterType="PROM", metricsPromExporterPort=0) as broker:
        broker.create_topic("Mixed")
        asyncio.run(_mixed(broker.name_server))
        address = broker.metrics
        assert address is not None

        def arrived() -> bool:
            samples = scrape(address)
            key = frozenset({"topic": "Mixed", "message_type": "delay"}.items())
            return any(
                name == "rocketmq_messages_in_total" and key <= labels for name, labels in samples
            ) and any(name == "rocketmq_send_to_dlq_messages_total" for name, _ in samples)

        until(arrived, "the delayed message and the dead letter")
        samples = scrape(address)
        for kind, count in (("normal", 4), ("delay", 1), ("transaction", 1)):
            assert value(samples, "rocketmq_messages_in_total", topic="Mixed", message_type=kind) == count
        assert value(samples, "rocketmq_commit_messages_total", topic="Mixed") == 1
        assert value(samples, "rocketmq_rollback_messages_total", topic="Mixed") == 1
        assert value(samples, "rocketmq_half_messages", topic="Mixed") == 1
        assert value(samples, "rocketmq_finish_message_latency_milliseconds_count", topic="Mixed") == 1
        assert (
            value(samples, "rocketmq_send_to_dlq_messages_total", topic="Mixed", consumer_group="picky") == 1
        )


def _outcome(state: TransactionState, _message: Message, _id: str) -> TransactionState:
    return state


async def _mixed(name_server: str) -> None:
    async with Producer("shop", name_server, check=lambda _: TransactionState.UNKNOWN) as producer:
        for _ in range(3):
            await producer.send(Message("Mixed", "good"))
        await producer.send(Message("Mixed", "bad"))
        await producer.send(Message("Mixed", "late", delay_level=1))
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN):
            await producer.send_in_transaction(Message("Mixed", "half"), functools.partial(_outcome, state))
    consumer = PushConsumer(
        "picky", name_server, from_where=ConsumeFromWhere.FIRST_OFFSET, rebalance_s=1.0, reconsume_max=0
    )
    seen: list[str] = []
    done = asyncio.Event()

    @consumer.listen("Mixed")
    async def handle(message: ReceivedMessage) -> ConsumeResult:
        seen.append(message.text())
        if len(seen) >= 6:
            done.set()
        return ConsumeResult.RETRY if message.text() == "bad" else ConsumeResult.SUCCESS

    async with consumer, asyncio.timeout(READY_S):
        await done.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "metric"),
    [("namesrv", "orbitmq_connections"), ("broker", "rocketmq_broker_permission")],
)
def test_ready_line_of_a_server_says_where_its_metrics_are(command: str, metric: str, tmp_path: Path) -> None:
    settings = {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": "0",
        "metricsLabel": "zone:north",
    }
    place = "kvConfigPath" if command == "namesrv" else "storePathRootDir"
    settings[place] = str(tmp_path / "place")
    arguments = [part for key, text in settings.items() for part in ("--set", f"{key}={text}")]
    with subprocess.Popen(
        [sys.executable, "-m", "orbitmq.cli.main", command, *arguments, "--log-file", str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"ready.*, metrics (http://\S+/metrics)", line)
            assert found, line
            assert re.search(rf'^{metric}{{zone="north",.*}} ', read(found.group(1)), re.MULTILINE)
            process.terminate()
            assert process.wait(READY_S) == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_broker_whose_metrics_port_is_taken_says_so_and_leaves_its_store_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = {
            "listenPort": "0",
            "bindAddress": "127.0.0.1",
            "metricsExporterType": "PROM",
            "metricsPromExporterPort": str(port),
            "storePathRootDir": str(tmp_path / "store"),
        }
        arguments = [part for key, text in settings.items() for part in ("--set", f"{key}={text}")]
        done = subprocess.run(
            [sys.executable, "-m", "orbitmq.cli.main", "broker", *arguments],
            capture_output=True,
            text=True,
            timeout=READY_S,
            check=False,
        )
    assert done.returncode == 1
    assert f"metrics cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "metricsPromExporterPort" in done.stderr
    assert not (tmp_path / "store").exists()

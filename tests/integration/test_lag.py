"""Operators can see a group whose handlers hang before it commits anything."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest

from orbitmq import Message, Producer, PushConsumer, ReceivedMessage
from orbitmq.admin import Admin, doctor, groups
from orbitmq.admin.census import all_lags
from orbitmq.testing import run_broker

pytestmark = pytest.mark.slow

MESSAGES = 12


def samples(address: str | None, name: str) -> dict[str, float]:
    """Returns the samples of a metric that name the hung group."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    found = [line for line in lines if line.startswith(f"{name}{{") and 'consumer_group="hung"' in line]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in found}


def test_hung_group_lags_in_metrics_admin_and_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_BLOCKED_MS", 0)

    async def run(name_server: str, address: str, metrics: str | None) -> None:
        async with Producer("shop", name_server) as producer:
            await producer.send_batch([Message("payments", f"p {number}") for number in range(MESSAGES)])
        started = asyncio.Event()
        consumer = PushConsumer("hung", name_server, start="first", close_wait_s=0.1)

        @consumer.listen("payments")
        async def handle(message: ReceivedMessage) -> None:
            started.set()
            await asyncio.Event().wait()

        async with consumer, asyncio.timeout(30), Admin(name_server) as admin:
            await started.wait()
            (row,) = (await groups.consumer_groups(admin)).groups
            assert (row.group, row.lag_total) == ("hung", MESSAGES)
            progress = await groups.group_progress(admin, "hung")
            assert progress.lag_total == MESSAGES
            assert sum(lag.diff for lag in await all_lags(admin, address) if lag.group == "hung") == MESSAGES
            texts = [one.what for one in (await doctor.checkup(admin)).findings]
            (hung,) = [text for text in texts if "finished none" in text]
            assert hung.startswith("group hung: ")
            assert f"holds {MESSAGES} messages and finished none for " in hung
            ours = await asyncio.to_thread(samples, metrics, "orbitmq_consumer_lag_messages")
            assert sum(ours.values()) == MESSAGES
            age = await asyncio.to_thread(samples, metrics, "orbitmq_consumer_lag_latency_milliseconds")
            assert max(age.values()) > 0
            theirs = await asyncio.to_thread(samples, metrics, "rocketmq_consumer_lag_messages")
            assert sum(theirs.values()) == 0

    with run_broker(metricsExporterType="PROM", metricsPromExporterPort=0) as broker:
        asyncio.run(run(broker.name_server, broker.address, broker.metrics))

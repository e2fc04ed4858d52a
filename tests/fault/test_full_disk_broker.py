"""A broker with a full disk reports it immediately, in its log and in ``/readyz``, and ends with a clear message."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest
from tests.integration.bad_requests import SEND_V2
from tests.unit.transport.loops import on_both_loops

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.cli.failures import start_failure
from orbitmq.codes import ResponseCode
from orbitmq.requests import RequestCode
from orbitmq.store.config import StoreConfig
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.transport.client import RpcClient
from orbitmq.wire.frame import Frame

HOST = "127.0.0.1"


def broker_on(fs: FaultyFileSystem) -> Broker:
    config = BrokerConfig(
        listen_port=0,
        bind_host=HOST,
        public_host=HOST,
        fast_port_enabled=False,
        metrics_exporter="PROM",
        metrics_port=0,
        timer_wheel_enabled=False,
    )
    return Broker(config, StoreConfig(root="/store", segment_bytes=1 << 20, index_enabled=False), fs=fs)


async def send(client: RpcClient, broker: Broker) -> Frame:
    fields = {**SEND_V2, "b": "TBW102", "e": "0"}
    return await client.call(
        broker.address, RequestCode.SEND_MESSAGE_V2, body=b"x" * 5_000, ext=fields, timeout_s=10.0
    )


async def ready(broker: Broker) -> tuple[str, str]:
    """Returns status and text of /readyz."""
    assert broker.metrics is not None
    reader, writer = await asyncio.open_connection(HOST, broker.metrics.port)
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = (await reader.read()).decode()
    writer.close()
    return answer.split()[1], answer.partition("\r\n\r\n")[2].strip()


@on_both_loops
async def test_broker_on_a_full_disk_logs_at_once_is_not_ready_and_recovers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs = FaultyFileSystem()
    async with broker_on(fs) as broker:
        client = RpcClient()
        assert (await send(client, broker)).code == ResponseCode.SUCCESS
        assert (await ready(broker))[0] == "200"
        fs.fail_writes(error=errno.ENOSPC)
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                refused = await send(client, broker)
                assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert "full" in (refused.remark or "")
        told = [record.getMessage() for record in caplog.records if "sends refused" in record.message]
        assert len(told) == 1, "one line at once, not one per message"
        assert "the disk is full" in told[0]
        status, text = await ready(broker)
        assert status == "503"
        assert "the disk is full" in text
        fs.heal()
        assert (await send(client, broker)).code == ResponseCode.SUCCESS
        broker.store.tick()
        assert (await ready(broker))[0] == "200"
        await client.close()


@on_both_loops
async def test_broker_that_cannot_save_at_its_end_says_what_and_closes_everything() -> None:
    fs = FaultyFileSystem()
    broker = broker_on(fs)
    await broker.start()
    client = RpcClient()
    assert (await send(client, broker)).code == ResponseCode.SUCCESS
    await client.close()
    broker.offsets.commit("client", "G", "TBW102", 0, 1)
    fs.fail_writes(error=errno.ENOSPC)
    with pytest.raises(OSError, match=r"stopped, but not everything could be saved") as caught:
        await broker.stop()
    sentence = start_failure(caught.value)
    assert "consumerOffset.json" in sentence
    assert "the disk is full" in sentence
    assert "Errno" not in sentence
    # The lock is free: the store was closed although a table before it could not be saved.
    again = broker_on(fs.kill())
    async with again:
        assert again.store.max_offset("TBW102", 0) == 1


@on_both_loops
async def test_broker_that_starts_on_a_full_disk_says_so_before_the_first_cleaning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fs = FaultyFileSystem(capacity_bytes=1 << 30)
    async with broker_on(fs):
        pass
    filler = fs.open("/store/filler", create=True)
    fs.pwrite(filler, b"x" * (8 << 20), 0)
    fs.close(filler)
    fs.capacity_bytes = fs.used_bytes * 100 // 95
    with caplog.at_level(logging.WARNING):
        async with broker_on(fs) as broker:
            status, text = await ready(broker)
    assert status == "503"
    assert "above the limit" in text
    assert any("disk usage above the limit" in record.getMessage() for record in caplog.records)

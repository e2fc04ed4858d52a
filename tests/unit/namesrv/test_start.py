"""The log lines at the start of a name server."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.unit.transport.certificates import make_certificates

from orbitmq.namesrv.config import NameServerConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.requests import RequestCode
from orbitmq.transport.client import RpcClient
from orbitmq.transport.tls import TlsMode


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.DISABLED])
def test_start_logs_the_port_and_the_files_that_are_watched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: TlsMode
) -> None:
    """Row A05."""
    made = make_certificates(tmp_path)
    config = NameServerConfig(
        bind_address="127.0.0.1",
        listen_port=0,
        kv_config_path=str(tmp_path / "kv.json"),
        tls_mode=mode,
        tls_certificate=str(made.server),
        tls_key=str(made.server_key),
    )

    async def run() -> int:
        async with NameServer(config) as server:
            return server.port

    with caplog.at_level(logging.INFO, "orbitmq.namesrv"):
        port = asyncio.run(run())
    lines = [record.getMessage() for record in caplog.records]
    assert f"name server started address=127.0.0.1:{port}" in lines
    watched = [line for line in lines if line.startswith("certificate files watched")]
    assert len(watched) == (mode is TlsMode.PERMISSIVE)
    assert all(str(made.server) in line and str(made.server_key) in line for line in watched)


@pytest.mark.parametrize(
    ("host", "shown"), [("::1", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")]
)
def test_the_address_can_be_given_to_a_client(tmp_path: Path, host: str, shown: str) -> None:
    config = NameServerConfig(bind_address=host, listen_port=0, kv_config_path=str(tmp_path / "kv.json"))

    async def run() -> None:
        async with NameServer(config) as server:
            assert server.address == f"{shown}:{server.port}"
            client = RpcClient()
            answer = await client.call(server.address, RequestCode.GET_BROKER_CLUSTER_INFO)
            assert answer.code == 0
            await client.close()

    asyncio.run(run())

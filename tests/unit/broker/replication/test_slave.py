"""The slave's side of replication on transports in memory: what its master tells it beside the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.kit import open_store
from tests.unit.broker.replication.test_master import Wire, on_loop

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.replication.slave import MasterLink
from orbitmq.broker.replication.stream import encode_news, encode_safe_end, encode_transfer_head
from orbitmq.testing.manual_clock import ManualClock


@pytest.mark.parametrize("cut", [0, 5, 12, 17, 24, 30])
def test_news_and_the_safe_end_are_told_once_in_any_pieces(tmp_path: Path, cut: int) -> None:
    async def scenario() -> None:
        store = open_store(tmp_path)
        told: list[int | str] = []
        link = MasterLink(BrokerConfig(), store, ManualClock(), b"", told.append, lambda: told.append("news"))
        link.connection_made(Wire())
        link.data_received(encode_transfer_head(0, 0))
        assert not told, "a heartbeat"
        stream = encode_transfer_head(0, 0) + encode_news() + encode_safe_end(0)
        for piece in (stream[:cut], stream[cut:]):
            if piece:
                link.data_received(piece)
        assert told.count("news") == 1
        assert set(told) == {"news", 0}
        assert not link.closed.done()
        store.close()

    on_loop(scenario)


@pytest.mark.parametrize("control", [encode_news(), encode_safe_end(0)])
def test_a_slave_that_is_in_no_group_takes_neither(tmp_path: Path, control: bytes) -> None:
    async def scenario() -> None:
        store = open_store(tmp_path)
        link = MasterLink(BrokerConfig(), store, ManualClock())
        link.connection_made(Wire())
        link.data_received(control)
        assert link.closed.done()
        store.close()

    on_loop(scenario)

"""The slave's side of replication on transports in memory: what it takes for news of its master."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.broker.kit import open_store
from tests.unit.broker.replication.test_master import Wire, on_loop

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.replication.slave import MasterLink
from orbitmq.broker.replication.stream import encode_news, encode_transfer_head
from orbitmq.testing.manual_clock import ManualClock


@pytest.mark.parametrize("cut", [0, 5, 12, 17, 24])
def test_two_heartbeats_at_once_are_news_in_any_pieces_and_one_is_not(
    tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        store = open_store(tmp_path)
        link = MasterLink(BrokerConfig(), store, ManualClock())
        link.connection_made(Wire())
        told: list[float] = []
        loop = asyncio.get_running_loop()
        now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now)
        link.on_news = lambda: told.append(now)
        for _ in range(3):
            now += 0.1  # the most often a master beats
            link.data_received(encode_transfer_head(0, 0))
        assert not told
        now += 0.1
        news = encode_news(0)
        for piece in (news[:cut], news[cut:]):
            link.data_received(piece)
        assert told == [now]
        store.close()

    on_loop(scenario)

"""Under SYNC_FLUSH a real broker shows consumers only messages on its disk, and wakes them when they get there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.integration.ha_kit import put, until

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.store.config import StoreConfig
from orbitmq.store.types import FlushMode, ReadStatus

HOST = "127.0.0.1"


@pytest.mark.parametrize("mode", list(FlushMode))
def test_a_message_is_read_when_it_is_flushed(tmp_path: Path, mode: FlushMode) -> None:
    async def test() -> None:
        config = BrokerConfig(public_host=HOST, bind_host=HOST, listen_port=0)
        store_config = StoreConfig(root=str(tmp_path), segment_bytes=1 << 20, flush_mode=mode)
        async with Broker(config, store_config) as broker:
            store = broker.store
            worker = store._flusher._worker
            assert worker is not None
            woken: list[tuple[str, int]] = []
            broker.events.readable.of_any.append(lambda topic, queue_id: woken.append((topic, queue_id)))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(worker, "want_sync", lambda: None)  # a slow disk
                put(broker, 1)
                status = store.read("T", 0, 0, 32).status
                if mode is FlushMode.ASYNC:
                    assert (status, woken) == (ReadStatus.FOUND, [("T", 0)])
                    return
                assert (status, woken) == (ReadStatus.OFFSET_OVERFLOW_ONE, [])
            worker.want_sync()
            await until(lambda: woken == [("T", 0)], "the flush")
            assert store.read("T", 0, 0, 32).count == 1

    asyncio.run(test())

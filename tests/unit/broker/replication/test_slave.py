"""The slave's side of replication on in-memory transports: what its master sends in addition to the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.broker.kit import message, open_store
from tests.unit.broker.replication.test_master import Wire, on_loop

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.replication.slave import MasterLink, Membership
from orbitmq.broker.replication.stream import (
    encode_news,
    encode_report,
    encode_safe_end,
    encode_transfer_head,
)
from orbitmq.store.message_store import MessageStore
from orbitmq.testing.manual_clock import ManualClock


def following(store: MessageStore, member: Membership | None = None) -> MasterLink:
    """A link whose changed tables are copied immediately."""
    link: MasterLink = MasterLink(
        BrokerConfig(), store, ManualClock(), lambda: link.tables_copied(), b"", member
    )
    return link


@pytest.mark.parametrize("cut", [0, 5, 12, 17, 24, 30])
def test_news_and_the_safe_end_are_told_once_in_any_pieces(tmp_path: Path, cut: int) -> None:
    async def scenario() -> None:
        store = open_store(tmp_path)
        told: list[int | str] = []
        member = Membership(b"", told.append)
        link = MasterLink(BrokerConfig(), store, ManualClock(), lambda: told.append("news"), b"", member)
        link.connection_made(Wire())
        link.data_received(encode_transfer_head(0, 0))
        assert told == ["news"], "what changed before the master had this link"
        told.clear()
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
        link = following(store)
        link.connection_made(Wire())
        link.data_received(control)
        assert link.closed.done()
        store.close()

    on_loop(scenario)


def record_bytes(root: Path, count: int) -> bytes:
    """Returns the log of a master with that many messages."""
    store = open_store(root)
    store.append_batch([message("T", body=b"%d" % number * 50) for number in range(count)])
    log = bytes(store.log_range(0, store.max_log_offset))
    store.close()
    return log


def reports(wire: Wire) -> list[int]:
    """Returns the reports since the last call."""
    data, wire.written = bytes(wire.written), bytearray()
    return [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8)]


def test_a_member_under_sync_flush_reports_what_is_flushed(tmp_path: Path) -> None:
    """In this store only ``flush`` flushes."""

    async def scenario() -> None:
        log = record_bytes(tmp_path / "master", 3)
        store, wire = open_store(tmp_path), Wire()
        member = Membership(b"", lambda _end: None, reports_flushed=True)
        link = following(store, member)
        link.connection_made(wire)
        assert reports(wire) == [0], "the first report says where the log ends"
        half = len(log) // 2
        link.data_received(encode_transfer_head(0, half) + log[:half])
        link.data_received(encode_transfer_head(half, len(log) - half) + log[half:])
        link.tick()
        assert store.max_log_offset == len(log)
        assert reports(wire) == [], "written is not flushed"
        store.flush()
        assert reports(wire)[-1] == len(log)
        assert not link.closed.done()
        store.close()

    on_loop(scenario)


@pytest.mark.parametrize("member", [None, Membership(b"", lambda _end: None)])
def test_other_slaves_report_what_is_written(tmp_path: Path, member: Membership | None) -> None:
    async def scenario() -> None:
        log = record_bytes(tmp_path / "master", 1)
        store, wire = open_store(tmp_path), Wire()
        link = following(store, member)
        link.connection_made(wire)
        link.data_received(encode_transfer_head(0, len(log)) + log)
        assert bytes(wire.written) == encode_report(0) + encode_report(len(log))
        assert store.flushed_offset < len(log)
        store.close()

    on_loop(scenario)


@pytest.mark.parametrize("reports_flushed", [False, True])
def test_a_member_reports_nothing_new_before_it_has_copied_the_tables(
    tmp_path: Path, reports_flushed: bool
) -> None:
    async def scenario() -> None:
        log = record_bytes(tmp_path / "master", 2)
        half = len(log) // 2
        store, wire, news = open_store(tmp_path), Wire(), list[int]()
        member = Membership(b"", lambda _end: None, reports_flushed)
        link = MasterLink(
            BrokerConfig(replication_heartbeat_ms=-1),
            store,
            ManualClock(),
            lambda: news.append(1),
            b"",
            member,
        )
        link.connection_made(wire)
        link.data_received(encode_transfer_head(0, half) + log[:half])
        assert len(news) == 1, "the first bytes: a change before them was not told"
        store.flush()
        link.tables_copied()
        assert reports(wire) == [0, half]
        link.data_received(encode_news() + encode_transfer_head(half, half) + log[half:])
        store.flush()
        link.tick()
        assert set(reports(wire)) <= {half}, "a heartbeat repeats the last report"
        assert len(news) == 2
        link.tables_copied()
        assert reports(wire) == [len(log)]
        store.close()

    on_loop(scenario)

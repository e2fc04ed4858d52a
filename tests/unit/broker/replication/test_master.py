"""The master's side of replication on in-memory transports: which slaves are served, from where, how fast,
how long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.broker.kit import message, open_store

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.failover.in_sync import InSyncSet
from orbitmq.broker.failover.mastership import Mastership
from orbitmq.broker.replication.master import ReplicaGroup, ReplicaServer, SlaveLink
from orbitmq.broker.replication.protection import StreamProtection
from orbitmq.broker.replication.stream import TransferReader, encode_greeting, encode_report


class Wire(asyncio.Transport):
    """Records writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.7", 4711)})
        self.written = bytearray()
        self.aborted = False
        self.has_news = False
        self.safe_end = -1
        """The last one in what ``transfers`` has read; -1 if there was none."""

    def write(self, data: Any) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def abort(self) -> None:
        self.aborted = True

    def transfers(self) -> list[tuple[int, bytes]]:
        """Returns the writes as a slave reads them."""
        data, self.written = bytes(self.written), bytearray()
        reader = TransferReader(for_member=True)
        found = [(log_offset, bytes(body)) for log_offset, body in reader.feed(data)]
        self.safe_end, self.has_news = reader.safe_end, reader.has_news
        return found


class Master:
    """A server over a store with some messages, inside a running loop."""

    def __init__(self, root: Path, *, count: int = 10, epoch: int | None = None, **options: Any) -> None:
        self.events = BrokerEvents()
        self.store = open_store(root, arrived=self.events.arrived)
        config = BrokerConfig(**options)
        self.mastership = Mastership()
        group = None
        if epoch is not None:
            links: list[SlaveLink] = []
            group = ReplicaGroup(links, InSyncSet(config, self.store, links, self.events), self.mastership)
            self.mastership.begin(epoch)
        self.server = ReplicaServer(config, self.store, self.events, StreamProtection(), group)
        self.add(count)

    def add(self, count: int) -> None:
        for number in range(count):
            self.store.append_batch([message("T", body=b"%d" % number * 50)])

    def connect(self) -> tuple[SlaveLink, Wire]:
        link, wire = SlaveLink(self.server), Wire()
        link.connection_made(wire)
        return link, wire

    @property
    def log(self) -> bytes:
        return bytes(self.store.log_range(0, self.store.max_log_offset) or b"")


def on_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 10))


def test_a_slave_is_sent_the_log_after_its_first_report_and_what_comes_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        master = Master(tmp_path)
        link, wire = master.connect()
        assert not wire.written, "the end of its log is unknown yet"
        link.data_received(encode_report(0))
        before = wire.transfers()
        assert b"".join(body for _, body in before) == master.log
        assert before[0][0] == 0
        sent = link.next_offset
        master.add(3)
        await asyncio.sleep(0)
        assert b"".join(body for _, body in wire.transfers()) == master.log[sent:]
        link.data_received(encode_report(link.next_offset))
        assert link.acknowledged == master.store.max_log_offset
        [status] = master.server.status()
        assert (status.addr, status.diff, status.in_sync) == ("10.0.0.7:4711", 0, True)
        link.connection_lost(None)
        assert not master.server.links
        master.store.close()

    on_loop(scenario)


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_report_in_pieces_is_one_report(tmp_path: Path, cut: int) -> None:
    async def scenario() -> None:
        master = Master(tmp_path)
        link, _ = master.connect()
        report = encode_report(0)
        link.data_received(report[:cut])
        assert link.next_offset < 0
        link.data_received(report[cut:])
        assert link.next_offset == master.store.max_log_offset
        master.store.close()

    on_loop(scenario)


def test_a_slave_that_claims_what_it_cannot_have_is_sent_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        master = Master(tmp_path)
        longer, wire = master.connect()
        longer.data_received(encode_report(master.store.max_log_offset + 1))
        assert wire.aborted
        assert not wire.written
        ahead, wire = master.connect()
        ahead.data_received(encode_report(0))
        ahead.data_received(encode_report(ahead.next_offset + 1))
        assert wire.aborted
        assert ahead.acknowledged == 0, "no send is acknowledged by it"
        master.store.close()

    on_loop(scenario)


def test_a_full_socket_stops_the_stream_until_it_has_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        master = Master(tmp_path)
        link, wire = master.connect()
        link.pause_writing()
        link.data_received(encode_report(0))
        assert not wire.written
        link.resume_writing()
        assert b"".join(body for _, body in wire.transfers()) == master.log
        master.store.close()

    on_loop(scenario)


def test_a_silent_slave_is_given_up_and_a_quiet_one_gets_heartbeats(tmp_path: Path) -> None:
    async def scenario() -> None:
        master = Master(tmp_path, replication_heartbeat_ms=1_000, replication_silence_ms=5_000)
        link, wire = master.connect()
        link.data_received(encode_report(0))
        wire.transfers()
        now = asyncio.get_running_loop().time()
        link.tick(now + 0.5)
        assert not wire.written
        link.tick(now + 2.0)
        assert wire.transfers() == [(link.next_offset, b"")]
        link.tick(now + 6.0)
        assert wire.aborted
        master.store.close()

    on_loop(scenario)


def test_connections_that_report_nothing_keep_no_slave_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        master = Master(tmp_path)
        slave, wire = master.connect()
        slave.data_received(encode_report(0))
        silent = [master.connect() for _ in range(70)]
        assert len(master.server.links) == 64
        assert [one.aborted for _, one in silent] == [True] * 7 + [False] * 63
        later, later_wire = master.connect()
        later.data_received(encode_report(0))
        assert later_wire.transfers() == wire.transfers() != []
        now = asyncio.get_running_loop().time()
        dripping, drip_wire = silent[-1]
        dripping.data_received(b"\x00")
        for link in list(master.server.links):
            link.tick(now + 6.0)
        assert drip_wire.aborted
        assert not wire.aborted
        master.store.close()

    on_loop(scenario)


def test_with_failover_only_a_master_serves_and_only_its_own_epoch(tmp_path: Path) -> None:
    async def scenario() -> None:
        master = Master(tmp_path, epoch=0)
        for epoch, greeting, served in ((0, 3, False), (3, 3, True), (4, 3, False)):
            master.mastership.begin(epoch)
            link, wire = master.connect()
            link.data_received(encode_greeting(2, greeting) + encode_report(0))
            assert wire.aborted is not served, epoch
            assert (link.member == 2) is served
        master.store.close()

    on_loop(scenario)


def test_members_of_the_group_are_told_what_is_safe_and_other_slaves_are_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        master = Master(tmp_path, epoch=3)
        master.store.limit_reads(100)
        member, wire = master.connect()
        member.data_received(encode_greeting(2, 3) + encode_report(0))
        other, plain = master.connect()
        other.data_received(encode_report(0))
        assert b"".join(body for _, body in wire.transfers()) == master.log
        plain.transfers()
        assert (wire.safe_end, plain.safe_end) == (100, -1)
        now = asyncio.get_running_loop().time()
        for safe in (250, 250):
            master.store.limit_reads(safe)
            member.tick(now)
            other.tick(now)
        assert (wire.transfers(), wire.safe_end) == ([], 250)
        member.tick(now)
        assert not wire.written, "once is enough"
        assert not plain.written
        master.store.limit_reads(300)
        master.add(1)
        member.pump()
        wire.transfers()
        assert wire.safe_end == 300, "with the next transfer, not only by time"
        master.store.close()

    on_loop(scenario)


def test_changed_tables_are_told_once_and_only_to_members_of_the_group(tmp_path: Path) -> None:
    """An Apache slave is sent nothing that its own master would not send."""

    async def scenario() -> None:
        master = Master(tmp_path, epoch=3)
        member, member_wire = master.connect()
        member.data_received(encode_greeting(2, 3) + encode_report(0))
        other, other_wire = master.connect()
        other.data_received(encode_report(0))
        member_wire.transfers()
        other_wire.transfers()
        now = asyncio.get_running_loop().time()
        member.tick(now)
        member_wire.transfers()
        for _ in range(3):
            master.events.tables_changed()
        member.pause_writing()
        member.tick(now)
        assert not member_wire.written, "later, when the socket has room"
        member.resume_writing()
        for link in (member, other):
            link.tick(now)
        assert (member_wire.transfers(), member_wire.has_news) == ([], True)
        member.tick(now)
        assert not member_wire.written
        assert not other_wire.written
        master.store.close()

    on_loop(scenario)


def test_dropped_links_answer_waiting_sends(tmp_path: Path) -> None:
    async def scenario() -> None:
        master = Master(tmp_path, role=cast(Any, "SYNC_MASTER"))
        link, wire = master.connect()
        link.data_received(encode_report(0))
        told: list[int] = []
        master.server.acks.when_replicated(master.store.max_log_offset, told.append)
        assert not told
        master.server.drop_links()
        assert wire.aborted
        assert len(told) == 1
        assert told[0] != 0
        master.store.close()

    on_loop(scenario)

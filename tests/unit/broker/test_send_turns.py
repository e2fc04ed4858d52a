"""Sends of one turn of the event loop share one append, whichever connections they came from."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.waiting import until_async
from tests.unit.broker.test_send_handlers import Sender, send
from tests.unit.transport.loops import on_both_loops
from tests.unit.transport.test_connection import ScriptedTransport, frames_of, turn

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig, BrokerRole, change_role
from orbitmq.codes import ResponseCode, SerializeType
from orbitmq.kernel import Sends
from orbitmq.record.batch import encode_batch
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.store.config import StoreConfig
from orbitmq.store.errors import StoreUnavailable
from orbitmq.store.types import FlushMode, PutSends
from orbitmq.transport.connection import Connection, ConnectionLimits
from orbitmq.transport.router import Router
from orbitmq.wire.frame import Frame, FrameDecoder, encode_oneway, encode_request


class Turns:
    """A send path with real connections, and a count of its appends."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.sender = sender = Sender(directory, **options)
        handlers = sender.handlers
        self.router = Router(
            handlers.routes(),
            after_read=handlers.read_ended,
            before_close=handlers.append_pending,
            sends=handlers.accept,
        )
        self.appends: list[int] = []
        """How many messages each append had."""
        self.refusals_left = 0
        append = sender.puts.append_sends

        def counted(turn: Sequence[Sends]) -> PutSends:
            self.appends.append(sum(map(len, turn)))
            if self.refusals_left:
                self.refusals_left -= 1
                raise StoreUnavailable("append refused: the disk is full")
            return append(turn)

        sender.puts.append_sends = counted  # type: ignore[method-assign]  # counts and refuses for the test

    def connect(self, limits: ConnectionLimits = ConnectionLimits()) -> tuple[Connection, ScriptedTransport]:
        connection = Connection(tasks=TaskOwner("test"), router=self.router, limits=limits)
        transport = ScriptedTransport()
        transport.protocol = connection
        connection.connection_made(cast(asyncio.Transport, transport))
        return connection, transport

    def bodies(self) -> list[bytes]:
        return [record.body for record in self.sender.records()]


def codes(transport: ScriptedTransport) -> dict[int, int]:
    return {frame.opaque: frame.code for frame in frames_of(transport.writes)}


@on_both_loops
async def test_sends_of_many_connections_share_one_append_in_order_of_arrival(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    peers = [turns.connect() for _ in range(40)]
    for number, (connection, _) in enumerate(peers):
        connection.data_received(send(number, body=b"%d" % number))
    assert turns.appends == []
    await turn()
    assert turns.appends == [40]
    assert turns.bodies() == [b"%d" % number for number in range(40)]
    for number, (_, transport) in enumerate(peers):
        (answer,) = frames_of(transport.writes)
        assert (answer.opaque, answer.code) == (number, 0)
        assert answer.ext_fields["queueOffset"] == str(number)
    peers[0][0].data_received(send(7))
    await turn()
    assert turns.appends == [40, 1], "the next turn is scheduled again"


@on_both_loops
async def test_reads_of_one_turn_keep_their_order_and_leave_in_one_write(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    connection, transport = turns.connect()
    batch = encode_batch([(0, b"b1", b""), (0, b"b2", b"")])
    connection.data_received(send(1, body=b"a"))
    connection.data_received(send(2, code=320, batch=True, body=batch) + send(3, body=b"c"))
    connection.data_received(send(4, body=b"d"))
    await turn()
    assert turns.appends == [4], "a batch shares the append"
    assert turns.bodies() == [b"a", b"b1", b"b2", b"c", b"d"]
    assert len(transport.writes) == 1
    assert [frame.opaque for frame in frames_of(transport.writes)] == [1, 2, 3, 4]


@on_both_loops
async def test_a_large_read_does_not_wait_for_the_end_of_the_turn(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    connection, transport = turns.connect()
    other, other_transport = turns.connect()
    other.data_received(send(1))
    connection.data_received(b"".join(send(opaque) for opaque in range(64)))
    assert turns.appends == [65], "what was kept before keeps its place"
    assert len(frames_of(transport.writes)) == 64
    assert len(frames_of(other_transport.writes)) == 1


@on_both_loops
async def test_large_bodies_of_many_connections_are_not_kept_together(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    for number in range(5):
        connection, _ = turns.connect()
        connection.data_received(send(number, body=b"x" * 100_000))
    assert turns.appends == [3], "three bodies are 300,000 bytes"
    await turn()
    assert turns.appends == [3, 2]


@on_both_loops
async def test_a_connection_lost_before_the_append_does_not_disturb_the_others(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    gone, gone_transport = turns.connect()
    stays, transport = turns.connect()
    gone.data_received(send(1, body=b"of the lost one"))
    stays.data_received(send(2, body=b"of the other"))
    gone.abort()
    await turn()
    assert turns.bodies() == [b"of the lost one", b"of the other"]
    assert gone_transport.writes == []
    assert codes(transport) == {2: 0}


@on_both_loops
async def test_sends_before_a_broken_frame_are_answered_before_the_close(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    connection, transport = turns.connect()
    connection.data_received(send(1) + b"\xff\xff\xff\xff\x00\x00\x00\x00")
    assert codes(transport) == {1: 0}
    assert transport.closing
    await turn()
    assert turns.appends == [1]


@on_both_loops
async def test_a_full_disk_refuses_each_send_of_the_turn_to_its_own_connection(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    peers = [turns.connect() for _ in range(3)]
    turns.refusals_left = 3  # all together, then the first two alone
    for number, (connection, _) in enumerate(peers):
        connection.data_received(send(number, body=b"%d" % number))
    await turn()
    assert turns.appends == [3, 1, 1, 1]
    assert [codes(transport)[number] for number, (_, transport) in enumerate(peers)] == [
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SUCCESS,
    ]
    assert turns.bodies() == [b"2"]
    assert turns.sender.world.stats.put_failures == 2


@on_both_loops
async def test_a_send_that_cannot_be_stored_costs_the_others_a_few_appends(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    bad, bad_transport = turns.connect()
    peers = [turns.connect() for _ in range(31)]
    broken = encode_batch([(0, b"b1", b""), (0, b"b2", b"")])[:-1]
    hole = "a\x01" + "\0" * 512 + "\x02"
    for number, (connection, _) in enumerate(peers):
        connection.data_received(send(number, body=b"%d" % number))
        if number == 10:
            bad.data_received(send(1, code=320, batch=True, body=broken) + send(2, properties=hole))
    await turn()
    assert turns.bodies() == [b"%d" % number for number in range(31)]
    assert [codes(transport) for _, transport in peers] == [{number: 0} for number in range(31)]
    assert codes(bad_transport) == {1: ResponseCode.SYSTEM_ERROR, 2: ResponseCode.MESSAGE_ILLEGAL}
    assert len(turns.appends) < 16
    puts = turns.sender.world.stats.puts["T", 1]
    assert (puts.count, puts.times) == (31, 31)
    assert puts.bytes == turns.sender.world.store.max_log_offset


@on_both_loops
async def test_a_batch_larger_than_a_segment_of_the_turn_is_stored_with_the_others(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    segment = turns.sender.world.store.config.segment_bytes
    connection, transport = turns.connect(ConnectionLimits(turn_bytes=1 << 30))
    entries = [(0, bytes([number]) * (segment // 8), b"") for number in range(12)]
    batch = send(2, code=320, batch=True, body=encode_batch(entries))
    connection.data_received(send(1, body=b"a") + batch + send(3, body=b"c"))
    await turn()
    assert codes(transport) == {1: 0, 2: 0, 3: 0}
    assert turns.bodies() == [b"a", *(body for _, body, _ in entries), b"c"]


@on_both_loops
async def test_a_gate_that_closes_between_read_and_append_stores_nothing(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    connection, transport = turns.connect()
    turns.sender.puts.gate.is_master = lambda: True
    connection.data_received(send(1) + send(2))
    turns.sender.puts.gate.is_master = lambda: False
    await turn()
    assert turns.bodies() == []
    answers = frames_of(transport.writes)
    assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert "not the master" in str(answers[0].remark)


@on_both_loops
async def test_a_broker_that_became_slave_between_read_and_append_stores_nothing(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    connection, transport = turns.connect()
    connection.data_received(send(1))
    change_role(turns.sender.world.config, BrokerRole.SLAVE, 1)
    await turn()
    assert turns.bodies() == []
    (answer,) = frames_of(transport.writes)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert str(answer.remark).startswith("[REJECTREQUEST]")


@on_both_loops
async def test_oneway_refused_json_and_binary_sends_of_a_turn_get_their_own_answers(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    first, first_transport = turns.connect()
    second, second_transport = turns.connect()
    json_fields = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    fields = json_fields | {"i": "", "j": "0", "k": "false", "m": "false"}
    oneway = encode_oneway(310, 5, fields, b"oneway", SerializeType.JSON)
    refused = encode_request(310, 6, fields | {"e": "99"}, b"refused", SerializeType.JSON)
    as_json = encode_request(310, 7, fields, b"json", SerializeType.JSON)
    first.data_received(oneway + refused + as_json)
    second.data_received(send(8, topic="no such topic!") + send(9, body=b"binary"))
    await turn()
    assert turns.bodies() == [b"oneway", b"json", b"binary"]
    assert codes(first_transport) == {6: ResponseCode.INVALID_PARAMETER, 7: 0}
    assert codes(second_transport)[9] == 0
    assert codes(second_transport)[8] != 0
    forms = {frame.opaque: frame.serialize_type for frame in frames_of(first_transport.writes)}
    assert forms == {6: SerializeType.JSON, 7: SerializeType.JSON}
    assert {frame.serialize_type for frame in frames_of(second_transport.writes)} == {SerializeType.ROCKETMQ}


@on_both_loops
async def test_a_turn_waits_once_for_the_disk_under_sync_flush(tmp_path: Path) -> None:
    turns = Turns(tmp_path)
    store = turns.sender.world.store
    object.__setattr__(store.config, "flush_mode", FlushMode.SYNC)
    peers = [turns.connect() for _ in range(5)]
    for number, (connection, _) in enumerate(peers):
        connection.data_received(send(number))
    await turn()
    assert turns.sender.puts.gate.waiting_count == 1
    assert all(not transport.writes for _, transport in peers)
    store.flush()
    await turn()
    assert [codes(transport) for _, transport in peers] == [{number: 0} for number in range(5)]


def _answers(peer: socket.socket, decoder: FrameDecoder) -> list[Frame]:
    try:
        return decoder.feed(peer.recv(65536))
    except BlockingIOError:
        return []


@on_both_loops
async def test_sockets_that_are_ready_together_share_one_append(tmp_path: Path) -> None:
    config = BrokerConfig(listen_port=0, bind_host="127.0.0.1", public_host="127.0.0.1")
    async with Broker(config, StoreConfig(root=str(tmp_path))) as broker:
        address = ("127.0.0.1", int(broker.address.rpartition(":")[2]))
        peers = [socket.create_connection(address) for _ in range(32)]
        try:
            await until_async(lambda: len(broker._server.connections) == 32)
            peers[0].sendall(send(0, topic="TBW102"))
            decoder = FrameDecoder()
            for peer in peers:
                peer.setblocking(False)
            await until_async(lambda: len(_answers(peers[0], decoder)) == 1)
            appends: list[int] = []
            append = broker.puts.append_sends

            def counted(turn: Sequence[Sends]) -> PutSends:
                appends.append(sum(map(len, turn)))
                return append(turn)

            broker.puts.append_sends = counted  # type: ignore[method-assign]  # counts for the test
            for peer in peers:
                peer.sendall(send(1, topic="TBW102"))
            decoders = [FrameDecoder() for _ in peers]
            waiting = dict(zip(peers, decoders, strict=True))

            def all_answered() -> bool:
                for peer, own in list(waiting.items()):
                    answers = _answers(peer, own)
                    if answers:
                        assert [answer.code for answer in answers] == [0]
                        del waiting[peer]
                return not waiting

            await until_async(all_answered)
            assert appends == [32]
        finally:
            for peer in peers:
                peer.close()


def test_sends_kept_when_a_broker_stops_are_stored(tmp_path: Path) -> None:
    turns = Turns(tmp_path)

    async def run() -> None:
        connection, transport = turns.connect()
        connection.data_received(send(1))
        connection.close()
        assert codes(transport) == {1: 0}

    asyncio.run(run())
    assert turns.appends == [1]


@pytest.mark.parametrize("count", [1, 3])
def test_a_bug_in_the_append_answers_every_send_of_the_turn(tmp_path: Path, count: int) -> None:
    turns = Turns(tmp_path)

    def fails(turn: Sequence[Sends]) -> PutSends:
        raise ValueError("bug")

    turns.sender.puts.append_sends = fails  # type: ignore[method-assign]  # a bug

    async def run() -> None:
        peers = [turns.connect() for _ in range(count)]
        for number, (connection, _) in enumerate(peers):
            connection.data_received(send(number))
        await turn()
        for number, (_, transport) in enumerate(peers):
            assert codes(transport) == {number: ResponseCode.SYSTEM_ERROR}

    asyncio.run(run())

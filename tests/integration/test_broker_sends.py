"""Single sends and batches mixed in one socket read: order, ids and acknowledgements."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.bad_requests import PULL, SEND_V2
from tests.unit.transport.loops import run
from tests.unit.transport.peers import address_of, serving

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.codes import SerializeType
from orbitmq.record.batch import encode_batch
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.ids import parse_offset_message_id
from orbitmq.requests import RequestCode
from orbitmq.store.config import StoreConfig
from orbitmq.store.types import FlushMode
from orbitmq.transport.client import RpcClient
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire.bodies.registration import decode_registration
from orbitmq.wire.frame import Frame
from orbitmq.wire.headers import RegisterBrokerRequest, RegisterBrokerResponse

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
TOPIC = "sends"


@asynccontextmanager
async def connected(
    directory: Path, form: SerializeType = SerializeType.JSON, **store: Any
) -> AsyncIterator[tuple[Broker, Connection]]:
    config = BrokerConfig(listen_port=0, bind_host=HOST, public_host=HOST, fast_port_enabled=False)
    client = RpcClient(serialize_type=form)
    async with Broker(config, StoreConfig(root=str(directory), **store)) as broker:
        try:
            yield broker, await client.connection(broker.address)
        finally:
            await client.close()


def single(connection: Connection, name: str, queue_id: int = 0) -> asyncio.Future[Frame]:
    fields = {**SEND_V2, "b": TOPIC, "e": str(queue_id), "i": f"UNIQ_KEY\x01{name.upper():0>32}\x02"}
    return connection.call(RequestCode.SEND_MESSAGE_V2, None, name.encode(), timeout_s=5.0, ext=fields)


def batch(connection: Connection, names: list[str], queue_id: int = 0) -> asyncio.Future[Frame]:
    row = encode_batch((0, name.encode(), f"UNIQ_KEY\x01{name.upper():0>32}\x02".encode()) for name in names)
    unique = ",".join(f"{name.upper():0>32}" for name in names)
    fields = {**SEND_V2, "b": TOPIC, "e": str(queue_id), "m": "true", "i": f"UNIQ_KEY\x01{unique}\x02"}
    return connection.call(RequestCode.SEND_BATCH_MESSAGE, None, row, timeout_s=5.0, ext=fields)


def stored(broker: Broker, queue_id: int = 0) -> list[Record]:
    records: list[Record] = []
    while (found := broker.store.read(TOPIC, queue_id, len(records), 32)).count:
        data = b"".join(found.slices)
        position = 0
        while position < len(data):
            records.append(decode_record(data, position))
            position += records[-1].size
    return records


@pytest.mark.parametrize("form", list(SerializeType), ids=lambda form: form.name)
def test_messages_of_one_read_keep_their_order_whatever_form_they_came_in(
    tmp_path: Path, form: SerializeType
) -> None:
    async def everything() -> None:
        async with connected(tmp_path, form) as (broker, connection):
            sends = [
                single(connection, "a"),
                batch(connection, ["b", "c", "d"]),
                single(connection, "e"),
                single(connection, "f", queue_id=1),
                batch(connection, ["g"]),
                batch(connection, ["h", "i"], queue_id=1),
                single(connection, "j"),
            ]
            answers = [await send for send in sends]
            assert [answer.code for answer in answers] == [0] * 7
            first, second = stored(broker), stored(broker, 1)
            assert [record.body.decode() for record in first] == list("abcdegj")
            assert [record.body.decode() for record in second] == list("fhi")
            assert [answer.ext_fields["queueOffset"] for answer in answers] == list("0140516")
            # Each id in an answer leads to its record.
            by_offset = {record.log_offset: record for record in (*first, *second)}
            for answer, names in zip(answers, ("a", "bcd", "e", "f", "g", "hi", "j"), strict=True):
                offsets = [
                    parse_offset_message_id(one).log_offset for one in answer.ext_fields["msgId"].split(",")
                ]
                assert "".join(by_offset[offset].body.decode() for offset in offsets) == names
                expected = ",".join(f"{name.upper():0>32}" for name in names)
                assert answer.ext_fields["transactionId"] == expected

    run("uvloop", everything)


def test_refused_batch_leaves_the_sends_around_it_alone(tmp_path: Path) -> None:
    async def everything() -> None:
        async with connected(tmp_path) as (broker, connection):
            fields = {**SEND_V2, "b": TOPIC, "m": "true"}
            sends = [
                single(connection, "a"),
                connection.call(RequestCode.SEND_BATCH_MESSAGE, None, b"no batch", timeout_s=5.0, ext=fields),
                batch(connection, ["b" * 5, "c"]),
                connection.call(
                    RequestCode.SEND_BATCH_MESSAGE,
                    None,
                    encode_batch([(0, b"x" * 3_000_000, b""), (0, b"y" * 3_000_000, b"")]),
                    timeout_s=5.0,
                    ext=fields,
                ),
                single(connection, "d"),
            ]
            assert [(await send).code for send in sends] == [0, 1, 0, 13, 0]
            assert [record.body for record in stored(broker)] == [b"a", b"bbbbb", b"c", b"d"]

    run("uvloop", everything)


def test_batches_cross_segments_of_the_log_whole(tmp_path: Path) -> None:
    async def everything() -> None:
        async with connected(tmp_path, segment_bytes=8192) as (broker, connection):
            names = [f"{number:04}" for number in range(400)]
            sends = [batch(connection, names[start : start + 8]) for start in range(0, 400, 8)]
            assert {(await send).code for send in sends} == {0}
            records = stored(broker)
            assert [record.body.decode() for record in records] == names
            for start in range(0, 400, 8):
                segments = {record.log_offset // 8192 for record in records[start : start + 8]}
                assert len(segments) == 1, "a batch is in one segment"

    run("uvloop", everything)


def test_synchronous_flush_acknowledges_batches_and_singles_after_the_disk_has_them(tmp_path: Path) -> None:
    async def everything() -> None:
        async with connected(tmp_path, flush_mode=FlushMode.SYNC) as (broker, connection):
            sends = [batch(connection, ["a", "b"]), single(connection, "c"), batch(connection, ["d"])]
            for send in sends:
                answer = await send
                assert answer.code == 0
                last = parse_offset_message_id(answer.ext_fields["msgId"].split(",")[-1]).log_offset
                assert broker.store.flushed_offset > last

    run("uvloop", everything)


def test_batch_wakes_a_waiting_pull_and_oneway_batches_arrive(tmp_path: Path) -> None:
    async def everything() -> None:
        async with connected(tmp_path) as (broker, connection):
            assert (await single(connection, "a")).code == 0
            fields = {
                **PULL,
                "topic": TOPIC,
                "queueOffset": "1",
                "sysFlag": "6",
                "suspendTimeoutMillis": "9000",
            }
            waiting = connection.call(RequestCode.PULL_MESSAGE, timeout_s=10.0, ext=fields)
            row = encode_batch([(0, b"b", b""), (0, b"c", b"")])
            connection.notify(
                RequestCode.SEND_BATCH_MESSAGE, None, row, ext={**SEND_V2, "b": TOPIC, "m": "true"}
            )
            answer = await waiting
            assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (0, "3")
            assert [record.body for record in stored(broker)] == [b"a", b"b", b"c"]

    run("uvloop", everything)


@asynccontextmanager
async def slowly_registered(directory: Path) -> AsyncIterator[tuple[str, RpcClient, set[str]]]:
    """Yields a broker's address, a client, and the topics registered with its slow name server."""
    known: set[str] = set()

    async def register(call: Call[RegisterBrokerRequest]) -> Reply:
        body = decode_registration(
            call.body, compressed=bool(call.header.compressed), version=call.frame.version
        )
        await asyncio.sleep(0.05)  # a slow name server, so that an early response would be noticed
        known.update(body.topic_config_serialize_wrapper.topic_config_table)
        return Reply(header=RegisterBrokerResponse())

    route = Route(RequestCode.REGISTER_BROKER, register, RegisterBrokerRequest)
    async with serving([route]) as name_server:
        config = BrokerConfig(
            listen_port=0,
            bind_host=HOST,
            public_host=HOST,
            fast_port_enabled=False,
            name_servers=address_of(name_server),
        )
        client = RpcClient()
        async with Broker(config, StoreConfig(root=str(directory))) as broker:
            yield broker.address, client, known
            await client.close()


def test_answer_to_the_first_send_of_a_topic_means_that_it_is_routed(tmp_path: Path) -> None:
    async def everything() -> None:
        async with slowly_registered(tmp_path) as (address, client, known):
            for number in range(6):
                topic = f"fresh-{number}"
                fields = {**SEND_V2, "b": topic, "m": str(number % 2 == 1).lower()}
                body = encode_batch([(0, b"x", b"")]) if number % 2 else b"x"
                answer = await client.call(address, RequestCode.SEND_MESSAGE_V2, None, body, ext=fields)
                assert answer.code == 0, answer.remark
                assert topic in known

    run("uvloop", everything)


def test_answer_to_the_first_heartbeat_of_a_group_means_that_its_retry_topic_is_routed(
    tmp_path: Path,
) -> None:
    async def everything() -> None:
        async with slowly_registered(tmp_path) as (address, client, known):
            for number in range(3):
                consumer = {"groupName": f"group-{number}", "subscriptionDataSet": []}
                body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
                answer = await client.call(address, RequestCode.HEART_BEAT, None, body)
                assert answer.code == 0, answer.remark
                assert answer.ext_fields["IS_SUPPORT_HEART_BEAT_V2"] == "true"
                assert f"%RETRY%group-{number}" in known

    run("uvloop", everything)


def test_dead_name_server_delays_the_first_send_of_a_topic_but_does_not_lose_it(tmp_path: Path) -> None:
    async def everything() -> None:
        with socket.socket() as silent:  # accepts, and never answers
            silent.bind((HOST, 0))
            silent.listen()
            config = BrokerConfig(
                listen_port=0,
                bind_host=HOST,
                public_host=HOST,
                fast_port_enabled=False,
                name_servers=f"{HOST}:{silent.getsockname()[1]}",
            )
            client = RpcClient()
            async with Broker(config, StoreConfig(root=str(tmp_path))) as broker:
                for _ in range(2):
                    answer = await client.call(
                        broker.address,
                        RequestCode.SEND_MESSAGE_V2,
                        None,
                        b"x",
                        ext={**SEND_V2, "b": "fresh"},
                        timeout_s=3.0,  # the default timeout of clients
                    )
                    assert answer.code == 0, answer.remark
                await client.close()

    run("uvloop", everything)

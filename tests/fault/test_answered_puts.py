"""Under SYNC_FLUSH no acknowledged write is lost: not a send, a commit, a send-back, or a recall.

There are two ways to die. A power cut leaves only flushed data: the disk in memory is cut at the moment a response
arrives, which finds every response sent too early. Repeated ``kill -9`` of a real broker process on the same store
finds errors in recovery.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.bad_requests import SEND_V2

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from orbitmq.codes import Property, ResponseCode
from orbitmq.errors import ConnectionLostError
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.ids import parse_offset_message_id
from orbitmq.record.properties import encode_properties
from orbitmq.requests import RequestCode
from orbitmq.store.config import StoreConfig
from orbitmq.store.message_store import MessageStore
from orbitmq.store.types import FlushMode
from orbitmq.testing.faulty_fs import FaultyFileSystem
from orbitmq.transport.client import RpcClient
from orbitmq.transport.connection import Connection
from orbitmq.wire.frame import Frame
from orbitmq.wire.headers import (
    ConsumerSendMsgBackRequest,
    EndTransactionRequest,
    RecallMessageRequest,
)

HOST = "127.0.0.1"
TOPIC = "Answered"
GROUP = "G"
_COMMIT = 8


class Client:
    """Sends one request after the other and records, by body, which were answered."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.answered: list[tuple[str, str]] = []
        """What was answered: the kind of request and the body of its message."""

    async def _ask(self, code: int, header: object = None, **call: object) -> Frame:
        answer = await self._connection.call(code, header, timeout_s=10.0, **call)  # type: ignore[arg-type]  # passed on
        assert answer.code == ResponseCode.SUCCESS, (code, answer.code, answer.remark)
        return answer

    async def send(self, body: str, **properties: str) -> Frame:
        text = encode_properties({"UNIQ_KEY": f"{body:0>32}", "PGROUP": "PG", **properties}).decode()
        fields = {**SEND_V2, "b": TOPIC, "a": "PG", "e": "0", "i": text, "f": "0"}
        if "TRAN_MSG" in properties:
            fields["f"] = "4"
        return await self._ask(RequestCode.SEND_MESSAGE_V2, body=body.encode(), ext=fields)

    async def commit(self, body: str) -> None:
        half = await self.send(body, TRAN_MSG="true")
        header = EndTransactionRequest(
            producer_group="PG",
            tran_state_table_offset=int(half.ext_fields["queueOffset"]),
            commit_log_offset=parse_offset_message_id(half.ext_fields["msgId"]).log_offset,
            commit_or_rollback=_COMMIT,
            msg_id="m",
        )
        await self._ask(RequestCode.END_TRANSACTION, header)

    async def send_back(self, body: str) -> None:
        sent = await self.send(body)
        header = ConsumerSendMsgBackRequest(
            offset=parse_offset_message_id(sent.ext_fields["msgId"]).log_offset, group=GROUP, delay_level=18
        )
        await self._ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)

    async def recall(self, body: str) -> None:
        sent = await self.send(body, TIMER_DELAY_SEC="600")
        header = RecallMessageRequest(
            topic=TOPIC, recall_handle=sent.ext_fields["recallHandle"], producer_group="PG"
        )
        await self._ask(RequestCode.RECALL_MESSAGE, header)

    async def ask(self, kind: str, body: str) -> None:
        """Sends one request of a kind; it is in ``answered`` once its response has arrived."""
        await getattr(self, kind)(body)
        self.answered.append((kind, body))


KINDS: dict[str, Callable[[Record, str], bool]] = {
    "send": lambda record, body: record.topic == TOPIC and record.body == body.encode(),
    "commit": lambda record, body: (
        record.topic == TOPIC and record.body == body.encode() and record.sys_flag & 12 == _COMMIT
    ),
    "send_back": lambda record, body: (
        record.find(Property.REAL_TOPIC.encode()) == b"%RETRY%G" and record.body == body.encode()
    ),
    "recall": lambda record, body: (
        record.find(Property.TIMER_DEL_UNIQKEY.encode()) == f"{body:0>32}".encode()
    ),
}
"""What must be in the log once a request of a kind is answered."""


def check(store_config: StoreConfig, answered: list[tuple[str, str]], **store: FaultyFileSystem) -> None:
    """Opens the store and checks that everything answered is there."""
    opened = MessageStore(store_config, **store)  # type: ignore[arg-type]  # only ``fs``
    opened.open()
    try:
        records = [decode_record(bytes(raw)) for raw in opened.scan(0)]
        lost = [
            (kind, body)
            for kind, body in answered
            if not any(KINDS[kind](record, body) for record in records)
        ]
        assert lost == []
    finally:
        opened.close()


def small_store(root: str) -> StoreConfig:
    return StoreConfig(
        root=root, segment_bytes=1 << 18, index_slots=100, index_entries=400, flush_mode=FlushMode.SYNC
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_what_was_answered_survives_a_power_cut_at_that_moment(kind: str) -> None:
    fs = FaultyFileSystem()
    config = BrokerConfig(
        listen_port=0, bind_host=HOST, public_host=HOST, fast_port_enabled=False, recall_enabled=True
    )

    async def run() -> list[tuple[list[tuple[str, str]], FaultyFileSystem]]:
        cuts = []
        rpc = RpcClient()
        async with Broker(config, small_store("/store"), fs=fs) as broker:
            try:
                client = Client(await rpc.connection(broker.address))
                for number in range(4):
                    await client.ask(kind, f"{kind}{number}")
                    cuts.append((list(client.answered), _cut(fs)))
            finally:
                await rpc.close()
        return cuts

    for answered, disk in asyncio.run(run()):
        check(small_store("/store"), answered, fs=disk)


def _cut(fs: FaultyFileSystem) -> FaultyFileSystem:
    while True:
        try:
            return fs.power_cut()
        except RuntimeError:
            pass  # a thread of the broker created a file meanwhile


_BROKER = """
import asyncio, sys
from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerConfig
from tests.fault.test_answered_puts import HOST, small_store

async def main():
    config = BrokerConfig(
        listen_port=0, bind_host=HOST, public_host=HOST, fast_port_enabled=False, recall_enabled=True
    )
    async with Broker(config, small_store(sys.argv[1])) as broker:
        print(broker.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def _ask_until_killed(address: str, after_s: float, kill: Callable[[], None], first: int) -> Client:
    rpc = RpcClient()
    client = Client(await rpc.connection(address))
    asyncio.get_running_loop().call_later(after_s, kill)
    chance = random.Random(first)

    async def ask(number: int) -> None:
        while True:
            await client.ask(chance.choice(list(KINDS)), f"n{first}x{number}")
            number += 8

    results = await asyncio.gather(*(ask(number) for number in range(8)), return_exceptions=True)
    assert all(isinstance(result, ConnectionLostError) for result in results), results
    await rpc.close()
    return client


def _kill_rounds(root: Path, rounds: int) -> int:
    chance = random.Random(rounds)
    answered: list[tuple[str, str]] = []
    for number in range(rounds):
        with subprocess.Popen(
            [sys.executable, "-c", _BROKER, str(root)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        ) as broker:
            assert broker.stdout is not None
            address = broker.stdout.readline().decode().strip()
            client = asyncio.run(
                _ask_until_killed(address, chance.uniform(0.1, 0.4), broker.kill, number * 1_000_000)
            )
        answered += client.answered
        check(small_store(str(root)), answered)
    return len(answered)


@pytest.mark.slow
def test_what_was_answered_survives_kill_minus_9(tmp_path: Path) -> None:
    assert _kill_rounds(tmp_path, 2) > 10


@pytest.mark.soak
def test_what_was_answered_survives_many_kills(tmp_path: Path) -> None:
    assert _kill_rounds(tmp_path, 60) > 600

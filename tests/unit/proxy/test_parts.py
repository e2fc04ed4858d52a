"""Parts of the proxy that need neither a broker nor a connection."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbitmq.errors import ConfigError
from orbitmq.model.names import HALF_TOPIC
from orbitmq.proxy.checks import RESERVED_PROPERTIES, check_group, check_message, check_topic
from orbitmq.proxy.clients import Clients
from orbitmq.proxy.config import ProxyConfig, read_proxy_config
from orbitmq.proxy.handles import parse_handle
from orbitmq.proxy.http2.frames import H2Error
from orbitmq.proxy.http2.proxy_protocol import ProxyHeader, read_proxy_header
from orbitmq.proxy.messages import kind_of, stored_properties, sys_flag_of
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.sending import jump_hash
from orbitmq.proxy.statuses import Refused, common_status, status
from orbitmq.proxy.transactions import Transactions
from orbitmq.record.codec import encode_record
from orbitmq.requests import RequestCode
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.store.types import NewMessage
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.headers import EndTransactionRequest, QueryMessageRequest


@pytest.mark.parametrize(
    ("group", "queue"),
    [
        ("g1", 6),
        ("g2", 4),
        ("a", 0),
        ("b", 5),
        ("order-1", 3),
        ("order-2", 2),
        ("user-77", 2),
        ("zzzzzz", 3),
        ("äö", 7),
    ],
)
def test_message_group_goes_to_the_queue_apache_chose(group: str, queue: int) -> None:
    assert jump_hash(group, 8) == queue


def test_handle_is_read_and_written_alike() -> None:
    text = "0 1794815086618 15000 3 0 broker-a 0 5 46315"
    handle = parse_handle(text)
    assert handle.text == text
    assert handle.extra_info == text.rpartition(" ")[0]
    assert handle.visible_ms == 1794815101618
    assert handle.changed(1794815090000, 20000, 6).text == "5 1794815090000 20000 6 0 broker-a 0 5 46315"
    assert parse_handle("0 1 2 3 1 b 0 0").real_topic("T", "G") == "%RETRY%G_T"
    assert parse_handle("0 1 2 3 2 b 0 0").real_topic("T", "G") == "%RETRY%G+T"


@pytest.mark.parametrize(
    "text", ["", "garbage", "a b c d e f g h", "1 2 3 4 0 b 0 " + "9" * 30, "1 2 3 4 0 b 0 0 x"]
)
def test_broken_handle_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_handle(text)
    assert refused.value.code == pb.INTERNAL_SERVER_ERROR


def test_names_of_topics_and_groups_are_checked() -> None:
    assert check_topic("T" * 127)
    for topic in ("", "   ", "T" * 128, "a b", "TBW102", "rmq_sys_x"):
        with pytest.raises(Refused) as refused:
            check_topic(topic)
        assert refused.value.code == pb.ILLEGAL_TOPIC
    assert check_group("g" * 255)
    for group in ("", "g" * 256, "a b", "CID_RMQ_SYS_X"):
        with pytest.raises(Refused) as refused:
            check_group(group)
        assert refused.value.code == pb.ILLEGAL_CONSUMER_GROUP


def _message(**settings: object) -> pb.Message:
    message = pb.Message(topic=pb.Resource(name="T"), body=b"x")
    message.system_properties.message_id = "id"
    for name, value in settings.items():
        setattr(message.system_properties, name, value)
    return message


def test_all_reserved_properties_are_refused() -> None:
    assert len(RESERVED_PROPERTIES) == 54
    for name in RESERVED_PROPERTIES:
        message = _message()
        message.user_properties[name] = "v"
        with pytest.raises(Refused) as refused:
            check_message(ProxyConfig(), message, 0)
        assert refused.value.code == pb.ILLEGAL_MESSAGE_PROPERTY_KEY


def test_sizes_at_their_limits_pass_and_beyond_are_refused() -> None:
    config = ProxyConfig()
    check_message(config, _message(message_group="g" * 63), 0)
    with pytest.raises(Refused):
        check_message(config, _message(message_group="g" * 64), 0)
    message = _message()
    message.body = bytes(config.body_bytes_max)
    check_message(config, message, 0)
    message.body += b"x"
    with pytest.raises(Refused) as refused:
        check_message(config, message, 0)
    assert refused.value.code == pb.MESSAGE_BODY_TOO_LARGE


def test_type_of_a_message_follows_its_properties() -> None:
    def kind(message: pb.Message) -> pb.MessageType:
        return kind_of(stored_properties(message, "T", peer="1.2.3.4:5"))

    assert kind(_message()) == pb.NORMAL
    assert kind(_message(message_group="g")) == pb.FIFO
    assert kind(_message(message_type=pb.TRANSACTION)) == pb.TRANSACTION
    delayed = _message()
    delayed.system_properties.delivery_timestamp.seconds = 5
    assert kind(delayed) == pb.DELAY
    assert stored_properties(delayed, "T", peer="1.2.3.4:5")["__BORNHOST"] == "1.2.3.4"
    assert sys_flag_of(_message(body_encoding=pb.GZIP, message_type=pb.TRANSACTION)) == 5


def test_common_status_says_when_entries_differ() -> None:
    assert common_status([status(pb.OK), status(pb.OK)]).code == pb.OK
    assert common_status([status(pb.OK), status(pb.FORBIDDEN)]).code == pb.MULTIPLE_RESULTS


def test_config_of_apache_is_read(tmp_path: Path) -> None:
    file = tmp_path / "rmq-proxy.json"
    file.write_text(
        json.dumps({"grpcServerPort": 9, "enableBatchAck": True, "heartbeatSyncerTopicName": "x"})
    )
    config, unknown = read_proxy_config(str(file), {"grpcServerPort": "10"})
    assert (config.port, config.batch_ack, unknown) == (10, True, ["heartbeatSyncerTopicName"])
    file.write_text('{"grpcServerPort": 70000}')
    with pytest.raises(ConfigError, match="grpcServerPort"):
        read_proxy_config(str(file))
    file.write_text("[]")
    with pytest.raises(ConfigError):
        read_proxy_config(str(file))


def test_proxy_header_names_the_client() -> None:
    line = b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n"
    assert read_proxy_header(line + b"PRI") == (len(line), "192.0.2.1:56324")
    for end in range(1, len(line)):
        assert read_proxy_header(line[:end]) is ProxyHeader.INCOMPLETE
    assert read_proxy_header(b"PRI * HTTP/2.0") is ProxyHeader.ABSENT
    binary = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes([192, 0, 2, 1, 192, 0, 2, 2, 0xDC, 4, 1, 0xBB])
    assert read_proxy_header(binary) == (28, "192.0.2.1:56324")
    with pytest.raises(H2Error):
        read_proxy_header(b"PROXY " + b"x" * 200)


class _Ends:
    """Brokers that record the ends of transactions they receive; ``body`` answers queries."""

    def __init__(self, body: bytes = b"") -> None:
        self.places: list[int] = []
        self.queries = 0
        self._body = body

    async def find_brokers(self) -> set[str]:
        return {"b:1"}

    async def ask(self, address: str, code: int, header: QueryMessageRequest) -> Any:
        assert (address, code, header.topic, header.key) == (
            "b:1",
            RequestCode.QUERY_MESSAGE,
            HALF_TOPIC,
            "id",
        )
        self.queries += 1
        return SimpleNamespace(body=self._body)

    async def tell(self, address: str, code: int, header: EndTransactionRequest) -> None:
        assert (address, code) == ("b:1", RequestCode.END_TRANSACTION)
        self.places.append(header.tran_state_table_offset)


def transactions_of(config: ProxyConfig, clients: Any, clock: ManualClock) -> Transactions:
    brokers: Any = SimpleNamespace(checks=[])
    return Transactions(
        config, clients, brokers, clock=clock, tasks=TaskOwner("test"), may_publish=lambda *_: True
    )


def _end(transactions: Transactions, brokers: _Ends) -> list[int]:
    transactions._brokers = cast(Any, brokers)
    request = pb.EndTransactionRequest(topic=pb.Resource(name="T"), transaction_id="id", resolution=pb.COMMIT)
    asyncio.run(transactions.end(request))
    return brokers.places


def test_transaction_is_ended_where_it_was_asked_about_last_and_once() -> None:
    brokers, clock = _Ends(), ManualClock()
    config = ProxyConfig()
    transactions = transactions_of(config, Clients(config, clock), clock)
    transactions.note("T", "id", "b:1", 5, 500)
    transactions.note_asked("T", "id", "b:1", 9, 900)
    transactions.note_asked("T", "id", "b:1", 12, 1200)
    assert _end(transactions, brokers) == [12]
    # The second response, to the older check: Apache's brokers would commit the message again.
    with pytest.raises(Refused, match="cannot found transaction data"):
        _end(transactions, brokers)
    assert brokers.places == [12]


def test_half_messages_of_one_id_are_ended_newest_first_and_forgotten_when_old() -> None:
    brokers, clock = _Ends(), ManualClock()
    config = ProxyConfig()
    transactions = transactions_of(config, Clients(config, clock), clock)
    transactions.note("T", "id", "b:1", 5, 500)
    clock.advance(20_000)
    transactions.note("T", "id", "b:1", 6, 600)
    assert _end(transactions, brokers) == [6]
    clock.advance(20_000)
    with pytest.raises(Refused):
        _end(transactions, brokers)
    assert brokers.queries == 0  # its newest copy was ended here: an Apache broker would commit it twice


def _half(topic: str, unique_key: str, offset: int) -> bytes:
    properties = f"UNIQ_KEY\x01{unique_key}\x02REAL_TOPIC\x01{topic}\x02".encode()
    message = NewMessage(HALF_TOPIC, 0, b"x", properties, 0, bytes(8))
    return encode_record(message, offset, offset * 100, 1, bytes(8))


def test_unknown_half_message_is_looked_up_and_ended_at_its_newest_place() -> None:
    clock, config = ManualClock(), ProxyConfig()
    body = _half("T", "id", 3) + _half("T", "id", 7) + _half("Other", "id", 9) + _half("T", "another", 10)
    brokers = _Ends(body)
    transactions = transactions_of(config, Clients(config, clock), clock)
    assert _end(transactions, brokers) == [7]
    with pytest.raises(Refused):
        _end(transactions, brokers)
    assert (brokers.places, brokers.queries) == ([7], 1)


def test_half_message_is_shown_only_to_producers_that_may_still_send() -> None:
    clock, config = ManualClock(), ProxyConfig()
    shown: list[str] = []

    def producer(name: str) -> Any:
        return SimpleNamespace(client_id=name, send=lambda _command: shown.append(name))

    clients = SimpleNamespace(producers=lambda _topic: [producer("eve"), producer("alice"), producer("eve")])
    transactions = transactions_of(config, clients, clock)
    transactions._may_publish = lambda client, topic: (client.client_id, topic) == ("alice", "T")
    message = NewMessage("T", 0, b"x", b"UNIQ_KEY\x01id\x02", 0, bytes(8))
    header = SimpleNamespace(transaction_id="id", tran_state_table_offset=1, commit_log_offset=1)
    peer = SimpleNamespace(remote_text="b:1")
    call = SimpleNamespace(header=header, body=encode_record(message, 1, 100, 1, bytes(8)), peer=peer)
    for _ in range(8):
        transactions._check(cast(Any, call))
    assert shown == ["alice"] * 8

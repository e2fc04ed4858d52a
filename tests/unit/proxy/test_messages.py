"""Messages between their two forms."""

from __future__ import annotations

from hashlib import md5

import pytest

from orbitmq.proxy.messages import delivered, kind_of, stored_properties, sys_flag_of, topic_resource
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.record.codec import Record, decode_record, encode_record
from orbitmq.record.properties import encode_properties
from orbitmq.store.types import NewMessage

HOST = bytes((10, 0, 0, 7)) + (10911).to_bytes(4, "big")


def _record(properties: dict[str, str], body: bytes = b"body", topic: str = "T") -> Record:
    message = NewMessage(topic, 3, body, encode_properties(properties), 1_700_000_000_123, HOST)
    return decode_record(encode_record(message, 5, 700, 1_700_000_000_456, HOST))


def _sent(**system: object) -> pb.Message:
    message = pb.Message(topic=pb.Resource(name="T"), body=b"x")
    message.system_properties.message_id = "01ID"
    for name, value in system.items():
        setattr(message.system_properties, name, value)
    return message


def test_message_is_stored_with_the_properties_of_apaches_proxy() -> None:
    message = _sent(
        tag="A", message_group="g", trace_context="t", priority=3, lite_topic="l", delivery_attempt=2
    )
    message.system_properties.keys.extend(["k1", "k2"])
    message.system_properties.born_timestamp.FromMilliseconds(1_700_000_000_123)
    message.system_properties.delivery_timestamp.FromMilliseconds(1_700_000_009_000)
    message.user_properties["color"] = "red"
    assert stored_properties(message, "T", peer="10.0.0.9:4711", delay_level=4) == {
        "color": "red",
        "UNIQ_KEY": "01ID",
        "PGROUP": "T",
        "RECONSUME_TIME": "2",
        "__BORNHOST": "10.0.0.9",
        "BORN_TIMESTAMP": "1700000000123",
        "TAGS": "A",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "g",
        "TIMER_DELIVER_MS": "1700000009000",
        "DELAY": "4",
        "TRACE_CONTEXT": "t",
        "_SYS_MSG_PRIORITY_": "3",
        "__LITE_TOPIC": "l",
    }


def test_transaction_says_how_long_it_is_left_alone() -> None:
    message = _sent(message_type=pb.TRANSACTION, born_host="app-1")
    message.system_properties.orphaned_transaction_recovery_duration.seconds = 30
    properties = stored_properties(message, "T", peer="10.0.0.9:4711")
    assert properties["TRAN_MSG"] == "true"
    assert properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "30"
    assert properties["__BORNHOST"] == "app-1"
    assert sys_flag_of(message) == 4
    assert sys_flag_of(_sent(body_encoding=pb.GZIP)) == 1


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, pb.NORMAL),
        ({"DELAY": "0"}, pb.NORMAL),
        ({"DELAY": "3"}, pb.DELAY),
        ({"TIMER_DELAY_SEC": "3"}, pb.DELAY),
        ({"TRAN_MSG": "true", "DELAY": "3"}, pb.TRANSACTION),
        ({"TRAN_MSG": "false"}, pb.NORMAL),
        ({"__LITE_TOPIC": "l", "__SHARDINGKEY": "g"}, pb.LITE),
        ({"__SHARDINGKEY": "g", "_SYS_MSG_PRIORITY_": "1"}, pb.FIFO),
        ({"_SYS_MSG_PRIORITY_": "1"}, pb.PRIORITY),
    ],
)
def test_type_follows_the_properties(properties: dict[str, str], kind: pb.MessageType) -> None:
    assert kind_of(properties) == kind


def test_stored_message_is_delivered_with_everything_but_reserved_properties() -> None:
    record = _record(
        {
            "color": "red",
            "TAGS": "A",
            "KEYS": "k1 k2",
            "UNIQ_KEY": "01ID",
            "__SHARDINGKEY": "g",
            "__BORNHOST": "app-1",
            "TIMER_DELIVER_MS": "1700000009001",
            "DLQ_ORIGIN_TOPIC": "Old",
            "DLQ_ORIGIN_MESSAGE_ID": "01OLD",
            "TRACE_CONTEXT": "t",
            "_SYS_MSG_PRIORITY_": "3",
        }
    )
    message = delivered(record, "T", handle="h", reconsume_times=2)
    system = message.system_properties
    assert (message.topic.name, message.body) == ("T", b"body")
    assert message.user_properties["color"] == "red"
    assert not {"TAGS", "KEYS", "UNIQ_KEY", "DLQ_ORIGIN_TOPIC"}.intersection(message.user_properties)
    assert (system.tag, list(system.keys), system.message_id) == ("A", ["k1", "k2"], "01ID")
    assert system.body_digest.checksum == md5(b"body", usedforsecurity=False).hexdigest().upper()
    assert system.born_timestamp.ToMilliseconds() == 1_700_000_000_123
    assert system.store_timestamp.ToMilliseconds() == 1_700_000_000_456
    assert system.delivery_timestamp.ToMilliseconds() == 1_700_000_009_001
    assert (system.born_host, system.store_host) == ("app-1", "10.0.0.7:10911")
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 5, 3)
    assert (system.receipt_handle, system.message_group, system.priority) == ("h", "g", 3)
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("Old", "01OLD")


def test_message_of_a_remoting_client_is_delivered_with_what_it_has() -> None:
    record = _record({})
    system = delivered(record, "T", handle=None).system_properties
    assert system.message_id == record.offset_message_id
    assert system.born_host == "10.0.0.7"
    assert system.delivery_attempt == 1
    assert not system.HasField("receipt_handle")
    assert not system.HasField("tag")


@pytest.mark.parametrize("text", ["x", "", "9" * 30])
def test_numbers_that_cannot_be_read_harm_nothing(text: str) -> None:
    system = delivered(_record({"TIMER_DELIVER_MS": text, "_SYS_MSG_PRIORITY_": text}), "T", handle=None)
    assert system.system_properties.priority == 0


def test_namespace_of_a_topic_is_told_apart() -> None:
    assert topic_resource("T") == pb.Resource(name="T")
    assert topic_resource("MQ_INST_1_2%T") == pb.Resource(resource_namespace="MQ_INST_1_2", name="T")

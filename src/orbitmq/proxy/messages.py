"""Converts messages between protobuf (for clients) and records with properties (for brokers).

Corresponds to Apache's GrpcConverter and the conversions of SendMessageActivity.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import md5
from typing import Final

from orbitmq.codes import SysFlag
from orbitmq.model.names import namespace_of, unwrap_namespace
from orbitmq.proxy.checks import RESERVED_PROPERTIES
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.record.codec import Record
from orbitmq.record.hosts import host_text
from orbitmq.record.properties import decode_properties

__all__ = ["ANY_TYPE", "delivered", "kind_of", "stored_properties", "sys_flag_of", "topic_resource"]

_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_PREPARED: Final = int(SysFlag.TRANSACTION_PREPARED)
ANY_TYPE: Final = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION)
"""The message types that a topic of type MIXED accepts."""
_TIMES: Final = frozenset({"TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"})


def stored_properties(message: pb.Message, topic: str, *, peer: str, delay_level: int = 0) -> dict[str, str]:
    """Returns the properties to store with a message."""
    system = message.system_properties
    properties = dict(message.user_properties)
    properties["UNIQ_KEY"] = system.message_id
    properties["PGROUP"] = topic
    properties["RECONSUME_TIME"] = str(system.delivery_attempt)
    properties["__BORNHOST"] = system.born_host or peer.rpartition(":")[0]
    born = system.born_timestamp
    properties["BORN_TIMESTAMP"] = str(born.seconds * 1000 + born.nanos // 1_000_000)
    if system.HasField("tag"):
        properties["TAGS"] = system.tag
    if system.keys:
        properties["KEYS"] = " ".join(system.keys)
    if system.HasField("message_group"):
        properties["__SHARDINGKEY"] = system.message_group
    if system.HasField("delivery_timestamp"):
        stamp = system.delivery_timestamp
        properties["TIMER_DELIVER_MS"] = str(stamp.seconds * 1000 + stamp.nanos // 1_000_000)
        if delay_level:
            properties["DELAY"] = str(delay_level)
    if system.message_type == pb.TRANSACTION:
        properties["TRAN_MSG"] = "true"
        recovery_s = system.orphaned_transaction_recovery_duration.seconds
        if recovery_s > 0:
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(recovery_s)
    if system.HasField("trace_context"):
        properties["TRACE_CONTEXT"] = system.trace_context
    if system.HasField("priority"):
        properties["_SYS_MSG_PRIORITY_"] = str(system.priority)
    if system.HasField("lite_topic"):
        properties["__LITE_TOPIC"] = system.lite_topic
    return properties


def sys_flag_of(message: pb.Message) -> int:
    system = message.system_properties
    flag = _COMPRESSED if system.body_encoding == pb.GZIP else 0
    return flag | _PREPARED if system.message_type == pb.TRANSACTION else flag


def kind_of(properties: dict[str, str]) -> pb.MessageType:
    """Returns the type of a message according to its properties, regardless of the type that it declares."""
    if properties.get("TRAN_MSG") == "true":
        return pb.TRANSACTION
    # DELAY=0 on a message sent back means that it is no longer delayed.
    if properties.get("DELAY", "0") != "0" or not _TIMES.isdisjoint(properties):
        return pb.DELAY
    if "__LITE_TOPIC" in properties:
        return pb.LITE
    if "__SHARDINGKEY" in properties:
        return pb.FIFO
    if "_SYS_MSG_PRIORITY_" in properties:
        return pb.PRIORITY
    return pb.NORMAL


@lru_cache(maxsize=4096)
def topic_resource(topic: str) -> pb.Resource:
    """Returns the topic as a protobuf resource. It is shared, so copy it before changing it."""
    namespace = namespace_of(topic)
    if not namespace:
        return pb.Resource(name=topic)
    return pb.Resource(resource_namespace=namespace, name=unwrap_namespace(topic, namespace))


def delivered(
    record: Record, topic: str, *, handle: str | None, reconsume_times: int | None = None
) -> pb.Message:
    """Returns a stored message as protobuf."""
    properties = decode_properties(record.properties)
    message = pb.Message(body=record.body)
    message.topic.CopyFrom(topic_resource(topic))
    user = message.user_properties
    for name, value in properties.items():
        if name not in RESERVED_PROPERTIES:
            user[name] = value
    system = message.system_properties
    get = properties.get
    tag = get("TAGS")
    if tag is not None:
        system.tag = tag
    keys = get("KEYS")
    if keys:
        system.keys.extend(keys.split())
    system.message_id = get("UNIQ_KEY") or record.offset_message_id
    digest = system.body_digest
    digest.type = pb.MD5
    digest.checksum = md5(record.body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = pb.GZIP if record.sys_flag & _COMPRESSED else pb.IDENTITY
    system.message_type = kind_of(properties)
    _stamp(system.born_timestamp, record.born_timestamp_ms)
    system.born_host = get("__BORNHOST") or host_text(record.born_host).rpartition(":")[0]
    _stamp(system.store_timestamp, record.store_timestamp_ms)
    system.store_host = host_text(record.store_host)
    due = get("TIMER_DELIVER_MS")
    if due is not None:
        _stamp(system.delivery_timestamp, _whole(due, 0))
    if handle is not None:
        system.receipt_handle = handle
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    system.delivery_attempt = (record.reconsume_times if reconsume_times is None else reconsume_times) + 1
    group = get("__SHARDINGKEY")
    if group is not None:
        system.message_group = group
    trace = get("TRACE_CONTEXT")
    if trace is not None:
        system.trace_context = trace
    if "DLQ_ORIGIN_TOPIC" in properties:
        system.dead_letter_queue.topic = properties["DLQ_ORIGIN_TOPIC"]
        system.dead_letter_queue.message_id = get("DLQ_ORIGIN_MESSAGE_ID") or ""
    lite = get("__LITE_TOPIC")
    if lite is not None:
        system.lite_topic = lite
    priority = get("_SYS_MSG_PRIORITY_")
    if priority is not None:
        system.priority = max(-(2**31), min(2**31 - 1, _whole(priority, 0)))
    return message


def _stamp(field: object, value_ms: int) -> None:
    field.seconds, rest = divmod(value_ms, 1000)  # type: ignore[attr-defined]  # a Timestamp
    field.nanos = rest * 1_000_000  # type: ignore[attr-defined]  # a Timestamp


def _whole(text: str | None, otherwise: int) -> int:
    try:
        value = int(text) if text is not None and len(text) <= 15 else otherwise
    except ValueError:
        return otherwise
    return value

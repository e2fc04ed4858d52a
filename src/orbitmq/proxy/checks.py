"""Validation of calls before they reach a broker (Apache: GrpcValidator and the checks of SendMessageActivity)."""

from __future__ import annotations

import re
from typing import Final

from orbitmq.model.names import SYSTEM_TOPICS, is_system_group, is_system_topic
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import Refused

__all__ = ["RESERVED_PROPERTIES", "check_group", "check_invisible_ms", "check_message", "check_topic"]

_TOPIC_LENGTH_MAX: Final = 127
_GROUP_LENGTH_MAX: Final = 255
_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII).fullmatch
_LITE_TOPIC: Final = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII).fullmatch
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]").search
_PATTERN_TEXT: Final = "^[%|a-zA-Z0-9_-]+$"

_RESERVED_NAMES: Final = """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC ORIGIN_GROUP REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET
    MAX_OFFSET BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY
    MAX_RECONSUME_TIMES CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO
    EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE
    INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
    DLQ_ORIGIN_MESSAGE_ID __CRC32# _SYS_MSG_PRIORITY_ __LITE_TOPIC
"""
RESERVED_PROPERTIES: Final = frozenset(_RESERVED_NAMES.split())
"""Properties that clients may not set and that are not shown to consumers."""

_good_topics: set[str] = set()
_GOOD_TOPICS_MAX: Final = 10_000


def check_topic(topic: str) -> str:
    """Returns the name if it is valid for a client's topic. Raises ``Refused``."""
    if topic in _good_topics:
        return topic
    if not topic.strip():
        raise Refused(pb.ILLEGAL_TOPIC, "The specified topic is blank")
    if len(topic) > _TOPIC_LENGTH_MAX:
        raise Refused(
            pb.ILLEGAL_TOPIC, f"The specified topic is longer than topic max length {_TOPIC_LENGTH_MAX}."
        )
    if not _LEGAL(topic):
        raise Refused(
            pb.ILLEGAL_TOPIC,
            f"The specified topic[{topic}] contains illegal characters, allowing only {_PATTERN_TEXT}",
        )
    if topic in SYSTEM_TOPICS or is_system_topic(topic):
        raise Refused(pb.ILLEGAL_TOPIC, "cannot access system topic")
    if len(_good_topics) >= _GOOD_TOPICS_MAX:
        _good_topics.clear()
    _good_topics.add(topic)
    return topic


def check_group(group: str) -> str:
    """Returns the name if it is valid for a client's group. Raises ``Refused``."""
    if not group.strip():
        raise Refused(pb.ILLEGAL_CONSUMER_GROUP, "the specified group is blank")
    if not _LEGAL(group):
        raise Refused(
            pb.ILLEGAL_CONSUMER_GROUP,
            f"the specified group[{group}] contains illegal characters, allowing only {_PATTERN_TEXT}",
        )
    if len(group) > _GROUP_LENGTH_MAX:
        raise Refused(
            pb.ILLEGAL_CONSUMER_GROUP,
            f"the specified group is longer than group max length {_GROUP_LENGTH_MAX}.",
        )
    if is_system_group(group):
        raise Refused(pb.ILLEGAL_CONSUMER_GROUP, "cannot use system consumer group")
    return group


def check_invisible_ms(value_ms: int, low_ms: int, high_ms: int) -> int:
    if value_ms < low_ms:
        raise Refused(pb.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {low_ms}")
    if value_ms > high_ms:
        raise Refused(pb.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {high_ms}")
    return value_ms


def check_message(config: ProxyConfig, message: pb.Message, now_ms: int) -> None:
    """Validate a message in Apache's order. Raises ``Refused``."""
    body_size = len(message.body)
    if not body_size and config.check_empty_body:
        raise Refused(pb.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if body_size > config.body_bytes_max:
        raise Refused(
            pb.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {config.body_bytes_max}"
        )
    system = message.system_properties
    size = _check_properties(config, message)
    if system.HasField("tag"):
        size += _check_tag(system.tag)
    for key in system.keys:
        if not key.strip():
            raise Refused(pb.ILLEGAL_MESSAGE_KEY, "key cannot be the char sequence of whitespace")
        if _CONTROL(key):
            raise Refused(pb.ILLEGAL_MESSAGE_KEY, "key cannot contain control character")
        size += len(key.encode())
        if size > config.user_property_bytes:
            break
    if size > config.user_property_bytes:
        raise Refused(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {config.user_property_bytes}",
        )
    if not system.message_id.strip():
        raise Refused(pb.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if system.orphaned_transaction_recovery_duration.seconds > config.recovery_max_s:
        raise Refused(
            pb.BAD_REQUEST,
            f"the max transaction recovery time of message is too large, max is {config.recovery_max_s}",
        )
    if system.HasField("delivery_timestamp"):
        stamp = system.delivery_timestamp
        if stamp.seconds * 1000 + stamp.nanos // 1_000_000 - now_ms > config.delay_max_ms:
            raise Refused(
                pb.ILLEGAL_DELIVERY_TIME,
                f"the max delay time of message is too large, max is {config.delay_max_ms}",
            )
    if system.HasField("message_group"):
        _check_message_group(config, system.message_group)
    if system.HasField("lite_topic"):
        lite = system.lite_topic
        if not lite.strip() or len(lite.encode()) > config.lite_topic_bytes or not _LITE_TOPIC(lite):
            raise Refused(
                pb.ILLEGAL_LITE_TOPIC, "the lite topic is blank, too long or has illegal characters"
            )


def _check_properties(config: ProxyConfig, message: pb.Message) -> int:
    """Validate the user properties. Returns their size in bytes. Raises ``Refused``."""
    properties = message.user_properties
    if not properties:
        return 0
    if len(properties) > config.user_property_count:
        raise Refused(
            pb.MESSAGE_PROPERTIES_TOO_LARGE, f"too many user properties, max is {config.user_property_count}"
        )
    size = 0
    for name, value in properties.items():
        if name in RESERVED_PROPERTIES:
            raise Refused(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        if _CONTROL(name):
            raise Refused(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "the key of property cannot contain control character"
            )
        if _CONTROL(value):
            raise Refused(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "the value of property cannot contain control character"
            )
        size += len(name.encode()) + len(value.encode())
    return size


def _check_tag(tag: str) -> int:
    if not tag.strip():
        raise Refused(pb.ILLEGAL_MESSAGE_TAG, "tag cannot be the char sequence of whitespace")
    if "|" in tag:
        raise Refused(pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    if _CONTROL(tag):
        raise Refused(pb.ILLEGAL_MESSAGE_TAG, "tag cannot contain control character")
    return len(tag.encode())


def _check_message_group(config: ProxyConfig, group: str) -> None:
    if not group.strip():
        raise Refused(pb.ILLEGAL_MESSAGE_GROUP, "message group cannot be the char sequence of whitespace")
    if len(group.encode()) >= config.message_group_bytes:
        raise Refused(
            pb.ILLEGAL_MESSAGE_GROUP, f"message group exceed the max size {config.message_group_bytes}"
        )
    if _CONTROL(group):
        raise Refused(pb.ILLEGAL_MESSAGE_GROUP, "message group cannot contain control character")

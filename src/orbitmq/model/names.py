"""Names of topics and groups: which are valid, which belong to the system, and which are derived from others.

Corresponds to Apache's ``TopicValidator``, ``NamespaceUtil``, ``KeyBuilder`` and the group names of ``MixAll``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from orbitmq.errors import InvalidParameter, NoPermission

__all__ = [
    "AUTO_CREATE_TOPIC",
    "BENCHMARK_TOPIC",
    "CHECKPOINT_TOPIC",
    "CLIENT_INNER_PRODUCER_GROUP",
    "CONSUMER_GROUP_RESERVED",
    "DLQ_PREFIX",
    "GROUP_LENGTH_MAX",
    "HALF_OP_TOPIC",
    "HALF_TOPIC",
    "OFFSET_MOVED_TOPIC",
    "PREDEFINED_GROUPS",
    "PRODUCER_GROUP_RESERVED",
    "RETRY_PREFIX",
    "ROCKSDB_HALF_OP_TOPIC",
    "ROCKSDB_HALF_TOPIC",
    "SCHEDULE_TOPIC",
    "SELF_TEST_TOPIC",
    "SEND_FORBIDDEN_TOPICS",
    "SYSTEM_GROUP_PREFIX",
    "SYSTEM_TOPICS",
    "SYSTEM_TOPIC_PREFIX",
    "TIMER_TOPIC",
    "TOPIC_LENGTH_MAX",
    "TRACE_TOPIC",
    "TRANSACTION_CHECK_MAX_TIME_TOPIC",
    "TRANSACTION_GROUP",
    "check_group",
    "check_send_topic",
    "check_topic",
    "dlq_topic",
    "group_of",
    "is_dlq_topic",
    "is_reply_topic",
    "is_retry_topic",
    "is_send_forbidden",
    "is_system_group",
    "is_system_topic",
    "namespace_of",
    "pop_retry_topic",
    "reply_topic",
    "retry_topic",
    "unwrap_namespace",
    "without_prefix",
    "wrap_namespace",
]

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
NAMESPACE_SEPARATOR: Final = "%"

AUTO_CREATE_TOPIC: Final = "TBW102"
"""The topic whose settings a topic created by its first send inherits."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
ROCKSDB_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_HALF_OP_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
"""5.5 brokers announce it whether they use it or not.
"""

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        HALF_OP_TOPIC,
        TRANSACTION_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TRACE_TOPIC,
        CHECKPOINT_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_HALF_OP_TOPIC,
    }
)
"""The same on every broker; each broker adds its own (cluster name, broker name, reply topic)."""

SEND_FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        HALF_OP_TOPIC,
        TRANSACTION_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_HALF_OP_TOPIC,
    }
)

PRODUCER_GROUP_RESERVED: Final = "DEFAULT_PRODUCER"
CONSUMER_GROUP_RESERVED: Final = "DEFAULT_CONSUMER"
CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
PREDEFINED_GROUPS: Final = frozenset(
    {
        CONSUMER_GROUP_RESERVED,
        PRODUCER_GROUP_RESERVED,
        "TOOLS_CONSUMER",
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        CLIENT_INNER_PRODUCER_GROUP,
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
        TRANSACTION_GROUP,
    }
)

TOPIC_LENGTH_MAX: Final = 127
DERIVED_TOPIC_LENGTH_MAX: Final = 255
"""Retry and dead-letter topics contain a group name, and those of the pop protocol a topic as well."""
GROUP_LENGTH_MAX: Final = 120

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+", re.ASCII)
_ALLOWED_TEXT: Final = "letters, digits and _ - % | are allowed"


def check_topic(topic: str) -> None:
    """Raise ``InvalidParameter`` unless this is a valid topic name."""
    if not _ALLOWED.fullmatch(topic):
        if not topic.strip():
            raise InvalidParameter("the topic name is blank")
        raise InvalidParameter(f"topic {topic!r} contains illegal characters; {_ALLOWED_TEXT}")
    if len(topic) <= TOPIC_LENGTH_MAX:
        return
    derived = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    limit = DERIVED_TOPIC_LENGTH_MAX if derived else TOPIC_LENGTH_MAX
    if len(topic) > limit:
        raise InvalidParameter(
            f"topic {topic!r} is {len(topic)} characters long, at most {limit} are allowed"
        )


def check_group(group: str) -> None:
    """Raise ``InvalidParameter`` unless this is a valid group name."""
    if not group.strip():
        raise InvalidParameter("the group name is blank")
    if not _ALLOWED.fullmatch(group):
        raise InvalidParameter(f"group {group!r} contains illegal characters; {_ALLOWED_TEXT}")
    if len(group) > GROUP_LENGTH_MAX:
        raise InvalidParameter(
            f"group {group!r} is {len(group)} characters long, at most {GROUP_LENGTH_MAX} are allowed"
        )


@lru_cache(maxsize=4096)
def check_send_topic(topic: str) -> None:
    """Like ``check_topic``, but also raises ``NoPermission`` for topics that only the broker itself writes.

    Cached, because every send calls it.
    """
    check_topic(topic)
    if topic in SEND_FORBIDDEN_TOPICS:
        raise NoPermission(f"sending to system topic {topic} is forbidden")


def is_system_topic(topic: str) -> bool:
    """Whether the topic belongs to the system and exists on every broker."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_send_forbidden(topic: str) -> bool:
    """Whether clients must not send to the topic."""
    return topic in SEND_FORBIDDEN_TOPICS


def is_system_group(group: str) -> bool:
    """Whether the group belongs to the system. Only the prefix is compared; see also ``PREDEFINED_GROUPS``."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def is_retry_topic(topic: str) -> bool:
    """Whether the topic holds messages that wait for another attempt."""
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """Whether the topic holds dead letters."""
    return topic.startswith(DLQ_PREFIX)


def retry_topic(group: str) -> str:
    """Returns the topic in which a group's failed messages wait for another attempt."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Returns the dead-letter topic of a group."""
    return DLQ_PREFIX + group


def pop_retry_topic(topic: str, group: str, *, version_2: bool = False) -> str:
    """Returns the topic in which failed messages of a POP consumer wait. There is one for each topic and group.
    Brokers of 5.x use version 1 of the name by default."""
    return f"{RETRY_PREFIX}{group}{'+' if version_2 else '_'}{topic}"


def reply_topic(cluster: str) -> str:
    """Returns the topic for replies to requests in a cluster."""
    return cluster + REPLY_SUFFIX


def is_reply_topic(topic: str, cluster: str) -> bool:
    """Whether the topic is the reply topic of the cluster, with or without a client's namespace."""
    name = reply_topic(cluster)
    return topic == name or (
        topic.endswith(NAMESPACE_SEPARATOR + name) and not topic.startswith(NAMESPACE_SEPARATOR)
    )


def without_prefix(name: str) -> str:
    """Returns the name without a leading %RETRY% or %DLQ%."""
    return name.removeprefix(RETRY_PREFIX) if name.startswith(RETRY_PREFIX) else name.removeprefix(DLQ_PREFIX)


def group_of(topic: str) -> str:
    """Returns the group of a retry or dead-letter topic."""
    assert topic.startswith((RETRY_PREFIX, DLQ_PREFIX)), topic
    return without_prefix(topic)


def wrap_namespace(namespace: str, name: str) -> str:
    """Returns ``namespace%name``. The prefix of a retry or dead-letter topic stays in front. System names are
    returned unchanged."""
    if not namespace or not name or _is_system(name):
        return name
    bare = without_prefix(name)
    if bare.startswith(namespace + NAMESPACE_SEPARATOR):
        return name
    return f"{name[: len(name) - len(bare)]}{namespace}{NAMESPACE_SEPARATOR}{bare}"


def unwrap_namespace(name: str, namespace: str) -> str:
    """Returns the name without this namespace. A name with another namespace is returned unchanged."""
    if not namespace or not name:
        return name
    bare = without_prefix(name)
    if _is_system(name) or not bare.startswith(namespace + NAMESPACE_SEPARATOR):
        return name
    return name[: len(name) - len(bare)] + bare[len(namespace) + 1 :]


def namespace_of(name: str) -> str:
    """Returns the namespace of a name; empty if it has none."""
    if not name or _is_system(name):
        return ""
    namespace, separator, _ = without_prefix(name).partition(NAMESPACE_SEPARATOR)
    return namespace if separator else ""


def _is_system(name: str) -> bool:
    return is_system_topic(name) or is_system_group(name)

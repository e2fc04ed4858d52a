"""The table of the rights that each request needs (Apache: the ``@RocketMQAction`` annotations of its header
classes).

Every ``RequestCode`` has a row, which a test verifies. Only Super users may send a code without a row. The strict
table closes the gaps of Apache 5.5.0 (docs/how-to/secure.md lists them). ``APACHE_ROWS`` contains Apache's own rows
for ``authCompatibility=apache``.

A row is a function that returns the needs of a request from its fields and body. All needs must be granted; a need is
granted if any one of its actions is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orbitmq.auth.model import Action, Need, ResourceType
from orbitmq.auth.stored import BrokerFacts, is_internal
from orbitmq.errors import BodyError, NoPermission, RecordError
from orbitmq.model.names import DLQ_PREFIX, RETRY_PREFIX, is_reply_topic
from orbitmq.record.ids import parse_offset_message_id
from orbitmq.requests import RequestCode
from orbitmq.wire import javajson
from orbitmq.wire.bodies.heartbeat import CONSUMERS_MAX, SUBSCRIPTIONS_MAX
from orbitmq.wire.bodies.queues import read_batch_acks

__all__ = [
    "APACHE_ROWS",
    "ROWS",
    "Asked",
    "Row",
    "cluster_need",
    "group_need",
    "pop_retry_needs",
    "topic_need",
]


@dataclass(slots=True)
class Asked:
    """The parts of a request that a row may use. Not frozen: one is created per checked request, and freezing it
    costs 0.5 us."""

    fields: Mapping[str, str]
    body: bytes
    facts: BrokerFacts

    def json(self) -> dict[str, Any]:
        try:
            value = javajson.loads(self.body, expects_plain=True)
        except BodyError:
            value = None
        if not isinstance(value, dict):
            raise NoPermission("the body cannot be read, so the right it needs is unknown")
        return value


Row = Callable[[Asked], Iterable[Need]]
_NUMBER: Final = re.compile("[+-]?[0-9]{1,40}", re.ASCII).fullmatch
PUB, SUB, CREATE, UPDATE, DELETE, GET = (
    Action.PUB,
    Action.SUB,
    Action.CREATE,
    Action.UPDATE,
    Action.DELETE,
    Action.GET,
)


def topic_need(topic: str, *actions: Action) -> Need:
    """Returns a right on a topic. A retry topic needs the right on its group instead."""
    if topic.startswith(RETRY_PREFIX):
        return Need(ResourceType.GROUP, topic.removeprefix(RETRY_PREFIX), actions)
    return Need(ResourceType.TOPIC, topic, actions)


def group_need(group: str, *actions: Action) -> Need:
    return Need(ResourceType.GROUP, group.removeprefix(RETRY_PREFIX), actions)


def cluster_need(cluster: str, *actions: Action) -> Need:
    return Need(ResourceType.CLUSTER, cluster, actions)


def _on_topic(asked: Asked, topic: str, group: str, *actions: Action) -> Iterator[Need]:
    """Yields the rights to read, or otherwise use, a topic on behalf of a group, except for the right on the group
    itself."""
    if topic.startswith(RETRY_PREFIX):
        name = topic.removeprefix(RETRY_PREFIX)
        if name != group:
            owner, part = asked.facts.retry_owner(name)
            if part:
                yield Need(ResourceType.TOPIC, part, actions)
            if owner != group:
                yield Need(ResourceType.GROUP, owner, actions)
    elif SUB in actions and is_internal(topic) and asked.facts.is_strict:
        yield cluster_need(asked.facts.cluster, GET)
    else:
        yield Need(ResourceType.TOPIC, topic, actions)


def pop_retry_needs(facts: BrokerFacts, group: str, topic: str) -> Iterator[Need]:
    """Yields the rights for a pop's retry topic, in addition to those on the group and the topic. The name of that
    retry topic may also belong to another group, or to another group and topic."""
    if facts.is_strict and not topic.startswith(RETRY_PREFIX):
        for owner, part in facts.sharers_of_pop_retry(group, topic):
            yield group_need(owner, SUB)
            if part:
                yield Need(ResourceType.TOPIC, part, (SUB,))


def _consuming(asked: Asked, topic: str, group: str, *actions: Action) -> Iterator[Need]:
    yield from _on_topic(asked, topic, group, *actions)
    yield group_need(group, *actions)


def _sending(asked: Asked, topic: str) -> Iterator[Need]:
    if topic.startswith(RETRY_PREFIX):
        yield group_need(topic, SUB)
    elif is_internal(topic) and asked.facts.is_strict:
        yield cluster_need(asked.facts.cluster, UPDATE)
    else:
        yield Need(ResourceType.TOPIC, topic, (PUB,))


def _on_record(asked: Asked, log_offset: int | None, *actions: Action) -> Iterator[Need]:
    """Yields the rights on the topic of the record at a log offset; none if there is no record."""
    place = None if log_offset is None or log_offset < 0 else asked.facts.place_at(log_offset)
    if place is None:
        return
    if is_internal(place.origin):
        yield cluster_need(asked.facts.cluster, UPDATE if UPDATE in actions or PUB in actions else GET)
        return
    need = topic_need(place.origin, *actions)
    if place.topic.startswith(DLQ_PREFIX):
        # A reader of the dead letters may handle them without a right on the topic they come from.
        need = need._replace(instead=topic_need(place.topic, *actions))
    yield need


def _whole_number(text: str) -> int | None:
    """Parse an offset. Returns None for a missing field. Raises ``NoPermission`` for a text that a handler might read
    differently."""
    if not text:
        return None
    if not _NUMBER(text):
        raise NoPermission("the offset cannot be read, so the right it needs is unknown")
    return int(text)


def _offset_of(message_id: str) -> int | None:
    try:
        return parse_offset_message_id(message_id).log_offset
    except RecordError:
        return None


# -- kinds of rows -----------------------------------------------------------------------------------------


def _nothing(_asked: Asked) -> Iterable[Need]:
    """Returns no needs: a valid signature is enough."""
    return ()


def _topic(*actions: Action, field: str = "topic", optional: bool = False) -> Row:
    def row(asked: Asked) -> Iterator[Need]:
        name = asked.fields.get(field, "")
        if name or not optional:
            yield topic_need(name, *actions)

    return row


def _send(field: str) -> Row:
    def row(asked: Asked) -> Iterator[Need]:
        return _sending(asked, asked.fields.get(field, ""))

    return row


def _reply(field: str) -> Row:
    """Returns a row for replies. It needs no right on the cluster's reply topic, like in Apache, because a consumer
    that answers a request has none."""

    def row(asked: Asked) -> Iterator[Need]:
        topic = asked.fields.get(field, "")
        if not is_reply_topic(topic, asked.facts.cluster):
            yield from _sending(asked, topic)

    return row


def _group(*actions: Action, field: str = "consumerGroup", optional: bool = False) -> Row:
    def row(asked: Asked) -> Iterator[Need]:
        name = asked.fields.get(field, "")
        if name or not optional:
            yield group_need(name, *actions)

    return row


def _both(
    *actions: Action, topic: str = "topic", group: str = "consumerGroup", topic_optional: bool = False
) -> Row:
    def row(asked: Asked) -> Iterator[Need]:
        topic_name, group_name = asked.fields.get(topic, ""), asked.fields.get(group, "")
        if topic_name or not topic_optional:
            yield from _on_topic(asked, topic_name, group_name, *actions)
        yield group_need(group_name, *actions)

    return row


def _popping(asked: Asked) -> Iterator[Need]:
    yield from _both(SUB)(asked)
    yield from pop_retry_needs(
        asked.facts, asked.fields.get("consumerGroup", ""), asked.fields.get("topic", "")
    )


def _cluster(*actions: Action) -> Row:
    def row(asked: Asked) -> Iterator[Need]:
        yield cluster_need(asked.facts.cluster, *actions)

    return row


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# -- rows of their own ---------------------------------------------------------------------------------------


def _heartbeat(asked: Asked) -> Iterator[Need]:
    consumers = _items(asked.json().get("consumerDataSet"))
    if len(consumers) > CONSUMERS_MAX:
        raise NoPermission(
            f"the heartbeat has {len(consumers):,} consumer groups; the limit is {CONSUMERS_MAX:,}"
        )
    count = 0
    for consumer in consumers:
        group = _text(consumer.get("groupName"))
        yield group_need(group, SUB)
        subscriptions = _items(consumer.get("subscriptionDataSet"))
        count += len(subscriptions)
        if count > SUBSCRIPTIONS_MAX:
            raise NoPermission(f"the heartbeat has more than {SUBSCRIPTIONS_MAX:,} subscriptions")
        for subscription in subscriptions:
            yield from _on_topic(asked, _text(subscription.get("topic")), group, SUB)


def _locks(asked: Asked) -> Iterator[Need]:
    body = asked.json()
    group = _text(body.get("consumerGroup"))
    yield group_need(group, SUB)
    for topic in {_text(queue.get("topic")) for queue in _items(body.get("mqSet"))}:
        yield from _on_topic(asked, topic, group, SUB)


def _view(asked: Asked) -> Iterator[Need]:
    return _on_record(asked, _whole_number(asked.fields.get("offset", "")), SUB, GET)


def _send_back(asked: Asked) -> Iterator[Need]:
    yield group_need(asked.fields.get("group", ""), SUB)
    yield from _on_record(asked, _whole_number(asked.fields.get("offset", "")), SUB)


def _consume_directly(asked: Asked) -> Iterator[Need]:
    yield from _both(SUB, topic_optional=True)(asked)
    yield from _on_record(asked, _offset_of(asked.fields.get("msgId", "")), SUB)


def _end_transaction(asked: Asked) -> Iterator[Need]:
    """Yields the right on the half message's actual topic. Client 4.9.7 sends no topic, and a topic sent by others
    proves nothing."""
    yield from _on_record(asked, _whole_number(asked.fields.get("commitLogOffset", "")), PUB)


def _half_message(asked: Asked) -> Iterator[Need]:
    needs = tuple(_on_record(asked, _offset_of(asked.fields.get("msgId", "")), UPDATE))
    return iter(needs or (cluster_need(asked.facts.cluster, UPDATE),))


def _query(asked: Asked) -> Iterator[Need]:
    return _on_topic(asked, asked.fields.get("topic", ""), "", SUB, GET)


def _topic_list(asked: Asked) -> Iterator[Need]:
    for config in _items(asked.json().get("topicConfigList")):
        yield topic_need(_text(config.get("topicName")), CREATE)


def _group_config(asked: Asked) -> Iterator[Need]:
    yield group_need(_text(asked.json().get("groupName")), CREATE, UPDATE)


def _group_list(asked: Asked) -> Iterator[Need]:
    for config in _items(asked.json().get("groupConfigList")):
        yield group_need(_text(config.get("groupName")), CREATE, UPDATE)


def _consume_stats(asked: Asked) -> Iterator[Need]:
    fields = asked.fields
    group = fields.get("consumerGroup", "")
    yield group_need(group, GET)
    for topic in {fields.get("topic", ""), *fields.get("topicList", "").split(";")}:
        if topic:
            yield from _on_topic(asked, topic, group, GET)


def _correction(asked: Asked) -> Iterator[Need]:
    fields = asked.fields
    for group in {*fields.get("filterGroups", "").split(","), fields.get("compareGroup", "")}:
        if group:
            yield group_need(group, GET)
    yield topic_need(fields.get("topic", ""), GET)


def _clone(asked: Asked) -> Iterator[Need]:
    fields = asked.fields
    yield group_need(fields.get("srcGroup", ""), GET, SUB)
    yield from _clone_apache(asked)


def _clone_apache(asked: Asked) -> Iterator[Need]:
    yield group_need(asked.fields.get("destGroup", ""), UPDATE)
    if topic := asked.fields.get("topic", ""):
        yield topic_need(topic, UPDATE)


def _client_config(asked: Asked) -> Iterator[Need]:
    body = asked.json()
    subscription = body.get("subscriptionData")
    topic = _text(subscription.get("topic")) if isinstance(subscription, dict) else ""
    group = _text(body.get("group"))
    if topic:
        yield from _on_topic(asked, topic, group, SUB)
    yield group_need(group, SUB)


def _assignment(asked: Asked) -> Iterator[Need]:
    body = asked.json()
    yield from _consuming(asked, _text(body.get("topic")), _text(body.get("consumerGroup")), SUB)


def _request_mode(asked: Asked) -> Iterator[Need]:
    yield group_need(_text(asked.json().get("consumerGroup")), UPDATE)


def _batch_ack(asked: Asked) -> Iterator[Need]:
    try:
        pairs = {(ack.topic or "", ack.consumer_group or "") for ack in read_batch_acks(asked.body)}
    except BodyError as error:
        raise NoPermission(f"the body cannot be read, so the right it needs is unknown: {error}") from None
    if not pairs:
        asked.json()
    for topic, group in sorted(pairs):
        yield from _consuming(asked, topic, group, SUB)


def _queue_units(asked: Asked) -> Iterator[Need]:
    yield topic_need(asked.fields.get("topic", ""), GET)
    if group := asked.fields.get("consumerGroup", ""):
        yield group_need(group, GET)


_R: Final = RequestCode
_CLUSTER_GET: Final = (
    _R.GET_ALL_TOPIC_CONFIG,
    _R.GET_TOPIC_CONFIG_LIST,
    _R.GET_TOPIC_NAME_LIST,
    _R.QUERY_BROKER_OFFSET,
    _R.GET_BROKER_CONFIG,
    _R.GET_BROKER_RUNTIME_INFO,
    _R.GET_ALL_CONSUMER_OFFSET,
    _R.GET_ALL_DELAY_OFFSET,
    _R.GET_CLIENT_CONFIG,
    _R.GET_TIMER_CHECK_POINT,
    _R.GET_TIMER_METRICS,
    _R.GET_KV_CONFIG,
    _R.GET_BROKER_CLUSTER_INFO,
    _R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    _R.GET_PRODUCER_CONNECTION_LIST,
    _R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    _R.GET_KVLIST_BY_NAMESPACE,
    _R.GET_TOPICS_BY_CLUSTER,
    _R.WHO_CONSUME_THE_MESSAGE,
    _R.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    _R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    _R.GET_UNIT_TOPIC_LIST,
    _R.GET_HAS_UNIT_SUB_TOPIC_LIST,
    _R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    _R.VIEW_BROKER_STATS_DATA,
    _R.GET_BROKER_CONSUME_STATS,
    _R.GET_NAMESRV_CONFIG,
    _R.QUERY_DATA_VERSION,
    _R.GET_ALL_PRODUCER_INFO,
    _R.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
    _R.EXPORT_ROCKSDB_CONFIG_TO_JSON,
    _R.GET_ALL_MESSAGE_REQUEST_MODE,
    _R.GET_BROKER_MEMBER_GROUP,
    _R.GET_BROKER_HA_STATUS,
    _R.CONTROLLER_GET_REPLICA_INFO,
    _R.CONTROLLER_GET_METADATA_INFO,
    _R.CONTROLLER_GET_SYNC_STATE_DATA,
    _R.GET_BROKER_EPOCH_CACHE,
    _R.GET_CONTROLLER_CONFIG,
    _R.CONTROLLER_GET_NEXT_BROKER_ID,
    _R.GET_BROKER_LIVE_INFO_REQUEST,
    _R.GET_SYNC_STATE_DATA_REQUEST,
    _R.GET_COLD_DATA_FLOW_CTR_INFO,
    _R.AUTH_GET_USER,
    _R.AUTH_LIST_USER,
    _R.AUTH_GET_ACL,
    _R.AUTH_LIST_ACL,
    _R.GET_BROKER_CLUSTER_ACL_INFO,
    _R.GET_BROKER_CLUSTER_ACL_CONFIG,
    _R.GET_BROKER_LITE_INFO,
    _R.GET_PARENT_TOPIC_INFO,
    _R.GET_LITE_TOPIC_INFO,
    _R.GET_LITE_CLIENT_INFO,
    _R.GET_LITE_GROUP_INFO,
)
_CLUSTER_UPDATE: Final = (
    _R.UPDATE_BROKER_CONFIG,
    _R.TRIGGER_DELETE_FILES,
    _R.UPDATE_AND_CREATE_ACL_CONFIG,
    _R.DELETE_ACL_CONFIG,
    _R.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    _R.PUT_KV_CONFIG,
    _R.DELETE_KV_CONFIG,
    _R.REGISTER_BROKER,
    _R.UNREGISTER_BROKER,
    _R.WIPE_WRITE_PERM_OF_BROKER,
    _R.ADD_WRITE_PERM_OF_BROKER,
    _R.SUSPEND_CONSUMER,
    _R.RESUME_CONSUMER,
    _R.RESET_CONSUMER_OFFSET_IN_CONSUMER,
    _R.RESET_CONSUMER_OFFSET_IN_BROKER,
    _R.ADJUST_CONSUMER_THREAD_POOL,
    _R.DELETE_TOPIC_IN_NAMESRV,
    _R.REGISTER_TOPIC_IN_NAMESRV,
    _R.REGISTER_FILTER_SERVER,
    _R.REGISTER_MESSAGE_FILTER_CLASS,
    _R.CLEAN_EXPIRED_CONSUMEQUEUE,
    _R.CLEAN_UNUSED_TOPIC,
    _R.UPDATE_NAMESRV_CONFIG,
    _R.DELETE_EXPIRED_COMMITLOG,
    _R.UPDATE_AND_CREATE_STATIC_TOPIC,
    _R.ADD_BROKER,
    _R.REMOVE_BROKER,
    _R.BROKER_HEARTBEAT,
    _R.NOTIFY_MIN_BROKER_ID_CHANGE,
    _R.EXCHANGE_BROKER_HA_INFO,
    _R.RESET_MASTER_FLUSH_OFFSET,
    _R.CONTROLLER_ALTER_SYNC_STATE_SET,
    _R.CONTROLLER_ELECT_MASTER,
    _R.CONTROLLER_REGISTER_BROKER,
    _R.NOTIFY_BROKER_ROLE_CHANGED,
    _R.UPDATE_CONTROLLER_CONFIG,
    _R.CLEAN_BROKER_DATA,
    _R.CONTROLLER_APPLY_BROKER_ID,
    _R.BROKER_CLOSE_CHANNEL_REQUEST,
    _R.CHECK_NOT_ACTIVE_BROKER_REQUEST,
    _R.RAFT_BROKER_HEART_BEAT_EVENT_REQUEST,
    _R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
    _R.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    _R.SET_COMMITLOG_READ_MODE,
    _R.AUTH_CREATE_USER,
    _R.AUTH_UPDATE_USER,
    _R.AUTH_DELETE_USER,
    _R.AUTH_CREATE_ACL,
    _R.AUTH_UPDATE_ACL,
    _R.AUTH_DELETE_ACL,
    _R.SWITCH_TIMER_ENGINE,
    _R.POP_ROLLBACK,
    _R.TRIGGER_LITE_DISPATCH,
    # Sent by brokers to clients; a broker that gets one has a peer that pretends.
    _R.CHECK_TRANSACTION_STATE,
    _R.NOTIFY_CONSUMER_IDS_CHANGED,
    _R.RESET_CONSUMER_CLIENT_OFFSET,
    _R.GET_CONSUMER_STATUS_FROM_CLIENT,
    _R.PUSH_REPLY_MESSAGE_TO_CLIENT,
)

ROWS: Final[Mapping[int, Row]] = {
    **dict.fromkeys(_CLUSTER_GET, _cluster(GET)),
    **dict.fromkeys(_CLUSTER_UPDATE, _cluster(UPDATE)),
    # Producers.
    _R.SEND_MESSAGE: _send("topic"),
    _R.SEND_MESSAGE_V2: _send("b"),
    _R.SEND_BATCH_MESSAGE: _send("b"),
    _R.RECALL_MESSAGE: _topic(PUB),
    _R.END_TRANSACTION: _end_transaction,
    _R.SEND_REPLY_MESSAGE: _reply("topic"),
    _R.SEND_REPLY_MESSAGE_V2: _reply("b"),
    _R.RESUME_CHECK_HALF_MESSAGE: _half_message,
    # Consumers.
    _R.CONSUMER_SEND_MSG_BACK: _send_back,
    _R.PULL_MESSAGE: _both(SUB),
    _R.LITE_PULL_MESSAGE: _both(SUB),
    _R.QUERY_CONSUMER_OFFSET: _both(SUB, GET),
    _R.UPDATE_CONSUMER_OFFSET: _both(SUB, UPDATE),
    _R.HEART_BEAT: _heartbeat,
    _R.UNREGISTER_CLIENT: _group(SUB, optional=True),
    _R.GET_CONSUMER_LIST_BY_GROUP: _group(SUB, GET),
    _R.LOCK_BATCH_MQ: _locks,
    _R.UNLOCK_BATCH_MQ: _locks,
    _R.CHECK_CLIENT_CONFIG: _client_config,
    _R.QUERY_ASSIGNMENT: _assignment,
    _R.SET_MESSAGE_REQUEST_MODE: _request_mode,
    _R.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    **dict.fromkeys((_R.POP_MESSAGE, _R.PEEK_MESSAGE, _R.NOTIFICATION), _popping),
    **dict.fromkeys(
        (
            _R.ACK_MESSAGE,
            _R.CHANGE_MESSAGE_INVISIBLETIME,
            _R.POP_LITE_MESSAGE,
            _R.LITE_SUBSCRIPTION_CTL,
            _R.ACK_LITE_MESSAGE,
        ),
        _both(SUB),
    ),
    _R.BATCH_ACK_MESSAGE: _batch_ack,
    _R.POLLING_INFO: _both(GET),
    _R.NOTIFY_UNSUBSCRIBE_LITE: _group(SUB),
    # Either.
    _R.GET_ROUTEINFO_BY_TOPIC: _topic(PUB, SUB, GET),
    _R.QUERY_MESSAGE: _query,
    _R.VIEW_MESSAGE_BY_ID: _view,
    **dict.fromkeys(
        (_R.SEARCH_OFFSET_BY_TIMESTAMP, _R.GET_MAX_OFFSET, _R.GET_MIN_OFFSET, _R.GET_EARLIEST_MSG_STORETIME),
        _topic(GET),
    ),
    # Topics and groups.
    _R.UPDATE_AND_CREATE_TOPIC: _topic(CREATE),
    _R.UPDATE_AND_CREATE_TOPIC_LIST: _topic_list,
    _R.DELETE_TOPIC_IN_BROKER: _topic(DELETE),
    _R.GET_TOPIC_STATS_INFO: _topic(GET),
    _R.QUERY_TOPIC_CONSUME_BY_WHO: _topic(GET),
    _R.GET_TOPIC_CONFIG: _topic(GET),
    _R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_config,
    _R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _group_list,
    _R.DELETE_SUBSCRIPTIONGROUP: _group(DELETE, field="groupName"),
    _R.GET_CONSUMER_CONNECTION_LIST: _group(GET),
    _R.GET_CONSUMER_RUNNING_INFO: _group(GET),
    _R.QUERY_TOPICS_BY_CONSUMER: _group(GET, field="group"),
    _R.GET_SUBSCRIPTIONGROUP_CONFIG: _group(GET, field="group"),
    _R.GET_CONSUME_STATS: _consume_stats,
    _R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _both(GET, group="group"),
    _R.QUERY_CONSUME_TIME_SPAN: _both(GET, group="group"),
    _R.INVOKE_BROKER_TO_RESET_OFFSET: _both(UPDATE, group="group"),
    _R.UPDATE_AND_GET_GROUP_FORBIDDEN: _both(UPDATE, group="group"),
    _R.QUERY_CORRECTION_OFFSET: _correction,
    _R.CLONE_GROUP_OFFSET: _clone,
    _R.QUERY_CONSUME_QUEUE: _queue_units,
    _R.QUERY_SUBSCRIPTION_BY_CONSUMER: _both(GET, group="group", topic_optional=True),
}

_UNDECLARED: Final = (
    25, 26, 27, 28, 43, 45, 46, 47, 60, 61, 200, 225, 305, 306, 316, 324, 325, 329, 361, 400, 401, 402, 513, 907,
    1007, 2001, 2002, 2003, 2004, 5001, 200056, 200070, 200071, 200072, 200074, 200075, 200076, 200077, 200078,
    200079, 200151, 18, 21, 201, 50, 51, 52, 53, 54,
)  # fmt: skip
APACHE_ROWS: Final[Mapping[int, Row]] = {
    **ROWS,
    **dict.fromkeys(_UNDECLARED, _nothing),
    _R.VIEW_MESSAGE_BY_ID: _topic(GET, optional=True),
    _R.CONSUMER_SEND_MSG_BACK: _group(SUB, field="group"),
    _R.CONSUME_MESSAGE_DIRECTLY: _both(SUB, topic_optional=True),
    _R.END_TRANSACTION: _topic(PUB, optional=True),
    _R.QUERY_MESSAGE: _topic(SUB, GET),
    _R.RESUME_CHECK_HALF_MESSAGE: _topic(UPDATE, optional=True),
    _R.CLONE_GROUP_OFFSET: _clone_apache,
}
"""Apache's rows, for ``authCompatibility=apache``. A valid signature is enough for requests that its classes do not
declare."""

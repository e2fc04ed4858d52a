"""Messages: lookup by id, key, unique key or position, their consumers, and consumption on demand."""

from __future__ import annotations

import base64
from codecs import getincrementaldecoder
from typing import Final

import msgspec

from orbitmq.admin.base import Result
from orbitmq.admin.errors import AdminError, UnknownNameError
from orbitmq.admin.groups import consume_stats, consumer_connection, running_info
from orbitmq.admin.session import Admin
from orbitmq.admin.topics import groups_of_topic
from orbitmq.codes import COMPRESSION_MASK, ResponseCode, SysFlag
from orbitmq.errors import BrokerError, NoMessage, RecordError, error_for_code
from orbitmq.record.batch import unwrap
from orbitmq.record.codec import Record, decode_record, decode_records
from orbitmq.record.compression import DECOMPRESSED_BYTES_MAX, decompress_start
from orbitmq.record.hosts import host_text
from orbitmq.record.ids import parse_offset_message_id
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import ConsumeMessageDirectlyResult, ConsumeType
from orbitmq.wire.headers import (
    ConsumeMessageDirectlyRequest,
    QueryMessageRequest,
    ViewMessageByIdRequest,
)

__all__ = [
    "DirectConsumption",
    "FoundMessage",
    "FoundMessages",
    "KeyQuery",
    "MessageDetail",
    "MessageDetails",
    "MessageView",
    "Track",
    "body_bytes",
    "by_id",
    "by_key",
    "by_unique_key",
    "consume_directly",
    "detail",
    "message_view",
    "messages_by_key",
    "opened_views",
    "shortened",
    "tracks",
]

_LATEST_MS: Final = 2**63 - 1
_UNIQUE_MAX: Final = 32
_BATCH_BYTES_MAX: Final = 1024 * 1024
_BATCH_MESSAGES_MAX: Final = 1_000
"""If bodies are limited, a compressed batch that exceeds this many inflated bytes or messages is shown as one
message.
"""


class MessageView(Result, kw_only=True):
    """A stored message."""

    message_id: str
    """The unique key, or the offset id if there is none."""
    offset_msg_id: str
    broker_name: str = ""
    topic: str
    tags: str
    keys: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    reconsume_times: int
    born_timestamp: int
    store_timestamp: int
    born_host: str
    store_host: str
    sys_flag: int
    flag: int
    store_size: int
    body_crc: int = msgspec.field(name="bodyCRC")
    prepared_transaction_offset: int
    properties: dict[str, str]
    body: str | None
    """The body as text; None if it is not UTF-8."""
    body_base64: str
    body_cut: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether only the first bytes of the body were read."""


class Track(Result, kw_only=True):
    """The state of a message in one group."""

    consumer_group: str
    track_type: str
    error: str = ""


class MessageDetail(Result, kw_only=True):
    message: MessageView
    tracks: list[Track]


class MessageDetails(Result, kw_only=True):
    messages: list[MessageDetail]


class FoundMessage(Result, kw_only=True):
    message_id: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    commit_log_offset: int


class FoundMessages(Result, kw_only=True):
    topic: str
    key: str
    key_type: str
    messages: list[FoundMessage]


class KeyQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query of the message indexes of a topic's brokers."""

    topic: str
    key: str
    count_max: int = 64
    unique: bool = False
    """Whether ``key`` is the unique id that a client gave the message."""
    key_type: str = ""
    """``T`` if ``key`` is a tag (5.5 and later)."""
    begin_ms: int = 0
    end_ms: int = _LATEST_MS
    last_key: str | None = None
    """Index entry after which to continue (5.5 and later)."""
    route_topic: str = ""
    """A topic on the same brokers, if this topic has no route of its own."""
    read_bytes: int | None = None
    """Bytes of each body to inflate; None means all of it."""


class DirectConsumption(Result, kw_only=True):
    consume_result: str
    order: bool
    auto_commit: bool
    spent_time_millis: int
    remark: str


def message_view(record: Record, broker_name: str = "", *, body_cut: bool = False) -> MessageView:
    properties = record.property_map()
    try:
        # The last character of a truncated body may be incomplete.
        body: str | None = getincrementaldecoder("utf-8")().decode(record.body, final=not body_cut)
    except UnicodeDecodeError:
        body = None
    return MessageView(
        message_id=record.unique_key or record.offset_message_id,
        offset_msg_id=record.offset_message_id,
        broker_name=broker_name,
        topic=record.topic,
        tags=properties.get("TAGS", ""),
        keys=properties.get("KEYS", ""),
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        commit_log_offset=record.log_offset,
        reconsume_times=record.reconsume_times,
        born_timestamp=record.born_timestamp_ms,
        store_timestamp=record.store_timestamp_ms,
        born_host=host_text(record.born_host),
        store_host=host_text(record.store_host),
        sys_flag=record.sys_flag,
        flag=record.flag,
        store_size=record.size,
        body_crc=record.body_crc,
        prepared_transaction_offset=record.prepared_offset,
        properties=properties,
        body=body,
        body_base64=base64.b64encode(record.body).decode(),
        body_cut=body_cut or msgspec.UNSET,
    )


def opened_views(record: Record, broker_name: str, read_bytes: int | None = None) -> list[MessageView]:
    """Returns the messages of a record that was decoded without inflating it; several if it is a batch.

    At most ``read_bytes`` of each body are inflated and kept, because a record of 60 KB may hold a body of 64 MB.
    """
    cut = False
    if record.sys_flag & SysFlag.COMPRESSED:
        limit = DECOMPRESSED_BYTES_MAX if read_bytes is None else read_bytes
        if record.sys_flag & SysFlag.INNER_BATCH:
            limit = max(limit, _BATCH_BYTES_MAX)
        try:
            record.body, cut = decompress_start(record.body, record.sys_flag, limit)
            record.sys_flag &= ~(SysFlag.COMPRESSED | COMPRESSION_MASK)
        except RecordError:
            pass  # it stays as it is: a sender's mistake must not hide its neighbours
    inner = [record]
    if not cut:
        try:
            inner = unwrap(record)
        except RecordError:
            pass
    if read_bytes is not None and len(inner) > _BATCH_MESSAGES_MAX:
        inner = [record]
    views = []
    for one in inner:
        long = read_bytes is not None and len(one.body) > read_bytes
        if long:
            one.body = one.body[:read_bytes]
        views.append(message_view(one, broker_name, body_cut=cut or long))
    return views


def shortened(message: MessageView, kept_bytes: int | None) -> MessageView:
    """Returns a message with at most ``kept_bytes`` of its body."""
    if kept_bytes is None or len(message.body_base64) <= 4 * -(-kept_bytes // 3):
        return message
    data = base64.b64decode(message.body_base64[: 4 * -(-kept_bytes // 3)])[:kept_bytes]
    return msgspec.structs.replace(
        message,
        body=None if message.body is None else data.decode("utf-8", "ignore"),
        body_base64=base64.b64encode(data).decode(),
        body_cut=True,
    )


def body_bytes(message: MessageView) -> bytes:
    """Returns the body as bytes, decompressed if possible. It is truncated if ``body_cut`` is True."""
    return base64.b64decode(message.body_base64)


# -- finding -----------------------------------------------------------------------------------------------


async def by_id(
    admin: Admin, topic: str, message_id: str, *, route_topic: str = "", read_bytes: int | None = None
) -> MessageView:
    """Returns a message by its offset id or its unique key. Raises ``NoMessage``."""
    try:
        place = parse_offset_message_id(message_id)
        address = (
            f"[{place.address}]:{place.port}" if ":" in place.address else f"{place.address}:{place.port}"
        )
        header = ViewMessageByIdRequest(offset=place.log_offset, topic=topic)
        # Both kinds of id look alike: a unique key names a host that is not a broker, or no message.
        answer = await admin.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        return opened_views(decode_record(answer.body, check_crc=False), "", read_bytes)[0]
    except (RecordError, BrokerError, AdminError):
        query = KeyQuery(
            topic=topic,
            key=message_id,
            count_max=_UNIQUE_MAX,
            unique=True,
            route_topic=route_topic,
            read_bytes=read_bytes,
        )
        return (await _by_unique_key(admin, query))[0]


async def messages_by_key(admin: Admin, query: KeyQuery) -> list[MessageView]:
    """Returns the messages with a key from the indexes of all the topic's brokers.

    Messages with another key of the same hash are left out.
    """
    header = QueryMessageRequest(
        topic=query.topic,
        key=query.key,
        max_num=query.count_max,
        begin_timestamp=query.begin_ms,
        end_timestamp=query.end_ms,
        unique_key_query=query.unique,
        index_type="U" if query.unique else query.key_type or None,
        last_key=query.last_key,
    )
    found: list[MessageView] = []
    for name, address in await admin.addresses_of_topic(query.route_topic or query.topic):
        answer = await admin.call(address, RequestCode.QUERY_MESSAGE, header, timeout_s=admin.slow_s)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            continue
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark)
        for record in decode_records(answer.body, check_crc=False):
            if _has_key(record, query):
                found += opened_views(record, name, query.read_bytes)[:1]
    return found


def _has_key(record: Record, query: KeyQuery) -> bool:
    if query.unique:
        return record.unique_key == query.key
    properties = record.property_map()
    if query.key_type == "T":
        return properties.get("TAGS") == query.key
    return record.topic == query.topic and query.key in properties.get("KEYS", "").split()


async def by_key(admin: Admin, query: KeyQuery) -> FoundMessages:
    """Returns the positions of the messages with a key. Raises ``NoMessage``."""
    found = await messages_by_key(admin, query)
    if not found:
        raise NoMessage(f"no message of topic {query.topic} has the key {query.key!r}")
    rows = [
        FoundMessage(
            message_id=message.message_id,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            store_timestamp=message.store_timestamp,
            commit_log_offset=message.commit_log_offset,
        )
        for message in found
    ]
    return FoundMessages(topic=query.topic, key=query.key, key_type=query.key_type or "K", messages=rows)


async def by_unique_key(
    admin: Admin, topic: str, message_id: str, *, route_topic: str = ""
) -> list[MessageView]:
    """Returns every stored copy of a message, oldest first. Raises ``NoMessage``."""
    return await _by_unique_key(
        admin,
        KeyQuery(topic=topic, key=message_id, count_max=_UNIQUE_MAX, unique=True, route_topic=route_topic),
    )


async def _by_unique_key(admin: Admin, query: KeyQuery) -> list[MessageView]:
    found = await messages_by_key(admin, query)
    if not found:
        raise NoMessage(f"no message of topic {query.topic} has the id {query.key!r}")
    return sorted(found, key=lambda message: message.store_timestamp)


async def tracks(admin: Admin, message: MessageView) -> list[Track]:
    """Returns the state of a message in every group that consumes its topic."""
    return [await _track(admin, message, group) for group in await groups_of_topic(admin, message.topic)]


async def detail(admin: Admin, message: MessageView) -> MessageDetail:
    """Returns a message and its state in every group."""
    return MessageDetail(message=message, tracks=await tracks(admin, message))


async def _track(admin: Admin, message: MessageView, group: str) -> Track:
    try:
        connection = await consumer_connection(admin, group)
        if connection.consume_type == ConsumeType.ACTIVELY:
            return Track(consumer_group=group, track_type="PULL")
        if connection.consume_type != ConsumeType.PASSIVELY:
            return Track(consumer_group=group, track_type="UNKNOWN")
        stats = await consume_stats(admin, group)
        if not stats.offset_table and connection.message_model == "BROADCASTING":
            return Track(consumer_group=group, track_type="CONSUME_BROADCASTING")
        masters = {
            data.broker_name: data.master_address
            for data in (await admin.cluster_info()).broker_addr_table.values()
        }
    except UnknownNameError as error:
        return Track(consumer_group=group, track_type="UNKNOWN", error=str(error))
    except BrokerError as error:
        offline = error.response_code == ResponseCode.CONSUMER_NOT_ONLINE
        text = f"code {error.response_code}: {error.remark}"
        return Track(consumer_group=group, track_type="NOT_ONLINE" if offline else "UNKNOWN", error=text)
    consumed = any(
        queue.topic == message.topic
        and queue.queue_id == message.queue_id
        and masters.get(queue.broker_name) == message.store_host
        and offset.consumer_offset > message.queue_offset
        for queue, offset in stats.offset_table.items()
    )
    if not consumed:
        return Track(consumer_group=group, track_type="NOT_CONSUME_YET")
    expression = next((s.sub_expression for s in connection.subscriptions if s.topic == message.topic), "*")
    wanted = {tag.strip() for tag in expression.split("||")}
    filtered = "*" not in wanted and message.tags not in wanted
    return Track(consumer_group=group, track_type="CONSUMED_BUT_FILTERED" if filtered else "CONSUMED")


async def consume_directly(
    admin: Admin, message: MessageView, group: str, client_id: str
) -> DirectConsumption:
    """Have an online member consume a message now, regardless of the group's offsets."""
    info = await running_info(admin, group, client_id)
    if info.properties.get("PROP_CONSUME_TYPE") != ConsumeType.PASSIVELY:
        raise AdminError(f"client {client_id} is not a push consumer; it accepts no pushed messages")
    header = ConsumeMessageDirectlyRequest(
        consumer_group=group, client_id=client_id, msg_id=message.offset_msg_id, topic=message.topic
    )
    answer = await admin.ask(
        message.store_host, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_s=admin.slow_s
    )
    result = ConsumeMessageDirectlyResult.decode(answer.body)
    return DirectConsumption(
        consume_result=result.consume_result or "",
        order=result.order,
        auto_commit=result.auto_commit,
        spent_time_millis=result.spent_time_mills,
        remark=result.remark or "",
    )

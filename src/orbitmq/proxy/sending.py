"""SendMessage and RecallMessage (Apache: SendMessageActivity, RecallMessageActivity, ProducerProcessor).

A single message needs no task: it is checked, its properties are built, one request is sent to the broker, and a
callback answers the client. A task is only created if the topic or a connection is not known yet.
"""

from __future__ import annotations

import asyncio
import base64
import functools
from collections.abc import Callable
from typing import Final

import msgspec

from orbitmq.codes import ResponseCode
from orbitmq.errors import ConnectionLostError, OrbitError, RecordError, error_for_code
from orbitmq.kernel import SendOrigin, SendTarget, encode_send_fields, read_send_answer
from orbitmq.model.delay_levels import DelayLevels
from orbitmq.model.route import MessageQueue
from orbitmq.proxy.brokers import CALL_S, Brokers, TopicFacts
from orbitmq.proxy.checks import check_message, check_topic
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.http2.call import Call
from orbitmq.proxy.messages import kind_of, stored_properties, sys_flag_of
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import OK, Refused, refused_by, status
from orbitmq.proxy.transactions import Transactions
from orbitmq.record.batch import encode_batch
from orbitmq.record.hashing import java_hash
from orbitmq.record.ids import parse_offset_message_id
from orbitmq.record.properties import encode_properties
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import RecallMessageRequest, RecallMessageResponse
from orbitmq.wire.headers.send import send_ext

__all__ = ["Sending", "jump_hash"]

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_STORE_STATUSES: Final[dict[int, pb.Code]] = {
    int(ResponseCode.FLUSH_DISK_TIMEOUT): pb.MASTER_PERSISTENCE_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): pb.SLAVE_PERSISTENCE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): pb.HA_NOT_AVAILABLE,
}
_NO_DEFAULT_TOPIC: Final = "-"
"""A default topic that no broker has, so that a send never creates a topic."""
_BATCH_MAX: Final = 1024
"""Limit of messages per call."""
_AT_ONCE: Final = 64
"""How many messages of one call are processed in one turn of the loop."""
_MEMO_ENTRIES: Final = 10_000
_MASK: Final = 2**64 - 1


def jump_hash(text: str, buckets: int) -> int:
    """Returns the queue for a message group, using Jump Consistent Hash over Java's string hash."""
    state = java_hash(text) & _MASK
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        state = (2862933555777941757 * state + 1) & _MASK
        following = int((bucket + 1) / (((state >> 33) + 1) / 2**31))
    return bucket


class _Send(msgspec.Struct, gc=False):
    """A send in flight."""

    topic: str
    message_ids: str
    transaction_id: str
    transactional: bool
    queue: MessageQueue
    address: str


class Sending:
    """Sends clients' messages to brokers."""

    def __init__(
        self, config: ProxyConfig, brokers: Brokers, transactions: Transactions, clock: Clock
    ) -> None:
        self._config = config
        self._brokers = brokers
        self._transactions = transactions
        self._clock = clock
        self._levels = DelayLevels(config.delay_levels)
        self._turns: dict[str, int] = {}
        self.sent = 0
        """Number of messages accepted by brokers."""

    def start(self, call: Call, request: pb.SendMessageRequest, failed: Callable[[int], None]) -> bool:
        """Start a send that needs no lookup. Returns False if it must go through ``send``.

        ``failed`` is called with the code of any answer other than OK. Raises ``Refused``.
        """
        messages = request.messages
        if len(messages) != 1:
            return False
        topic = check_topic(messages[0].topic.name)
        facts = self._brokers.topics.known(topic)
        if facts is None or self._brokers.signs:
            return False
        check_message(self._config, messages[0], self._clock.now_ms())
        on_way, properties, sys_flag = self._prepare(facts, topic, messages[0], call.remote)
        connection = self._brokers.rpc.open_connection(on_way.address)
        if connection is None:
            return False
        raw = self._binary(on_way, properties, messages[0], sys_flag)
        future = connection.call_binary(_SEND, raw, messages[0].body, timeout_s=CALL_S)
        future.add_done_callback(functools.partial(self._answered, call, on_way, failed))
        return True

    def _answered(
        self, call: Call, on_way: _Send, failed: Callable[[int], None], future: asyncio.Future[Frame]
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            response = self._response(on_way, future.result())
        else:
            assert isinstance(error, OrbitError)
            self._failed(on_way.topic, error)
            response = pb.SendMessageResponse(status=refused_by(error).status)
        if (code := response.status.code) != pb.OK:
            failed(code)
        call.answer(response.SerializeToString())

    async def send(self, call: Call, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        """Send the messages of any call. Raises ``Refused`` or ``OrbitError``."""
        messages = request.messages
        if not messages:
            raise Refused(pb.MESSAGE_CORRUPTED, "no message to send")
        if len(messages) > _BATCH_MAX:
            raise Refused(pb.BAD_REQUEST, f"more than {_BATCH_MAX} messages in a call")
        topic = check_topic(messages[0].topic.name)
        now_ms = self._clock.now_ms()
        for index, message in enumerate(messages, 1):
            if message.topic.name != topic:
                raise Refused(pb.MESSAGE_CORRUPTED, "topic in message is not same")
            check_message(self._config, message, now_ms)
            if not index % _AT_ONCE:
                await asyncio.sleep(0)
        facts = await self._facts(topic, messages[0], call.remote)
        if len(messages) > 1:
            return await self._send_batch(facts, topic, list(messages), call.remote)
        message = messages[0]
        on_way, properties, sys_flag = self._prepare(facts, topic, message, call.remote)
        try:
            if self._brokers.signs:
                fields = send_ext(
                    _origin(topic),
                    SendTarget(topic, on_way.queue.broker_name, on_way.queue.queue_id),
                    properties.decode(),
                    _born_ms(message, now_ms),
                    sys_flag,
                    0,
                    False,
                )
                answer = await self._brokers.rpc.call(
                    on_way.address,
                    _SEND,
                    None,
                    message.body,
                    timeout_s=CALL_S,
                    ext=self._brokers.signed(fields, message.body),
                )
            else:
                connection = await self._brokers.rpc.connection(on_way.address)
                raw = self._binary(on_way, properties, message, sys_flag)
                answer = await connection.call_binary(_SEND, raw, message.body, timeout_s=CALL_S)
        except OrbitError as error:
            self._failed(topic, error)
            raise
        return self._response(on_way, answer)

    async def _facts(self, topic: str, message: pb.Message, peer: str) -> TopicFacts:
        try:
            return await self._brokers.facts(topic)
        except OrbitError as error:
            if not self._config.check_message_type or refused_by(error).code != pb.TOPIC_NOT_FOUND:
                raise
            # Apache checks the type first, and a nonexistent topic has none.
            raise _conflict("UNSPECIFIED", kind_of(stored_properties(message, topic, peer=peer))) from None

    def _failed(self, topic: str, error: OrbitError) -> None:
        if isinstance(error, ConnectionLostError):
            self._brokers.topics.forget(topic)

    def _prepare(
        self, facts: TopicFacts, topic: str, message: pb.Message, peer: str
    ) -> tuple[_Send, bytes, int]:
        properties = self._checked_properties(facts, topic, message, peer)
        system = message.system_properties
        group = system.lite_topic if system.HasField("lite_topic") else system.message_group
        queue = self._queue(facts, topic, group)
        on_way = _Send(
            topic,
            system.message_id,
            properties.get("__transactionId__") or system.message_id,
            system.message_type == pb.TRANSACTION,
            queue,
            self._brokers.address(queue.broker_name),
        )
        if on_way.transactional:
            self._transactions.serve(topic)
        return on_way, _encoded(properties), sys_flag_of(message)

    def _checked_properties(
        self, facts: TopicFacts, topic: str, message: pb.Message, peer: str
    ) -> dict[str, str]:
        level = self._delay_level(message) if self._config.use_delay_level else 0
        properties = stored_properties(message, topic, peer=peer, delay_level=level)
        if self._config.check_message_type and facts.kind != "MIXED":
            kind = kind_of(properties)
            if facts.kind != pb.MessageType.Name(kind):
                raise _conflict(facts.kind, kind)
        return properties

    def _delay_level(self, message: pb.Message) -> int:
        system = message.system_properties
        if not system.HasField("delivery_timestamp"):
            return 0
        wait_ms = system.delivery_timestamp.seconds * 1000 - self._clock.now_ms()
        delays = self._levels.delays_ms
        return next((level for level, delay in enumerate(delays, 1) if delay >= wait_ms), len(delays))

    def _queue(self, facts: TopicFacts, topic: str, group: str) -> MessageQueue:
        queues = facts.publish
        if not queues:
            raise Refused(pb.FORBIDDEN, "no writable queue")
        if group:
            return queues[jump_hash(group, len(queues))]
        turn = self._turns.get(topic, 0)
        if turn == 0 and len(self._turns) >= _MEMO_ENTRIES:
            self._turns.clear()
        self._turns[topic] = turn + 1
        return queues[turn % len(queues)]

    def _binary(self, on_way: _Send, properties: bytes, message: pb.Message, sys_flag: int) -> bytes:
        queue = on_way.queue
        born_ms = _born_ms(message, self._clock.now_ms())
        target = SendTarget(on_way.topic, queue.broker_name, queue.queue_id)
        return encode_send_fields(_origin(on_way.topic), target, properties, born_ms, sys_flag, 0, False)

    async def _send_batch(
        self, facts: TopicFacts, topic: str, messages: list[pb.Message], peer: str
    ) -> pb.SendMessageResponse:
        entries: list[tuple[int, bytes, bytes]] = []
        for index, message in enumerate(messages, 1):
            properties = _encoded(self._checked_properties(facts, topic, message, peer))
            entries.append((0, message.body, properties))
            if not index % _AT_ONCE:
                await asyncio.sleep(0)
        body = encode_batch(entries)
        if len(body) > self._config.body_bytes_max:
            raise Refused(
                pb.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {self._config.body_bytes_max}"
            )
        queue = self._queue(facts, topic, "")
        first_id = messages[0].system_properties.message_id
        ids = ",".join(message.system_properties.message_id for message in messages)
        on_way = _Send(topic, ids, first_id, False, queue, self._brokers.address(queue.broker_name))
        fields = send_ext(
            _origin(topic),
            SendTarget(topic, queue.broker_name, queue.queue_id),
            _encoded({"UNIQ_KEY": first_id}).decode(),
            self._clock.now_ms(),
            0,
            0,
            True,
        )
        try:
            answer = await self._brokers.rpc.call(
                on_way.address,
                _SEND_BATCH,
                None,
                body,
                timeout_s=CALL_S,
                ext=self._brokers.signed(fields, body),
            )
        except OrbitError as error:
            self._failed(topic, error)
            raise
        return self._response(on_way, answer)

    def _response(self, on_way: _Send, frame: Frame) -> pb.SendMessageResponse:
        code = OK
        if frame.code != _SUCCESS:
            store_code = _STORE_STATUSES.get(frame.code)
            if store_code is None:
                refusal = refused_by(error_for_code(frame.code, frame.remark))
                if refusal.code == pb.TOPIC_NOT_FOUND:
                    self._brokers.topics.forget(on_way.topic)
                return pb.SendMessageResponse(status=refusal.status)
            code = status(store_code)
        try:
            answer = read_send_answer(frame.serialize_type, frame.ext_raw)
            if on_way.transactional:
                self._transactions.note(
                    on_way.topic,
                    answer.transaction_id or on_way.transaction_id,
                    on_way.address,
                    answer.queue_offset,
                    parse_offset_message_id(answer.message_id).log_offset,
                )
        except OrbitError as error:
            return pb.SendMessageResponse(status=refused_by(error).status)
        self.sent += 1
        return pb.SendMessageResponse(
            status=code,
            entries=[
                pb.SendResultEntry(
                    status=code,
                    message_id=on_way.message_ids,
                    transaction_id=answer.transaction_id or on_way.transaction_id,
                    offset=answer.queue_offset,
                    recall_handle=answer.recall_handle or "",
                )
            ],
        )

    async def recall(self, request: pb.RecallMessageRequest) -> pb.RecallMessageResponse:
        """Cancel a delayed message. Raises ``Refused`` or ``OrbitError``."""
        topic = check_topic(request.topic.name)
        facts = await self._brokers.facts(topic)
        if self._config.check_message_type and facts.kind not in ("DELAY", "MIXED"):
            raise _conflict(facts.kind, pb.DELAY)
        broker_name = _broker_of(request.recall_handle, topic)
        header = RecallMessageRequest(
            topic=topic, recall_handle=request.recall_handle, producer_group=topic, broker_name=broker_name
        )
        if not self._brokers.knows(broker_name):
            raise Refused(pb.INTERNAL_SERVER_ERROR, "recall handle is invalid")
        answer = await self._brokers.ask(
            self._brokers.address(broker_name), RequestCode.RECALL_MESSAGE, header
        )
        recalled = decode_header(RecallMessageResponse, answer)
        return pb.RecallMessageResponse(status=OK, message_id=recalled.msg_id)


def _conflict(expected: str, actual: pb.MessageType) -> Refused:
    return Refused(
        pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"TopicMessageType validate failed, the expected type is {expected}, "
        f"but actual type is {pb.MessageType.Name(actual)}",
    )


def _broker_of(recall_handle: str, topic: str) -> str:
    """Returns the broker that a recall handle names. Raises ``Refused``, also for a handle of another topic."""
    try:
        parts = base64.urlsafe_b64decode(recall_handle).decode().split(" ")
    except ValueError:
        parts = []
    if len(parts) != 5 or parts[0] != "v1" or parts[1] != topic:
        raise Refused(pb.INTERNAL_SERVER_ERROR, "recall handle is invalid")
    return parts[2]


def _encoded(properties: dict[str, str]) -> bytes:
    try:
        return encode_properties(properties)
    except RecordError as error:
        raise Refused(pb.MESSAGE_PROPERTIES_TOO_LARGE, str(error)) from None


def _born_ms(message: pb.Message, now_ms: int) -> int:
    stamp = message.system_properties.born_timestamp
    born_ms = stamp.seconds * 1000 + stamp.nanos // 1_000_000
    # The header has room for thirteen digits.
    return born_ms if 0 < born_ms < 10**13 else now_ms


def _origin(topic: str) -> SendOrigin:
    """Returns the origin of sends to a topic.

    The producer group is named after the topic. The default topic does not exist, so that brokers create no topics.
    """
    return SendOrigin(topic, _NO_DEFAULT_TOPIC, 4)

"""One send on its way: prepared once, tried on one queue after the other (Apache: ``DefaultMQProducerImpl``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from orbitmq.client.errors import SendFailed, add_hint
from orbitmq.client.message import Message, SendResult, SendStatus
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.net.signing import sign
from orbitmq.client.options import ProducerOptions
from orbitmq.client.produce.queue_picker import QueuePicker, select_by_hash
from orbitmq.codes import ClientErrorCode, Property, RequestCode, ResponseCode, SerializeType, SysFlag
from orbitmq.errors import (
    BrokerError,
    ConnectionLostError,
    MessageIllegal,
    OrbitError,
    RequestTimeoutError,
    error_for_code,
)
from orbitmq.kernel import SendOrigin, SendTarget, encode_send_fields, read_send_answer
from orbitmq.model.names import check_send_topic, wrap_namespace
from orbitmq.model.route import MessageQueue
from orbitmq.record.compression import compress_body
from orbitmq.record.properties import encode_properties
from orbitmq.wire.frame import Frame
from orbitmq.wire.headers.send import send_ext

__all__ = ["Attempted", "Outgoing", "SendContext", "SendHook", "Sender"]

logger = logging.getLogger(__name__)

RETRY_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
_STATUSES: Final = {status.value.value: status for status in SendStatus}
_OK: Final = int(ResponseCode.SUCCESS)
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)


class Outgoing(msgspec.Struct, gc=False):
    """A message ready for the wire, whatever queue it goes to."""

    topic: str
    body: bytes
    properties: bytes
    unique_key: str
    sys_flag: int = 0
    flag: int = 0
    code: int = _SEND
    batch: bool = False
    reconsume: tuple[int, int] | None = None
    """Of a message to a retry topic: times consumed, and the limit."""


class Attempted(msgspec.Struct, gc=False):
    """A first attempt made elsewhere that failed (``blocking.py``)."""

    queue: MessageQueue
    error: OrbitError
    left_s: float
    """Time the send still has."""


class SendContext(msgspec.Struct):
    """What a hook sees of a send."""

    group: str
    messages: list[Message]
    queue: MessageQueue | None = None
    broker_address: str = ""
    unique_key: str = ""
    started_ms: int = 0
    result: SendResult | None = None
    error: BaseException | None = None
    extra: dict[str, Any] = {}


class SendHook(Protocol):
    """Called around each send. An error in a hook is logged and does not stop the send."""

    def before_send(self, context: SendContext) -> None:
        """``context.messages`` may still be given properties."""

    def after_send(self, context: SendContext) -> None:
        """``context.result`` or ``context.error`` is set."""


class Sender:
    """Builds and sends the requests of one producer."""

    def __init__(self, instance: ClientInstance, group: str, options: ProducerOptions) -> None:
        self._instance = instance
        self._options = options
        self.group = group
        self._origin = SendOrigin(group, options.auto_create_topic, options.auto_create_queue_count)
        self.picker = QueuePicker(instance.clock.now_ms, avoid_slow=options.avoid_slow_brokers)
        self._retry_codes = RETRY_CODES | options.retry_codes
        self.binary = options.serialize is SerializeType.ROCKETMQ and options.credentials is None
        """Headers of sends can be written in the binary form."""
        self._checked_topics: set[str] = set()

    # -- preparing -------------------------------------------------------------------------------------

    def wire_topic(self, topic: str) -> str:
        """The topic with its namespace, checked once."""
        if self._options.namespace:
            topic = wrap_namespace(self._options.namespace, topic)
        if topic not in self._checked_topics:
            check_send_topic(topic)
            if len(self._checked_topics) >= 10_000:
                self._checked_topics.clear()
            self._checked_topics.add(topic)
        return topic

    def prepare(self, message: Message, extra: dict[str, str] | None = None) -> Outgoing:
        """Check and encode. Raises ``MessageIllegal``, ``InvalidParameter``, ``NoPermission``, ``RecordError``."""
        topic = self.wire_topic(message.topic)
        body = message.body_bytes()
        size = len(body)
        options = self._options
        if not extra and size < options.compress_over_bytes and not options.namespace:
            # Hot path: nothing to add, nothing to compress.
            unique_key = self._instance.unique_keys.next()
            properties = message.plain_properties(unique_key)
            if properties is not None:
                self._check_size(size)
                return Outgoing(topic, body, properties, unique_key, 0, message.flag)
        return self._prepare_any(message, topic, body, extra)

    def _prepare_any(
        self, message: Message, topic: str, body: bytes, extra: dict[str, str] | None
    ) -> Outgoing:
        self._check_size(len(body))
        pairs = message.property_pairs()
        if extra:
            pairs.update(extra)
        unique_key = pairs.setdefault("UNIQ_KEY", self._instance.unique_keys.next())
        if self._options.namespace:
            pairs["INSTANCE_ID"] = self._options.namespace
        sys_flag = 0
        if len(body) >= self._options.compress_over_bytes:
            body = compress_body(body, self._options.compression, self._options.compression_level)
            sys_flag = SysFlag.COMPRESSED | int(self._options.compression)
        if pairs.get("TRAN_MSG") == "true":
            sys_flag |= SysFlag.TRANSACTION_PREPARED
        code = _SEND
        if pairs.get(Property.MESSAGE_TYPE) == "reply":
            code = int(RequestCode.SEND_REPLY_MESSAGE_V2)
        properties = encode_properties(pairs)
        return Outgoing(topic, body, properties, unique_key, int(sys_flag), message.flag, code)

    def entry(self, message: Message) -> tuple[str, tuple[int, bytes, bytes]]:
        """Unique key and batch entry of one message of a batch."""
        body = message.body_bytes()
        self._check_size(len(body))
        unique_key = self._instance.unique_keys.next()
        if not self._options.namespace:
            properties = message.plain_properties(unique_key)
            if properties is not None:
                return unique_key, (message.flag, body, properties)
        pairs = message.property_pairs()
        pairs["UNIQ_KEY"] = unique_key
        if self._options.namespace:
            pairs["INSTANCE_ID"] = self._options.namespace
        return unique_key, (message.flag, body, encode_properties(pairs))

    def _check_size(self, size: int) -> None:
        if not 0 < size <= self._options.message_bytes_max:
            raise MessageIllegal(
                f"the body has {size} bytes; 1 to {self._options.message_bytes_max} (message_bytes_max) are allowed"
            )

    # -- sending ---------------------------------------------------------------------------------------

    async def send(
        self,
        outgoing: Outgoing,
        *,
        queue: MessageQueue | None = None,
        shard_key: str = "",
        select: Callable[[list[MessageQueue]], MessageQueue] | None = None,
        timeout_s: float | None = None,
        context: SendContext | None = None,
        after: Attempted | None = None,
    ) -> SendResult:
        """All attempts of one send, or those after a first one made elsewhere.

        Raises ``SendFailed``, ``NoRouteError``, ``NameServerError`` or the ``BrokerError`` of a refusal no other
        broker would judge differently.
        """
        options = self._options
        now = asyncio.get_running_loop().time
        deadline = now() + (options.send_timeout_s if timeout_s is None else timeout_s)
        book = self._instance.book
        queues = book.publish.get(outgoing.topic)
        if not queues:
            queues = await self._find_queues(outgoing.topic, deadline - now())
        fixed = queue
        if fixed is None and shard_key:
            fixed = select_by_hash(queues, shard_key)
        elif fixed is None and select is not None:
            fixed = select(queues)
        attempts = 1 if fixed is not None else 1 + options.retries
        failed_broker: str | None = None
        failure: OrbitError | None = None
        if after is not None:
            failure, failed_broker = after.error, after.queue.broker_name
            self._failed(outgoing.topic, failed_broker, 1, after.error)
        for attempt in range(1 if after is None else 2, attempts + 1):
            left_s = deadline - now()
            if left_s <= 0:
                break
            target = fixed or self.picker.pick(book.publish.get(outgoing.topic) or queues, failed_broker)
            started = now()
            try:
                result = await self.attempt(outgoing, target, left_s, context)
            except (BrokerError, ConnectionLostError, RequestTimeoutError) as error:
                failure, failed_broker = error, target.broker_name
                self._failed(outgoing.topic, failed_broker, attempt, error)
                continue
            self.picker.report(target.broker_name, (now() - started) * 1000)
            if result.status is SendStatus.OK or not options.retry_when_not_safe or attempt == attempts:
                return result
            failed_broker = target.broker_name
        raise self._give_up(outgoing.topic, failure, attempts)

    def _failed(self, topic: str, broker_name: str, attempt: int, error: OrbitError) -> None:
        """Note a failed attempt. Raises it when no other broker would judge differently."""
        self.picker.report(broker_name, 0, failed=True)
        if isinstance(error, BrokerError) and error.response_code not in self._retry_codes:
            raise add_hint(error) from None
        self._refresh_soon(topic)
        logger.info("send failed topic=%s broker=%s attempt=%d error=%s", topic, broker_name, attempt, error)

    async def _find_queues(self, topic: str, wait_s: float) -> list[MessageQueue]:
        try:
            async with asyncio.timeout(wait_s):
                queues = await self._instance.book.for_publish(topic, self._options.auto_create_queue_count)
        except TimeoutError:
            raise RequestTimeoutError(f"no route to topic {topic} within {wait_s:g} s") from None
        self._instance.heartbeat_to_new_brokers()
        return queues

    def _refresh_soon(self, topic: str) -> None:
        async def refresh() -> None:
            try:
                await self._instance.book.refresh(topic)
            except OrbitError as error:
                logger.debug("route not refreshed topic=%s error=%s", topic, error)

        if self._instance.running:
            self._instance.tasks.start(refresh(), "refresh-route")

    def _give_up(self, topic: str, failure: OrbitError | None, attempts: int) -> OrbitError:
        code = int(ClientErrorCode.ACCESS_BROKER_TIMEOUT)
        if isinstance(failure, BrokerError):
            code = failure.response_code
            add_hint(failure)
        elif isinstance(failure, ConnectionLostError):
            code = int(ClientErrorCode.CONNECT_BROKER_EXCEPTION)
        error = SendFailed(
            f"cannot send to topic {topic} after {attempts} attempts: {failure or 'out of time'}",
            code=code,
            attempts=attempts,
        )
        error.__cause__ = failure
        return error

    async def attempt(
        self, outgoing: Outgoing, queue: MessageQueue, timeout_s: float, context: SendContext | None = None
    ) -> SendResult:
        """One request to one queue."""
        instance = self._instance
        address = instance.book.master_address(queue.broker_name)
        if address is None:
            raise ConnectionLostError(f"no master of broker {queue.broker_name} is known")
        if context is not None:
            context.queue, context.broker_address = queue, address
        rpc = instance.rpc
        connection = rpc.open_connection(address)
        if connection is not None and self.binary and outgoing.reconsume is None:
            # Hot path: one call per message sent.
            raw = self.binary_fields(outgoing, queue)
            frame = await connection.call_binary(outgoing.code, raw, outgoing.body, timeout_s=timeout_s)
        else:
            fields = self._fields(outgoing, queue)
            frame = await rpc.call(
                address, outgoing.code, None, outgoing.body, timeout_s=timeout_s, ext=fields
            )
        return self.result(outgoing, queue, frame)

    async def attempt_oneway(self, outgoing: Outgoing, queue: MessageQueue) -> None:
        """Hand one request to the connection; nothing tells whether it arrived."""
        address = self._instance.master(queue.broker_name)
        await self._instance.rpc.notify(
            address, outgoing.code, None, outgoing.body, ext=self._fields(outgoing, queue)
        )

    async def pick(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic, asked for if unknown."""
        return self._instance.book.publish.get(topic) or await self._find_queues(
            topic, self._options.send_timeout_s
        )

    def _fields(self, outgoing: Outgoing, queue: MessageQueue) -> dict[str, str]:
        fields = send_ext(
            self._origin,
            SendTarget(outgoing.topic, queue.broker_name, queue.queue_id),
            outgoing.properties.decode(),
            self._instance.clock.now_ms(),
            outgoing.sys_flag,
            outgoing.flag,
            outgoing.batch,
        )
        if outgoing.reconsume is not None:
            times, limit = outgoing.reconsume
            fields |= {"j": str(times), "l": str(limit)}
        credentials = self._options.credentials
        return fields if credentials is None else sign(fields, outgoing.body, credentials)

    def binary_fields(self, outgoing: Outgoing, queue: MessageQueue) -> bytes:
        """The extension fields of a send in the binary form."""
        return encode_send_fields(
            self._origin,
            SendTarget(outgoing.topic, queue.broker_name, queue.queue_id),
            outgoing.properties,
            self._instance.clock.now_ms(),
            outgoing.sys_flag,
            outgoing.flag,
            outgoing.batch,
        )

    def result(self, outgoing: Outgoing, queue: MessageQueue, frame: Frame) -> SendResult:
        """What the answer to a send says. Raises the ``BrokerError`` of a refusal."""
        status = SendStatus.OK if frame.code == _OK else _STATUSES.get(frame.code)
        if status is None:
            raise error_for_code(frame.code, frame.remark)
        answer = read_send_answer(frame.serialize_type, frame.ext_raw)
        queue_id = answer.queue_id
        if (queue_id != queue.queue_id and queue_id is not None) or queue.topic != outgoing.topic:
            queue = MessageQueue(
                topic=outgoing.topic,
                broker_name=queue.broker_name,
                queue_id=queue.queue_id if queue_id is None else queue_id,
            )
        return SendResult(
            status,
            outgoing.unique_key,
            queue,
            answer.queue_offset,
            answer.message_id,
            answer.transaction_id,
            answer.region,
            answer.traced,
            answer.recall_handle,
        )

"""Sends messages: each is prepared once, then tried on one queue after another (Apache:
``DefaultMQProducerImpl``)."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from orbitmq.client.errors import (
    ClientClosedError,
    NoMasterError,
    SendConnectionError,
    SendFailed,
    SendTimeoutError,
    TooManyInFlightError,
    add_hint,
    hint_for,
    is_retriable,
)
from orbitmq.client.message import Message, SendResult, SendStatus
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.net.signing import sign
from orbitmq.client.options import ProducerOptions
from orbitmq.client.produce.flow import InFlight, Turns
from orbitmq.client.produce.queue_picker import QueuePicker, select_by_hash
from orbitmq.codes import ClientErrorCode, Property, ResponseCode, SerializeType, SysFlag
from orbitmq.errors import (
    BrokerError,
    ConnectionLostError,
    InvalidParameter,
    MessageIllegal,
    NoPermission,
    OrbitError,
    RequestTimeoutError,
    error_for_code,
)
from orbitmq.kernel import SendOrigin, SendTarget, encode_send_fields, read_send_answer
from orbitmq.model.names import check_send_topic, unwrap_namespace, wrap_namespace
from orbitmq.model.route import MessageQueue
from orbitmq.record.compression import compress_body
from orbitmq.record.properties import encode_properties
from orbitmq.requests import RequestCode
from orbitmq.wire.frame import Frame, encode_binary_fields
from orbitmq.wire.headers.send import send_ext

__all__ = ["Attempted", "Outgoing", "SendContext", "SendHook", "Sender"]

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 0.5
"""Between attempts on the same broker. A restart takes about a second, and attempts should outlast it."""
_COSTLY_BYTES: Final = 128 * 1024
"""Compressing this much at level 5 takes 2 to 4 ms."""
_ONEWAY_PAUSE_S: Final = 0.002
_STATUSES: Final = {status.value.value: status for status in SendStatus}
Selector = Callable[[list[MessageQueue]], MessageQueue]
_OK: Final = int(ResponseCode.SUCCESS)
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)


class Outgoing(msgspec.Struct, gc=False):
    """A message encoded for the wire, which can be sent to any queue."""

    topic: str
    body: bytes
    properties: bytes
    unique_key: str
    sys_flag: int = 0
    flag: int = 0
    code: int = _SEND
    batch: bool = False
    reconsume: tuple[int, int] | None = None
    """For a message to a retry topic: how often it was consumed, and the limit."""


class Attempted(msgspec.Struct):
    """The result of a first attempt that did not complete the send."""

    queue: MessageQueue
    error: OrbitError | None = None
    left_s: float = 0.0
    """Time left for the send after an attempt made elsewhere (``blocking.py``)."""
    spent_s: float = 0.0
    """Time that such an attempt took."""
    result: SendResult | None = None
    """The message is stored, but was not flushed or replicated in time."""


class _Trial:
    """The further attempts of one send.

    An attempt that certainly reached no broker only costs time; any other counts as a retry.
    """

    __slots__ = (
        "_attempt_s", "_deadline", "_idempotent", "_left", "_now", "_over", "_pauses", "_started", "brokers",
        "failed_broker", "failure", "fixed", "message_id", "pause_s", "result",
    )  # fmt: skip

    def __init__(
        self,
        options: ProducerOptions,
        deadline: float,
        now: Callable[[], float],
        fixed: MessageQueue | None,
        started: float,
    ) -> None:
        self._now = now
        self._started = started
        self._deadline = deadline
        self._left = 1 + options.retries
        self._pauses = 0
        self._over = False
        self.fixed = fixed
        """The queue the message must go to. No other broker can stand in, so a message that may be stored is not sent
        again, unless sends are idempotent."""
        self._idempotent = options.idempotent
        self._attempt_s = options.send_timeout_s if options.idempotent else math.inf
        self.pause_s = 0.0
        self.failed_broker: str | None = None
        self.failure: OrbitError | None = None
        self.brokers: list[str] = []
        self.result: SendResult | None = None
        self.message_id = ""

    @property
    def goes_on(self) -> bool:
        return self._left > 0 and not self._over

    @property
    def left_s(self) -> float:
        return self._deadline - self._now()

    @property
    def next_s(self) -> float:
        """The time limit of the next attempt, in seconds."""
        return min(self.left_s, self._attempt_s)

    @property
    def spent_ms(self) -> int:
        return round((self._now() - self._started) * 1000)

    def end(self) -> None:
        """Record that another attempt would fail in the same way."""
        self._over = True

    def failed(self, error: OrbitError, queue: MessageQueue, *, alone: bool) -> None:
        """Record a failed attempt. With ``alone`` the next attempt goes to the same broker, so it should be made
        later."""
        self.failure, self.failed_broker = error, queue.broker_name
        if self._idempotent and error.was_sent and not isinstance(error, BrokerError):
            # The message may be stored. Only this broker can tell, so nothing but time ends the attempts.
            self.fixed, alone = queue, True
        elif error.was_sent:
            self._left = 0 if self.fixed is not None and not self._idempotent else self._left - 1
        # Brokers that all refuse connections are tried in turn, and again a little later.
        if alone or not error.was_sent:
            self.pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self._pauses)
            self._pauses += 1
        else:
            self.pause_s = 0.0

    def not_safe(self, result: SendResult | None, queue: MessageQueue) -> None:
        """Record that the message is stored, but was not flushed or replicated in time."""
        self.result = self.result or result
        self.failed_broker = queue.broker_name
        if self._idempotent:
            self.fixed = queue
        self._left -= 1
        self.pause_s = 0.0


class SendContext(msgspec.Struct):
    """A send, as hooks see it."""

    group: str
    messages: list[Message]
    queue: MessageQueue | None = None
    broker_address: str = ""
    unique_key: str = ""
    started_ms: int = 0
    result: SendResult | None = None
    error: BaseException | None = None
    mode: str = "send"
    """The kind of send: send, oneway, batch, transaction or request."""
    extra: dict[str, Any] = {}


class SendHook(Protocol):
    """Called around each send. An error in a hook is logged and does not stop the send."""

    def before_send(self, context: SendContext) -> None:
        """Called before the send. Hooks may still add properties to ``context.messages``."""

    def after_send(self, context: SendContext) -> None:
        """Called after the send, when ``context.result`` or ``context.error`` is set."""


class Sender:
    """Builds and sends the requests of one producer."""

    def __init__(self, instance: ClientInstance, group: str, options: ProducerOptions) -> None:
        self._instance = instance
        self._options = options
        self.group = group
        self._origin = SendOrigin(group, options.auto_create_topic, options.auto_create_queue_count)
        self.picker = QueuePicker(instance.clock.now_ms, avoid_slow=options.avoid_slow_brokers)
        self.in_flight = InFlight(options.max_in_flight, options.max_in_flight_bytes)
        self.binary = options.serialize is SerializeType.ROCKETMQ and options.credentials is None
        """Whether the headers of sends can be written in the binary form."""
        idempotent = options.idempotent
        self._limit_s = options.delivery_timeout_s if idempotent else options.send_timeout_s
        self._attempt_s = options.send_timeout_s if idempotent else math.inf
        self._adds_properties = bool(options.namespace) or idempotent
        """Whether messages get properties that not every producer sets."""
        self._checked_topics: set[str] = set()
        self._turns = Turns()
        self._finding: dict[str, asyncio.Task[list[MessageQueue] | OrbitError]] = {}

    # -- preparing -------------------------------------------------------------------------------------

    def wire_topic(self, topic: str) -> str:
        """Returns the topic with its namespace. Each topic is validated once."""
        if self._options.namespace:
            topic = wrap_namespace(self._options.namespace, topic)
        if topic not in self._checked_topics:
            check_send_topic(topic)
            if len(self._checked_topics) >= 10_000:
                self._checked_topics.clear()
            self._checked_topics.add(topic)
        return topic

    def prepare(self, message: Message, extra: dict[str, str] | None = None) -> Outgoing:
        """Check and encode a message. Raises ``MessageIllegal``, ``InvalidParameter``, ``NoPermission`` or
        ``RecordError``."""
        topic = self.wire_topic(message.topic)
        body = message.body_bytes()
        size = len(body)
        options = self._options
        if not extra and size < options.compress_over_bytes and not self._adds_properties:
            # Hot path: nothing to add, nothing to compress.
            unique_key = self._instance.unique_keys.next()
            properties = message.plain_properties(unique_key)
            if properties is not None:
                self._check_size(size)
                return Outgoing(topic, body, properties, unique_key, 0, message.flag)
        return self._prepare_any(message, topic, body, extra)

    def is_costly(self, message: Message) -> bool:
        """Whether preparing takes too long for the event loop, because a large body is compressed."""
        size = len(message.body)
        return size >= _COSTLY_BYTES and size >= self._options.compress_over_bytes

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
        elif self._options.idempotent:
            pairs[Property.IDEMPOTENT] = "true"
        properties = encode_properties(pairs)
        return Outgoing(topic, body, properties, unique_key, int(sys_flag), message.flag, code)

    def entry(self, message: Message) -> tuple[str, tuple[int, bytes, bytes]]:
        """Returns the unique key and the batch entry of one message of a batch."""
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
        select: Selector | None = None,
        shard_key: str = "",
        timeout_s: float | None = None,
        context: SendContext | None = None,
        after: Attempted | None = None,
    ) -> SendResult:
        """Make all attempts of one send, or the remaining ones after a first attempt made elsewhere.

        Waits for a slot first (``max_in_flight``); that time counts only against an explicit ``timeout_s``. Raises
        ``SendFailed``, ``NoRouteError``, ``NameServerError``, or the ``BrokerError`` of a refusal that every broker
        would repeat.
        """
        size = len(outgoing.body)
        in_flight = self.in_flight
        if not in_flight.try_enter(size):
            timeout_s = await self._wait_for_place(size, timeout_s)
        try:
            now = asyncio.get_running_loop().time
            started = now()
            queues = self._instance.book.publish.get(outgoing.topic)
            waits = False
            if not queues:
                waits = True
                queues = await self._first_queues(outgoing.topic, timeout_s)
            if not self._turns.take():
                waits = True
                await self._turns.wait()
            if waits:
                # The time of a send begins when it is about to be written, unless the caller limits all of it.
                if timeout_s is not None:
                    timeout_s = self._left(timeout_s, now() - started)
                started = now()
            limit_s = self._limit_s if timeout_s is None else timeout_s
            deadline = started + limit_s
            fixed = queue
            if fixed is None and shard_key:
                fixed = select_by_hash(queues, shard_key)
            elif fixed is None and select is not None:
                fixed = select(queues)
            if after is None:
                # Hot path: most sends end here.
                target = fixed or self.picker.pick(queues, None)
                after = Attempted(target)
                try:
                    after.result = result = await self.attempt(
                        outgoing, target, min(limit_s, self._attempt_s), context
                    )
                except (BrokerError, ConnectionLostError, RequestTimeoutError) as error:
                    after.error = error
                else:
                    self.picker.report(target.broker_name, (now() - started) * 1000)
                    if result.status is SendStatus.OK or not self._options.retry_when_not_safe or fixed:
                        return result
            trial = _Trial(self._options, deadline, now, fixed, started - after.spent_s)
            trial.message_id = outgoing.unique_key
            return await self._try_again(outgoing, trial, after, context)
        finally:
            in_flight.leave(size)

    async def _wait_for_place(self, size: int, timeout_s: float | None) -> float | None:
        """Wait for a slot. Returns the time left of ``timeout_s``; None if it was not given."""
        if self.in_flight.closed:
            raise ClientClosedError("the client is being stopped")
        if timeout_s is None:
            await self.in_flight.enter(size)
            return None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self.in_flight.enter(size)
        except TimeoutError:
            raise TooManyInFlightError(
                f"{self.in_flight.count} sends are in flight and none finished within {timeout_s:g} s"
            ) from None
        return max(0.001, deadline - loop.time())

    async def _try_again(
        self, outgoing: Outgoing, trial: _Trial, after: Attempted, context: SendContext | None
    ) -> SendResult:
        """Continue after a first attempt that failed, or whose message is stored but not safely."""
        topic, target, publish = outgoing.topic, after.queue, self._instance.book.publish
        trial.brokers.append(target.broker_name)
        if after.error is not None:
            self._failed(trial, topic, target, after.error)
        else:
            trial.not_safe(after.result, target)
        while trial.goes_on:
            if trial.pause_s:
                await asyncio.sleep(min(trial.pause_s, max(0.0, trial.left_s)))
            if trial.left_s <= 0:
                break
            target = trial.fixed or self.picker.pick(publish.get(topic) or [target], trial.failed_broker)
            trial.brokers.append(target.broker_name)
            began_with_s = trial.left_s
            try:
                result = await self.attempt(outgoing, target, trial.next_s, context)
            except (BrokerError, ConnectionLostError, RequestTimeoutError) as error:
                self._failed(trial, topic, target, error)
                continue
            self.picker.report(target.broker_name, (began_with_s - trial.left_s) * 1000)
            if result.status is SendStatus.OK or not self._options.retry_when_not_safe:
                return result
            trial.not_safe(result, target)
        if trial.result is not None:
            return trial.result  # stored, if not as safely as hoped: better than any error
        raise self._give_up(topic, trial)

    def _failed(self, trial: _Trial, topic: str, queue: MessageQueue, error: OrbitError) -> None:
        """Record a failed attempt. Raises its error if every broker would refuse the message in the same way."""
        broker_name = queue.broker_name
        self.picker.report(broker_name, 0, failed=True)
        # The queue no longer exists: the topic was given fewer queues, and our route is out of date.
        shrunk = isinstance(error, InvalidParameter) and trial.fixed is None and "queueId" in error.remark
        if shrunk:
            self._instance.refresh_soon(topic)
        if not shrunk and not is_retriable(error, self._options.retry_codes):
            if trial.result is not None:
                trial.end()
                return
            if isinstance(error, BrokerError):
                add_hint(error)
            raise error
        known = {queue.broker_name for queue in self._instance.book.publish.get(topic, ())}
        alone = trial.fixed is not None or known <= {broker_name}
        trial.failed(error, queue, alone=alone)
        if alone and isinstance(error, NoPermission):
            trial.end()  # other brokers may have other rights, the same one has not
        if error.stale_route:
            self._instance.refresh_soon(topic)
        self._instance.log_limits.log(
            logger,
            logging.INFO,
            ("send", broker_name, type(error)),
            "send failed topic=%s id=%s broker=%s attempt=%d ms=%d error=%s",
            topic,
            trial.message_id,
            broker_name,
            len(trial.brokers),
            trial.spent_ms,
            error,
        )

    def _left(self, timeout_s: float, waited_s: float) -> float:
        """Returns the rest of an explicit time limit. Raises ``TooManyInFlightError`` if the wait has used it up."""
        if waited_s < timeout_s:
            return timeout_s - waited_s
        raise TooManyInFlightError(
            f"the message was not written: the limit of {timeout_s:g} s ended after {waited_s:.3f} s in the queue of "
            f"{self.in_flight.count} sends"
        )

    async def _first_queues(self, topic: str, timeout_s: float | None) -> list[MessageQueue]:
        """Returns the queues of a topic that is not known yet, and opens a connection to one of its brokers.

        All sends of a burst share one search. Its time limit begins when the search runs, because on a busy event
        loop the timers of the single sends would expire before the response is read.
        """
        task = self._finding.get(topic)
        if task is None:
            if self._instance.tasks.closed:
                raise ClientClosedError("the client is stopped")
            wait_s = self._options.send_timeout_s
            task = self._instance.tasks.start(self._find_and_connect(topic, wait_s), "first-route")
            self._finding[topic] = task
            task.add_done_callback(lambda _: self._finding.pop(topic, None))
        try:
            async with asyncio.timeout(timeout_s):
                found = await asyncio.shield(task)
        except TimeoutError:
            raise RequestTimeoutError(f"no route to topic {topic} within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            if task.cancelled():  # only the end of the client does that
                raise ClientClosedError("the client was stopped") from None
            raise
        if isinstance(found, OrbitError):
            raise found.with_traceback(None)
        return found

    async def _find_and_connect(self, topic: str, wait_s: float) -> list[MessageQueue] | OrbitError:
        try:
            queues = await self._find_queues(topic, wait_s)
        except OrbitError as error:
            return error
        address = self._instance.book.master_address(queues[0].broker_name)
        if address is not None:
            try:
                await self._instance.rpc.connection(address)
            except ConnectionLostError:
                pass  # the sends find out, and try other brokers
        return queues

    async def _find_queues(self, topic: str, wait_s: float) -> list[MessageQueue]:
        try:
            async with asyncio.timeout(wait_s):
                queues = await self._instance.book.for_publish(topic, self._options.auto_create_queue_count)
        except TimeoutError:
            raise RequestTimeoutError(f"no route to topic {topic} within {wait_s:g} s") from None
        self._instance.heartbeat_to_new_brokers()
        return queues

    def _give_up(self, topic: str, trial: _Trial) -> OrbitError:
        failure = trial.failure
        kind: type[SendFailed] = SendTimeoutError
        code, hint = int(ClientErrorCode.ACCESS_BROKER_TIMEOUT), ""
        if isinstance(failure, BrokerError):
            kind, code = SendFailed, failure.response_code
            hint = hint_for(code)
        elif isinstance(failure, ConnectionLostError):
            kind, code = SendConnectionError, int(ClientErrorCode.CONNECT_BROKER_EXCEPTION)
            if isinstance(failure, NoMasterError):
                code, hint = int(failure.code), failure.hint
        brokers = tuple(dict.fromkeys(trial.brokers))
        attempts = len(trial.brokers)
        error = kind(
            f"cannot send to topic {topic}: {attempts} {'attempt' if attempts == 1 else 'attempts'} at "
            f"{', '.join(brokers) or 'no broker'} in {trial.spent_ms} ms, {failure or 'out of time'}",
            code=code,
            attempts=attempts,
            brokers=brokers,
            hint=hint,
            message_id=trial.message_id,
        )
        error.__cause__ = failure
        return error

    async def attempt(
        self, outgoing: Outgoing, queue: MessageQueue, timeout_s: float, context: SendContext | None = None
    ) -> SendResult:
        """Send one request to one queue."""
        instance = self._instance
        address = instance.book.master_address(queue.broker_name)
        if address is None:
            raise NoMasterError(f"no master of broker {queue.broker_name} is known")
        if context is not None:
            context.queue, context.broker_address = queue, address
        rpc = instance.rpc
        connection = rpc.open_connection(address)
        if connection is not None and self.binary and outgoing.reconsume is None:
            # Hot path: called once per message.
            raw = self.binary_fields(outgoing, queue)
            frame = await connection.call_binary(outgoing.code, raw, outgoing.body, timeout_s=timeout_s)
        else:
            fields = self._fields(outgoing, queue)
            frame = await rpc.call(
                address, outgoing.code, None, outgoing.body, timeout_s=timeout_s, ext=fields
            )
        return self.result(outgoing, queue, frame)

    async def attempt_oneway(self, outgoing: Outgoing, queue: MessageQueue) -> None:
        """Pass one request to the connection, without learning whether it arrives. Waits while the broker does not
        read earlier requests. Raises ``TooManyInFlightError`` after ``send_timeout_s``."""
        address = self._instance.master(queue.broker_name)
        rpc = self._instance.rpc
        connection = await rpc.connection(address)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.send_timeout_s
        limit = self._options.max_in_flight_bytes
        while connection.unsent_bytes > limit and not connection.closed:
            if loop.time() > deadline:
                raise TooManyInFlightError(f"{connection.unsent_bytes} bytes wait for {address} to read")
            await asyncio.sleep(_ONEWAY_PAUSE_S)
        await rpc.notify(address, outgoing.code, None, outgoing.body, ext=self._fields(outgoing, queue))

    async def pick(self, topic: str, timeout_s: float | None = None) -> list[MessageQueue]:
        """Returns the queues of a topic, fetching its route if it is unknown."""
        wait_s = self._options.send_timeout_s if timeout_s is None else timeout_s
        return self._instance.book.publish.get(topic) or await self._find_queues(topic, wait_s)

    async def introduce(self, topic: str, timeout_s: float | None) -> float | None:
        """Register with the brokers of a topic, so that they can call us. Returns the time left of ``timeout_s``;
        None if it was not given.

        Spends at most half of that time, so that a broker that does not answer cannot use up the time for a send to
        another.
        """
        now = asyncio.get_running_loop().time
        started = now()
        await self.pick(topic, timeout_s)
        wait_s = self._options.send_timeout_s if timeout_s is None else timeout_s
        await self._instance.ensure_known(wait_s / 2)
        return None if timeout_s is None else max(0.001, timeout_s - (now() - started))

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
        """Returns the extension fields of a send in the binary form, signed if the client has keys."""
        if self._options.credentials is not None:
            return encode_binary_fields(self._fields(outgoing, queue))
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
        """Returns the result from the response to a send. Raises the ``BrokerError`` of a refusal."""
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
        if self._options.namespace:
            name = unwrap_namespace(queue.topic, self._options.namespace)
            queue = MessageQueue(topic=name, broker_name=queue.broker_name, queue_id=queue.queue_id)
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

"""ReceiveMessage (Apache: ReceiveMessageActivity, PopMessageResultFilter).

A receive is one pop at one broker, which holds it until a message arrives or the receive times out. If the client
leaves meanwhile, the popped messages are released. If it leaves before it has received the last message of an answer,
all messages of the answer are released, because clients discard an incomplete answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from orbitmq.codes import ResponseCode
from orbitmq.errors import OrbitError, SubscriptionParseFailed, error_for_code
from orbitmq.model.subscription import SubscriptionData, subscribe_by_tags
from orbitmq.proxy.acking import Acking
from orbitmq.proxy.brokers import Brokers
from orbitmq.proxy.checks import check_group, check_invisible_ms, check_topic
from orbitmq.proxy.clients import Client
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.handles import Handle, parse_handle
from orbitmq.proxy.http2.call import Call, CallEnded
from orbitmq.proxy.messages import delivered
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.renewal import Held, Renewal
from orbitmq.proxy.statuses import OK, Refused, refused_by
from orbitmq.record.codec import Record, decode_records
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import PopMessageRequest, PopMessageResponse

__all__ = ["Receiving"]

logger = logging.getLogger(__name__)

BATCH_MAX: Final = 32
ANSWER_S: Final = 10.0
"""Seconds that a broker may take in addition to the polling time."""
RECEIVES_MAX: Final = 20_000
"""Limit of the waiting receives of all clients together."""
_INIT_AT_END: Final = 1
_STATUS_OK: Final = pb.ReceiveMessageResponse(status=OK).SerializeToString()


class _Pop(msgspec.Struct, frozen=True):
    """The parameters of a receive's pop."""

    group: str
    topic: str
    broker_name: str
    batch_size: int
    invisible_ms: int
    poll_ms: int
    filter: SubscriptionData
    fifo: bool
    attempt_id: str | None
    auto_renew: bool


class Received(msgspec.Struct):
    """One popped message."""

    record: Record
    handle: Handle
    reconsume_times: int


class Receiving:
    """Receives messages from brokers for clients."""

    def __init__(
        self,
        config: ProxyConfig,
        brokers: Brokers,
        acking: Acking,
        renewal: Renewal,
        *,
        clock: Clock,
        tasks: TaskOwner,
    ) -> None:
        self._config = config
        self._brokers = brokers
        self._acking = acking
        self._seal = acking.seal
        self._renewal = renewal
        self._clock = clock
        self._tasks = tasks
        self.waiting = 0
        """Number of receives that are waiting."""
        self.received = 0
        """Number of messages delivered to clients."""

    async def receive(
        self,
        call: Call,
        request: pb.ReceiveMessageRequest,
        client: Client,
        recheck: Callable[[], Awaitable[None]],
    ) -> None:
        """Receive messages and write the answer to ``call``. Raises ``Refused`` or ``OrbitError``.

        ``recheck`` raises if the permission of the call was revoked while it waited.
        """
        asked = await self._asked(call, request, client)
        if self.waiting >= RECEIVES_MAX:
            raise Refused(pb.TOO_MANY_REQUESTS, "polling full")
        self.waiting += 1
        # In a separate task, because the pop continues at the broker after the client leaves and its messages must
        # not be lost.
        pop = self._tasks.start(self._pop(asked), "pop")
        pop.add_done_callback(self._popped)
        try:
            found = await asyncio.shield(pop)
        except asyncio.CancelledError:
            pop.add_done_callback(lambda done: self._left(asked, done))
            raise
        if isinstance(found, Refused):
            raise found
        try:
            await recheck()
        except Refused:
            self._tasks.start(self._give_back(asked, found, None), "give-back")
            raise
        await self._deliver(call, asked, found, client)

    def _popped(self, _: asyncio.Task[list[Received] | Refused]) -> None:
        self.waiting -= 1

    def _left(self, asked: _Pop, done: asyncio.Task[list[Received] | Refused]) -> None:
        """Release the messages of a client that left before they arrived."""
        if done.cancelled() or done.exception() is not None:
            return
        found = done.result()
        if not isinstance(found, Refused) and found:
            self._tasks.start(self._give_back(asked, found, None), "give-back")

    async def _give_back(self, asked: _Pop, found: list[Received], client: Client | None) -> None:
        """Release messages, so that they become visible again soon.

        ``client`` is given if it may already hold the messages; then its handles are the valid ones.
        """
        for received in found:
            try:
                text = self._seal.text(received.handle, asked.group, asked.topic)
                held = await self._renewal.release(
                    client, _id_of(received.record), text, asked.group, asked.topic
                )
                await self._acking.change_one(
                    asked.group,
                    asked.topic,
                    held or received.handle,
                    self._config.invisible_when_cleared_ms,
                    suspend=True,
                )
            except (OrbitError, Refused) as error:
                logger.info("message not returned topic=%s error=%s", asked.topic, error)

    # -- request parameters ----------------------------------------------------------------------------

    async def _asked(self, call: Call, request: pb.ReceiveMessageRequest, client: Client) -> _Pop:
        config = self._config
        group = check_group(request.group.name)
        topic = check_topic(request.message_queue.topic.name)
        poll_ms = self._poll_ms(call, request, client)
        if request.auto_renew and config.auto_renew:
            invisible_ms = config.invisible_default_ms
        else:
            duration = request.invisible_duration
            invisible_ms = check_invisible_ms(
                duration.seconds * 1000 + duration.nanos // 1_000_000,
                config.invisible_min_ms,
                config.invisible_max_ms,
            )
        expression = request.filter_expression
        if expression.type == pb.SQL:
            chosen = SubscriptionData(topic=topic, sub_string=expression.expression, expression_type="SQL92")
        else:
            try:
                chosen = subscribe_by_tags(topic, expression.expression)
            except SubscriptionParseFailed as error:
                raise Refused(pb.ILLEGAL_FILTER_EXPRESSION, error.remark) from None
        facts = await self._brokers.facts(topic)
        return _Pop(
            group,
            topic,
            self._brokers.pick_readable(facts, request.message_queue.broker.name),
            max(1, min(request.batch_size, BATCH_MAX)),
            invisible_ms,
            poll_ms,
            chosen,
            client.fifo,
            request.attempt_id if request.HasField("attempt_id") else None,
            request.auto_renew and config.auto_renew,
        )

    def _poll_ms(self, call: Call, request: pb.ReceiveMessageRequest, client: Client) -> int:
        config = self._config
        left_s = call.time_left_s()
        if request.HasField("long_polling_timeout"):
            timeout = request.long_polling_timeout
            poll_ms = timeout.seconds * 1000 + timeout.nanos // 1_000_000
        elif left_s is not None:
            timeout = client.settings.request_timeout
            poll_ms = int(left_s * 1000) - (timeout.seconds * 1000 + timeout.nanos // 1_000_000) // 2
        else:
            poll_ms = config.polling_max_ms
        poll_ms = min(max(poll_ms, config.polling_min_ms), config.polling_max_ms)
        if left_s is not None and poll_ms > left_s * 1000:
            poll_ms = int(left_s * 1000)
            if poll_ms < config.polling_min_ms:
                code = (
                    pb.BAD_REQUEST if _is_old(call.header("x-mq-client-version")) else pb.ILLEGAL_POLLING_TIME
                )
                raise Refused(
                    code,
                    "The deadline time remaining is not enough for polling, please check network condition",
                )
        return poll_ms

    # -- the pop ---------------------------------------------------------------------------------------

    async def _pop(self, asked: _Pop) -> list[Received] | Refused:
        """Pop messages at a broker. Returns a refusal instead of raising it, because the caller may be gone."""
        header = PopMessageRequest(
            consumer_group=asked.group,
            topic=asked.topic,
            queue_id=-1,
            max_msg_nums=asked.batch_size,
            invisible_time=asked.invisible_ms,
            poll_time=max(0, asked.poll_ms - self._config.polling_reserve_ms),
            born_time=self._clock.now_ms(),
            init_mode=_INIT_AT_END,
            exp_type=asked.filter.expression_type,
            exp=asked.filter.sub_string,
            order=asked.fifo,
            attempt_id=asked.attempt_id,
            broker_name=asked.broker_name,
        )
        try:
            answer = await self._brokers.call(
                self._brokers.address(asked.broker_name),
                RequestCode.POP_MESSAGE,
                header,
                timeout_s=asked.poll_ms / 1000 + ANSWER_S,
            )
            if answer.code == ResponseCode.SUCCESS:
                return _messages(asked, answer)
            if answer.code in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
                return []
            if answer.code == ResponseCode.POLLING_FULL:
                return Refused(pb.TOO_MANY_REQUESTS, "polling full")
            raise error_for_code(answer.code, answer.remark)
        except OrbitError as error:
            if refused_by(error).code in (pb.TOPIC_NOT_FOUND, pb.INTERNAL_SERVER_ERROR):
                self._brokers.topics.forget(asked.topic)  # the route may be out of date
            return refused_by(error)

    # -- answers ---------------------------------------------------------------------------------------

    async def _deliver(self, call: Call, asked: _Pop, found: list[Received], client: Client) -> None:
        if not found:
            raise Refused(pb.MESSAGE_NOT_FOUND, "no new message")
        kept: list[Received] = []
        attempts = client.settings.backoff_policy.max_attempts or 17
        for received in found:
            tag = received.record.find(b"TAGS")
            if not asked.filter.matches_tag(None if tag is None else tag.decode("utf-8", "replace")):
                self._tasks.start(self._drop(asked, received), "drop-unmatched")
            elif received.reconsume_times >= attempts:
                self._tasks.start(self._drop(asked, received, dead=True), "dead-letter")
            else:
                kept.append(received)
        if not kept:
            raise Refused(pb.MESSAGE_NOT_FOUND, "no match message")
        try:
            await self._write(call, asked, kept, client)
        except (asyncio.CancelledError, CallEnded):
            self._tasks.start(self._give_back(asked, kept, client), "give-back")
            raise
        self.received += len(kept)

    async def _write(self, call: Call, asked: _Pop, kept: list[Received], client: Client) -> None:
        """Send the messages, and keep them hidden for a client that requests it. Raises ``CallEnded``."""
        if call.done:
            raise CallEnded
        now_ms = self._clock.now_ms()
        call.write(_STATUS_OK)
        for received in kept:
            text = self._seal.text(received.handle, asked.group, asked.topic)
            message = delivered(
                received.record,
                asked.topic,
                handle=text,
                reconsume_times=received.reconsume_times,
            )
            if asked.auto_renew:
                held = Held(asked.group, asked.topic, received.handle, now_ms, received.reconsume_times + 1)
                self._renewal.keep(client, message.system_properties.message_id, text, held)
            call.write(pb.ReceiveMessageResponse(message=message).SerializeToString())
            if call.pending_bytes:
                await call.drain()
        if call.pending_bytes:
            await call.drain(0)

    async def _drop(self, asked: _Pop, received: Received, *, dead: bool = False) -> None:
        try:
            if dead:
                await self._acking.bury(asked.group, asked.topic, received.handle, _id_of(received.record))
            else:
                await self._acking.ack_one(asked.group, asked.topic, received.handle)
        except (OrbitError, Refused) as error:
            logger.info("message not dropped topic=%s dead=%s error=%s", asked.topic, dead, error)


def _id_of(record: Record) -> str:
    """Returns the message id used by clients."""
    return record.unique_key or record.offset_message_id


def _is_old(version: str) -> bool:
    """Returns whether a client is older than 5.0.3. Such clients do not know ILLEGAL_POLLING_TIME."""
    try:
        return tuple(int(part) for part in version.split(".")[:3]) < (5, 0, 3)
    except ValueError:
        return False


def _messages(asked: _Pop, answer: Frame) -> list[Received]:
    """Returns the records of a pop with their handles."""
    header = decode_header(PopMessageResponse, answer)
    starts = _pairs(header.start_offset_info)
    counts = _pairs(header.order_count_info)
    found: list[Received] = []
    for record in decode_records(answer.body, check_crc=False):
        stored_handle = record.find(b"POP_CK")
        if stored_handle is not None:
            handle = parse_handle(stored_handle.decode("utf-8", "replace"))
            handle = msgspec.structs.replace(handle, log_offset=record.log_offset)
        else:
            flag = "0"
            if record.topic.startswith("%RETRY%") and record.topic != asked.topic:
                flag = "2" if "+" in record.topic else "1"
            start = starts.get((flag, str(record.queue_id)))
            handle = Handle(
                record.queue_offset if start is None else start,
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                flag,
                asked.broker_name,
                record.queue_id,
                record.queue_offset,
                record.log_offset,
            )
        times = record.reconsume_times
        if counts:
            exact = counts.get((handle.retry, f"qo{record.queue_id}%{record.queue_offset}"))
            counted = counts.get((handle.retry, str(record.queue_id))) if exact is None else exact
            times = times if counted is None else counted
        found.append(Received(record, handle, times))
    return found


def _pairs(info: str | None) -> dict[tuple[str, str], int]:
    """Parse entries of the form ``flag queue number``, separated by semicolons, into numbers by flag and queue."""
    pairs: dict[tuple[str, str], int] = {}
    for entry in (info or "").split(";"):
        fields = entry.split(" ")
        if len(fields) == 3 and fields[2].isdigit():
            pairs[fields[0], fields[1]] = int(fields[2])
    return pairs

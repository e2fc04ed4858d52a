"""Serves the requests of POP consumers: 200050 to 200056 and 200151 (Apache: PopMessageProcessor and others).

Messages are sent as slices of the log, as for a pull. A pop that finds nothing and may wait is held until something
changes that may affect its answer. When a pop is refused, the fields of its answer are sent as zeros, because
Apache's clients read them first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from orbitmq.broker.delivery.revocation import Revocation
from orbitmq.broker.pop.receipts import (
    ORDERED_QUEUE_ID,
    RETRY_TOPIC_V1,
    RETRY_TOPIC_V2,
    Receipt,
    parse_receipt,
)
from orbitmq.broker.pop.round import Handout, PopQuestion, PopRound
from orbitmq.broker.pop.service import PopService
from orbitmq.broker.pop.waiters import ANY_QUEUE, PopWaiters, Waiting
from orbitmq.broker.tables.clients import ConsumerTable
from orbitmq.codes import Perm, ResponseCode, SerializeType
from orbitmq.errors import (
    BrokerError,
    InvalidParameter,
    MessageIllegal,
    NoMessage,
    NoPermission,
    RemoteProtocolError,
    ServerError,
    SubscriptionGroupNotExist,
    SubscriptionParseFailed,
    SystemBusy,
    TopicNotFound,
)
from orbitmq.kernel import Filter, ack_fields, encode_answers, pop_answer
from orbitmq.model.names import pop_retry_topic, retry_topic
from orbitmq.model.subscription import ALL_TAGS, SubscriptionData, parse_subscription
from orbitmq.model.topic import MESSAGE_TYPE_ATTRIBUTE, TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Call, Guard, RawRoute, Reply, Route, RunServer
from orbitmq.wire.bodies.heartbeat import ConsumeType, MessageModel
from orbitmq.wire.bodies.queues import BatchAck, read_batch_acks
from orbitmq.wire.frame import Frame, encode_response
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers.base import Empty
from orbitmq.wire.headers.pop import (
    AckMessageRequest,
    ChangeMessageInvisibletimeRequest,
    NotificationRequest,
    PeekMessageRequest,
    PollingInfoRequest,
    PopMessageRequest,
)

__all__ = ["PopHandlers", "SqlFilters"]

_FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_READ: Final = int(Perm.READ)
_POP: Final = int(RequestCode.POP_MESSAGE)
_ACK: Final = int(RequestCode.ACK_MESSAGE)
_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_POLLING_FULL: Final = int(ResponseCode.POLLING_FULL)
_POLLING_TIMEOUT: Final = int(ResponseCode.POLLING_TIMEOUT)
_RUN_MAX: Final = 64
"""The maximum number of pops served together."""
_ENOUGH_BYTES: Final = 512 * 1024
"""Size of the messages handed out together. After that a connection checks whether its peer still reads."""
_COUNT_MAX: Final = 32
_FACTOR: Final = "priority.factor"
_LATE_MS: Final = 500
_EARLY_MS: Final = 50
"""How many milliseconds earlier a wait ends, so that the answer arrives when the client expects it."""
_POLL_MS_MAX: Final = 3_600_000
_INVISIBLE_MS_MAX: Final = 30 * 24 * 3_600_000
_FOUND: Final = "FOUND"
_NOTHING: Final = "NO_MESSAGE_IN_QUEUE"
_UNSET: Final = "not set any response code"
"""Default remark of Apache's answers."""
_LEARN_MS: Final = 60_000
_LEARNT_MAX: Final = 10_000
_ZEROS: Final = {"invisibleTime": "0", "restNum": "0", "popTime": "0", "reviveQid": "0"}
_CHANGE_ZEROS: Final = {"invisibleTime": "0", "popTime": "0", "reviveQid": "0"}


class _Popper(msgspec.Struct, frozen=True, gc=False):
    """The values that the pops of one group and topic share within a read."""

    topic: TopicConfig
    selection: Filter | None
    retry_topics: tuple[str, ...]
    is_ranked: bool
    """Whether the topic's queues have priorities."""


_PlainAnswer = tuple[bool, int, int, str | None, tuple[()]]
_PopperKey = tuple[str, str, str | None, str | None, bool | None]
"""Topic, group, filter expression, kind of expression, and whether the pop is ordered."""


class SqlFilters(Protocol):
    """Turns subscriptions that do not select by tag into filters."""

    def filter_for(self, group: str, subscription: SubscriptionData, *, from_request: bool) -> Filter:
        """Returns the filter of a subscription. Raises ``SubscriptionParseFailed``."""


@lru_cache(maxsize=4096)
def _parsed(topic: str, expression: str, kind: str) -> tuple[SubscriptionData, Filter | None]:
    """Returns a subscription and its filter. The filter is None unless the subscription selects messages by certain
    tags."""
    subscription = parse_subscription(topic, expression, kind)
    by_some_tags = subscription.is_tag_type and not subscription.takes_all
    return subscription, Filter(subscription.code_set) if by_some_tags else None


@dataclass(kw_only=True, eq=False)
class PopHandlers:
    """Serves POP requests and holds those that wait."""

    service: PopService
    consumers: ConsumerTable
    sql_filters: SqlFilters
    revocation: Revocation

    def __post_init__(self) -> None:
        self.config = self.service.config
        self.store = self.service.store
        self.topics = self.service.topics
        self.groups = self.service.groups
        self.clock = self.service.clock
        self.waiters = PopWaiters(
            self._retry_pop,
            self.revocation,
            limit=self.config.pop_polling_max,
            limit_of_place=lambda: self.config.pop_polling_per_key,
        )
        self.notified = PopWaiters(
            self._retry_notification,
            self.revocation,
            limit=self.config.pop_polling_max,
            limit_of_place=lambda: self.config.pop_polling_per_key,
        )
        self.guard: Guard | None = None
        self.service.events.readable.of_any.append(self._arrived)
        self.service.events.uncovered.append(self._uncovered)
        self.service.events.deliveries_stopping.append(self.release_all)
        self._releasing = False
        self._learnt: dict[tuple[str, str, str | None, str | None], int] = {}

    def routes(self) -> list[Route | RawRoute]:
        return [
            RawRoute(RequestCode.POP_MESSAGE, self.pop, fast_port=False),
            RawRoute(RequestCode.ACK_MESSAGE, self.ack),
            RawRoute(RequestCode.BATCH_ACK_MESSAGE, self.batch_ack),
            RawRoute(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, self.change_invisible_time),
            RawRoute(RequestCode.NOTIFICATION, self.notification, fast_port=False),
            Route(RequestCode.POLLING_INFO, self.polling_info, PollingInfoRequest, fast_port=False),
            RawRoute(RequestCode.PEEK_MESSAGE, self.peek, fast_port=False),
            Route(RequestCode.POP_ROLLBACK, self.rollback, Empty),
        ]

    def runs(self, guard: Guard | None) -> dict[int, RunServer]:
        """Returns the requests that are served together when a read brings several. They do not pass through the
        router, so its guard is called for each of them."""
        self.guard = guard
        return {RequestCode.POP_MESSAGE: self.pops, RequestCode.ACK_MESSAGE: self.acks}

    def _arrived(self, topic: str, queue_id: int) -> None:
        if self.waiters.count:
            self.waiters.arrived(topic, queue_id)
        if self.notified.count:
            self.notified.arrived(topic, queue_id)

    def _uncovered(self, topic: str, group: str, queue_id: int) -> None:
        self.waiters.wake(topic, group, queue_id)
        self.notified.wake(topic, group, queue_id)

    def release_all(self) -> None:
        """Answer every waiting request without messages. Called before a stop or a change of role."""
        self._releasing = True
        try:
            self.waiters.release_all()
            self.notified.release_all()
        finally:
            self._releasing = False

    # -- POP_MESSAGE -----------------------------------------------------------------------------------

    def pop(self, frame: Frame, connection: Connection) -> bytes | None:
        """Serve POP_MESSAGE (200050)."""
        return self._serve([(frame, decode_header(PopMessageRequest, frame))], connection)[0]

    def pops(self, frames: list[Frame], at: int, connection: Connection) -> tuple[bytes | None, int]:
        """Serve consecutive pops that one read of a socket returned; see ``RunServer``."""
        asked: list[tuple[Frame, PopMessageRequest]] = []
        try:
            for frame in frames[at : at + _RUN_MAX]:
                if frame.code != _POP or frame.flag:
                    break
                if self.guard is not None:
                    self.guard(frame, connection)
                asked.append((frame, decode_header(PopMessageRequest, frame)))
        except (BrokerError, RemoteProtocolError):
            pass  # raised again, and answered, when that pop is served on its own
        answers, count = self._serve(asked, connection)
        return answers, at + count

    def _serve(
        self, asked: list[tuple[Frame, PopMessageRequest]], connection: Connection
    ) -> tuple[bytes | None, int]:
        """Returns the answers that can be sent now, and how many pops were served. A pop that fails is answered with
        its error."""
        turn = PopRound(self.service)
        poppers: dict[_PopperKey, _Popper] = {}
        served: list[tuple[Frame, PopQuestion, Handout, int] | bytes | None] = []
        size_bytes = 0
        for frame, request in asked:
            try:
                one = self._pop(turn, frame, connection, request, poppers)
            except BrokerError as error:
                served.append(_refused(frame, error, _ZEROS))
                continue
            served.append(one)
            if one is not None:
                size_bytes += one[2].size_bytes
                if size_bytes >= _ENOUGH_BYTES or self.config.pop_threshold_enabled:
                    break
        refusal: BrokerError | None = None
        try:
            turn.store()
        except BrokerError as error:
            refusal = error
        answers = []
        for each in served:
            answer = self._answer(each, refusal) if isinstance(each, tuple) else each
            if answer is not None:
                answers.append(answer)
        return b"".join(answers) if answers else None, len(served)

    def _pop(
        self,
        turn: PopRound,
        frame: Frame,
        connection: Connection,
        request: PopMessageRequest,
        poppers: dict[_PopperKey, _Popper],
    ) -> tuple[Frame, PopQuestion, Handout, int] | None:
        """Hand out messages, or hold the request and return None. Raises ``BrokerError``."""
        now_ms = turn.now_ms
        born_ms = request.born_time or now_ms
        if now_ms - born_ms - request.poll_time > _LATE_MS:
            raise BrokerError(
                f"the broker[{self._host}] pop message is timeout too much", code=ResponseCode.POLLING_TIMEOUT
            )
        question = self._question(request, connection, poppers, now_ms)
        if turn.is_full and not question.ordered:
            return frame, question, Handout(now_ms, 0), _POLLING_FULL
        handout = turn.hand_out(question)
        if handout.count:
            if handout.rest and self.waiters.count:
                self.waiters.wake(question.topic, question.group, max(ANY_QUEUE, request.queue_id))
            return frame, question, handout, _SUCCESS
        wait_ms = _wait_ms(born_ms, request.poll_time, now_ms)
        if wait_ms <= 0 or frame.is_oneway:
            return frame, question, handout, _POLLING_TIMEOUT
        place = (question.topic, question.group, max(ANY_QUEUE, request.queue_id))
        if not self._park(self.waiters, frame, connection, place, wait_ms):
            return frame, question, handout, _POLLING_FULL
        if handout.unseen:
            self.waiters.wake(*place)
        return None

    @staticmethod
    def _answer(served: tuple[Frame, PopQuestion, Handout, int], refusal: BrokerError | None) -> bytes | None:
        frame, question, handout, code = served
        if refusal is not None and handout.has_checkpoints:
            return _refused(frame, refusal, _ZEROS)
        if frame.is_oneway:
            return None
        return pop_answer(
            frame.opaque,
            code,
            _FOUND if handout.count else _NOTHING,
            (question.invisible_ms, handout.rest, handout.pop_time_ms, handout.revive_queue_id),
            ";".join(handout.order_counts) if question.ordered else None,
            handout.parts,
            handout.pieces,
        )

    def _park(
        self,
        waiters: PopWaiters,
        frame: Frame,
        connection: Connection,
        place: tuple[str, str, int],
        wait_ms: int,
    ) -> bool:
        deadline_s = asyncio.get_running_loop().time() + wait_ms / 1000
        topic, group, _ = place
        return waiters.park(
            Waiting(frame, connection, place, deadline_s), self.service.retry_topics(topic, group)
        )

    def _retry_pop(self, waiting: Waiting, expired: bool) -> bool:
        """Retry a waiting pop, repeating all checks."""
        frame = waiting.frame
        answer: bytes | None
        turn = PopRound(self.service)
        try:
            question = self._question(
                decode_header(PopMessageRequest, frame), waiting.connection, {}, turn.now_ms
            )
            if self._releasing or (turn.is_full and not question.ordered):
                handout = Handout(turn.now_ms, 0)
                code = _POLLING_TIMEOUT if self._releasing else _POLLING_FULL
            else:
                handout = turn.hand_out(question)
                turn.store()
                if not handout.count and not expired:
                    if handout.unseen:
                        self.waiters.wake(*waiting.place)
                    return False
                code = _SUCCESS if handout.count else _POLLING_TIMEOUT
            answer = self._answer((frame, question, handout, code), None)
        except BrokerError as error:
            answer = _refused(frame, error, _ZEROS)
        if answer is not None:
            waiting.connection.send(answer)
        return True

    @property
    def _host(self) -> str:
        return self.config.public_host

    def _question(
        self,
        request: PopMessageRequest,
        connection: Connection,
        poppers: dict[_PopperKey, _Popper],
        now_ms: int,
    ) -> PopQuestion:
        """Check a pop, in Apache's order, and return the parsed question."""
        group, queue_id, ordered = request.consumer_group, request.queue_id, request.order is True
        key = (request.topic, group, request.exp, request.exp_type, request.order)
        popper = poppers.get(key)
        if popper is None or request.max_msg_nums > _COUNT_MAX or queue_id >= popper.topic.read_queue_nums:
            popper = poppers[key] = self._popper(request, connection, now_ms)
        topic, config = popper.topic, self.config
        dice = self.service.dice()
        ranked = popper.is_ranked and self._ranked(group)
        if queue_id >= 0:
            queue_ids: Sequence[int] = (queue_id,)
        elif ranked:
            queue_ids = self._ranked_queue_ids(topic)
        else:
            queue_ids = _queue_ids(topic, queue_id, dice)
        return PopQuestion(
            topic.topic_name,
            group,
            queue_ids,
            request.max_msg_nums,
            max(0, min(request.invisible_time, _INVISIBLE_MS_MAX)),
            request.init_mode == 1,
            popper.selection,
            ordered,
            request.attempt_id,
            popper.retry_topics,
            dice < (config.pop_retry_percent_ranked if ranked else config.pop_retry_percent),
        )

    def _popper(self, request: PopMessageRequest, connection: Connection, now_ms: int) -> _Popper:
        """Check the group, the topic and the filter of a pop, and return them. Raises ``BrokerError``."""
        topic, group = self._checked(
            request.topic, request.consumer_group, request.queue_id, request.max_msg_nums, connection
        )
        name, ordered = topic.topic_name, request.order is True
        selection = self._selection(group, name, request.exp, request.exp_type)
        self._learn((group, name, request.exp, request.exp_type), now_ms)
        retry_topics = () if ordered else tuple(self.service.retry_topics(name, group))
        for retry_name in retry_topics[:1]:
            self.topics.check_room_for(retry_name)
        is_ranked = not ordered and topic.attributes.get(MESSAGE_TYPE_ATTRIBUTE) == "PRIORITY"
        return _Popper(topic, selection, retry_topics, is_ranked)

    def _ranked(self, group: str) -> bool:
        """Whether this pop of a PRIORITY topic reads the queues by priority. An attribute of the group sets the
        percentage of pops that do; the default is 100."""
        found = self.groups.find(group)
        text = found.attributes.get(_FACTOR, "") if found is not None else ""
        return self.service.dice() < (int(text) if text.isdigit() else 100)

    def _ranked_queue_ids(self, topic: TopicConfig) -> Sequence[int]:
        """Returns the queue ids, highest priority first."""
        numbers = range(topic.read_queue_nums)
        return numbers[::-1] if self.config.pop_priority_ascending else numbers

    def _checked(
        self, topic_name: str, group: str, queue_id: int, count: int, connection: Connection
    ) -> tuple[TopicConfig, str]:
        config = self.config
        self._check_master()
        if not config.readable:
            raise NoPermission(f"the broker[{self._host}] pop message is forbidden")
        if count > _COUNT_MAX:
            raise InvalidParameter(f"the broker[{self._host}] pop message's num is greater than {_COUNT_MAX}")
        if not config.timer_wheel_enabled:
            raise ServerError(
                f"the broker[{self._host}] pop message is forbidden because timerWheelEnable is false"
            )
        topic = self._topic(topic_name)
        if not topic.perm & _READ:
            raise NoPermission(f"the topic[{topic_name}] peeking message is forbidden")
        if queue_id >= topic.read_queue_nums:
            raise InvalidParameter(_bad_queue(topic, queue_id, connection))
        found = self.groups.find(group)
        if found is None:
            raise SubscriptionGroupNotExist(f"subscription group [{group}] does not exist, {_FAQ}")
        if not found.consume_enable:
            raise NoPermission(f"subscription group no permission, {group}")
        return topic, group

    def _check_master(self) -> None:
        if not self.service.running:
            raise SystemBusy("[REJECTREQUEST]system busy, start flow control for a while")

    def _topic(self, name: str) -> TopicConfig:
        topic = self.topics.configs.get(name)
        if topic is None:
            raise TopicNotFound(f"topic[{name}] not exist, apply first please! \n{_FAQ}")
        return topic

    def _selection(self, group: str, topic: str, expression: str | None, kind: str | None) -> Filter | None:
        if not expression or expression == ALL_TAGS:
            return None
        try:
            subscription, selection = _parsed(topic, expression, kind or "TAG")
            if not subscription.is_tag_type:
                selection = self.sql_filters.filter_for(group, subscription, from_request=True)
        except SubscriptionParseFailed:
            raise SubscriptionParseFailed("parse the consumer's subscription failed") from None
        return selection

    def _learn(self, key: tuple[str, str, str | None, str | None], now_ms: int) -> None:
        """Register the group of a pop as a consumer, even if it sends no heartbeat. The key is the group, the topic,
        the filter expression and the kind of expression."""
        if now_ms - self._learnt.get(key, 0) < _LEARN_MS:
            return
        group, topic, expression, kind = key
        if len(self._learnt) >= _LEARNT_MAX:
            self._learnt.clear()
        self._learnt[key] = now_ms
        subscription = parse_subscription(topic, expression or ALL_TAGS, kind or "TAG", now_ms)
        retries = parse_subscription(retry_topic(group), ALL_TAGS, "TAG", now_ms)
        for one in (subscription, retries):
            self.consumers.learn(group, ConsumeType.POP, MessageModel.CLUSTERING, one)

    # -- ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME ----------------------------------

    def ack(self, frame: Frame, connection: Connection) -> bytes | None:
        """Serve ACK_MESSAGE (200051). The request names the topic that actually stores the message."""
        request = decode_header(AckMessageRequest, frame)
        low, high = self._bounds(request.topic, request.queue_id, connection)
        if not low <= request.offset <= high:
            raise NoMessage(
                f"offset is illegal, key:{request.topic}@{request.queue_id}, commit:{request.offset}, "
                f"store:{low}~{high}"
            )
        receipt = parse_receipt(request.extra_info)
        self.service.ack(request.consumer_group, request.topic, request.queue_id, request.offset, receipt)
        return None if frame.is_oneway else encode_response(ResponseCode.SUCCESS, frame.opaque)

    def acks(self, frames: list[Frame], at: int, connection: Connection) -> tuple[bytes | None, int]:
        """Serve consecutive acknowledgements that one read of a socket returned; see ``RunServer``. Acknowledgements
        of ordered pops, and those to refuse, are left to ``ack``."""
        # Hot path: this loop runs once per message.
        guard = self.guard
        bounds: dict[tuple[str, int], tuple[int, int]] = {}
        acked: list[tuple[tuple[str, str, int, int, int], int]] = []
        answers: list[_PlainAnswer] = []
        try:
            for frame in frames[at:] if at else frames:
                if frame.code != _ACK or frame.flag:
                    break
                if guard is not None:
                    guard(frame, connection)
                fields = ack_fields(frame.ext_raw, frame.serialize_type == _ROCKETMQ)
                if fields is None:
                    break
                place, key, offset, revive_queue_id = fields
                found = bounds.get(place)
                if found is None:
                    found = bounds[place] = self._bounds(*place, connection)
                if revive_queue_id == ORDERED_QUEUE_ID or not found[0] <= offset <= found[1]:
                    break
                acked.append((key, offset))
                answers.append((False, frame.opaque, _SUCCESS, None, ()))
        except (BrokerError, RemoteProtocolError):
            pass  # raised again, and answered, when that request is served on its own
        if not acked:
            return None, at
        self.service.ack_all(acked)
        return encode_answers(answers), at + len(acked)

    def _bounds(self, topic: str, queue_id: int, connection: Connection) -> tuple[int, int]:
        """Returns the first offset of a queue and the next one to be assigned. Raises ``BrokerError`` if the queue
        does not exist."""
        self._check_place(topic, queue_id, connection)
        return max(0, self.store.min_offset(topic, queue_id)), self.store.max_offset(topic, queue_id)

    def _check_place(self, topic_name: str, queue_id: int, connection: Connection) -> None:
        self._check_master()
        topic = self._topic(topic_name)
        if not 0 <= queue_id < topic.read_queue_nums:
            raise MessageIllegal(_bad_queue(topic, queue_id, connection))

    def batch_ack(self, frame: Frame, connection: Connection) -> bytes | None:
        """Serve BATCH_ACK_MESSAGE (200151). The topics in it lack the prefix of a retry topic. Invalid entries are
        skipped."""
        self._check_master()
        acks = read_batch_acks(frame.body)
        if not acks:
            return encode_response(ResponseCode.NO_MESSAGE, frame.opaque)
        for entry in acks:
            self._ack_entry(entry)
        return None if frame.is_oneway else encode_response(ResponseCode.SUCCESS, frame.opaque)

    def _ack_entry(self, entry: BatchAck) -> None:
        group, topic = entry.consumer_group or "", entry.topic or ""
        if entry.retry in (RETRY_TOPIC_V1, RETRY_TOPIC_V2):
            topic = pop_retry_topic(topic, group, version_2=entry.retry == RETRY_TOPIC_V2)
        config = self.topics.configs.get(topic)
        if config is None or not 0 <= entry.queue_id < config.read_queue_nums:
            return
        low = max(0, self.store.min_offset(topic, entry.queue_id))
        high = self.store.max_offset(topic, entry.queue_id)
        receipt = Receipt(
            entry.start_offset,
            entry.pop_time,
            entry.invisible_time,
            entry.revive_queue_id,
            entry.retry or "0",
        )
        for index in entry.indexes():
            offset = entry.start_offset + index
            if low <= offset <= high:
                try:
                    self.service.ack(group, topic, entry.queue_id, offset, receipt)
                except MessageIllegal:
                    continue

    def change_invisible_time(self, frame: Frame, connection: Connection) -> bytes | None:
        """Serve CHANGE_MESSAGE_INVISIBLETIME (200053)."""
        request = decode_header(ChangeMessageInvisibletimeRequest, frame)
        try:
            self._check_place(request.topic, request.queue_id, connection)
            low = max(0, self.store.min_offset(request.topic, request.queue_id))
            if not low <= request.offset < self.store.max_offset(request.topic, request.queue_id):
                raise NoMessage(_UNSET)
            changed = self.service.change_invisible(
                (request.topic, request.consumer_group, request.queue_id),
                request.offset,
                parse_receipt(request.extra_info),
                max(0, min(request.invisible_time, _INVISIBLE_MS_MAX)),
                suspended=request.suspend is True,
            )
        except BrokerError as error:
            return _refused(frame, error, _CHANGE_ZEROS)
        if frame.is_oneway:
            return None
        fields = {
            "invisibleTime": str(changed.invisible_ms),
            "popTime": str(changed.pop_time_ms),
            "reviveQid": str(changed.revive_queue_id),
        }
        return encode_response(ResponseCode.SUCCESS, frame.opaque, fields, b"", _UNSET)

    # -- NOTIFICATION, POLLING_INFO, PEEK_MESSAGE, POP_ROLLBACK ----------------------------------------

    def notification(self, frame: Frame, connection: Connection) -> bytes | None:
        """Serve NOTIFICATION (200054), which waits until a message can be popped."""
        request = decode_header(NotificationRequest, frame)
        now_ms = self.clock.now_ms()
        try:
            if self._has_messages(request, connection):
                return _notice(frame, has_messages=True)
        except BrokerError as error:
            return _refused(frame, error, {"hasMsg": "false", "pollingFull": "false"})
        wait_ms = _wait_ms(request.born_time or now_ms, request.poll_time, now_ms)
        if wait_ms <= 0 or frame.is_oneway:
            return _notice(frame)
        place = (request.topic, request.consumer_group, max(ANY_QUEUE, request.queue_id))
        if self._park(self.notified, frame, connection, place, wait_ms):
            return None
        return _notice(frame, full=True)

    def _retry_notification(self, waiting: Waiting, expired: bool) -> bool:
        frame = waiting.frame
        try:
            found = self._has_messages(decode_header(NotificationRequest, frame), waiting.connection)
            if not found and not expired:
                return False
            answer = _notice(frame, has_messages=found)
        except BrokerError as error:
            answer = _refused(frame, error, {"hasMsg": "false", "pollingFull": "false"})
        if answer is not None:
            waiting.connection.send(answer)
        return True

    def _has_messages(self, request: NotificationRequest, connection: Connection) -> bool:
        topic, group = self._checked(request.topic, request.consumer_group, request.queue_id, 1, connection)
        name = topic.topic_name
        selection = self._selection(group, name, request.exp, request.exp_type)
        ordered = request.order is True
        question = PopQuestion(
            name,
            group,
            _queue_ids(topic, request.queue_id, 0),
            1,
            0,
            False,
            selection,
            ordered,
            request.attempt_id,
            () if ordered else self.service.retry_topics(name, group),
        )
        config = self.config
        if selection is None or not config.pop_notification_filtered:
            return self.service.has_messages(question)

        def matches(topic_name: str, queue_id: int, start: int, waiting: int) -> bool:
            if waiting >= config.pop_notification_filter_count:
                return True
            found = self.store.read(
                topic_name,
                queue_id,
                start,
                1,
                wanted=selection,
            )
            return found.count > 0

        return self.service.has_messages(question, matches=matches)

    def polling_info(self, call: Call[PollingInfoRequest]) -> Reply:
        """Serve POLLING_INFO (200055): returns the number of pops that wait for exactly this topic, group and
        queue."""
        header = call.header
        place = (header.topic, header.consumer_group, max(ANY_QUEUE, header.queue_id))
        count = self.waiters.waiting_count(place)
        return Reply(remark=_UNSET, ext={"pollingNum": str(count)})

    def peek(self, frame: Frame, connection: Connection) -> bytes | None:
        """Serve PEEK_MESSAGE (200052), which reads messages without hiding them."""
        request = decode_header(PeekMessageRequest, frame)
        try:
            topic, group = self._checked(
                request.topic, request.consumer_group, request.queue_id, request.max_msg_nums, connection
            )
        except BrokerError as error:
            return _refused(frame, error, _ZEROS)
        slices: list[memoryview | bytes] = []
        count = rest = 0
        places = [(topic.topic_name, one) for one in _queue_ids(topic, request.queue_id, self.service.dice())]
        for name in self.service.retry_topics(topic.topic_name, group):
            config = self.topics.configs.get(name)
            places += [(name, one) for one in range(config.read_queue_nums)] if config is not None else []
        for name, queue_id in places:
            start = self.service.peek_position(group, name, queue_id)
            # Apache counts the returned messages as remaining, because a peek does not take them.
            rest += max(0, self.store.max_offset(name, queue_id) - start)
            if count >= request.max_msg_nums:
                continue
            result = self.store.read(name, queue_id, start, request.max_msg_nums - count)
            count += result.count
            slices += result.slices
        fields = {**_ZEROS, "restNum": str(rest)}
        if frame.is_oneway:
            return None
        if not count:
            return encode_response(ResponseCode.PULL_NOT_FOUND, frame.opaque, fields, b"", _NOTHING)
        body = b"".join(slices)
        return encode_response(ResponseCode.SUCCESS, frame.opaque, fields, body, _FOUND)

    def rollback(self, _call: Call[Empty]) -> Reply:
        """Serve POP_ROLLBACK (200056). Apache moves its checkpoints to the revive topic. Ours are already there, so
        this only writes the acknowledgements that are still in memory."""
        self.service.flush()
        return Reply()


def _wait_ms(born_ms: int, poll_ms: int, now_ms: int) -> int:
    """Returns how many milliseconds to hold a request. The client's clock may be ahead, so the result never exceeds
    the requested time."""
    return min(born_ms + poll_ms - now_ms, poll_ms, _POLL_MS_MAX) - _EARLY_MS


def _queue_ids(topic: TopicConfig, queue_id: int, dice: int) -> Sequence[int]:
    if queue_id >= 0:
        return (queue_id,)
    count = topic.read_queue_nums
    start = dice % count if count else 0
    return [*range(start, count), *range(start)]


def _bad_queue(topic: TopicConfig, queue_id: int, connection: Connection) -> str:
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] "
        f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{connection.remote_text}]"
    )


def _refused(frame: Frame, error: BrokerError, fields: dict[str, str]) -> bytes | None:
    if frame.is_oneway:
        return None
    remark = error.remark.encode(errors="replace").decode()
    return encode_response(error.response_code, frame.opaque, fields, b"", remark)


def _notice(frame: Frame, *, has_messages: bool = False, full: bool = False) -> bytes | None:
    if frame.is_oneway:
        return None
    fields = {
        "hasMsg": "true" if has_messages else "false",
        "pollingFull": "true" if full else "false",
    }
    return encode_response(ResponseCode.SUCCESS, frame.opaque, fields, b"", _UNSET)


assert ORDERED_QUEUE_ID > 64, "no revive queue may have the number of ordered pops"

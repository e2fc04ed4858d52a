"""What push and lite pull consumers share: subscriptions, rebalance, where to start, offsets, locks.

Answers to Apache's RebalanceImpl and RebalanceService. There is no coordinator: each member computes its share from
the sorted queues and the sorted client ids (``model/rebalance.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from inspect import isawaitable
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from orbitmq.client.checks import check_type
from orbitmq.client.consume.answers import AnswerReader
from orbitmq.client.consume.offset_store import LocalOffsets, OffsetStore, RemoteOffsets
from orbitmq.client.consume.process_queue import PULL_EXPIRY_MS, ProcessQueue
from orbitmq.client.consume.puller import Puller
from orbitmq.client.errors import ClientStateError
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.options import ConsumerOptions, QueuesCallback
from orbitmq.errors import (
    BrokerError,
    OrbitError,
    RequestTimeoutError,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    TopicNotFound,
)
from orbitmq.model.names import (
    CONSUMER_GROUP_RESERVED,
    check_group,
    check_topic,
    is_retry_topic,
    wrap_namespace,
)
from orbitmq.model.rebalance import sorted_clients
from orbitmq.model.route import MessageQueue
from orbitmq.model.subscription import SQL92, TAG, SubscriptionData, parse_subscription
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock, ForwardClock, SteadyClock
from orbitmq.runtime.filesystem import LOCAL_FILE_SYSTEM
from orbitmq.runtime.machine import home_directory
from orbitmq.runtime.tasks import every
from orbitmq.transport.router import PARKED, Answer, Call, RawRoute, Route
from orbitmq.wire.bodies import (
    CheckClientConfig,
    ConsumeFromWhere,
    ConsumerData,
    ConsumerIdList,
    ConsumeType,
    LockBatchRequest,
    LockBatchResponse,
    MessageModel,
    ProducerData,
)
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers import (
    GetConsumerListByGroupRequest,
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    LockBatchMqRequest,
    NotifyConsumerIdsChangedRequest,
    OffsetResponse,
    SearchOffsetByTimestampRequest,
    UnlockBatchMqRequest,
)

__all__ = ["ConsumerBase"]

logger = logging.getLogger(__name__)

_HALF_AN_HOUR_MS: Final = 30 * 60 * 1000
_UNBALANCED_S: Final = 1.0


class ConsumerBase:
    """A consumer without the consuming."""

    consume_type = ConsumeType.PASSIVELY
    orderly = False

    def __init__(self, group: str, name_servers: str, options: ConsumerOptions, clock: Clock) -> None:
        self._options = options
        check_type("group", group, str)
        self.group = wrap_namespace(options.namespace, group)
        check_group(self.group)
        if group == CONSUMER_GROUP_RESERVED:
            raise ClientStateError(f"group {group} is reserved; choose a name of your own")
        self._clock = clock
        self._steady = SteadyClock(clock)
        """For ages: a clock that is set ends no lock, no handler and no pull."""
        self._versions = ForwardClock(clock)
        """For versions of subscriptions: brokers ignore one that is older than what they have."""
        broadcasting = options.model is MessageModel.BROADCASTING
        # The local offsets of a broadcasting consumer are found again only under the same client id.
        self._instance = ClientInstance(
            self, name_servers, options, clock=clock, fixed_instance="DEFAULT" if broadcasting else ""
        )
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._announced: dict[str, SubscriptionData] = {}
        """What brokers were told last, by topic."""
        self._held: dict[MessageQueue, ProcessQueue] = {}
        self._new_to: dict[str, frozenset[MessageQueue]] = {}
        """By topic: queues of which the group had no offset when it began with the topic. See ``_is_new_to``."""
        self._offsets: OffsetStore
        if broadcasting:
            directory = options.offset_directory or f"{home_directory()}/.rocketmq_offsets"
            self._offsets = LocalOffsets(LOCAL_FILE_SYSTEM, directory, self._instance.client_id, self.group)
        else:
            self._offsets = RemoteOffsets(self._instance, self.group)
        self._reader = AnswerReader(self.group)
        self._puller = Puller(self._instance, self.group, options, self._reader)
        self._rebalance_wanted = asyncio.Event()
        self._rebalancing = asyncio.Lock()
        self._balanced = asyncio.Event()
        self._started_ms = 0

    # -- for users -------------------------------------------------------------------------------------

    @property
    def name_servers(self) -> list[str]:
        """The name servers in use, or the page they are read from; empty if nothing names any."""
        return self._instance.name_server_sources

    @property
    def client_id(self) -> str:
        return self._instance.client_id

    @property
    def broadcasting(self) -> bool:
        return self._options.model is MessageModel.BROADCASTING

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues this consumer has now, sorted."""
        return sorted(self._held)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._instance.running:
            self._acknowledge_left()
        await self.stop()

    def _acknowledge_left(self) -> None:
        """The block ended well: what iteration gave last counts as consumed."""

    async def start(self) -> None:
        """Join the group and begin."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Leave the group."""
        raise NotImplementedError

    def _add_subscription(self, topic: str, expression: str, sql: bool) -> str:
        check_type("topic", topic, str)
        topic = wrap_namespace(self._options.namespace, topic)
        check_topic(topic)
        self._subscriptions[topic] = parse_subscription(
            topic, expression, SQL92 if sql else TAG, self._versions.now_ms()
        )
        return topic

    def _add_class_subscription(self, topic: str, class_name: str) -> str:
        check_type("topic", topic, str)
        topic = wrap_namespace(self._options.namespace, topic)
        check_topic(topic)
        self._subscriptions[topic] = SubscriptionData(
            topic=topic, sub_string=class_name, class_filter_mode=True, sub_version=self._versions.now_ms()
        )
        return topic

    async def min_offset(self, queue: MessageQueue) -> int:
        """The oldest offset the broker still has."""
        header = GetMinOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, header)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset the next message of the queue will get."""
        header = GetMaxOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker_name
        )
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, header)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset stored at that time or later."""
        header = SearchOffsetByTimestampRequest(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, broker_name=queue.broker_name
        )
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def committed(self, queue: MessageQueue) -> int:
        """The offset that the group committed for the queue, or -1 if it never committed one. Brokers before 5.x may
        return 0 instead of -1."""
        return await self._offsets.stored(queue, or_zero=False)

    async def fetch_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic that can be read."""
        topic = wrap_namespace(self._options.namespace, topic)
        await self._instance.book.refresh(topic)
        await self._instance.ensure_known()
        return list(self._instance.book.subscribe[topic])

    @property
    def held_messages(self) -> dict[str, int]:
        """For ``metrics.py``: messages that were received and are not finished."""
        return {"received": sum(held.count for held in list(self._held.values()))}

    @property
    def damaged_messages(self) -> int:
        """How many messages were skipped because their bytes were damaged."""
        return self._reader.skipped

    async def lag(self) -> dict[MessageQueue, int]:
        """How many messages of each queue held here are stored and not consumed yet."""
        queues = self.queues
        ends = await asyncio.gather(*(self.max_offset(queue) for queue in queues))
        lags: dict[MessageQueue, int] = {}
        for queue, end in zip(queues, ends, strict=True):
            held = self._held.get(queue)
            if held is not None:
                lags[queue] = max(0, end - self._consumed_until(held))
        return lags

    def _consumed_until(self, held: ProcessQueue) -> int:
        """The first offset of a queue that is not consumed yet."""
        done = self._offsets.offsets.get(held.queue)
        if done is None:
            done = held.first_offset() if held.messages else held.next_offset
        return done

    async def wait_ready(self, timeout_s: float = 10.0) -> None:
        """Return when every subscribed topic is found and its queues are shared out. Raises
        ``RequestTimeoutError``."""
        self._instance.check_running()
        try:
            async with asyncio.timeout(timeout_s):
                await self._balanced.wait()
        except TimeoutError:
            waiting = ", ".join(sorted(self._subscriptions.keys() - self._instance.book.subscribe.keys()))
            what = f"no route to {waiting}" if waiting else "queues not shared out"
            raise RequestTimeoutError(f"not ready within {timeout_s:g} s: {what}") from None

    async def _offset(self, queue: MessageQueue, code: int, header: Any) -> int:
        address = await self._instance.address_for(queue.broker_name, queue.topic)
        answer = await self._instance.ask(address, code, header)
        return decode_header(OffsetResponse, answer).offset

    # -- start and stop --------------------------------------------------------------------------------

    async def _join(self) -> None:
        """Routes, filters checked, heartbeat, first rebalance, timers."""
        if isinstance(self._offsets, LocalOffsets):
            self._offsets.load()
        instance = self._instance
        instance.start()
        self._started_ms = self._clock.now_ms()
        try:
            await instance.refresh_routes()
            await self._check_filters()
            await instance.heartbeat()
            # The retry topic comes into being with the first heartbeat of the group.
            await self._refresh_missing()
            balanced = await self._rebalance_once()
        except BaseException:
            await instance.stop()
            raise
        if not instance.running:
            return  # a handler of the first messages stopped the consumer
        instance.on_routes = self.rebalance_soon
        instance.tasks.start(self._rebalance_forever(balanced), "rebalance")
        persist = every(self._options.offset_persist_s, self.persist_offsets)
        instance.tasks.start(persist, "persist-offsets")

    async def _refresh_missing(self) -> None:
        for topic in self._subscriptions.keys() - self._instance.book.subscribe.keys():
            try:
                await self._instance.book.refresh(topic)
            except TopicNotFound:
                level = logging.DEBUG if is_retry_topic(topic) else logging.WARNING
                self._new_to.setdefault(topic, frozenset())  # what it will hold was sent after the start
                key, text = ("missing", topic), "subscribed topic does not exist yet topic=%s"
                self._instance.log_limits.log(logger, level, key, text, topic)
            except OrbitError as error:
                text = "route not refreshed topic=%s error=%s"
                self._instance.log_limits.warning(logger, ("route", type(error)), text, topic, error)

    async def _check_filters(self) -> None:
        for topic, subscription in self._subscriptions.items():
            if subscription.is_tag_type:
                continue
            address = self._instance.book.address_of_topic(topic)
            if address is not None:
                body = CheckClientConfig(
                    client_id=self.client_id,
                    group=self.group,
                    namespace=self._options.namespace or None,
                    subscription_data=subscription,
                )
                await self._instance.ask(address, RequestCode.CHECK_CLIENT_CONFIG, None, body.encode())

    async def _leave(self) -> None:
        await self._persist_at_end()
        await self._instance.stop()

    async def _persist_at_end(self) -> None:
        try:
            await self.persist_offsets(wait=True)
        except OrbitError as error:
            logger.warning("offsets not stored at the end, messages will come again error=%s", error)

    async def persist_offsets(self, *, wait: bool = False) -> None:
        """Store how far we are, now; with ``wait`` it is stored when this returns."""
        await self._offsets.persist(list(self._held), wait=wait)

    # -- rebalance -------------------------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Look again who has which queue."""
        self._rebalance_wanted.set()

    async def _rebalance_forever(self, balanced: bool) -> None:
        while True:
            wait_s = self._options.rebalance_s if balanced else min(_UNBALANCED_S, self._options.rebalance_s)
            try:
                async with asyncio.timeout(wait_s):
                    await self._rebalance_wanted.wait()
            except TimeoutError:
                pass
            self._rebalance_wanted.clear()
            try:
                balanced = await self._rebalance_once()
            except Exception:  # the loop must go on
                logger.exception("rebalance failed group=%s", self.group)
                balanced = False
            await asyncio.sleep(self._options.rebalance_spacing_s)

    async def _rebalance_once(self) -> bool:
        """Take and release queues; False when something should be tried again soon."""
        async with self._rebalancing:
            balanced = True
            if self._instance.leaving:
                return balanced
            for topic in list(self._subscriptions):
                try:
                    balanced &= await self._rebalance_topic(topic)
                except OrbitError as error:
                    self._instance.log_limits.warning(
                        logger,
                        ("rebalance", topic),
                        "rebalance failed group=%s topic=%s error=%s",
                        self.group,
                        topic,
                        error,
                    )
                    balanced = False
            for queue, held in list(self._held.items()):
                if queue.topic not in self._subscriptions:
                    balanced &= await self._release(held)
            if balanced:
                self._balanced.set()
            return balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        queues = self._instance.book.subscribe.get(topic)
        if not queues:
            # Asked for again each second: a topic created after the start is found long before the route timer.
            try:
                await self._instance.book.refresh(topic)
            except TopicNotFound:
                self._new_to.setdefault(topic, frozenset())
                return False
            await self._instance.heartbeat()
            queues = self._instance.book.subscribe.get(topic)
            if not queues:
                return False
        if self.broadcasting:
            return await self._apply(topic, queues, queues)
        if self._asks_broker:
            assigned = await self._take_assignment(topic, queues)
            if assigned is not None:
                return assigned
        members = await self._members(topic)
        if not members:
            return False
        try:
            chosen = set(self._options.strategy(queues, sorted_clients(members), self.client_id))
        except Exception as error:  # noqa: BLE001 - code of the user's; what is held stays, other topics go on
            self._instance.log_limits.warning(
                logger,
                ("strategy", topic),
                "strategy failed, assignment unchanged group=%s topic=%s error=%r",
                self.group,
                topic,
                error,
            )
            return False
        return await self._apply(topic, queues, [queue for queue in queues if queue in chosen])

    @property
    def _asks_broker(self) -> bool:
        """Whether the broker shares the queues out."""
        return False

    async def _take_assignment(self, topic: str, queues: list[MessageQueue]) -> bool | None:
        """Take what the broker assigned; None when it does not do that."""
        return None

    async def _members(self, topic: str) -> list[str]:
        address = self._instance.book.address_of_topic(topic)
        if address is None:
            return []
        header = GetConsumerListByGroupRequest(consumer_group=self.group)
        try:
            answer = await self._instance.ask(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            members = ConsumerIdList.decode(answer.body).consumer_id_list
            reason = "the broker returned an empty list"
        except BrokerError as error:
            members, reason = [], str(error)
        if not members:
            text = "members unknown, assignment unchanged group=%s broker=%s reason=%s"
            self._instance.log_limits.warning(logger, ("members", address), text, self.group, address, reason)
        return members

    async def _apply(self, topic: str, queues: list[MessageQueue], mine: list[MessageQueue]) -> bool:
        if self._instance.leaving:
            return False
        wanted = set(mine)
        changed, balanced = False, True
        for queue, held in list(self._held.items()):
            if queue.topic != topic:
                continue
            stuck = self._is_stuck(held)
            if queue not in wanted or stuck or held.ending:
                if stuck and queue in wanted:
                    logger.error("queue was not pulled for two minutes, taking it anew queue=%s", queue)
                if await self._release(held):
                    changed = True
                else:
                    balanced = False
        missing = [queue for queue in mine if queue not in self._held]
        if missing and self.orderly and not self.broadcasting:
            locked = await self._lock(missing)
            balanced &= len(locked) == len(missing)
            missing = [queue for queue in missing if queue in locked]
        taken: list[tuple[MessageQueue, int]] = []
        for queue in missing:
            try:
                self._offsets.forget(queue)
                offset = await self._start_offset(queue)
            except OrbitError as error:
                self._instance.log_limits.warning(
                    logger,
                    ("start", queue.broker_name),
                    "start offset unknown queue=%s error=%s",
                    queue,
                    error,
                )
                balanced = False
                continue
            taken.append((queue, offset))
        await self._call_back(self._options.on_assigned, [queue for queue, _ in taken])
        if not self._instance.running or self._instance.leaving:
            return False  # stopped meanwhile
        for queue, offset in taken:
            self._take(queue, offset)
            changed = True
        if changed:
            logger.info(
                "assignment changed group=%s topic=%s client=%s queues=%d of %d mine=%s",
                self.group,
                topic,
                self.client_id,
                len(mine),
                len(queues),
                [f"{queue.broker_name}:{queue.queue_id}" for queue in mine],
            )
            await self._assignment_changed(topic, queues)
        return balanced

    def _is_stuck(self, held: ProcessQueue) -> bool:
        """Whether nothing pulls from a queue although somebody should: a bug here or in the user's loop."""
        if self.consume_type is not ConsumeType.PASSIVELY or held.waiting or not held.last_pull_ms:
            return False  # who asks for messages himself may take his time
        limit_ms = max(PULL_EXPIRY_MS, 2000 * (self._options.pull_timeout_s + self._options.suspend_s))
        return self._steady.now_ms() - held.last_pull_ms > limit_ms

    def _take(self, queue: MessageQueue, offset: int) -> None:
        held = self._new_process_queue(queue, offset)
        if self.orderly and not self.broadcasting:
            held.locked = True
            held.last_lock_ms = self._steady.now_ms()
        self._held[queue] = held
        logger.info("queue taken group=%s queue=%s offset=%d", self.group, queue, offset)
        self._begin(held)

    async def _release(self, held: ProcessQueue) -> bool:
        """Give a queue up; False when it must be kept for now, because a handler works on it in order."""
        held.end()
        queue = held.queue
        if not await self._before_release(held):
            return False
        await self._call_back(self._options.on_revoked, [queue])
        await self._offsets.persist([queue])
        held.drop()
        self._offsets.forget(queue)
        self._puller.forget(queue)
        if self._held.get(queue) is held:
            del self._held[queue]
        if self.orderly and not self.broadcasting:
            await self._unlock([queue])
        logger.info("queue released group=%s queue=%s", self.group, queue)
        return True

    async def _call_back(
        self, function: QueuesCallback | None, queues: list[MessageQueue], wait_s: float | None = None
    ) -> None:
        """Tell the user of queues; what he raises is logged, and so is that he takes longer than ``wait_s``."""
        if function is None or not queues:
            return
        name = getattr(function, "__qualname__", function)
        limit = asyncio.timeout(wait_s)
        try:
            result = function(queues)
            if isawaitable(result):
                async with limit:
                    await result
        except Exception as error:  # code of the user's that watches
            if isinstance(error, TimeoutError) and limit.when() is not None and limit.expired():
                logger.warning("callback did not return in time callback=%s wait_s=%g", name, wait_s)
            else:
                logger.exception("callback failed callback=%s", name)

    async def _assignment_changed(self, topic: str, queues: list[MessageQueue]) -> None:
        subscription = self._subscriptions.get(topic)
        if subscription is not None:
            # Brokers refuse pulls with a version they have not heard of: pulls use it once the heartbeat is out.
            self._announced.setdefault(topic, subscription)
            subscription = msgspec.structs.replace(subscription, sub_version=self._versions.now_ms())
            self._subscriptions[topic] = subscription
        mine = [queue for queue in self.queues if queue.topic == topic]
        self._queues_changed(topic, queues, mine)
        await self._instance.heartbeat()
        if subscription is not None:
            self._announced[topic] = subscription

    async def _start_offset(self, queue: MessageQueue) -> int:
        """Where consumption of a queue begins."""
        where = self._options.from_where
        retry = is_retry_topic(queue.topic)
        stored = -1
        if self._options.start is not None and not retry:
            stored = await self._offsets.stored(queue, or_zero=False)
        is_new_to = await self._is_new_to(queue) if stored < 0 else False
        if stored < 0 and not is_new_to:
            stored = await self._offsets.stored(queue)
        if stored >= 0:
            return stored
        if where is ConsumeFromWhere.FIRST_OFFSET or (where is ConsumeFromWhere.LAST_OFFSET and retry):
            return 0
        if where is ConsumeFromWhere.LAST_OFFSET or retry:
            end = await self.max_offset(queue)
            # Asked again: the first message may have arrived after the broker said that it has no offset.
            stored = await self._offsets.stored(queue) if end > 0 and not is_new_to else -1
            return stored if stored >= 0 else end
        timestamp_ms = self._options.from_timestamp_ms or self._started_ms - _HALF_AN_HOUR_MS
        return await self.offset_at(queue, timestamp_ms)

    async def _is_new_to(self, queue: MessageQueue) -> bool:
        """Whether ``start`` was given and applies: the group has no offset of any queue of the topic. Otherwise a
        queue without an offset is a new one, and the broker says where to begin: nothing of it should be missed."""
        if self._options.start is None or is_retry_topic(queue.topic):
            return False
        known = self._new_to.get(queue.topic)
        if known is None:
            queues = self._instance.book.subscribe.get(queue.topic) or [queue]
            asked = (self._offsets.stored(other, or_zero=False) for other in queues)
            answers = await asyncio.gather(*asked, return_exceptions=True)
            found = any(isinstance(answer, int) and answer >= 0 for answer in answers)
            known = self._new_to[queue.topic] = frozenset(() if found else queues)
        return queue in known

    async def _pull_failed(self, held: ProcessQueue, error: OrbitError) -> None:
        """After a pull that failed: find out where the queue is now, say so once in a while, and pause."""
        if held.ending:
            return
        if isinstance(error, SubscriptionNotExist | SubscriptionNotLatest):
            await self._instance.heartbeat()  # the broker forgot us, or heard of us too long ago
        if error.stale_route:
            self._puller.failed(held.queue)
            self._instance.refresh_soon(held.queue.topic)
        self._instance.log_limits.warning(
            logger,
            ("pull", held.queue.broker_name, type(error)),
            "pull failed queue=%s offset=%d error=%s",
            held.queue,
            held.next_offset,
            error,
        )
        await asyncio.sleep(self._options.pull_error_pause_s)

    # -- locks -----------------------------------------------------------------------------------------

    async def _lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Ask the brokers to keep these queues for us; returns those we have."""
        locked: set[MessageQueue] = set()
        for broker_name, wanted in _by_broker(queues).items():
            body = LockBatchRequest(consumer_group=self.group, client_id=self.client_id, mq_set=wanted)
            try:
                answer = await self._instance.ask(
                    self._instance.master(broker_name),
                    RequestCode.LOCK_BATCH_MQ,
                    LockBatchMqRequest(),
                    body.encode(),
                )
                got = set(LockBatchResponse.decode(answer.body).lock_ok_mq_set)
            except OrbitError as error:
                self._instance.log_limits.warning(
                    logger,
                    ("lock", broker_name),
                    "queues not locked broker=%s error=%s",
                    broker_name,
                    error,
                )
                continue
            locked |= got & set(wanted)
        return locked

    async def _unlock(self, queues: Iterable[MessageQueue], *, wait: bool = False) -> None:
        for broker_name, ours in _by_broker(queues).items():
            body = LockBatchRequest(consumer_group=self.group, client_id=self.client_id, mq_set=ours)
            send = self._instance.call if wait else self._instance.tell
            try:
                await send(
                    self._instance.master(broker_name),
                    RequestCode.UNLOCK_BATCH_MQ,
                    UnlockBatchMqRequest(),
                    body.encode(),
                )
            except OrbitError as error:
                logger.info(
                    "queues not unlocked, the lock will expire broker=%s error=%s", broker_name, error
                )

    # -- for subclasses --------------------------------------------------------------------------------

    def _new_process_queue(self, queue: MessageQueue, offset: int) -> ProcessQueue:
        return ProcessQueue(
            queue, offset, count_max=self._options.cached_count_max, bytes_max=self._options.cached_bytes_max
        )

    def _begin(self, held: ProcessQueue) -> None:
        """Start pulling from a queue just taken."""
        raise NotImplementedError

    async def _before_release(self, held: ProcessQueue) -> bool:
        """Let what runs on a queue end; False when it takes longer."""
        return True

    def _queues_changed(self, topic: str, queues: list[MessageQueue], mine: list[MessageQueue]) -> None:
        """The share of a topic is another one now."""

    # -- what the instance asks (Member) ---------------------------------------------------------------

    def topics(self) -> set[str]:
        return set(self._subscriptions)

    def producer_data(self) -> ProducerData | None:
        return None

    def consumer_data(self) -> ConsumerData | None:
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=self._options.model,
            consume_from_where=self._options.from_where,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def routes(self) -> list[Route | RawRoute]:
        return [
            Route(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                self._members_changed,
                NotifyConsumerIdsChangedRequest,
            )
        ]

    def _members_changed(self, call: Call[NotifyConsumerIdsChangedRequest]) -> Answer:
        if call.header.consumer_group == self.group:
            self.rebalance_soon()
        return PARKED


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    grouped: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        grouped.setdefault(queue.broker_name, []).append(queue)
    return grouped

"""Heartbeats, unregistration, group members and expression checks: requests 34, 35, 38 and 46.

Follows Apache's ClientManageProcessor and the member part of ConsumerManageProcessor.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.tables.clients import ClientChannel, ConsumerTable, PeerInfo, ProducerTable
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import TopicSysFlag
from orbitmq.errors import InvalidParameter, ServerError
from orbitmq.model.names import retry_topic
from orbitmq.model.topic import PERM_READ_WRITE
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.transport.connection import Connection
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire.bodies import (
    CheckClientConfig,
    ConsumerData,
    ConsumerIdList,
    ConsumeType,
    HeartbeatData,
    MessageModel,
)
from orbitmq.wire.bodies.heartbeat import CONSUMERS_MAX, PRODUCERS_MAX, SUBSCRIPTIONS_MAX
from orbitmq.wire.frame import Frame
from orbitmq.wire.headers import (
    Empty,
    GetConsumerListByGroupRequest,
    HeartBeatRequest,
    HeartBeatResponse,
    UnregisterClientRequest,
)

__all__ = ["ClientHandlers"]

_CLIENT_IDS_MAX: Final = 1024
"""Client ids kept per connection; a real client has one or two."""
_AT_ONCE: Final = 64
"""Number of groups that one turn of the loop registers from a heartbeat."""
_NAME_CHARS_MAX: Final = 1024
"""Longest client id or producer group; Apache's clients stay below 256."""


@dataclass(slots=True)
class _Taken:
    """The results of a heartbeat so far."""

    changed: bool
    topics_before: int
    refusal: InvalidParameter | None = None
    is_complete: bool = False


@dataclass(kw_only=True, eq=False)
class ClientHandlers:
    """Serves heartbeats, unregistration, group members and expression checks."""

    config: BrokerConfig
    clock: Clock
    topics: TopicTable
    groups: GroupTable
    consumers: ConsumerTable
    producers: ProducerTable
    compile_filter: Callable[[str, str], object]
    """``compile_filter(expression_type, expression)`` raises ``SubscriptionParseFailed``."""
    signer_of: Callable[[Frame], str] = lambda _frame: ""
    """Returns the name of the user who signed a request."""
    known_elsewhere: Sequence[Callable[[], Awaitable[None]]] = ()
    """Each callback waits, up to a time limit, until others know the topics created so far."""

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.HEART_BEAT, self.heart_beat, HeartBeatRequest),
            Route(RequestCode.UNREGISTER_CLIENT, self.unregister_client, UnregisterClientRequest),
            Route(RequestCode.GET_CONSUMER_LIST_BY_GROUP, self.consumer_list, GetConsumerListByGroupRequest),
            Route(RequestCode.CHECK_CLIENT_CONFIG, self.check_client_config, Empty),
        ]

    def heart_beat(self, call: Call[HeartBeatRequest]) -> Reply | Awaitable[Reply]:
        """Register every group that the client is in.

        A heartbeat that creates a retry topic is answered once the name servers know the topic, like Apache's,
        because tools look up a group by the route of its retry topic.

        Version 2 of the heartbeat has a fingerprint of the subscriptions. The client may omit the subscriptions once
        the broker has answered that they have not changed. The answer IS_SUB_CHANGE = true makes it send them again.
        """
        data = HeartbeatData.decode(call.body)
        _check_size(data)
        frame = call.frame
        user = self.signer_of(frame)
        now_ms = self.clock.now_ms()
        channel = ClientChannel(call.peer, data.client_id, frame.language_name, frame.version, now_ms, user)
        peer = call.peer.attachment
        if isinstance(peer, PeerInfo) and len(peer.client_ids) < _CLIENT_IDS_MAX:
            peer.client_ids.add(data.client_id)
        taken = _Taken((data.heartbeat_fingerprint or 0) == 0, len(self.topics.configs))
        groups = self._register(data, channel, taken)
        for _ in itertools.islice(groups, _AT_ONCE):
            pass
        if len(data.consumer_data_set) + len(data.producer_data_set) > _AT_ONCE:
            return self._register_rest(groups, taken, call.peer)
        return self._answer(taken)

    async def _register_rest(self, groups: Iterator[None], taken: _Taken, peer: Connection) -> Reply:
        """Register a client that has very many groups, spread over several turns of the event loop."""
        while not taken.is_complete:
            await asyncio.sleep(0)
            if peer.closed:
                break
            for _ in itertools.islice(groups, _AT_ONCE):
                pass
        answer = self._answer(taken)
        return answer if isinstance(answer, Reply) else await answer

    def _register(self, data: HeartbeatData, channel: ClientChannel, taken: _Taken) -> Iterator[None]:
        """Register the client in its groups, yielding after each one. A group that refuses it (table full, name too
        long) is skipped; the first refusal is kept in ``taken``."""
        fingerprint = data.heartbeat_fingerprint or 0
        without_sub = fingerprint != 0 and data.without_sub is True
        for consumer in data.consumer_data_set:
            try:
                taken.changed |= self._register_consumer(
                    consumer, channel, fingerprint, without_sub=without_sub
                )
            except InvalidParameter as error:
                taken.refusal = taken.refusal or error
            yield
        for producer in data.producer_data_set:
            if producer.group_name:
                try:
                    _check_name("producer group", producer.group_name)
                    self.producers.register(producer.group_name, _copy(channel))
                except InvalidParameter as error:
                    taken.refusal = taken.refusal or error
            yield
        taken.is_complete = True

    def _answer(self, taken: _Taken) -> Reply | Awaitable[Reply]:
        if taken.refusal is not None:
            raise taken.refusal
        header = HeartBeatResponse(supports_heart_beat_v2=True, subscription_changed=taken.changed)
        reply = Reply(header=header)
        if len(self.topics.configs) == taken.topics_before or not self.known_elsewhere:
            return reply
        return _after(self.known_elsewhere, reply)

    def _register_consumer(
        self, consumer: ConsumerData, channel: ClientChannel, fingerprint: int, *, without_sub: bool
    ) -> bool:
        """Register one group. Returns True if the client must send its subscriptions, or send them again."""
        consume_type = consumer.consume_type or ConsumeType.PASSIVELY
        if self.config.pull_consumers_refused and consume_type == ConsumeType.ACTIVELY:
            return False
        group = consumer.group_name
        group_config = self.groups.find(group)
        if group_config is None:
            return False
        subscriptions = consumer.subscription_data_set
        ordered = any(self.topics.is_ordered(subscription.topic) for subscription in subscriptions)
        self.topics.create_in_send_back(
            retry_topic(group),
            group_config.retry_queue_nums,
            PERM_READ_WRITE,
            int(TopicSysFlag.UNIT_SUB) if consumer.unit_mode else 0,
            order=None if without_sub else ordered,
            aside=True,
        )
        self.consumers.register(
            group,
            _copy(channel),
            consume_type=consume_type,
            message_model=consumer.message_model or MessageModel.CLUSTERING,
            from_where=consumer.consume_from_where or "",
            subscriptions=None if without_sub else subscriptions,
            notify=group_config.notify_consumer_ids_changed_enable,
        )
        online = self.consumers.groups[group]
        before, online.fingerprint = online.fingerprint, fingerprint
        if before is None:
            # The group is unknown, for example after a restart. A client that omitted its subscriptions must send
            # them, or its pulls would be refused forever. Apache relies on the client here.
            return without_sub
        return before != fingerprint

    def unregister_client(self, call: Call[UnregisterClientRequest]) -> Reply:
        header = call.header
        if header.producer_group is not None:
            self.producers.unregister(header.producer_group, call.peer)
        if header.consumer_group is not None:
            known = self.groups.configs.get(header.consumer_group)
            notify = known is None or known.notify_consumer_ids_changed_enable
            self.consumers.unregister(header.consumer_group, call.peer, notify=notify)
        return Reply()

    def consumer_list(self, call: Call[GetConsumerListByGroupRequest]) -> Reply:
        group = self.consumers.group(call.header.consumer_group)
        if group is None:
            raise ServerError(f"no consumer of group {call.header.consumer_group} is online")
        return Reply(body=ConsumerIdList(consumer_id_list=group.client_ids).encode())

    def check_client_config(self, call: Call[Empty]) -> Reply:
        """Check whether this broker can evaluate an expression. Clients send this request before a consumer
        starts."""
        subscription = CheckClientConfig.decode(call.body).subscription_data
        if subscription is None or subscription.is_tag_type:
            return Reply()
        if not self.config.property_filter_enabled:
            raise ServerError(
                f"filtering by {subscription.expression_type} is disabled on this broker (enablePropertyFilter)"
            )
        self.compile_filter(subscription.expression_type, subscription.sub_string)
        return Reply()


def _check_size(data: HeartbeatData) -> None:
    _check_name("client id", data.client_id)
    subscriptions = sum(len(consumer.subscription_data_set) for consumer in data.consumer_data_set)
    for what, count, limit in (
        ("consumer groups", len(data.consumer_data_set), CONSUMERS_MAX),
        ("producer groups", len(data.producer_data_set), PRODUCERS_MAX),
        ("subscriptions", subscriptions, SUBSCRIPTIONS_MAX),
    ):
        if count > limit:
            raise InvalidParameter(f"the heartbeat has {count:,} {what}; the limit is {limit:,}")


def _check_name(what: str, name: str) -> None:
    if len(name) > _NAME_CHARS_MAX:
        raise InvalidParameter(f"the {what} has {len(name):,} characters; the limit is {_NAME_CHARS_MAX}")


async def _after(waits: Sequence[Callable[[], Awaitable[None]]], reply: Reply) -> Reply:
    for wait in waits:
        await wait()
    return reply


def _copy(channel: ClientChannel) -> ClientChannel:
    """Returns a copy, because each group updates its own copy."""
    return msgspec.structs.replace(channel)

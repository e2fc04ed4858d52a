"""Membership in a consumer group: heartbeats, the routes of the subscribed topics, and the list of members."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from orbitmq.client.consume.subscriptions import Subscriptions
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.options import ConsumerOptions
from orbitmq.errors import BrokerError, OrbitError, TopicNotFound
from orbitmq.model.names import is_retry_topic
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import SteadyClock
from orbitmq.transport.router import PARKED, Answer, Call, RawRoute, Route
from orbitmq.wire.bodies import (
    CheckClientConfig,
    ConsumerData,
    ConsumerIdList,
    ConsumeType,
    MessageModel,
    ProducerData,
)
from orbitmq.wire.headers import GetConsumerListByGroupRequest, NotifyConsumerIdsChangedRequest

__all__ = ["GroupMember", "Membership"]

logger = logging.getLogger(__name__)


class GroupMember:
    """The contents of a consumer's heartbeats (``Member`` of ``net/instance.py``)."""

    def __init__(
        self, group: str, options: ConsumerOptions, consume_type: ConsumeType, subscriptions: Subscriptions
    ) -> None:
        self._group = group
        self._options = options
        self._consume_type = consume_type
        self._subscriptions = subscriptions

    def topics(self) -> set[str]:
        return self._subscriptions.topics()

    def producer_data(self) -> ProducerData | None:
        return None

    def consumer_data(self) -> ConsumerData | None:
        return ConsumerData(
            group_name=self._group,
            consume_type=self._consume_type,
            message_model=self._options.model,
            consume_from_where=self._options.from_where,
            subscription_data_set=list(self._subscriptions.wanted.values()),
        )


class Membership:
    """One consumer in its group. The other parts of the consumer reach the network through ``instance``."""

    def __init__(
        self, instance: ClientInstance, group: str, options: ConsumerOptions, subscriptions: Subscriptions
    ) -> None:
        self.instance = instance
        self.group = group
        self.options = options
        self.subscriptions = subscriptions
        self.steady = SteadyClock(instance.clock)
        """For ages: a clock step must not end a lock, a handler or a pull."""
        self.rebalance_wanted = asyncio.Event()
        """Set when queues may have to be taken or released, because members, routes or offsets changed."""
        self.started_ms = 0

    @property
    def broadcasting(self) -> bool:
        return self.options.model is MessageModel.BROADCASTING

    # -- joining ---------------------------------------------------------------------------------------

    def open(self, routes: Iterable[Route | RawRoute]) -> None:
        """Accept calls from brokers and start the timers of the instance."""
        notified = Route(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._members_changed, NotifyConsumerIdsChangedRequest
        )
        self.instance.start([notified, *routes], on_routes=self.rebalance_wanted.set)
        self.started_ms = self.instance.clock.now_ms()

    async def join(self) -> None:
        """Send the first heartbeat. Raises ``BrokerError`` if a broker refuses a filter."""
        await self.instance.refresh_routes()
        await self._check_filters()
        await self.instance.heartbeat()
        # The group's first heartbeat creates its retry topic.
        await self.refresh_missing()
        self.rebalance_wanted.clear()  # the first rebalance follows

    async def announce(self, topic: str) -> None:
        """Announce a subscription that was changed while the consumer runs. Pulls use it from then on."""
        await self.refresh_missing()
        await self.instance.heartbeat()
        self.subscriptions.announced(topic)
        self.rebalance_wanted.set()

    async def refresh_missing(self) -> None:
        """Query the routes of subscribed topics that have none. Failures are logged."""
        limits = self.instance.log_limits
        for topic in self.subscriptions.wanted.keys() - self.instance.book.subscribe.keys():
            try:
                await self.instance.book.refresh(topic)
            except TopicNotFound:
                self.subscriptions.missing.add(topic)
                level = logging.DEBUG if is_retry_topic(topic) else logging.WARNING
                text = "subscribed topic does not exist yet topic=%s"
                limits.log(logger, level, ("missing", topic), text, topic)
            except OrbitError as error:
                key, text = ("route", type(error)), "route not refreshed topic=%s error=%s"
                limits.warning(logger, key, text, topic, error)

    async def _check_filters(self) -> None:
        for topic, subscription in self.subscriptions.wanted.items():
            address = self.instance.book.address_of_topic(topic)
            if subscription.is_tag_type or address is None:
                continue
            body = CheckClientConfig(
                client_id=self.instance.client_id,
                group=self.group,
                namespace=self.options.namespace or None,
                subscription_data=subscription,
            )
            await self.instance.ask(address, RequestCode.CHECK_CLIENT_CONFIG, None, body.encode())

    # -- the other members -----------------------------------------------------------------------------

    def _members_changed(self, call: Call[NotifyConsumerIdsChangedRequest]) -> Answer:
        if call.header.consumer_group == self.group:
            self.rebalance_wanted.set()
        return PARKED

    async def members(self, topic: str) -> list[str]:
        """Returns the client ids of the group, as known to a broker of the topic. Empty if the broker does not return
        any."""
        address = self.instance.book.address_of_topic(topic)
        if address is None:
            return []
        header = GetConsumerListByGroupRequest(consumer_group=self.group)
        try:
            answer = await self.instance.ask(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            members = ConsumerIdList.decode(answer.body).consumer_id_list
            reason = "the broker returned an empty list"
        except BrokerError as error:
            members, reason = [], str(error)
        if not members:
            text = "members unknown, assignment unchanged group=%s broker=%s reason=%s"
            key = ("members", address)
            self.instance.log_limits.warning(logger, key, text, self.group, address, reason)
        return members

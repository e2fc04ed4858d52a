"""Keeps the connected clients by group (Apache: ProducerManager, ConsumerManager, ConsumerGroupInfo).

Invariants
1. A group exists in a table only while it has at least one channel.
2. ``_groups_of`` maps every connection in the table to its groups, so closing a connection costs time
   proportional to its own groups, not to the size of the table.
3. When a clustering group gains or loses a channel, or its set of topics changes, every member is notified
   immediately (NOTIFY_CONSUMER_IDS_CHANGED), unless notifications are switched off. A newer expression for a known
   topic replaces the old one without a notification because it requires no rebalance. The last heartbeat wins, as
   in Apache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.limits import Bound
from orbitmq.model.subscription import SubscriptionData
from orbitmq.record.hosts import encode_host
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.transport.connection import Connection
from orbitmq.wire.bodies import MessageModel
from orbitmq.wire.headers import NotifyConsumerIdsChangedRequest

__all__ = ["ClientChannel", "ConsumerGroup", "ConsumerTable", "PeerInfo", "ProducerTable"]

logger = logging.getLogger(__name__)

_UNSENT_BYTES_MAX: Final = 1 << 20
"""A channel with more unsent bytes than this is picked only when no other one is free."""

_SUBSCRIPTION_BYTES: Final = 500
_CHAR_BYTES: Final = 32


class PeerInfo(msgspec.Struct):
    """The broker's state for a connection, stored as its ``attachment``."""

    host: bytes
    """Address and port as stored in records: 8 or 20 bytes."""
    client_ids: set[str] = msgspec.field(default_factory=set)

    @classmethod
    def of(cls, connection: Connection) -> PeerInfo:
        return cls(encode_host(*connection.remote))


class ClientChannel(msgspec.Struct):
    """A client on one of its connections, as a member of one group."""

    connection: Connection
    client_id: str
    language: str
    """Name, as in ``LanguageCode``."""
    version: int
    last_update_ms: int
    user: str = ""
    """User who signed its last heartbeat; empty without access control."""


class ConsumerGroup:
    """An online consumer group."""

    __slots__ = (
        "consume_type",
        "cost",
        "fingerprint",
        "from_where",
        "members",
        "message_model",
        "name",
        "subscriptions",
    )

    def __init__(self, name: str, consume_type: str, message_model: str, from_where: str) -> None:
        self.name = name
        self.consume_type = consume_type
        self.message_model = message_model
        self.from_where = from_where
        self.fingerprint: int | None = None
        """Fingerprint of the last heartbeat (0 for a version 1 heartbeat); None before the first heartbeat."""
        self.members: dict[Connection, ClientChannel] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}
        """By topic."""
        self.cost = 0
        """Estimated memory of the subscriptions, as counted against the limit."""

    @property
    def broadcasting(self) -> bool:
        return self.message_model == MessageModel.BROADCASTING

    @property
    def client_ids(self) -> list[str]:
        return [channel.client_id for channel in self.members.values()]

    def channel_of(self, client_id: str) -> ClientChannel | None:
        for channel in self.members.values():
            if channel.client_id == client_id:
                return channel
        return None

    def replace_subscriptions(self, wanted: Collection[SubscriptionData]) -> bool:
        """Replace the subscriptions with those of a heartbeat. Returns True if a topic was added or removed."""
        changed = False
        current = self.subscriptions
        for subscription in wanted:
            known = current.get(subscription.topic)
            if known is None:
                changed = True
                current[subscription.topic] = subscription
            elif subscription.sub_version > known.sub_version:
                current[subscription.topic] = subscription
        topics = {subscription.topic for subscription in wanted}
        for topic in [topic for topic in current if topic not in topics]:
            del current[topic]
            changed = True
        return changed


class ConsumerTable:
    """The consumer groups that are online."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        events: BrokerEvents,
    ) -> None:
        self._config = config
        self._clock = clock
        self._groups_of: dict[Connection, set[str]] = {}
        self._learnt: dict[str, ConsumerGroup] = {}
        self._collected: set[str] = set()
        self.groups: dict[str, ConsumerGroup] = {}
        self._member_count = 0
        self.bound = Bound(
            "connected consumers", "maxConsumers", lambda: self._member_count, lambda: config.consumers_max
        )
        self._subscription_bytes = 0
        self.subscription_bound = Bound(
            "bytes of subscriptions",
            "maxSubscriptionBytes",
            lambda: self._subscription_bytes,
            lambda: config.subscription_bytes_max,
        )
        self._subscribed = events.subscribed
        self._group_gone = events.group_gone

    # -- views -----------------------------------------------------------------------------------------

    def group(self, group: str) -> ConsumerGroup | None:
        return self.groups.get(group)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Returns an online group's subscription to a topic, according to its heartbeats, or None."""
        found = self.groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def known_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Like ``subscription``, but falls back to the subscription learned from pulls, for consumers without
        heartbeats."""
        found = self.subscription(group, topic)
        if found is None and group in self._learnt:
            found = self._learnt[group].subscriptions.get(topic)
        return found

    def known_group(self, group: str) -> ConsumerGroup | None:
        """Like ``group``, but falls back to the group learned from pulls, for consumers without heartbeats."""
        return self.groups.get(group) or self._learnt.get(group)

    def groups_of_topic(self, topic: str) -> list[str]:
        """Returns the online groups that subscribe to a topic, sorted."""
        return sorted(name for name, group in self.groups.items() if topic in group.subscriptions)

    def channel_of(self, group: str, client_id: str) -> ClientChannel | None:
        found = self.groups.get(group)
        return None if found is None else found.channel_of(client_id)

    # -- changes ---------------------------------------------------------------------------------------

    def register(
        self,
        group: str,
        channel: ClientChannel,
        *,
        consume_type: str,
        message_model: str,
        from_where: str,
        subscriptions: Collection[SubscriptionData] | None,
        notify: bool = True,
    ) -> bool:
        """Process a heartbeat. Returns True if the group changed. ``subscriptions`` is None if the client omitted
        them because they have not changed. ``notify`` is the flag of the group's config. Raises ``InvalidParameter``
        if there are too many consumers or subscriptions."""
        found = self.groups.get(group)
        self._check_room(group, found, channel, subscriptions)
        if found is None:
            found = self.groups[group] = ConsumerGroup(group, consume_type, message_model, from_where)
        found.consume_type = consume_type
        found.message_model = message_model
        found.from_where = from_where
        changed = _put_channel(found.members, channel)
        if changed:
            self._member_count += 1
            self._groups_of.setdefault(channel.connection, set()).add(group)
            logger.info(
                "consumer connected group=%s client=%s peer=%s type=%s model=%s",
                group,
                channel.client_id,
                channel.connection.remote_text,
                consume_type,
                message_model,
            )
        if subscriptions is not None:
            cost = _cost(subscriptions)
            self._subscription_bytes += cost - found.cost
            found.cost = cost
            if found.replace_subscriptions(subscriptions):
                logger.info("subscription changed group=%s topics=%s", group, sorted(found.subscriptions))
                changed = True
            self._subscribed(group, subscriptions)
        if changed and notify:
            self._announce(found)
        return changed

    def _check_room(
        self,
        group: str,
        found: ConsumerGroup | None,
        channel: ClientChannel,
        subscriptions: Collection[SubscriptionData] | None,
    ) -> None:
        if found is None or channel.connection not in found.members:
            self.bound.check(f"client {channel.client_id} is not registered in group {group}")
        if subscriptions:
            more = _cost(subscriptions) - (0 if found is None else found.cost)
            if more > 0:
                self.subscription_bound.check(f"the subscriptions of group {group} are not stored", more)

    def unregister(self, group: str, connection: Connection, *, notify: bool = True) -> None:
        """Remove a consumer from a group. Its connection may still belong to other groups."""
        found = self.groups.get(group)
        if found is not None and connection in found.members:
            self._remove(found, connection, "unregistered")
            if notify:
                self._announce(found)

    def connection_closed(self, connection: Connection) -> None:
        """Remove every channel of a connection, and notify the groups that it leaves."""
        for group in sorted(self._groups_of.get(connection, ())):
            found = self.groups[group]
            self._remove(found, connection, "connection closed")
            self._announce(found)

    def expire(self) -> None:
        """Remove and close channels that have sent no heartbeat for ``channelExpiredTimeout``. Also removes expired
        subscriptions that were learned from pulls."""
        now_ms = self._clock.now_ms()
        for group in list(self.groups.values()):
            for channel in _expired(group.members, now_ms - self._config.channel_expiry_ms):
                self._remove(group, channel.connection, "no heartbeat")
                channel.connection.close()
                # Apache notifies no member here, so the dead member's queues wait for the next rebalance.
                self._announce(group)
        horizon_ms = now_ms - self._config.subscription_expiry_ms
        for group in list(self._learnt.values()):
            for topic, subscription in list(group.subscriptions.items()):
                if subscription.sub_version < horizon_ms:
                    del group.subscriptions[topic]
            if not group.subscriptions:
                del self._learnt[group.name]

    def learn(
        self, group: str, consume_type: str, message_model: str, subscription: SubscriptionData
    ) -> None:
        """Store the subscription of a pull. Its ``sub_version`` is the time of the pull."""
        known = self._learnt.get(group)
        if known is None:
            known = self._learnt[group] = ConsumerGroup(group, consume_type, message_model, "")
        known.consume_type = consume_type
        known.message_model = message_model
        known.subscriptions[subscription.topic] = subscription

    def _remove(self, group: ConsumerGroup, connection: Connection, reason: str) -> None:
        channel = group.members.pop(connection)
        self._member_count -= 1
        _forget(self._groups_of, connection, group.name)
        logger.info(
            "consumer left group=%s client=%s peer=%s reason=%s",
            group.name,
            channel.client_id,
            connection.remote_text,
            reason,
        )
        if not group.members:
            self.groups.pop(group.name, None)
            self._subscription_bytes -= group.cost
            self._group_gone(group.name)

    # -- notifications ---------------------------------------------------------------------------------

    def _announce(self, group: ConsumerGroup) -> None:
        if group.broadcasting or not self._config.notify_consumer_changes:
            return
        if self._config.notify_at_once:
            _send_notice(group)
        else:
            self._collected.add(group.name)

    def send_collected_notices(self) -> None:
        """Send the notifications held back while ``realTimeNotifyConsumerChange`` is off. Called every 15 seconds."""
        collected, self._collected = self._collected, set()
        for name in sorted(collected):
            group = self.groups.get(name)
            if group is not None and self._config.notify_consumer_changes:
                _send_notice(group)


class ProducerTable:
    """The producer groups that are online."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._groups_of: dict[Connection, set[str]] = {}
        self._named: dict[str, ClientChannel] = {}
        """The channel that receives the replies for a client id."""
        self._turn = 0
        self._member_count = 0
        self.bound = Bound(
            "connected producers", "maxProducers", lambda: self._member_count, lambda: config.producers_max
        )
        self.groups: dict[str, dict[Connection, ClientChannel]] = {}

    def register(self, group: str, channel: ClientChannel) -> None:
        """Process a heartbeat. Raises ``InvalidParameter`` if there are too many producers."""
        channels = self.groups.get(group)
        if channels is None or channel.connection not in channels:
            # Only transaction checks look up a producer, so nothing is kept when both switches are off.
            if not self._config.register_producers and self._config.transactions_refused:
                return
            self.bound.check(f"client {channel.client_id} is not registered in group {group}")
            self._member_count += 1
            channels = self.groups.setdefault(group, {})
            self._name(channel)
            self._groups_of.setdefault(channel.connection, set()).add(group)
            logger.info(
                "producer connected group=%s client=%s peer=%s",
                group,
                channel.client_id,
                channel.connection.remote_text,
            )
        _put_channel(channels, channel)

    def unregister(self, group: str, connection: Connection) -> None:
        """Remove a producer from a group."""
        if connection in self.groups.get(group, {}):
            self._remove(group, connection, "unregistered")

    def connection_closed(self, connection: Connection) -> None:
        for group in sorted(self._groups_of.get(connection, ())):
            self._remove(group, connection, "connection closed")

    def expire(self) -> None:
        """Remove and close channels that have sent no heartbeat for ``channelExpiredTimeout``."""
        horizon_ms = self._clock.now_ms() - self._config.channel_expiry_ms
        for group, channels in list(self.groups.items()):
            for channel in _expired(channels, horizon_ms):
                self._remove(group, channel.connection, "no heartbeat")
                channel.connection.close()

    def _name(self, channel: ClientChannel) -> None:
        """Route replies for a client id to this connection, unless another user's connection already has the id."""
        named = self._named.get(channel.client_id)
        if named is not None and not named.connection.closed and named.user != channel.user:
            return
        self._named[channel.client_id] = channel

    def pick(
        self, group: str, may: Callable[[ClientChannel], bool] = lambda _channel: True
    ) -> Connection | None:
        """Returns an open connection of the group, round-robin among the channels that ``may`` accepts, or None if
        there is none. A connection with a large unsent backlog is the last choice."""
        channels = [connection for connection, channel in self.groups.get(group, {}).items() if may(channel)]
        if not channels:
            return None
        self._turn += 1
        start = self._turn % len(channels)
        clogged: Connection | None = None
        for connection in channels[start:] + channels[:start]:
            if connection.closed:
                continue
            if connection.unsent_bytes <= _UNSENT_BYTES_MAX:
                return connection
            clogged = clogged or connection
        return clogged

    def channel_of(self, client_id: str) -> Connection | None:
        """Returns the connection of a client, for replies to its requests, or None if it is not connected."""
        named = self._named.get(client_id)
        return None if named is None else named.connection

    def channels(self) -> Iterator[tuple[str, ClientChannel]]:
        """Yields (group, channel) for every channel of every group."""
        for group, channels in self.groups.items():
            for channel in channels.values():
                yield group, channel

    def _remove(self, group: str, connection: Connection, reason: str) -> None:
        channels = self.groups[group]
        channel = channels.pop(connection)
        self._member_count -= 1
        _forget(self._groups_of, connection, group)
        if not channels:
            del self.groups[group]
        named = self._named.get(channel.client_id)
        if connection not in self._groups_of and named is not None and named.connection is connection:
            del self._named[channel.client_id]
        logger.info(
            "producer left group=%s client=%s peer=%s reason=%s",
            group,
            channel.client_id,
            connection.remote_text,
            reason,
        )


def _cost(subscriptions: Collection[SubscriptionData]) -> int:
    """Returns the estimated memory of the subscriptions in bytes. The cost per character covers the tokens of an
    expression, which are kept as well."""
    return sum(_SUBSCRIPTION_BYTES + _CHAR_BYTES * len(one.sub_string) for one in subscriptions)


def _put_channel(channels: dict[Connection, ClientChannel], channel: ClientChannel) -> bool:
    """Add or refresh a channel. Returns True if the connection is new to the group."""
    known = channels.get(channel.connection)
    if known is not None and known.client_id == channel.client_id:
        known.last_update_ms = channel.last_update_ms
        known.user = channel.user
        return False
    channels[channel.connection] = channel
    if known is None:
        return True
    logger.warning(
        "client id changed on a connection peer=%s old=%s new=%s",
        channel.connection.remote_text,
        known.client_id,
        channel.client_id,
    )
    return False


def _expired(channels: dict[Connection, ClientChannel], horizon_ms: int) -> list[ClientChannel]:
    return [channel for channel in channels.values() if channel.last_update_ms < horizon_ms]


def _forget(groups_of: dict[Connection, set[str]], connection: Connection, group: str) -> None:
    groups = groups_of[connection]
    groups.discard(group)
    if not groups:
        del groups_of[connection]


def _send_notice(group: ConsumerGroup) -> None:
    notice = NotifyConsumerIdsChangedRequest(consumer_group=group.name)
    for connection in list(group.members):
        if not connection.closed:
            connection.notify(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, notice)

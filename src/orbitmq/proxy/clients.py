"""Connected clients: their settings, telemetry streams and held messages (Apache: GrpcClientSettingsManager,
GrpcClientChannel, ProducerManager and ConsumerManager of a proxy).

A client is identified by its id, whatever connections it uses. It is registered by the settings it sends over
Telemetry, kept alive by heartbeats, and removed when it unregisters or stays silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from orbitmq.model.delay_levels import DelayLevels
from orbitmq.model.group import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    RetryPolicyType,
    SubscriptionGroupConfig,
)
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.http2.call import Call
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.renewal import Held
from orbitmq.proxy.statuses import Refused
from orbitmq.runtime.clock import Clock

__all__ = ["Client", "ClientKey", "Clients", "attempts_of", "client_type_name", "merged_settings"]

logger = logging.getLogger(__name__)

CLIENTS_MAX: Final = 100_000
SETTINGS_BYTES_MAX: Final = 512 * 1024 * 1024
"""Limit in bytes for the settings of all clients together."""
_CLIENT_BYTES: Final = 2048
"""Rough memory cost of a client in bytes, excluding its settings."""
_ADOPTED_S: Final = 30.0
"""Seconds without a heartbeat after which an adopted client expires. Clients send one every ten seconds."""
_ADOPTED_PER_CONNECTION: Final = 256
SETTINGS_WAIT_S: Final = 1.0
_AWAITED_MAX: Final = 10_000
_CONSUMERS: Final = frozenset(
    {pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER, pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER}
)
_UNKNOWN: Final = "cannot find client settings for this client"


class ClientKey(NamedTuple):
    """The id of a client and its user, so that two users can use the same id without interfering."""

    client_id: str
    owner: str = ""
    """The user who signs the client's calls; empty without access control."""


class Client:
    """A connected client."""

    __slots__ = (
        "client_id",
        "group",
        "held",
        "is_adopted",
        "key",
        "language",
        "remote",
        "seen",
        "settings",
        "size_bytes",
        "stream",
        "topics",
        "version",
    )

    def __init__(self, key: ClientKey, settings: pb.Settings, now: float) -> None:
        self.key = key
        self.client_id = key.client_id
        self.settings = settings
        self.group = settings.subscription.group.name
        """The consumer's group; empty for producers."""
        self.topics: frozenset[str] = frozenset()
        """The topics to which the producer sends."""
        self.stream: Call | None = None
        """The client's telemetry stream, over which commands are sent to it."""
        self.seen = now
        self.is_adopted = False
        """Whether the client made a call without having sent settings."""
        self.size_bytes = 0
        self.remote = ""
        self.language = ""
        self.version = ""
        self.held: dict[tuple[str, str], Held] = {}
        """Messages that the proxy keeps hidden for the client, by message id and the client's handle."""

    @property
    def is_consumer(self) -> bool:
        return self.settings.client_type in _CONSUMERS

    @property
    def fifo(self) -> bool:
        return self.settings.subscription.fifo

    def send(self, command: pb.TelemetryCommand) -> bool:
        """Send a command over the client's stream. Returns False if the client has no open stream."""
        stream = self.stream
        if stream is None or stream.done:
            return False
        stream.write(command.SerializeToString())
        return True


def client_type_name(number: int) -> str:
    """Returns the name of a client type, or its number if the protocol does not define it."""
    return pb.ClientType.Name(number) if number in pb.ClientType.values() else str(number)


class Clients:
    """All clients of a proxy, by id."""

    def __init__(self, config: ProxyConfig, clock: Clock) -> None:
        self._expiry_s = config.client_expiry_ms / 1000
        self._now = clock.monotonic
        self._clients: dict[ClientKey, Client] = {}
        self._producers: dict[str, dict[ClientKey, Client]] = {}
        self._awaited: dict[ClientKey, asyncio.Event] = {}
        self._size_bytes = 0
        self._limit_bytes = SETTINGS_BYTES_MAX
        self._adopted: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        """Number of clients without settings on each connection."""
        self.gone: list[Callable[[Client], object]] = []
        """Functions to call with a client that was removed."""

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._clients.values()))

    def find(self, key: ClientKey) -> Client | None:
        return self._clients.get(key)

    def known(self, key: ClientKey) -> Client:
        """Returns a registered client. Raises ``Refused`` if it is unknown."""
        client = self._clients.get(key)
        if client is None:
            raise Refused(pb.UNRECOGNIZED_CLIENT_TYPE, _UNKNOWN)
        return client

    async def wait_known(self, key: ClientKey) -> Client | None:
        """Like ``find``, but waits briefly for an unknown client.

        Some clients start to receive before they have the answer to their settings.
        """
        client = self._clients.get(key)
        if client is None and len(self._awaited) < _AWAITED_MAX:
            registered = self._awaited.setdefault(key, asyncio.Event())
            try:
                async with asyncio.timeout(SETTINGS_WAIT_S):
                    await registered.wait()
            except TimeoutError:
                self._awaited.pop(key, None)
            client = self._clients.get(key)
        return client

    def register(self, key: ClientKey, settings: pb.Settings, stream: Call) -> Client:
        """Store a client's settings and the stream they arrived on. Raises ``Refused``."""
        client = self._keep(key, settings, stream)
        client.stream = stream
        client.is_adopted = False
        return client

    def adopt(self, key: ClientKey, settings: pb.Settings, call: Call) -> Client:
        """Register a consumer that made a call without having sent settings, for example because it came from another
        proxy.

        It cannot receive commands until it sends them. Raises ``Refused``.
        """
        count = self._adopted.get(call.connection, 0)
        if count >= _ADOPTED_PER_CONNECTION:
            raise Refused(pb.TOO_MANY_REQUESTS, "too many clients without settings on one connection")
        client = self._keep(key, settings, call)
        client.is_adopted = True
        self._adopted[call.connection] = count + 1
        return client

    def _keep(self, key: ClientKey, settings: pb.Settings, call: Call) -> Client:
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                raise Refused(pb.TOO_MANY_REQUESTS, f"{CLIENTS_MAX} clients are connected")
            client = self._clients[key] = Client(key, settings, self._now())
            logger.info(
                "client registered id=%s type=%s peer=%s",
                key.client_id,
                client_type_name(settings.client_type),
                call.remote,
            )
        client.settings = settings
        client.group = settings.subscription.group.name
        client.remote = call.remote
        size = _CLIENT_BYTES + 2 * settings.ByteSize()
        self._size_bytes += size - client.size_bytes
        client.size_bytes = size
        client.language = call.header("x-mq-language")
        client.version = call.header("x-mq-client-version")
        client.seen = self._now()
        awaited = self._awaited.pop(key, None)
        if awaited is not None:
            awaited.set()
        topics = frozenset(topic.name for topic in settings.publishing.topics)
        if topics != client.topics:
            self._drop_producer(client)
            client.topics = topics
            for topic in topics:
                self._producers.setdefault(topic, {})[key] = client
        if self._size_bytes > self._limit_bytes:
            self._make_room()
            if key not in self._clients:
                raise Refused(
                    pb.TOO_MANY_REQUESTS, "the settings of this host's clients take too much memory"
                )
        return client

    def _make_room(self) -> None:
        """Remove clients until a quarter of the memory limit is free.

        Each time, the largest client of the host that uses the most memory is removed.
        """
        by_host: defaultdict[str, list[Client]] = defaultdict(list)
        sums: defaultdict[str, int] = defaultdict(int)
        for client in self:
            host = client.remote.rpartition(":")[0]
            by_host[host].append(client)
            sums[host] += client.size_bytes
        for clients in by_host.values():
            clients.sort(key=lambda client: client.size_bytes)
        before = len(self._clients)
        while self._size_bytes > self._limit_bytes * 3 // 4:
            host = max(sums, key=sums.__getitem__)
            client = by_host[host].pop()
            sums[host] -= client.size_bytes
            self._remove(client)
        logger.error("clients forgotten, their settings took too much count=%d", before - len(self._clients))

    def mark_seen(self, client: Client) -> None:
        client.seen = self._now()

    def stream_ended(self, key: ClientKey, stream: Call) -> None:
        client = self._clients.get(key)
        if client is not None and client.stream is stream:
            client.stream = None

    def unregister(self, key: ClientKey) -> Client:
        """Remove a client and return it. Raises ``Refused`` if it is unknown."""
        client = self.known(key)
        self._remove(client)
        return client

    def expire(self) -> None:
        """Remove clients that have been silent for too long."""
        now = self._now()
        for client in self:
            allowed_s = min(_ADOPTED_S, self._expiry_s) if client.is_adopted else self._expiry_s
            if client.seen < now - allowed_s:
                logger.info("client expired id=%s", client.client_id)
                self._remove(client)

    def _remove(self, client: Client) -> None:
        if self._clients.pop(client.key, None) is not None:
            self._size_bytes -= client.size_bytes
        self._drop_producer(client)
        for subscriber in self.gone:
            subscriber(client)

    def _drop_producer(self, client: Client) -> None:
        for topic in client.topics:
            others = self._producers.get(topic)
            if others is not None:
                others.pop(client.key, None)
                if not others:
                    del self._producers[topic]
        client.topics = frozenset()

    def producers(self, topic: str) -> list[Client]:
        """Returns the producers of a topic that have an open telemetry stream."""
        return [
            client
            for client in self._producers.get(topic, {}).values()
            if client.stream is not None and not client.stream.done
        ]

    def published_topics(self) -> list[str]:
        return list(self._producers)

    def consumers(self, group: str) -> list[Client]:
        return [client for client in self._clients.values() if client.group == group and client.is_consumer]


def merged_settings(
    config: ProxyConfig, asked: pb.Settings, group: SubscriptionGroupConfig | None
) -> pb.Settings:
    """Returns the client's settings, completed and overridden with the server's values."""
    settings = pb.Settings()
    settings.CopyFrom(asked)
    settings.metric.Clear()
    settings.metric.SetInParent()
    if settings.WhichOneof("pub_sub") == "publishing":
        settings.publishing.max_body_size = config.body_bytes_max
        settings.publishing.validate_message_type = config.check_message_type
        settings.backoff_policy.Clear()
        settings.backoff_policy.max_attempts = config.producer_attempts
        backoff = settings.backoff_policy.exponential_backoff
        backoff.initial.FromMilliseconds(config.producer_backoff_initial_ms)
        backoff.max.FromMilliseconds(config.producer_backoff_max_ms)
        backoff.multiplier = config.producer_backoff_multiplier
        return settings
    subscription = settings.subscription
    subscription.fifo = group is not None and group.consume_message_orderly
    subscription.receive_batch_size = config.batch_size
    subscription.long_polling_timeout.FromMilliseconds(config.polling_max_ms)
    subscription.lite_subscription_quota = config.lite_quota
    subscription.max_lite_topic_size = config.lite_topic_bytes
    policy = settings.backoff_policy
    policy.Clear()
    policy.max_attempts = attempts_of(group)
    retry = None if group is None else group.group_retry_policy
    if retry is not None and retry.type is RetryPolicyType.EXPONENTIAL:
        exponential = retry.exponential_retry_policy or ExponentialRetryPolicy()
        policy.exponential_backoff.initial.FromMilliseconds(exponential.initial)
        policy.exponential_backoff.max.FromMilliseconds(exponential.max)
        policy.exponential_backoff.multiplier = exponential.multiplier
    else:
        customized = (None if retry is None else retry.customized_retry_policy) or CustomizedRetryPolicy()
        for delay_ms in customized.next or DelayLevels().delays_ms:
            policy.customized_backoff.next.add().FromMilliseconds(delay_ms)
    return settings


def attempts_of(group: SubscriptionGroupConfig | None) -> int:
    """Returns after how many deliveries a message is dead-lettered."""
    return (16 if group is None else group.retry_max_times) + 1

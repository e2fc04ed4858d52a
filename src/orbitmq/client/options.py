"""Client settings. Values are frozen, names include the units, and values out of range are refused immediately.

They correspond to Apache's ClientConfig, DefaultMQProducer, DefaultMQPushConsumer and DefaultLitePullConsumer.
"""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from datetime import datetime
from numbers import Integral, Real
from typing import Any, Final, Literal, TypeVar

from orbitmq.client.delays import moment_ms
from orbitmq.client.surroundings import keys_given, tls_given
from orbitmq.codes import SerializeType
from orbitmq.errors import ConfigError
from orbitmq.model.names import AUTO_CREATE_TOPIC, TRACE_TOPIC
from orbitmq.model.rebalance import Strategy, allocate_averagely
from orbitmq.model.route import MessageQueue
from orbitmq.record.compression import COMPRESSION_LEVEL, Compression
from orbitmq.transport.tls import verifying_context
from orbitmq.wire.bodies import ConsumeFromWhere, MessageModel

__all__ = [
    "ClientOptions",
    "ConsumerOptions",
    "Credentials",
    "LitePullOptions",
    "ProducerOptions",
    "PushOptions",
    "build_options",
]

_MIB: Final = 1024 * 1024
QueuesCallback = Callable[[list[MessageQueue]], Awaitable[None] | None]
Start = Literal["first", "last"] | datetime
T = TypeVar("T", bound="ClientOptions")


def _between(default: Any, low: float, high: float) -> Any:
    """Returns a field for a number with bounds, which are checked when the options are created."""
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, slots=True)
class Credentials:
    """Keys for access control. Every request is signed with them."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Settings that producers and consumers share."""

    instance_name: str = ""
    """Part of the client id. Empty: each client gets its own (``DEFAULT`` for broadcasting consumers)."""
    client_ip: str = ""
    """Part of the client id. Empty: this machine's address."""
    unit_name: str = ""
    namespace: str = ""
    """Prefixed to every topic and group on the wire, and removed from received messages."""
    credentials: Credentials | None = None
    tls: ssl.SSLContext | bool | None = None
    """True: servers need a certificate for the name or address they are reached by, signed by an authority that this
    machine trusts. Pass a context for anything else; see ``orbitmq.client_context``."""
    serialize: SerializeType = SerializeType.ROCKETMQ
    """Format of the headers. The binary form is half the size and cheaper to read for every broker since 4.0."""
    connect_timeout_s: float = _between(3.0, 0.001, 3600)
    call_timeout_s: float = _between(3.0, 0.001, 3600)
    """For all calls except sends and pulls."""
    route_refresh_s: float = _between(30.0, 0.01, 3600)
    heartbeat_s: float = _between(30.0, 0.01, 3600)
    name_server_lookup_s: float = _between(120.0, 0.01, 86_400)
    """How often the page is read again when ``name_servers`` is a web address (``http://...``)."""
    close_wait_s: float = _between(10.0, 0, 3600)
    """How long a stop waits for handlers and answers."""

    def __post_init__(self) -> None:
        if isinstance(self.tls, bool):
            object.__setattr__(self, "tls", verifying_context() if self.tls else None)
        for option in fields(self):
            low, high = option.metadata.get("low"), option.metadata.get("high")
            if low is None:
                continue
            value = getattr(self, option.name)
            whole = isinstance(option.default, int)
            if type(value) is bool or not isinstance(value, Integral if whole else Real):
                wanted = "a whole number" if whole else "a number"
                raise ConfigError(f"{option.name} is {value!r}; {wanted} is accepted")
            if not low <= value <= high:
                raise ConfigError(f"{option.name} is {value!r}; {low} to {high} is accepted")

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context that the setting ``tls`` selects; None for plain connections."""
        assert not isinstance(self.tls, bool), "replaced at construction"
        return self.tls


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """Settings of a producer."""

    send_timeout_s: float = _between(3.0, 0.001, 3600)
    """For one send, all attempts together; with ``idempotent``, for each attempt."""
    retries: int = _between(2, 0, 100)
    """Further attempts after the first, each on another broker where there is one."""
    retry_when_not_safe: bool = False
    """Try another broker when a message was stored but not flushed or replicated in time."""
    idempotent: bool = False
    """Retry a send without an answer on the same broker, which stores it once (orbitmq brokers only). Then
    ``send_timeout_s`` limits each attempt, and ``delivery_timeout_s`` all of them."""
    delivery_timeout_s: float = _between(60.0, 0.001, 3600)
    """With ``idempotent``: the time for one send, all attempts together."""
    retry_codes: frozenset[int] = frozenset()
    """Response codes to retry in addition to those that every client retries."""
    compress_over_bytes: int = _between(4096, 0, 2**31 - 1)
    compression: Compression = Compression.ZLIB
    compression_level: int = _between(COMPRESSION_LEVEL, 0, 9)
    message_bytes_max: int = _between(4 * _MIB, 1, 2**31 - 1)
    auto_create_topic: str = AUTO_CREATE_TOPIC
    auto_create_queue_count: int = _between(4, 1, 65_535)
    avoid_slow_brokers: bool = False
    """Avoid brokers for a while that answer slowly or not at all."""
    trace: bool = False
    trace_topic: str = TRACE_TOPIC
    check_threads: int = _between(1, 1, 1000)
    """Threads for a transaction check that is a plain function."""
    batch_linger_s: float = _between(0.0, 0, 60)
    """Above 0, single sends wait this long for others to share a request with (see ``Accumulator``)."""
    batch_bytes: int = _between(32 * 1024, 1, 4 * _MIB)
    batch_total_bytes: int = _between(32 * _MIB, 1, 2**31 - 1)
    max_in_flight: int = _between(4096, 1, 60_000)
    """Sends that may wait for their answers. Further ones wait for a slot, and their time begins then."""
    max_in_flight_bytes: int = _between(32 * _MIB, 1, 1024 * _MIB)
    """The same, in bytes of bodies. A single larger message is sent on its own."""


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """Settings that all consumers share."""

    model: MessageModel = MessageModel.CLUSTERING
    from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    from_timestamp_ms: int = _between(0, 0, 2**63 - 1)
    """With ``ConsumeFromWhere.TIMESTAMP``; 0 means half an hour ago."""
    strategy: Strategy = allocate_averagely
    rebalance_s: float = _between(20.0, 0.05, 3600)
    rebalance_spacing_s: float = _between(0.2, 0, 60)
    """Shortest time between two rebalances, however many changes are announced."""
    offset_persist_s: float = _between(5.0, 0.01, 3600)
    offset_directory: str = ""
    """Where broadcasting consumers keep offsets. Empty: ``~/.rocketmq_offsets``, like the Java client."""
    pull_batch_size: int = _between(32, 1, 1024)
    pull_bytes: int = _between(256 * 1024, 1, 2**31 - 1)
    cached_count_max: int = _between(1000, 1, 65_535)
    """Messages of one queue in memory before pulling pauses."""
    cached_bytes_max: int = _between(100 * _MIB, 1, 1024 * _MIB)
    suspend_s: float = _between(15.0, 0.001, 3600)
    """How long a broker may hold a pull that finds nothing."""
    pull_timeout_s: float = _between(30.0, 0.001, 3600)
    pull_error_pause_s: float = _between(1.0, 0.001, 3600)
    trace: bool = False
    trace_topic: str = TRACE_TOPIC
    start: Start | None = None
    """Where a new group begins: ``"first"``, ``"last"`` or a datetime; replaces ``from_where``."""
    broadcast: bool = False
    """Every member gets everything; the same as ``model=MessageModel.BROADCASTING``."""
    on_assigned: QueuesCallback | None = None
    """Called, and awaited if it is a coroutine function, with the queues this member is about to consume."""
    on_revoked: QueuesCallback | None = None
    """Called with the queues it is about to release; their offsets are stored afterwards."""

    def __post_init__(self) -> None:
        ClientOptions.__post_init__(self)
        # Frozen: the values are the same as if the options had been created by their Java names.
        if self.broadcast:
            object.__setattr__(self, "model", MessageModel.BROADCASTING)
        if self.start is not None:
            where, timestamp_ms = _start(self.start)
            object.__setattr__(self, "from_where", where)
            object.__setattr__(self, "from_timestamp_ms", timestamp_ms)


def _start(start: Start) -> tuple[ConsumeFromWhere, int]:
    if start == "first":
        return ConsumeFromWhere.FIRST_OFFSET, 0
    if start == "last":
        return ConsumeFromWhere.LAST_OFFSET, 0
    if isinstance(start, datetime):
        return ConsumeFromWhere.TIMESTAMP, moment_ms(start)
    raise ConfigError(f'start is {start!r}; "first", "last" or a datetime is accepted')


@dataclass(frozen=True, kw_only=True)
class PushOptions(ConsumerOptions):
    """Settings of a push consumer."""

    orderly: bool = False
    """One message of a queue at a time, in order; the queue is locked in the broker."""
    workers: int = _between(20, 1, 1000)
    """Handlers that may run at once: threads for plain functions, tasks for coroutines."""
    pull_interval_s: float = _between(0.0, 0, 65.535)
    span_max: int = _between(2000, 1, 65_535)
    """Largest distance between the oldest and the newest offset in memory (not when orderly)."""
    cached_count_max_per_topic: int = _between(0, 0, 6_553_500)
    """Above 0: divided among the queues held of the topic."""
    cached_bytes_max_per_topic: int = _between(0, 0, 2**31 - 1)
    reconsume_max: int = _between(-1, -1, 2**31 - 1)
    """-1: 16 times, or without limit when orderly.
    """
    suspend_queue_s: float = _between(1.0, 0.01, 30)
    """Orderly: pause before a failed message is tried again."""
    consume_timeout_s: float = _between(900.0, 0.01, 86_400)
    """A message whose handler takes longer is sent back for another attempt."""
    post_subscription: bool = False
    on_queues_changed: Callable[[str, list[Any], list[Any]], None] | None = None
    """Called with the topic, all queues and own queues after a rebalance."""
    server_rebalance: bool = False
    """Let the broker assign the queues, and decide whether to pull or to pop them (Java: clientRebalance=false)."""
    pop_invisible_s: float = _between(60.0, 0.001, 86_400)
    """Popped messages are redelivered if they are not finished after this time."""
    pop_batch_size: int = _between(32, 1, 32)
    pop_count_max: int = _between(96, 1, 65_535)
    """Popped messages of one queue in memory before popping pauses."""


@dataclass(frozen=True, kw_only=True)
class LitePullOptions(ConsumerOptions):
    """Settings of a lite pull consumer."""

    auto_commit: bool = True
    auto_commit_s: float = _between(5.0, 0.05, 3600)
    poll_batch_size: int = _between(10, 1, 1024)
    cached_count_max_all: int = _between(10_000, 1, 1_000_000)
    suspend_s: float = _between(20.0, 0.001, 3600)


@dataclass(frozen=True, kw_only=True)
class SimpleOptions(ConsumerOptions):
    """Settings of a simple consumer."""

    from_where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET
    invisible_s: float = _between(30.0, 0, 86_400)
    """How long received messages are hidden, unless a call says otherwise."""
    await_s: float = _between(15.0, 0, 3600)
    """How long a call waits for messages, unless it says otherwise."""


def build_options(kind: type[T], options: T | None, settings: dict[str, Any]) -> T:
    """Returns options from an object, from keyword arguments, or from both. Keyword arguments win."""
    known = {option.name for option in fields(kind)}
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ConfigError(_unknown_settings(unknown, known, kind.__name__))
    settings = _from_environment(kind, options, settings) | settings
    if options is None:
        return kind(**settings)
    if not settings:
        return options
    values = {name: getattr(options, name) for name in known}
    return kind(**(values | settings))


def _unknown_settings(unknown: list[str], known: set[str], kind: str) -> str:
    """Returns an error text that suggests a setting for each unknown one, or lists all settings."""
    texts, near = [], False
    for name in unknown:
        found = difflib.get_close_matches(name, sorted(known), n=2)
        near |= bool(found)
        texts.append(name + (f" (did you mean {' or '.join(found)}?)" if found else ""))
    return f"no such setting: {', '.join(texts)}" + (
        "" if near else f"; {kind} has {', '.join(sorted(known))}"
    )


def _from_environment(
    kind: type[Any], options: ClientOptions | None, settings: dict[str, Any]
) -> dict[str, Any]:
    """Returns keys and TLS from the environment, if neither the options object nor the arguments set them."""
    found: dict[str, Any] = {}
    if not issubclass(kind, ClientOptions):
        return found
    if "credentials" not in settings and (options is None or options.credentials is None):
        keys = keys_given()
        if keys is not None:
            found["credentials"] = Credentials(*keys)
    if "tls" not in settings and (options is None or options.tls is None):
        tls = tls_given()
        if tls is not None:
            found["tls"] = tls
    return found

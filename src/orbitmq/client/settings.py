"""Client settings as keyword arguments, for type checkers and editors. They are documented in ``options.py``; a test
keeps the two consistent."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any, TypedDict

from orbitmq.client.options import Credentials, QueuesCallback, Start
from orbitmq.codes import SerializeType
from orbitmq.model.rebalance import Strategy
from orbitmq.record.compression import Compression
from orbitmq.wire.bodies import ConsumeFromWhere, MessageModel

__all__ = [
    "ClientSettings",
    "ConsumerSettings",
    "LitePullSettings",
    "ProducerSettings",
    "PushSettings",
    "SimpleSettings",
]


class ClientSettings(TypedDict, total=False):
    """Keyword arguments with the names of ``ClientOptions``."""

    instance_name: str
    client_ip: str
    unit_name: str
    namespace: str
    credentials: Credentials | None
    tls: ssl.SSLContext | bool | None
    serialize: SerializeType
    connect_timeout_s: float
    call_timeout_s: float
    route_refresh_s: float
    heartbeat_s: float
    name_server_lookup_s: float
    close_wait_s: float


class ProducerSettings(ClientSettings, total=False):
    """Keyword arguments with the names of ``ProducerOptions``."""

    send_timeout_s: float
    retries: int
    retry_when_not_safe: bool
    idempotent: bool
    delivery_timeout_s: float
    retry_codes: frozenset[int]
    compress_over_bytes: int
    compression: Compression
    compression_level: int
    message_bytes_max: int
    auto_create_topic: str
    auto_create_queue_count: int
    avoid_slow_brokers: bool
    trace: bool
    trace_topic: str
    check_threads: int
    batch_linger_s: float
    batch_bytes: int
    batch_total_bytes: int
    max_in_flight: int
    max_in_flight_bytes: int


class ConsumerSettings(ClientSettings, total=False):
    """Keyword arguments with the names of ``ConsumerOptions``."""

    model: MessageModel
    from_where: ConsumeFromWhere
    from_timestamp_ms: int
    strategy: Strategy
    rebalance_s: float
    rebalance_spacing_s: float
    offset_persist_s: float
    offset_directory: str
    pull_batch_size: int
    pull_bytes: int
    cached_count_max: int
    cached_bytes_max: int
    suspend_s: float
    pull_timeout_s: float
    pull_error_pause_s: float
    trace: bool
    trace_topic: str
    start: Start | None
    broadcast: bool
    on_assigned: QueuesCallback | None
    on_revoked: QueuesCallback | None


class PushSettings(ConsumerSettings, total=False):
    """Keyword arguments with the names of ``PushOptions``."""

    orderly: bool
    workers: int
    pull_interval_s: float
    span_max: int
    cached_count_max_per_topic: int
    cached_bytes_max_per_topic: int
    reconsume_max: int
    suspend_queue_s: float
    consume_timeout_s: float
    post_subscription: bool
    on_queues_changed: Callable[[str, list[Any], list[Any]], None] | None
    server_rebalance: bool
    pop_invisible_s: float
    pop_batch_size: int
    pop_count_max: int


class LitePullSettings(ConsumerSettings, total=False):
    """Keyword arguments with the names of ``LitePullOptions``."""

    auto_commit: bool
    auto_commit_s: float
    poll_batch_size: int
    cached_count_max_all: int


class SimpleSettings(ConsumerSettings, total=False):
    """Keyword arguments with the names of ``SimpleOptions``."""

    invisible_s: float
    await_s: float

"""The client: producers and consumers. They are written for asyncio; ``orbitmq.client.sync`` has the same with
blocking calls."""

from __future__ import annotations

from orbitmq.client.consume.class_filter import ClassFilter
from orbitmq.client.consume.cursor import Cursor
from orbitmq.client.consume.handlers import ConsumeContext, ConsumeHook, ConsumeResult, HandlerContext
from orbitmq.client.consume.lite_pull_consumer import LitePullConsumer
from orbitmq.client.consume.popper import PoppedMessage
from orbitmq.client.consume.pull_consumer import PullConsumer
from orbitmq.client.consume.puller import PullResult, PullStatus
from orbitmq.client.consume.push_consumer import PushConsumer
from orbitmq.client.consume.simple_consumer import SimpleConsumer
from orbitmq.client.errors import (
    BodyMismatch,
    ClientClosedError,
    ClientError,
    ClientStateError,
    ForkedError,
    NameServerError,
    NoRouteError,
    OffsetOutOfRangeError,
    ReplyTimeoutError,
    RetryLater,
    SendConnectionError,
    SendFailed,
    SendTimeoutError,
    TooManyInFlightError,
)
from orbitmq.client.message import Message, ReceivedMessage, SendResult, SendStatus, TransactionState
from orbitmq.client.options import (
    ClientOptions,
    ConsumerOptions,
    Credentials,
    LitePullOptions,
    ProducerOptions,
    PushOptions,
    SimpleOptions,
)
from orbitmq.client.produce.producer import Producer
from orbitmq.client.produce.queue_picker import select_by_hash
from orbitmq.client.produce.sender import SendContext, SendHook
from orbitmq.client.produce.transactions import TransactionBlock
from orbitmq.errors import (
    BrokerError,
    ConfigError,
    ConnectFailedError,
    ConnectionLostError,
    OrbitError,
    RequestTimeoutError,
)
from orbitmq.model.rebalance import (
    allocate_averagely,
    allocate_averagely_by_circle,
    allocate_by_config,
    allocate_by_consistent_hash,
    allocate_by_machine_room,
    allocate_nearby,
)
from orbitmq.model.route import MessageQueue
from orbitmq.record.compression import Compression
from orbitmq.transport.tls import client_context
from orbitmq.wire.bodies import ConsumeFromWhere, MessageModel

__all__ = [
    "BodyMismatch",
    "BrokerError",
    "ClassFilter",
    "ClientClosedError",
    "ClientError",
    "ClientOptions",
    "ClientStateError",
    "Compression",
    "ConfigError",
    "ConnectFailedError",
    "ConnectionLostError",
    "ConsumeContext",
    "ConsumeFromWhere",
    "ConsumeHook",
    "ConsumeResult",
    "ConsumerOptions",
    "Credentials",
    "Cursor",
    "ForkedError",
    "HandlerContext",
    "LitePullConsumer",
    "LitePullOptions",
    "Message",
    "MessageModel",
    "MessageQueue",
    "NameServerError",
    "NoRouteError",
    "OffsetOutOfRangeError",
    "OrbitError",
    "PoppedMessage",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushOptions",
    "ReceivedMessage",
    "ReplyTimeoutError",
    "RequestTimeoutError",
    "RetryLater",
    "SendConnectionError",
    "SendContext",
    "SendFailed",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SendTimeoutError",
    "SimpleConsumer",
    "SimpleOptions",
    "TooManyInFlightError",
    "TransactionBlock",
    "TransactionState",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "allocate_by_config",
    "allocate_by_consistent_hash",
    "allocate_by_machine_room",
    "allocate_nearby",
    "client_context",
    "select_by_hash",
]

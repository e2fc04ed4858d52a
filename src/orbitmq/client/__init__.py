"""The client: producers and consumers, asyncio first, with a plain facade in ``orbitmq.client.sync``."""

from __future__ import annotations

from orbitmq.client.consume.class_filter import ClassFilter
from orbitmq.client.consume.handlers import ConsumeContext, ConsumeHook, ConsumeResult
from orbitmq.client.consume.lite_pull_consumer import LitePullConsumer
from orbitmq.client.consume.popper import PoppedMessage
from orbitmq.client.consume.pull_consumer import PullConsumer
from orbitmq.client.consume.puller import PullResult, PullStatus
from orbitmq.client.consume.push_consumer import PushConsumer
from orbitmq.client.consume.simple_consumer import SimpleConsumer
from orbitmq.client.errors import (
    ClientClosedError,
    ClientError,
    ClientStateError,
    ForkedError,
    NameServerError,
    NoRouteError,
    OffsetOutOfRangeError,
    ReplyTimeoutError,
    RetryLater,
    SendFailed,
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
from orbitmq.wire.bodies import ConsumeFromWhere, MessageModel

__all__ = [
    "ClassFilter",
    "ClientClosedError",
    "ClientError",
    "ClientOptions",
    "ClientStateError",
    "Compression",
    "ConsumeContext",
    "ConsumeFromWhere",
    "ConsumeHook",
    "ConsumeResult",
    "ConsumerOptions",
    "Credentials",
    "ForkedError",
    "LitePullConsumer",
    "LitePullOptions",
    "Message",
    "MessageModel",
    "MessageQueue",
    "NameServerError",
    "NoRouteError",
    "OffsetOutOfRangeError",
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
    "RetryLater",
    "SendContext",
    "SendFailed",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
    "SimpleOptions",
    "TooManyInFlightError",
    "TransactionState",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "allocate_by_config",
    "allocate_by_consistent_hash",
    "allocate_by_machine_room",
    "allocate_nearby",
    "select_by_hash",
]

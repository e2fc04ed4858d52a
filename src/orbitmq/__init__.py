"""orbitmq: Apache RocketMQ, rebuilt in Python. Importing this package does nothing else.

The names of the client (``orbitmq.Producer``, ``orbitmq.PushConsumer``, ``orbitmq.Message``, ...) and the module
``orbitmq.sync`` are loaded when they are first used.
"""

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
    "__version__",
    "allocate_averagely",
    "allocate_averagely_by_circle",
    "allocate_by_config",
    "allocate_by_consistent_hash",
    "allocate_by_machine_room",
    "allocate_nearby",
    "client_context",
    "select_by_hash",
    "sync",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    import importlib

    if name == "sync":
        return importlib.import_module("orbitmq.sync")
    if name not in __all__:  # also a submodule's name: the import system looks here before it loads one
        raise AttributeError(f"module 'orbitmq' has no attribute {name!r}")
    return getattr(importlib.import_module("orbitmq.client"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

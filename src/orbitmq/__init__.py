"""orbitmq: Apache RocketMQ, rebuilt in Python. Importing this package does nothing else.

The names of the client (``orbitmq.Producer``, ``orbitmq.PushConsumer``, ``orbitmq.Message``, ...) and the module
``orbitmq.sync`` are loaded when they are first used.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    import importlib

    if name == "sync":
        return importlib.import_module("orbitmq.client.sync")
    client = importlib.import_module("orbitmq.client")
    if name in client.__all__:
        return getattr(client, name)
    raise AttributeError(f"module 'orbitmq' has no attribute {name!r}")

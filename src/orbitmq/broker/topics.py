"""The topics of this broker (Apache: TopicConfigManager, file ``topics.json``).

Invariants
1. Configs are replaced, never changed in place: whoever holds one sees a consistent whole.
2. Every change bumps the data version, is saved, and is reported through ``on_change``, in this order.
3. Built-in topics are made at start and come back if the file lacks them; the file wins over their defaults.
"""

from __future__ import annotations

from collections.abc import Callable

from orbitmq.broker.config import BrokerConfig
from orbitmq.model.data_version import DataVersion
from orbitmq.model.topic import TopicConfig
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.safe_file import SafeFile

__all__ = ["TopicTable"]


class TopicTable:
    """Topic configs by name."""

    def __init__(self, config: BrokerConfig, clock: Clock, file: SafeFile) -> None:
        self.configs: dict[str, TopicConfig] = {}
        self.data_version = DataVersion()
        self.on_change: Callable[[TopicConfig], None] | None = None

    def find(self, topic: str) -> TopicConfig | None:
        return self.configs.get(topic)

    def create_in_send(
        self, topic: str, default_topic: str, client_queue_count: int, sys_flag: int = 0
    ) -> TopicConfig | None:
        """The topic, created from ``default_topic`` when that is allowed; None when it is not."""
        raise NotImplementedError

    def create_in_send_back(
        self, topic: str, queue_count: int, perm: int, sys_flag: int = 0, *, order: bool = False
    ) -> TopicConfig:
        """A retry or dead letter topic, created when it is missing."""
        raise NotImplementedError

    def update(self, config: TopicConfig) -> None:
        raise NotImplementedError

    def delete(self, topic: str) -> bool:
        raise NotImplementedError

    def load(self) -> None:
        raise NotImplementedError

    def persist(self) -> None:
        raise NotImplementedError

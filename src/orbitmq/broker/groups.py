"""The subscription groups of this broker (Apache: SubscriptionGroupManager, file ``subscriptionGroup.json``)."""

from __future__ import annotations

from orbitmq.broker.config import BrokerConfig
from orbitmq.model.data_version import DataVersion
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.runtime.clock import Clock
from orbitmq.runtime.safe_file import SafeFile

__all__ = ["GroupTable"]


class GroupTable:
    """Group configs by name, and which topics a group may not read."""

    def __init__(self, config: BrokerConfig, clock: Clock, file: SafeFile) -> None:
        self.configs: dict[str, SubscriptionGroupConfig] = {}
        self.data_version = DataVersion()

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The config of a group, created when groups may be created on first use."""
        raise NotImplementedError

    def read_forbidden(self, group: str, topic: str) -> bool:
        """Whether the group is barred from reading the topic."""
        raise NotImplementedError

    def update(self, config: SubscriptionGroupConfig) -> None:
        raise NotImplementedError

    def delete(self, group: str) -> bool:
        raise NotImplementedError

    def load(self) -> None:
        raise NotImplementedError

    def persist(self) -> None:
        raise NotImplementedError

"""Telling the name servers who we are and what topics we have (Apache: BrokerOuterAPI, registerBrokerAll)."""

from __future__ import annotations

from collections.abc import Callable

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.topics import TopicTable
from orbitmq.model.topic import TopicConfig
from orbitmq.transport.client import RpcClient

__all__ = ["Registration"]


class Registration:
    """Keeps this broker registered with every name server."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, rpc: RpcClient) -> None:
        self.on_master: Callable[[str, str], None] | None = None
        """A slave is told its master's address and HA address, each time an answer carries them."""

    async def start(self, address: str, ha_address: str) -> None:
        """Register with all name servers, then keep doing it in the background."""
        raise NotImplementedError

    def topic_changed(self, topic: TopicConfig) -> None:
        """Register one topic at once, in the background; the hook for ``TopicTable.on_change``."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Register everything again now, in the background."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Unregister from all name servers, within a bound."""
        raise NotImplementedError

"""Protects the broker from consumers that read far back in the log (Apache: protectBroker).

Old messages are no longer in the page cache, so a group that reads them slows down all others. If
``disableConsumeIfConsumerReadSlowly`` is set, a group that is too far behind is stopped from consuming until an admin
allows it again. A group's position is taken from its last pulls, so this costs nothing per message.
"""

from __future__ import annotations

import logging
from typing import Final

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.offsets import ConsumerOffsets
from orbitmq.store.message_store import MessageStore

__all__ = ["SLOW_CHECK_S", "SlowConsumers"]

logger = logging.getLogger(__name__)

SLOW_CHECK_S: Final = 180.0


class SlowConsumers:
    """Finds groups that lag too far behind, and stops them."""

    def __init__(
        self, *, config: BrokerConfig, offsets: ConsumerOffsets, groups: GroupTable, store: MessageStore
    ) -> None:
        self._config = config
        self._offsets = offsets
        self._groups = groups
        self._store = store

    def check(self) -> None:
        """Stop consumption by groups whose lag exceeds the limit, if ``slow_consumers_disabled`` is set. Called every
        ``SLOW_CHECK_S`` seconds."""
        if not self._config.slow_consumers_disabled:
            return
        for group, behind_bytes in self.lags().items():
            known = self._groups.configs.get(group)
            if behind_bytes > self._config.slow_consumer_bytes and known is not None and known.consume_enable:
                logger.warning(
                    "group stopped, its lag exceeds the limit group=%s behind_bytes=%d", group, behind_bytes
                )
                self._groups.disable_consume(group)

    def lags(self) -> dict[str, int]:
        """Returns each group's lag in its slowest queue, as the number of bytes between its last pull and the end of
        the log."""
        end = self._store.max_log_offset
        worst: dict[str, int] = {}
        for key, queues in self._offsets.pulled.items():
            topic, _, group = key.partition("@")
            for queue_id, queue_offset in queues.items():
                # A pull at the end of its queue is not behind, however old the last message is.
                log_offset = self._store.log_offset_at(topic, queue_id, queue_offset)
                if log_offset >= 0:
                    worst[group] = max(worst.get(group, 0), end - log_offset)
        return worst

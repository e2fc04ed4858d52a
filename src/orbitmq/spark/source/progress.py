"""Mirrors the offsets of a streaming query in a consumer group, so that any lag monitor shows the query's lag.

The checkpoint is authoritative; the group is only for people and tools. So the group's offsets are never read, and a
failure to update them is merely logged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from orbitmq.errors import OrbitError
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.cluster import Cluster
from orbitmq.spark.pool import is_passing
from orbitmq.spark.source.planning import QueueKey, QueueOffsets

__all__ = ["GroupMirror"]

logger = logging.getLogger(__name__)

_QUIET_S: Final = 5.0


class GroupMirror:
    """Copies changed offsets to one consumer group."""

    def __init__(self, cluster: Cluster, group: str | None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._cluster = cluster
        self._group = group
        self._clock = clock
        self._shown: QueueOffsets = {}
        self._listed: set[str] = set()
        self._failing_since: float | None = None
        self._warned = False

    def show(self, done: Mapping[QueueKey, int]) -> None:
        """Publishes the offsets up to which everything has been processed and committed by the sink."""
        if self._group is None:
            return
        changed = {key: offset for key, offset in done.items() if self._shown.get(key) != offset}
        if not changed:
            return
        try:
            done_now = self._cluster.commit(self._group, changed)
        except OrbitError as error:
            self._failed(error)
            return
        self._failing_since, self._warned = None, False
        self._shown.update(done_now)
        self._list(done_now)

    def _list(self, done: Mapping[QueueKey, int]) -> None:
        """Makes the group visible to tools on brokers that store offsets of it for the first time."""
        new = [key for key in done if key.broker not in self._listed]
        if self._group is None or not new:
            return
        try:
            self._listed |= self._cluster.show_group(self._group, new)
        except OrbitError as error:
            if not is_passing(error):
                self._listed |= {key.broker for key in new}
                logger.warning(
                    "group is not listed by tools, its retry topic was refused group=%s error=%s",
                    self._group,
                    error,
                )

    def _failed(self, error: OrbitError) -> None:
        """Logs a failure once, if it lasts. The first attempts may fail, because a broker creates a group at its
        first pull, which comes after the first offsets. Spark calls this some 70 times a second."""
        now = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        elif not self._warned and now - self._failing_since > _QUIET_S:
            self._warned = True
            logger.warning("offsets of the group not set, trying again group=%s error=%s", self._group, error)

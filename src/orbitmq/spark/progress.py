"""A consumer group whose offsets follow a streaming query, so that its lag shows wherever lag is shown.

The checkpoint is the truth; the group is a mirror of it for people and tools. So a failure to set it is a log line,
and nothing is ever read from it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from orbitmq.errors import OrbitError
from orbitmq.spark.cluster import Cluster
from orbitmq.spark.planning import QueueKey, QueueOffsets

__all__ = ["GroupMirror"]

logger = logging.getLogger(__name__)


class GroupMirror:
    """Sets the offsets of one group, those that changed."""

    def __init__(self, cluster: Cluster, group: str | None) -> None:
        self._cluster = cluster
        self._group = group
        self._shown: QueueOffsets = {}

    def show(self, done: Mapping[QueueKey, int]) -> None:
        """Everything before these offsets has been processed and committed by the sink."""
        if self._group is None:
            return
        changed = {key: offset for key, offset in done.items() if self._shown.get(key) != offset}
        if not changed:
            return
        try:
            self._cluster.commit(self._group, changed)
        except OrbitError as error:
            logger.warning(
                "offsets of the group not set, trying again later group=%s error=%s", self._group, error
            )
            return
        self._shown.update(changed)

"""Computes how far a streaming query is behind its topics, from Spark's progress reports.

::

    from orbitmq.spark.lag import lag_listener

    spark.streams.addListener(lag_listener(print))  # Lag(query='orders', batch_id=7, topics={'orders': 120})

Spark has no metrics for Python sources, but it reports where a batch ended and where the queues end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

__all__ = ["Lag", "lag_by_topic", "lag_listener"]


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag after a micro-batch, or while a query is idle."""

    query: str
    """The query's name, or its id if it has no name."""
    batch_id: int
    topics: Mapping[str, int]
    """Unread messages by topic."""


def lag_by_topic(progress: Mapping[str, Any]) -> dict[str, int]:
    """Returns the number of unread messages by topic, from a progress in Spark's form
    (``json.loads(query.lastProgress.json)``).

    Sources of other formats are ignored. A queue that appeared after the batch counts from offset 0.
    """
    lag: dict[str, int] = {}
    for source in progress.get("sources") or ():
        reached, newest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        for topic, brokers in newest.items():
            if not isinstance(brokers, Mapping):
                continue
            for broker, queues in brokers.items():
                # Lists belong to "lost ranges", an entry next to the topics.
                if isinstance(queues, Mapping):
                    done = (reached.get(topic) or {}).get(broker) or {}
                    behind = sum(max(end - done.get(queue, 0), 0) for queue, end in queues.items())
                    lag[topic] = lag.get(topic, 0) + behind
    return lag


def lag_listener(report: Callable[[Lag], None]) -> StreamingQueryListener:
    """Returns a listener for ``spark.streams.addListener``. It calls ``report`` after each batch that reads topics,
    on one of Spark's threads."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802  # the name is Spark's
            """Does nothing, because lag is only reported after a batch."""

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
            progress = event.progress
            topics = lag_by_topic(json.loads(progress.json))
            if topics:
                report(Lag(progress.name or str(progress.id), progress.batchId, topics))

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """Does nothing, because lag is only reported after a batch."""

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
            """Does nothing, because lag is only reported after a batch."""

    return Listener()


def _offsets(value: Any) -> Mapping[str, Any]:
    """Returns the offsets that one of our sources reported; empty for other sources."""
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return parsed if isinstance(parsed, Mapping) else {}

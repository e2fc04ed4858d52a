"""What the driver asks the cluster: which queues there are, where they begin and end, where a moment lies in them.

Answers come from masters alone: a slave may lag, and an end that goes back would look like lost messages. Spark asks
for the latest offsets some 70 times a second while a stream is idle, so routes and ends are kept for a moment.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from orbitmq.codes import RequestCode, ResponseCode
from orbitmq.errors import (
    BrokerError,
    ConfigError,
    ConnectionLostError,
    OrbitError,
    TopicNotFound,
    error_for_code,
)
from orbitmq.model.names import is_dlq_topic, is_retry_topic, is_system_topic
from orbitmq.model.route import BrokerData, TopicRoute
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.planning import QueueKey, QueueOffsets
from orbitmq.spark.pool import Question, ask_name_servers, borrow, give_back, patiently
from orbitmq.wire.bodies import TopicList, decode_route
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import Header, decode_header
from orbitmq.wire.headers import (
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    GetRouteinfoByTopicRequest,
    OffsetResponse,
    SearchOffsetByTimestampRequest,
    UpdateConsumerOffsetRequest,
)
from orbitmq.wire.headers.base import Empty

__all__ = ["Cluster", "fetch_route"]

logger = logging.getLogger(__name__)

HeaderOf = Callable[[QueueKey], Header]

_CALL_TIMEOUT_S: Final = 5.0
_END_KEPT_S: Final = 0.05
_QUESTIONS_AT_ONCE: Final = 500


def fetch_route(options: SourceOptions, topic: str) -> TopicRoute:
    """Ask a name server. Raises ``TopicNotFound`` and connection errors."""
    header = GetRouteinfoByTopicRequest(topic=topic, accept_standard_json_only=True)
    answer = ask_name_servers(
        options.access, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_s=_CALL_TIMEOUT_S
    )
    return decode_route(answer.body)


class Cluster:
    """The topics of one query. Lives on the driver; never pickled."""

    def __init__(self, options: SourceOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._retry_s = options.retry_timeout_ms / 1000
        self._routes: dict[str, TopicRoute] = {}
        self._routes_at: float | None = None
        self._ends: QueueOffsets = {}
        self._ends_at: float | None = None

    # -- queues ----------------------------------------------------------------------------------------

    def queues(self, *, expected: bool = False) -> list[QueueKey]:
        """All queues that can be read now, sorted.

        Raises ``ConfigError`` when no named topic exists; with ``expected`` they did exist, so their brokers are
        down, and that is waited for.
        """
        now = self._clock.monotonic()
        if self._routes_at is None or now - self._routes_at >= self._options.route_refresh_ms / 1000:
            patiently("route lookup", lambda: self._refresh_routes(expected), self._retry_s)
        return sorted(
            QueueKey(topic, queue.broker_name, queue.queue_id)
            for topic, route in self._routes.items()
            for queue in route.subscribe_queues(topic)
        )

    def _refresh_routes(self, expected: bool) -> None:
        options = self._options
        routes: dict[str, TopicRoute] = {}
        missing: list[str] = []
        for topic in options.topics or self._matching_topics():
            try:
                routes[topic] = fetch_route(options, topic)
            except TopicNotFound:
                missing.append(topic)
        for topic in missing:
            # A name server forgets the topics of a broker that is down, so this may be a restart: keep what was
            # known. A topic that was deleted is told by its broker, which then has no such queue.
            if topic in self._routes:
                routes[topic] = self._routes[topic]
                logger.warning("topic is unknown now, its brokers may be down topic=%s", topic)
            elif routes:
                logger.warning("there is no such topic, going on without it topic=%s", topic)
        if missing and options.topics and not routes:
            if expected:
                raise ConnectionLostError(f"no broker serves topic {', '.join(missing)} now")
            raise ConfigError(
                f"no such topic: {', '.join(missing)} (asked at {options.access.name_servers}). Create it first, "
                "or check the name; a topic whose brokers are all down is unknown too"
            )
        self._routes = routes
        self._routes_at = self._clock.monotonic()

    def _matching_topics(self) -> list[str]:
        assert self._options.topic_pattern is not None, "there are topics, or there is a pattern"
        pattern = re.compile(self._options.topic_pattern)
        answer = ask_name_servers(
            self._options.access,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            Empty(),
            timeout_s=_CALL_TIMEOUT_S,
        )
        # The system's topics and those of retries and dead letters match only a pattern that is about them.
        wants_derived = "%" in self._options.topic_pattern
        return sorted(
            topic
            for topic in TopicList.decode(answer.body).topic_list
            if pattern.fullmatch(topic)
            and not is_system_topic(topic)
            and (wants_derived or not (is_retry_topic(topic) or is_dlq_topic(topic)))
        )

    def broker(self, key: QueueKey) -> BrokerData | None:
        route = self._routes.get(key.topic)
        return None if route is None else route.broker(key.broker)

    def read_address(self, key: QueueKey) -> str:
        """Where to read a queue: the master, else a slave; empty when the route names neither."""
        data = self.broker(key)
        found = None if data is None else data.read_address(0)
        return "" if found is None else found[1]

    # -- offsets ---------------------------------------------------------------------------------------

    def earliest(self, keys: Iterable[QueueKey]) -> QueueOffsets:
        """The first offset of each queue."""
        return self._offsets(
            keys,
            RequestCode.GET_MIN_OFFSET,
            lambda key: GetMinOffsetRequest(topic=key.topic, queue_id=key.queue_id),
        )

    def latest(self, keys: Iterable[QueueKey]) -> QueueOffsets:
        """The end of each queue, as it was at most a moment ago."""
        wanted = list(keys)
        now = self._clock.monotonic()
        if (
            self._ends_at is not None
            and now - self._ends_at < _END_KEPT_S
            and self._ends.keys() >= set(wanted)
        ):
            return {key: self._ends[key] for key in wanted}
        self._ends = self._offsets(
            wanted,
            RequestCode.GET_MAX_OFFSET,
            lambda key: GetMaxOffsetRequest(topic=key.topic, queue_id=key.queue_id),
        )
        self._ends_at = self._clock.monotonic()
        return dict(self._ends)

    def at_time(self, keys: Iterable[QueueKey], timestamp_ms: int) -> QueueOffsets:
        """The first message of each queue stored at that time or later; the end where there is none."""
        return self._offsets(
            keys,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            lambda key: SearchOffsetByTimestampRequest(
                topic=key.topic, queue_id=key.queue_id, timestamp=timestamp_ms, boundary_type="LOWER"
            ),
        )

    def commit(self, group: str, offsets: Mapping[QueueKey, int]) -> list[QueueKey]:
        """Set the offsets of a consumer group; gives the queues whose master is known and has it.

        Raises what the brokers say; nothing is tried again.
        """
        by_broker: dict[str, list[QueueKey]] = {}
        for key in offsets:
            data = self.broker(key)
            address = None if data is None else data.master_address
            if address is not None:
                by_broker.setdefault(address, []).append(key)
        for address, keys in by_broker.items():
            headers = [
                UpdateConsumerOffsetRequest(
                    consumer_group=group, topic=key.topic, queue_id=key.queue_id, commit_offset=offsets[key]
                )
                for key in keys
            ]
            for answer in self._ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, headers):
                if answer.code != ResponseCode.SUCCESS:
                    raise error_for_code(answer.code, answer.remark)
        return [key for keys in by_broker.values() for key in keys]

    def _offsets(self, keys: Iterable[QueueKey], code: int, header: HeaderOf) -> QueueOffsets:
        wanted = sorted(keys)
        found: QueueOffsets = {}

        def ask_rest() -> None:
            by_address: dict[str, list[QueueKey]] = {}
            for key in wanted:
                if key not in found:
                    by_address.setdefault(self._master(key), []).append(key)
            for address, its_keys in by_address.items():
                answers = self._ask(address, code, [header(key) for key in its_keys])
                for key, answer in zip(its_keys, answers, strict=True):
                    if answer.code != ResponseCode.SUCCESS:
                        raise _named(error_for_code(answer.code, answer.remark), key)
                    found[key] = decode_header(OffsetResponse, answer).offset

        def ask_again() -> None:
            try:
                ask_rest()
            except OrbitError:
                # The broker may have moved: the next attempt looks at a new route.
                self._routes_at = None
                raise

        patiently("question about offsets", ask_again, self._retry_s)
        return found

    def _master(self, key: QueueKey) -> str:
        if self._routes_at is None:
            self._refresh_routes(True)
        data = self.broker(key)
        address = None if data is None else data.master_address
        if address is None:
            self._routes_at = None
            raise ConnectionLostError(f"no master of broker {key.broker} is known for topic {key.topic}")
        return address

    def _ask(self, address: str, code: int, headers: Iterable[Header]) -> list[Frame]:
        questions: list[Question] = [(code, header, b"") for header in headers]
        access = self._options.access
        link = borrow(address, access, timeout_s=_CALL_TIMEOUT_S)
        answers: list[Frame] = []
        try:
            for first in range(0, len(questions), _QUESTIONS_AT_ONCE):
                answers += link.ask_all(questions[first : first + _QUESTIONS_AT_ONCE])
        except BaseException:
            link.close()
            raise
        give_back(link, access)
        return answers


def _named(error: BrokerError, key: QueueKey) -> BrokerError:
    error.remark = f"queue {key}: {error.remark}"
    return error

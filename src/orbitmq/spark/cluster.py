"""The driver's queries to the cluster: its queues, their first and last offsets, and the offset at a given time.

Failure handling
1. A known route is used until a newer one arrives, because name servers may be down.
2. Brokers are queried in parallel. Where an older answer will do, the wait is short, so a broker that hangs delays
   only its own queues.
3. Masters are queried first. If a master does not answer, its slave is queried. Messages that a slave does not have
   are not considered lost.
4. Only the broker itself can say that a topic is deleted. A name server that does not list the topic may merely have
   lost contact with the broker.

While a stream is idle, Spark requests the latest offsets some 70 times a second, so routes and end offsets are cached
briefly.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from orbitmq.codes import Perm, ResponseCode
from orbitmq.errors import (
    BrokerError,
    ConfigError,
    ConnectionLostError,
    OrbitError,
    TopicNotFound,
    error_for_code,
)
from orbitmq.model.names import AUTO_CREATE_TOPIC, is_dlq_topic, is_retry_topic, is_system_topic, retry_topic
from orbitmq.model.route import MASTER_ID, BrokerData, TopicRoute
from orbitmq.model.subscription import SQL92
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.connections import CALL_TIMEOUT_S, probe, raise_refusal, replicas, server_client
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.pool import is_passing, patiently
from orbitmq.spark.source.planning import QueueKey, QueueOffsets
from orbitmq.wire.bodies import TopicStats
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import Header, decode_header
from orbitmq.wire.headers import (
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    GetTopicStatsInfoRequest,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    SearchOffsetByTimestampRequest,
    UpdateAndCreateTopicRequest,
    UpdateConsumerOffsetRequest,
)
from orbitmq.wire.pulls import read_pull_answer

__all__ = ["Answers", "Cluster"]

logger = logging.getLogger(__name__)

HeaderOf = Callable[[QueueKey], Header]
Work = Callable[[], Coroutine[Any, Any, Any]]

_END_KEPT_S: Final = 0.05
_END_KEPT_PART: Final = 4
"""End offsets are cached for this many times as long as it took to query them. Otherwise an idle stream over 10,000
queues would keep a core busy with queries."""
_BULK_QUEUES: Final = 4
_BULK_PART: Final = 4
"""One request returns the offsets of all queues of a topic. CPU on both ends, with empty queues: 0.2 ms for 4 queues
and 57 ms for 5,000; single requests take 0.2 and 170 ms. Used for at least four queues, if these are a quarter of the
topic's."""
_IN_STATS: Final = frozenset({RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET})
_NEVER_IN_BULK: Final = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
_MOMENT_S: Final = 0.5
"""How long a stream waits for a broker before it proceeds without a fresh answer."""
_SLAVE_PREFERRED_S: Final = 10.0
"""How long a broker's slave is queried first after its master failed to answer."""
_SAMPLED_QUEUES: Final = 8
_SAMPLED_MESSAGES: Final = 32
_SAMPLED_BYTES: Final = 256 * 1024
_FILTER_CODES: Final = frozenset({ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.SYSTEM_ERROR})


@dataclass(slots=True)
class Answers:
    """The offsets returned by brokers. Queues whose broker did not answer are missing."""

    offsets: QueueOffsets = field(default_factory=dict)
    of_slaves: set[QueueKey] = field(default_factory=set)
    """Queues answered by a slave, whose master may have more."""


class Cluster:
    """The topics and queues of one query. Used on the driver only; never pickled."""

    def __init__(self, options: SourceOptions, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._client = server_client(options.access)
        self._retry_s = options.retry_timeout_ms / 1000
        self._routes: dict[str, TopicRoute] = {}
        self._routes_at: float | None = None
        self._ends = Answers()
        self._ends_at: float | None = None
        self._ends_kept_s = _END_KEPT_S
        self._no_stats: set[tuple[str, str]] = set()
        self._jobs: dict[Hashable, Future[Any]] = {}
        self._slaves_first: dict[str, float] = {}
        self._deleted: dict[tuple[str, str], tuple[float, bool]] = {}
        self._removed = Answers()
        self._removed_at: float | None = None

    # -- queues ----------------------------------------------------------------------------------------

    def queues(self, *, expected: Collection[QueueKey] = ()) -> list[QueueKey]:
        """Returns all queues that can be read now, sorted. ``expected`` are the queues in a checkpoint.

        Raises ``ConfigError`` for a topic that the query names and that does not exist. The topics of expected queues
        did exist, so their brokers are assumed to be down. If there is nothing else to read, the call waits for them.
        """
        now = self._clock.monotonic()
        if self._routes_at is None or now - self._routes_at >= self._options.route_refresh_ms / 1000:
            if self._routes:
                self._refresh_routes()
            else:
                patiently("route lookup", lambda: self._first_routes(expected), self._retry_s)
        return sorted(
            QueueKey(topic, queue.broker_name, queue.queue_id)
            for topic, route in self._routes.items()
            for queue in route.subscribe_queues(topic)
            if self._is_wanted(topic, queue.broker_name, queue.queue_id)
        )

    def _is_wanted(self, topic: str, broker: str, queue_id: int) -> bool:
        wanted = self._options.assigned
        return not wanted or (topic, broker, queue_id) in wanted or (topic, "", queue_id) in wanted

    def check_assigned(self, keys: Collection[QueueKey]) -> None:
        """Raises ``ConfigError`` for an assigned queue that does not exist."""
        for topic, broker, queue_id in self._options.assigned:
            if not any(
                key.topic == topic and key.queue_id == queue_id and broker in ("", key.broker) for key in keys
            ):
                where = f"{topic}/{broker or 'any broker'}/{queue_id}"
                raise ConfigError(f"option 'assign' names queue {where}, which does not exist")

    def _first_routes(self, expected: Collection[QueueKey]) -> None:
        routes = self._client.run(self._find_routes, CALL_TIMEOUT_S * 2)
        missing = [topic for topic in self._options.topics if topic not in routes]
        never_seen = [topic for topic in missing if all(key.topic != topic for key in expected)]
        if never_seen:
            raise ConfigError(
                f"no such topic: {', '.join(never_seen)} (asked at {self._options.access.name_servers}). Create it "
                "first, or check the name; a topic whose brokers are all down is unknown too"
            )
        if missing and not routes and not self._all_deleted(expected):
            raise ConnectionLostError(f"no broker serves topic {', '.join(missing)}")
        self._keep(routes)

    def _refresh_routes(self) -> None:
        """Refreshes the routes. Routes that do not arrive shortly are adopted later, and the known ones stay in use
        until then."""
        for job in self._attend({"routes": self._find_routes}, _MOMENT_S).values():
            try:
                self._keep(job.result())
            except OrbitError as error:
                self._routes_at = self._clock.monotonic()
                self._warn("routes", "routes not refreshed, using those known error=%s", error)

    def _keep(self, routes: dict[str, TopicRoute]) -> None:
        self._routes = routes
        self._routes_at = self._clock.monotonic()

    async def _find_routes(self) -> dict[str, TopicRoute]:
        known = self._routes
        listed = list(self._options.topics) or await self._matching_topics()
        routes: dict[str, TopicRoute] = {}
        failure: OrbitError | None = None
        topics = list(dict.fromkeys([*listed, *known]))
        for topic, answer in zip(topics, await self._client.routes_of(topics), strict=True):
            try:
                if isinstance(answer, OrbitError):
                    raise answer
                routes[topic] = answer
            except TopicNotFound:
                if topic in known:
                    left = await self._without_deleted(topic, known[topic])
                    if left is None:
                        self._client.instance.book.forget(topic)
                        continue
                    routes[topic] = left
                    self._warn(topic, "topic is unknown now, its brokers may be down topic=%s", topic)
            except OrbitError as error:
                if not is_passing(error):
                    raise
                failure = error
                if topic in known:
                    routes[topic] = known[topic]
        if failure is not None:
            if not routes:
                raise failure
            self._warn("routes", "routes not refreshed, using those known error=%s", failure)
        return routes

    async def _without_deleted(self, topic: str, route: TopicRoute) -> TopicRoute | None:
        """Returns the route without the brokers that do not have the topic, or None if no broker has it."""
        left = []
        for data in route.queue_datas:
            if not await self._client.is_deleted(topic, data.broker_name):
                left.append(data)
        return msgspec.structs.replace(route, queue_datas=left) if left else None

    async def _matching_topics(self) -> list[str]:
        assert self._options.topic_pattern is not None, "there are topics, or there is a pattern"
        pattern = re.compile(self._options.topic_pattern)
        # Topics of the system, of retries and of dead letters match only a pattern that is about them.
        wants_derived = "%" in self._options.topic_pattern
        return sorted(
            topic
            for topic in await self._client.all_topics()
            if pattern.fullmatch(topic)
            and not is_system_topic(topic)
            and (wants_derived or not (is_retry_topic(topic) or is_dlq_topic(topic)))
        )

    def broker(self, key: QueueKey) -> BrokerData | None:
        route = self._routes.get(key.topic)
        return None if route is None else route.broker(key.broker)

    def read_address(self, key: QueueKey) -> tuple[str, bool]:
        """Returns the address from which to read a queue, and whether it is the master's. Without a master it is a
        slave's. The address is empty if the route has neither."""
        found = self._servers(key)
        return (found[0][1], found[0][0] == MASTER_ID) if found else ("", True)

    def _servers(self, key: QueueKey) -> list[tuple[int, str]]:
        """Returns the id and address of each server of a queue's broker, in the order in which to query them."""
        found = replicas(self.broker(key))
        if self._slaves_first.get(key.broker, -1.0) > self._clock.monotonic():
            found = [*found[1:], *found[:1]]
        return found

    # -- deleted topics --------------------------------------------------------------------------------

    def deleted(self, keys: Iterable[QueueKey]) -> set[QueueKey]:
        """Returns the queues whose broker reports that the topic does not exist."""
        wanted = list(keys)
        now = self._clock.monotonic()
        unsure = {
            (key.topic, key.broker)
            for key in wanted
            if now - self._deleted.get((key.topic, key.broker), (-1e9, False))[0]
            > self._options.route_refresh_ms / 1000
        }
        jobs: dict[Hashable, Work] = {
            ("deleted", *pair): lambda pair=pair: self._client.is_deleted(*pair)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            for pair in unsure
        }
        for name, job in self._attend(jobs, _MOMENT_S).items():
            assert isinstance(name, tuple), "made above"
            self._deleted[name[1], name[2]] = (now, bool(job.result()))
        return {key for key in wanted if self._deleted.get((key.topic, key.broker), (0.0, False))[1]}

    def removed(self, keys: Iterable[QueueKey]) -> tuple[Answers, set[QueueKey]]:
        """Finds queues that no longer exist on a broker that still has their topic.

        Returns the end offset that the broker reports for each of them, and the queues whose end offset is not
        available now. The end is 0 if the topic was recreated, and unchanged if it was only shrunk.
        """
        wanted = {key for key in keys if self._is_removed(key)}
        if not wanted:
            return Answers(), wanted
        now = self._clock.monotonic()
        kept_s = max(self._options.route_refresh_ms / 1000, _END_KEPT_S)
        found = self._removed
        if self._removed_at is None or now - self._removed_at > kept_s or not wanted <= found.offsets.keys():
            found = self._removed = self._some_of(sorted(wanted), RequestCode.GET_MAX_OFFSET, _max_header)
            self._removed_at = now
        return found, wanted - found.offsets.keys()

    def _is_removed(self, key: QueueKey) -> bool:
        route = self._routes.get(key.topic)
        counts = (
            []
            if route is None
            else [data.read_queue_nums for data in route.queue_datas if data.broker_name == key.broker]
        )
        return bool(counts) and key.queue_id >= max(counts)

    def _all_deleted(self, keys: Collection[QueueKey]) -> bool:
        async def all_gone() -> bool:
            pairs = {(key.topic, key.broker) for key in keys}
            return all([await self._client.is_deleted(*pair) for pair in pairs])

        return self._client.run(all_gone)

    # -- offsets ---------------------------------------------------------------------------------------

    def earliest(self, keys: Iterable[QueueKey]) -> QueueOffsets:
        """Returns the first offset of each queue. Raises an error if a broker does not answer within
        ``retryTimeoutMs``."""
        return self._all_of(keys, RequestCode.GET_MIN_OFFSET, _min_header).offsets

    def earliest_known(self, keys: Iterable[QueueKey]) -> QueueOffsets:
        """Returns the first offset of each queue whose broker answers promptly."""
        return self._some_of(keys, RequestCode.GET_MIN_OFFSET, _min_header).offsets

    def latest(self, keys: Iterable[QueueKey]) -> QueueOffsets:
        """Returns the end offset of each queue. Raises an error if a broker does not answer within
        ``retryTimeoutMs``."""
        return self.latest_of_all(keys).offsets

    def latest_of_all(self, keys: Iterable[QueueKey]) -> Answers:
        """Like ``latest``, but also tells which answers came from slaves."""
        answers = self._all_of(keys, RequestCode.GET_MAX_OFFSET, _max_header)
        for broker in {key.broker for key in answers.of_slaves}:
            logger.warning("the master does not answer, read is what its slave has broker=%s", broker)
        return answers

    def latest_known(self, keys: Iterable[QueueKey]) -> Answers:
        """Returns the end offset of each queue whose broker answers promptly. Answers are cached briefly."""
        wanted = list(keys)
        now = self._clock.monotonic()
        if self._ends_at is None or now - self._ends_at >= self._ends_kept_s or not wanted:
            self._ends = self._some_of(wanted, RequestCode.GET_MAX_OFFSET, _max_header)
            self._ends_at = self._clock.monotonic()
            self._ends_kept_s = max(_END_KEPT_S, _END_KEPT_PART * (self._ends_at - now))
        known = self._ends.offsets
        # Only the requested queues: the cache may contain queues that have been removed since.
        return Answers(
            {key: known[key] for key in wanted if key in known}, self._ends.of_slaves & set(wanted)
        )

    def at_time(self, keys: Iterable[QueueKey], timestamp_ms: int) -> QueueOffsets:
        """Returns for each queue the offset of its first message that was stored at or after that time, or its end
        offset if there is no such message."""
        return self.at_times(dict.fromkeys(keys, timestamp_ms))

    def at_times(self, times: Mapping[QueueKey, int]) -> QueueOffsets:
        """Like ``at_time``, with a separate time for each queue."""
        return self._all_of(
            times, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lambda key: _time_header(key, times[key])
        ).offsets

    def at_time_known(self, keys: Iterable[QueueKey], timestamp_ms: int) -> QueueOffsets:
        """Like ``at_time``, but only for queues whose broker answers promptly."""
        return self._some_of(
            keys, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, lambda key: _time_header(key, timestamp_ms)
        ).offsets

    def committed(self, group: str, keys: Iterable[QueueKey]) -> QueueOffsets:
        """Returns a consumer group's committed offsets. Queues without one are left out."""
        found = self._all_of(
            keys,
            RequestCode.QUERY_CONSUMER_OFFSET,
            lambda key: QueryConsumerOffsetRequest(
                consumer_group=group, topic=key.topic, queue_id=key.queue_id, set_zero_if_not_found=False
            ),
            missing=ResponseCode.QUERY_NOT_FOUND,
        )
        return {key: offset for key, offset in found.offsets.items() if offset >= 0}

    def commit(self, group: str, offsets: Mapping[QueueKey, int]) -> QueueOffsets:
        """Sets the offsets of a consumer group and returns those that were set. Only masters are queried, each with a
        short wait.

        Raises the brokers' errors. Nothing is retried.
        """
        jobs: dict[Hashable, Work] = {}
        for broker, keys in _by_broker(offsets).items():
            data = self.broker(keys[0])
            if data is not None and data.master_address is not None:
                jobs["commit", broker] = self._commitment(
                    data.master_address, group, {key: offsets[key] for key in keys}
                )
        done: QueueOffsets = {}
        for job in self._attend(jobs, _MOMENT_S).values():
            done |= job.result()
        return done

    def show_group(self, group: str, keys: Iterable[QueueKey]) -> set[str]:
        """Makes a group with offsets for these queues visible to tools, and returns the brokers that have it.

        Tools find groups by their retry topics, which otherwise only a consumer's heartbeat or first retry creates.
        """
        jobs: dict[Hashable, Work] = {}
        for broker, its_keys in _by_broker(keys).items():
            data = self.broker(its_keys[0])
            if data is not None and data.master_address is not None:
                jobs["group", broker] = self._with_retry_topic(group, broker, data.master_address)
        return {job.result() for job in self._attend(jobs, _MOMENT_S).values()}

    def _with_retry_topic(self, group: str, broker: str, address: str) -> Work:
        topic = retry_topic(group)
        header = UpdateAndCreateTopicRequest(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=1,
            write_queue_nums=1,
            perm=int(Perm.READ | Perm.WRITE),
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )

        async def ask() -> str:
            if await self._client.is_deleted(topic, broker):
                [answer] = await self._client.ask_all(address, RequestCode.UPDATE_AND_CREATE_TOPIC, [header])
                raise_refusal(answer)
            return broker

        return ask

    def _commitment(self, address: str, group: str, offsets: QueueOffsets) -> Work:
        headers = [
            UpdateConsumerOffsetRequest(
                consumer_group=group, topic=key.topic, queue_id=key.queue_id, commit_offset=offset
            )
            for key, offset in offsets.items()
        ]

        async def ask() -> QueueOffsets:
            answers = await self._client.ask_all(address, RequestCode.UPDATE_CONSUMER_OFFSET, headers)
            for answer in answers:
                raise_refusal(answer)
            return offsets

        return ask

    def message_bytes(self, begins: Mapping[QueueKey, int]) -> int | None:
        """Returns the average message size, sampled from the next few messages of some queues, or None if no broker
        answers."""
        taken = count = 0
        for key in sorted(begins)[:_SAMPLED_QUEUES]:
            header = msgspec.structs.replace(
                probe(key.topic, key.queue_id),
                queue_offset=begins[key],
                max_msg_nums=_SAMPLED_MESSAGES,
                max_msg_bytes=_SAMPLED_BYTES,
            )
            work = self._sample(key, header)
            for job in self._attend({("sample", key): work}, _MOMENT_S).values():
                try:
                    frame = job.result()
                except OrbitError:
                    continue
                if frame.code == ResponseCode.SUCCESS:
                    taken += len(frame.body)
                    count += max(read_pull_answer(frame).next_begin_offset - begins[key], 1)
        return -(-taken // count) if count else None

    def _sample(self, key: QueueKey, header: Header) -> Work:
        async def ask() -> Frame:
            [answer] = await self._client.ask_all(
                self.read_address(key)[0], RequestCode.PULL_MESSAGE, [header]
            )
            return answer

        return ask

    def check_filter(self, keys: Collection[QueueKey]) -> None:
        """Raises ``ConfigError`` when a broker rejects the query's SQL filter."""
        if self._options.sql is None:
            return
        for key in {one.broker: one for one in sorted(keys, reverse=True)}.values():
            header = probe(key.topic, key.queue_id, self._options.sql, SQL92)
            for _, address in replicas(self.broker(key))[:1]:
                try:
                    [answer] = self._client.loop.run(
                        self._client.ask_all(address, RequestCode.PULL_MESSAGE, [header])
                    )
                except OrbitError:
                    break  # it is down; the read will report that
                if answer.code in _FILTER_CODES:
                    raise ConfigError(
                        f"option 'sql': broker {key.broker} refuses the filter: {answer.remark}"
                    )

    # -- queries ---------------------------------------------------------------------------------------

    def _all_of(
        self, keys: Iterable[QueueKey], code: int, header: HeaderOf, missing: int | None = None
    ) -> Answers:
        """Queries all of the queues. A broker that does not answer is queried again for up to ``retryTimeoutMs``."""
        wanted = sorted(keys)
        found = Answers()

        def ask_rest() -> None:
            by_broker = _by_broker(key for key in wanted if key not in found.offsets)
            jobs: dict[Hashable, Work] = {
                (code, "all", broker): self._question(its_keys, code, header, missing)
                for broker, its_keys in by_broker.items()
            }
            failure: OrbitError | None = None
            for job in self._attend(jobs, None).values():
                try:
                    _add(found, job.result())
                except OrbitError as error:
                    failure = error
            if failure is not None:
                # The broker may have moved, so the next attempt uses a new route.
                self._routes_at = None
                self.queues()
                raise failure

        patiently("question about offsets", ask_rest, self._retry_s)
        return found

    def _some_of(self, keys: Iterable[QueueKey], code: int, header: HeaderOf) -> Answers:
        """Queries the queues and returns the answers that arrive promptly. Raises the error of a permanent
        refusal."""
        jobs: dict[Hashable, Work] = {
            (code, "some", broker): self._question(its_keys, code, header, None)
            for broker, its_keys in _by_broker(keys).items()
        }
        found = Answers()
        failures = []
        for name, job in self._attend(jobs, _MOMENT_S).items():
            try:
                _add(found, job.result())
            except OrbitError as error:
                if not is_passing(error):
                    raise
                failures.append(error)
                self._warn(name, "broker does not answer, going on without it error=%s", error)
        if failures:
            self._routes_at = None
        return found

    def _question(self, keys: list[QueueKey], code: int, header: HeaderOf, missing: int | None) -> Work:
        async def ask() -> Answers:
            failure: OrbitError = ConnectionLostError(
                f"no server of broker {keys[0].broker} is known for topic {keys[0].topic}"
            )
            for broker_id, address in self._servers(keys[0]):
                try:
                    offsets = await self._in_bulk(address, keys, code)
                    rest = [key for key in keys if key not in offsets]
                    frames = await self._client.ask_all(address, code, [header(key) for key in rest])
                except OrbitError as error:
                    if not is_passing(error):
                        raise
                    failure = error
                    if broker_id == MASTER_ID:
                        self._slaves_first[keys[0].broker] = self._clock.monotonic() + _SLAVE_PREFERRED_S
                    continue
                offsets |= {
                    key: _offset(key, frame, missing) for key, frame in zip(rest, frames, strict=True)
                }
                return Answers(offsets, set() if broker_id == MASTER_ID else set(keys))
            raise failure

        return ask

    async def _in_bulk(self, address: str, keys: list[QueueKey], code: int) -> QueueOffsets:
        """Returns first or last offsets, queried with one request for each topic with several of the queues. Apache's
        brokers support this, too.

        Offsets that the answer lacks, or that a broker refuses, are left to single requests.
        """
        by_topic: dict[str, list[QueueKey]] = {}
        for key in keys if code in _IN_STATS else ():
            by_topic.setdefault(key.topic, []).append(key)
        topics = [
            topic
            for topic, its in by_topic.items()
            if len(its) >= max(_BULK_QUEUES, self._queue_count(its[0]) // _BULK_PART)
            and (address, topic) not in self._no_stats
        ]
        headers = [GetTopicStatsInfoRequest(topic=topic) for topic in topics]
        found: QueueOffsets = {}
        for topic, frame in zip(
            topics,
            await self._client.ask_all(address, RequestCode.GET_TOPIC_STATS_INFO, headers),
            strict=True,
        ):
            if frame.code == ResponseCode.SUCCESS:
                table = TopicStats.decode(frame.body).offset_table
                offsets = {queue.queue_id: offset for queue, offset in table.items()}
                for key in by_topic[topic]:
                    if (one := offsets.get(key.queue_id)) is not None:
                        found[key] = one.max_offset if code == RequestCode.GET_MAX_OFFSET else one.min_offset
            elif frame.code in _NEVER_IN_BULK:
                self._no_stats.add((address, topic))
        return found

    def _queue_count(self, key: QueueKey) -> int:
        route = self._routes.get(key.topic)
        datas = [] if route is None else route.queue_datas
        return max((data.read_queue_nums for data in datas if data.broker_name == key.broker), default=0)

    def _attend(self, jobs: Mapping[Hashable, Work], wait_s: float | None) -> dict[Hashable, Future[Any]]:
        """Starts the jobs that are not running, waits briefly for them, and returns the finished ones. A job that has
        exceeded its wait is only polled from then on, so nothing is waited for twice."""
        new = [name for name in jobs if name not in self._jobs]
        for name in new:
            self._jobs[name] = self._client.loop.submit(jobs[name]())
        wait([self._jobs[name] for name in (jobs if wait_s is None else new)], wait_s)
        return {name: self._jobs.pop(name) for name in jobs if self._jobs[name].done()}

    def _warn(self, key: Hashable, text: str, *arguments: object) -> None:
        """Logs a warning, rate-limited like those of the client."""
        self._client.instance.log_limits.warning(logger, ("spark", key), text, *arguments)


def _min_header(key: QueueKey) -> Header:
    return GetMinOffsetRequest(topic=key.topic, queue_id=key.queue_id)


def _max_header(key: QueueKey) -> Header:
    return GetMaxOffsetRequest(topic=key.topic, queue_id=key.queue_id)


def _time_header(key: QueueKey, timestamp_ms: int) -> Header:
    return SearchOffsetByTimestampRequest(
        topic=key.topic, queue_id=key.queue_id, timestamp=timestamp_ms, boundary_type="LOWER"
    )


def _by_broker(keys: Iterable[QueueKey]) -> dict[str, list[QueueKey]]:
    found: dict[str, list[QueueKey]] = {}
    for key in keys:
        found.setdefault(key.broker, []).append(key)
    return found


def _add(found: Answers, more: Answers) -> None:
    found.offsets |= more.offsets
    found.of_slaves |= more.of_slaves


def _offset(key: QueueKey, frame: Frame, missing: int | None) -> int:
    """Returns the offset in an answer, or -1 if the response code is ``missing``. Raises the error of any other
    refusal."""
    if frame.code == ResponseCode.SUCCESS:
        return decode_header(OffsetResponse, frame).offset
    if frame.code == missing:
        return -1
    error: BrokerError = error_for_code(frame.code, frame.remark)
    error.remark = f"queue {key}: {error.remark}"
    raise error

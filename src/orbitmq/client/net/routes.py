"""The client's table of topics and brokers, and its queries to name servers (Apache: part of MQClientInstance)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

import msgspec

from orbitmq.client.errors import ClientClosedError, ClientStateError, NameServerError, NoRouteError
from orbitmq.codes import ResponseCode
from orbitmq.errors import BrokerError, OrbitError, TopicNotFound, error_for_code
from orbitmq.model.names import AUTO_CREATE_TOPIC
from orbitmq.model.route import MASTER_ID, BrokerData, MessageQueue, TopicRoute
from orbitmq.requests import RequestCode
from orbitmq.runtime.tasks import TaskOwner
from orbitmq.wire.bodies import decode_route
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import Header
from orbitmq.wire.headers import GetRouteinfoByTopicRequest

__all__ = ["RouteBook", "split_name_servers"]

logger = logging.getLogger(__name__)

Ask = Callable[[str, int, Header], Awaitable[Frame]]
Find = Callable[[], Awaitable[None]]


def split_name_servers(text: str) -> list[str]:
    """Returns the addresses in ``host:port;host:port`` (commas are accepted too), in random order so that clients
    spread over the name servers."""
    servers = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    random.shuffle(servers)
    return servers


class RouteBook:
    """Routes by topic, and broker addresses by name. Owned by one event loop."""

    def __init__(self, name_servers: list[str], ask: Ask, tasks: TaskOwner, find: Find | None = None) -> None:
        """``find`` looks up name servers as long as none is known."""
        self._servers = name_servers
        self._tasks = tasks
        self._find = find
        self._ask = ask
        self._chosen = 0
        self._routes: dict[str, TopicRoute] = {}
        self._brokers: dict[str, BrokerData] = {}
        self._fetching: dict[tuple[str, int], asyncio.Task[TopicRoute | OrbitError]] = {}
        self.publish: dict[str, list[MessageQueue]] = {}
        """Queues to send to, by topic."""
        self.subscribe: dict[str, list[MessageQueue]] = {}
        """Queues to consume, by topic, sorted."""

    @property
    def topics(self) -> list[str]:
        return list(self._routes)

    def brokers(self) -> list[BrokerData]:
        """Returns the brokers of all known routes."""
        return list(self._brokers.values())

    def broker(self, name: str) -> BrokerData | None:
        return self._brokers.get(name)

    def master_address(self, broker_name: str) -> str | None:
        data = self._brokers.get(broker_name)
        return None if data is None else data.master_address

    def any_address(self, broker_name: str) -> str | None:
        """Returns the address of a broker's master or, without one, of a replica; None if the broker is unknown."""
        data = self._brokers.get(broker_name)
        if data is None:
            return None
        return data.master_address or next(iter(data.broker_addrs.values()), None)

    def address_of_topic(self, topic: str) -> str | None:
        """Returns the address of a broker to query about groups of the topic: a random broker's master, or a replica
        if it has none."""
        route = self._routes.get(topic)
        if route is None or not route.broker_datas:
            return None
        data = random.choice(route.broker_datas)
        return data.master_address or next(iter(data.broker_addrs.values()), None)

    def route(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Query the name server now. Raises ``TopicNotFound`` (the old route stays) or ``NameServerError``."""
        return await self._shared(topic, 0)

    async def _shared(self, topic: str, new_queues: int) -> TopicRoute:
        """Share one query among concurrent callers.

        The query runs in a task of its own, so if a caller is cancelled or times out, the others still get the
        result.
        """
        key = (topic, new_queues)
        task = self._fetching.get(key)
        if task is None:
            if self._tasks.closed:
                raise ClientClosedError("the client is stopped")
            task = self._tasks.start(self._refresh(topic, new_queues), "route")
            self._fetching[key] = task
            task.add_done_callback(lambda _: self._fetching.pop(key, None))
        try:
            outcome = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # only the end of the client does that
                raise ClientClosedError("the client was stopped") from None
            raise
        if isinstance(outcome, OrbitError):
            raise outcome.with_traceback(None)
        return outcome

    async def _refresh(self, topic: str, new_queues: int) -> TopicRoute | OrbitError:
        """Returns a route, or the error if there is none. If ``new_queues`` is above 0, returns the route of a topic
        that will be created with that many queues."""
        try:
            try:
                route = await self._fetch(topic)
            except TopicNotFound:
                if not new_queues:
                    raise
                try:
                    template = await self._fetch(AUTO_CREATE_TOPIC)
                except BrokerError:
                    raise NoRouteError(f"no route to topic {topic}") from None
                route = _as_new_topic(template, new_queues)
        except OrbitError as error:
            return error
        self._keep(topic, route)
        return route

    async def for_publish(self, topic: str, default_queues: int) -> list[MessageQueue]:
        """Returns the queues to send to. An unknown topic gets the queues with which the broker would create it."""
        queues = self.publish.get(topic)
        if not queues:
            await self._shared(topic, default_queues)
            queues = self.publish.get(topic)
        if not queues:
            raise NoRouteError(f"topic {topic} has no queue that can be written")
        return queues

    def forget(self, topic: str) -> None:
        self._routes.pop(topic, None)
        self.publish.pop(topic, None)
        self.subscribe.pop(topic, None)

    async def _fetch(self, topic: str) -> TopicRoute:
        header = GetRouteinfoByTopicRequest(topic=topic, accept_standard_json_only=True)
        if not self._servers and self._find is not None:
            await self._find()
        if not self._servers:
            raise NameServerError("no name server address is given")
        failure: OrbitError | None = None
        for _ in range(len(self._servers)):
            server = self._servers[self._chosen % len(self._servers)]
            try:
                answer = await self._ask(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            except ClientStateError:
                raise  # ours, not the server's
            except OrbitError as error:
                failure = error
                self._chosen += 1
                continue
            if answer.code == ResponseCode.SUCCESS:
                return decode_route(answer.body)
            raise error_for_code(answer.code, answer.remark)
        raise NameServerError(f"no name server answers: {failure}") from failure

    def _keep(self, topic: str, route: TopicRoute) -> None:
        known = self._routes.get(topic)
        if known is not None and known.same_as(route):
            return
        self._routes[topic] = route
        self.publish[topic] = route.publish_queues(topic)
        self.subscribe[topic] = route.subscribe_queues(topic)
        # A broker is gone only when no route names it: one that lost a topic may still serve others.
        self._brokers = {
            data.broker_name: data for other in self._routes.values() for data in other.broker_datas
        }
        for data in route.broker_datas:
            self._brokers[data.broker_name] = data
        # The template of new topics concerns no user.
        logger.log(
            logging.DEBUG if topic == AUTO_CREATE_TOPIC else logging.INFO,
            "route changed topic=%s brokers=%s",
            topic,
            ",".join(f"{d.broker_name}:{sorted(d.broker_addrs)}" for d in route.broker_datas),
        )


def _as_new_topic(template: TopicRoute, queue_count: int) -> TopicRoute:
    return msgspec.structs.replace(
        template,
        queue_datas=[
            msgspec.structs.replace(
                data,
                read_queue_nums=min(queue_count, data.read_queue_nums),
                write_queue_nums=min(queue_count, data.read_queue_nums),
            )
            for data in template.queue_datas
        ],
        broker_datas=[data for data in template.broker_datas if MASTER_ID in data.broker_addrs],
    )

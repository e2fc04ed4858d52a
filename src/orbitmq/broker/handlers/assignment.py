"""Assigns queues to clients (request 400), and sets the request mode of a group (401).

Follows Apache's QueryAssignmentProcessor. The queues are the topic's queues on all brokers, according to the name
servers; the members are the clients that send heartbeats to this broker.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.tables.clients import ConsumerTable
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.request_modes import POP_MODE, PULL_MODE, RequestModes
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import ResponseCode
from orbitmq.errors import (
    BodyError,
    BrokerError,
    NoPermission,
    OrbitError,
    ServerError,
    SubscriptionGroupNotExist,
    TopicNotFound,
)
from orbitmq.model.names import RETRY_PREFIX
from orbitmq.model.rebalance import STRATEGIES, Strategy, sorted_clients
from orbitmq.model.route import MessageQueue, utf16_key
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import Clock
from orbitmq.store.errors import StoreError
from orbitmq.transport.client import RpcClient
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire import bodies
from orbitmq.wire.bodies.heartbeat import MessageModel
from orbitmq.wire.bodies.queues import MessageQueueAssignment, QueryAssignmentRequest, QueryAssignmentResponse
from orbitmq.wire.bodies.route import decode_route
from orbitmq.wire.headers.base import Empty
from orbitmq.wire.headers.namesrv import GetRouteinfoByTopicRequest

__all__ = ["AssignmentHandlers", "RouteQueues", "shared_queues"]

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 3.0
_ROUTES_MAX: Final = 10_000
_ALL_QUEUES: Final = -1


def shared_queues(
    strategy: Strategy, queues: Sequence[MessageQueue], clients: Sequence[str], me: str, share_count: int
) -> list[MessageQueue]:
    """Returns the queues that a client pops: its own and those of the next ``share_count`` members. If these would be
    the queues of all members, or if no count is set, returns one entry per broker with queue id -1, which stands for
    all of its queues."""
    if share_count <= 0 or share_count >= len(clients) - 1:
        names = sorted({queue.broker_name for queue in queues}, key=utf16_key)
        topic = queues[0].topic if queues else ""
        return [MessageQueue(topic=topic, broker_name=name, queue_id=_ALL_QUEUES) for name in names]
    if me not in clients:
        return []
    index = clients.index(me)
    if len(clients) <= len(queues):
        found: list[MessageQueue] = []
        for step in range(share_count + 1):
            found += strategy(queues, clients, clients[(index + step) % len(clients)])
        return found
    return [queues[index % len(queues)]] if queues else []


class _KnownRoute(NamedTuple):
    queues: list[MessageQueue] | None
    asked_s: float


class RouteQueues:
    """Looks up the queues of topics on all brokers at the name servers, and caches them."""

    def __init__(self, config: BrokerConfig, topics: TopicTable, clock: Clock, rpc: RpcClient) -> None:
        self._config = config
        self._topics = topics
        self._clock = clock
        self._rpc = rpc
        self._known: dict[str, _KnownRoute] = {}

    async def of(self, topic: str) -> list[MessageQueue] | None:
        """Returns the sorted queues of a topic, or None if no route is known. Without name servers, these are the
        queues of this broker."""
        if not self._config.name_server_list:
            return self._own(topic)
        known = self._known.get(topic)
        now_s = self._clock.monotonic()
        if known is not None and now_s - known.asked_s < self._config.assignment_refresh_ms / 1000:
            return known.queues
        for server in self._config.name_server_list:
            try:
                queues = await self._ask(server, topic)
            except OrbitError as error:
                logger.warning("route not found topic=%s server=%s error=%s", topic, server, error)
                continue
            if queues is not None:
                if len(self._known) >= _ROUTES_MAX:
                    self._known.clear()
                self._known[topic] = _KnownRoute(queues, now_s)
            return queues
        return known.queues if known is not None else None

    def changed(self) -> None:
        """Clear the cache. Called when topics of this broker have changed."""
        self._known.clear()

    async def _ask(self, server: str, topic: str) -> list[MessageQueue] | None:
        header = GetRouteinfoByTopicRequest(topic=topic, accept_standard_json_only=True)
        answer = await self._rpc.call(
            server, RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout_s=_TIMEOUT_S
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        return decode_route(answer.body).subscribe_queues(topic)

    def _own(self, topic: str) -> list[MessageQueue] | None:
        config = self._topics.configs.get(topic)
        if config is None:
            return None
        return [
            MessageQueue(topic=topic, broker_name=self._config.broker_name, queue_id=queue_id)
            for queue_id in range(config.read_queue_nums)
        ]


class AssignmentHandlers:
    """Serves QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerTable,
        modes: RequestModes,
        queues_of: Callable[[str], Awaitable[list[MessageQueue] | None]],
        on_pull: Callable[[str, str], object] = lambda _topic, _group: None,
    ) -> None:
        """``on_pull`` is called with the topic and the group when a group is switched to pulling. It may raise
        ``StoreError``."""
        self._config = config
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._modes = modes
        self._queues_of = queues_of
        self._on_pull = on_pull

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.QUERY_ASSIGNMENT, self.query_assignment, Empty),
            Route(RequestCode.SET_MESSAGE_REQUEST_MODE, self.set_mode, Empty),
        ]

    async def query_assignment(self, call: Call[Empty]) -> Reply:
        """Serve QUERY_ASSIGNMENT (400). If the broker cannot answer, the client keeps its current assignment."""
        request = QueryAssignmentRequest.decode(call.body)
        topic, group = request.topic or "", request.consumer_group or ""
        mode = self._modes.find(topic, group)
        queues = await self._assigned(request, topic, group, mode)
        if queues is None:
            return Reply(body=QueryAssignmentResponse().encode())
        assignments = [MessageQueueAssignment(message_queue=queue, mode=mode.mode) for queue in queues]
        return Reply(body=QueryAssignmentResponse(message_queue_assignments=assignments).encode())

    async def _assigned(
        self, request: QueryAssignmentRequest, topic: str, group: str, mode: bodies.MessageRequestMode
    ) -> list[MessageQueue] | None:
        queues = await self._queues_of(topic) if topic else None
        if queues is None:
            return None
        if request.message_model == MessageModel.BROADCASTING or not self._config.server_assignment_enabled:
            return queues
        members = self._consumers.group(group)
        strategy = STRATEGIES.get(request.strategy_name or "")
        if members is None or strategy is None:
            return None
        clients = sorted_clients(members.client_ids)
        me = request.client_id or ""
        if mode.mode == POP_MODE:
            return shared_queues(strategy, queues, clients, me, mode.pop_share_queue_num)
        return strategy(queues, clients, me)

    def set_mode(self, call: Call[Empty]) -> Reply:
        """Serve SET_MESSAGE_REQUEST_MODE (401). The mode of a topic and group stays until it is set again."""
        mode = bodies.MessageRequestMode.decode(call.body)
        topic, group = mode.topic or "", mode.consumer_group or ""
        if topic.startswith(RETRY_PREFIX):
            raise NoPermission("retry topic is not allowed to set mode")
        if topic not in self._topics.configs:
            raise TopicNotFound(f"topic[{topic}] not exist")
        if self._groups.find(group) is None:
            raise SubscriptionGroupNotExist(f"subscription group [{group}] does not exist")
        if mode.mode not in (PULL_MODE, POP_MODE):
            raise BodyError(f"mode {mode.mode!r} is none of {PULL_MODE}, {POP_MODE}")
        logger.info(
            "request mode set caller=%s topic=%s group=%s mode=%s share=%d",
            call.peer.remote_text,
            topic,
            group,
            mode.mode,
            mode.pop_share_queue_num,
        )
        try:
            self._modes.put(mode)
        except OSError as error:
            raise ServerError(f"the mode is in force but could not be saved: {error}") from None
        if mode.mode == PULL_MODE:
            try:
                self._on_pull(topic, group)
            except StoreError as error:
                raise BrokerError(error.remark, code=error.code) from None
        return Reply()

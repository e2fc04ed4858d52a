"""The client of a Spark process. Routes, requests and their errors are those of ``orbitmq.client``.

There is one ``ClientInstance`` per set of servers and keys, on its own loop. It lives as long as the process and
serves drivers and executors. It joins no group and sends no heartbeat. Only pulls use other connections
(``pool.py``), to addresses that are chosen here.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from orbitmq.client.errors import NameServerError
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.options import ClientOptions
from orbitmq.client.sync import LoopThread
from orbitmq.codes import PullFlag, ResponseCode
from orbitmq.errors import OrbitError, RequestTimeoutError, TopicNotFound, error_for_code
from orbitmq.model.route import MASTER_ID, BrokerData, TopicRoute
from orbitmq.model.subscription import TAG
from orbitmq.requests import RequestCode
from orbitmq.runtime.clock import SYSTEM_CLOCK
from orbitmq.runtime.machine import process_id
from orbitmq.spark.options import Access
from orbitmq.wire.bodies import ClusterInfo, ConsumerData, ProducerData, TopicList
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import Header
from orbitmq.wire.headers import PullMessageRequest
from orbitmq.wire.headers.base import Empty

__all__ = ["DEFAULT_GROUP", "ServerClient", "replicas", "server_client"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_GROUP: Final = "TOOLS_CONSUMER"
"""Exists on every broker, so reading does not require creating a group."""
CALL_TIMEOUT_S: Final = 5.0
_AT_ONCE: Final = 500
_CLIENTS_MAX: Final = 16


class ServerClient:
    """Queries name servers and brokers. Methods without ``async`` wait for the answer and may be called from any
    thread except the loop's."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.loop = LoopThread()
        self.loop.run(self._open())

    async def _open(self) -> None:
        access = self._access
        options = ClientOptions(
            credentials=access.credentials,
            tls=None if access.tls is None else access.tls.context(),
            call_timeout_s=CALL_TIMEOUT_S,
            # Routes are fetched when a query needs them; nothing is refreshed in between.
            route_refresh_s=3600,
            heartbeat_s=3600,
            close_wait_s=1,
        )
        self.instance = ClientInstance(self, access.name_servers, options, clock=SYSTEM_CLOCK)
        self.instance.start()

    def close(self) -> None:
        """Closes the connections and stops the loop."""
        try:
            self.loop.run(self.instance.stop())
        finally:
            self.loop.close()

    # Interface required by the instance (Member).
    def topics(self) -> set[str]:
        return set()

    def producer_data(self) -> ProducerData | None:
        return None

    def consumer_data(self) -> ConsumerData | None:
        return None

    # -- name servers ----------------------------------------------------------------------------------

    async def route(self, topic: str) -> TopicRoute:
        """Returns the current route of a topic. Raises ``TopicNotFound`` or ``NameServerError``."""
        return await self.instance.book.refresh(topic)

    async def routes_of(self, topics: Sequence[str]) -> list[TopicRoute | OrbitError]:
        """Returns the route of each topic, or the reason it has none. Requests run concurrently."""
        answers: list[TopicRoute | OrbitError] = []

        async def one(topic: str) -> TopicRoute | OrbitError:
            try:
                return await self.route(topic)
            except OrbitError as error:
                return error

        for first in range(0, len(topics), _AT_ONCE):
            answers += await asyncio.gather(*map(one, topics[first : first + _AT_ONCE]))
        return answers

    def fetch_route(self, topic: str) -> TopicRoute:
        """Like ``route``, but may be called from threads, and waits for the answer."""
        return self.loop.run(self.route(topic))

    def known_route(self, topic: str) -> TopicRoute | None:
        """Returns the route of a topic, or the last known route if no name server answers or lists the topic."""
        try:
            return self.fetch_route(topic)
        except (TopicNotFound, NameServerError):
            return self.instance.book.route(topic)

    async def all_topics(self) -> list[str]:
        """Returns every topic that the name servers list. Raises ``NameServerError``."""
        answer = await self._ask_name_servers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return list(TopicList.decode(answer.body).topic_list)

    async def _broker_data(self, name: str) -> BrokerData | None:
        """Returns the addresses of a broker, whatever its topics, or the last known ones if no name server lists
        it."""
        try:
            answer = await self._ask_name_servers(RequestCode.GET_BROKER_CLUSTER_INFO)
        except OrbitError:
            return self.instance.book.broker(name)
        return ClusterInfo.decode(answer.body).broker_addr_table.get(name) or self.instance.book.broker(name)

    async def _ask_name_servers(self, code: int) -> Frame:
        failure: OrbitError | None = None
        for server in list(self.instance.name_servers):
            try:
                return await self.instance.ask(server, code, Empty())
            except (ConnectionError, TimeoutError) as error:
                failure = error if isinstance(error, OrbitError) else None
        raise NameServerError(f"no name server answers: {failure}") from failure

    # -- brokers ---------------------------------------------------------------------------------------

    async def ask_all(self, address: str, code: int, headers: Sequence[Header]) -> list[Frame]:
        """Returns one broker's answers to several requests, in their order. The requests run concurrently. Raises the
        error of a refusal."""
        answers: list[Frame] = []
        for first in range(0, len(headers), _AT_ONCE):
            some = headers[first : first + _AT_ONCE]
            answers += await asyncio.gather(*(self.instance.call(address, code, header) for header in some))
        return answers

    async def is_deleted(self, topic: str, broker: str) -> bool:
        """Returns whether a broker reports that the topic does not exist. Returns False if the broker does not
        answer."""
        data = await self._broker_data(broker)
        if data is None or data.master_address is None:
            return False
        header = probe(topic, 0)
        try:
            answer = await self.instance.call(
                data.master_address, RequestCode.PULL_MESSAGE, header, timeout_s=CALL_TIMEOUT_S
            )
        except OrbitError:
            return False
        return answer.code == ResponseCode.TOPIC_NOT_EXIST

    def run(self, work: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Runs ``work`` on the loop and returns its result. Raises ``RequestTimeoutError`` after ``timeout_s``."""

        async def bounded() -> T:
            try:
                async with asyncio.timeout(timeout_s):
                    return await work()
            except TimeoutError as error:
                if isinstance(error, OrbitError):
                    raise
                raise RequestTimeoutError(f"no answer within {timeout_s:g} s") from None

        return self.loop.run(bounded())


def probe(topic: str, queue_id: int, subscription: str = "*", kind: str = TAG) -> PullMessageRequest:
    """Returns a pull request whose answer contains only offsets and no messages."""
    return PullMessageRequest(
        consumer_group=DEFAULT_GROUP,
        topic=topic,
        queue_id=queue_id,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=int(PullFlag.SUBSCRIPTION),
        subscription=subscription,
        expression_type=kind,
        max_msg_bytes=1,
    )


def raise_refusal(answer: Frame) -> Frame:
    """Returns the answer, or raises the error of a refusal."""
    if answer.code != ResponseCode.SUCCESS:
        raise error_for_code(answer.code, answer.remark)
    return answer


def replicas(data: BrokerData | None) -> list[tuple[int, str]]:
    """Returns the id and address of each server of a broker, the master first."""
    return (
        [] if data is None else sorted(data.broker_addrs.items(), key=lambda one: (one[0] != MASTER_ID, one))
    )


# -- one per process -----------------------------------------------------------------------------------

_clients: Final[dict[tuple[int, Access], ServerClient]] = {}
_clients_lock: Final = threading.Lock()


def server_client(access: Access) -> ServerClient:
    """Returns this process's client for these servers and keys. Raises ``ConfigError`` for unusable TLS files."""
    key = (process_id(), access)
    with _clients_lock:
        client = _clients.pop(key, None) or ServerClient(access)
        _clients[key] = client  # keep the most recently used one last
        dropped = []
        while len(_clients) > _CLIENTS_MAX:
            old = next(iter(_clients))
            dropped.append((old[0], _clients.pop(old)))
    for pid, old_client in dropped:
        if pid == process_id():  # after a fork, the parent's client has no loop here
            old_client.close()
    return client


@atexit.register
def close_clients() -> None:
    """Stops the loops of this process. A loop that still runs while the interpreter shuts down may crash it: 1 of 150
    short programs ended with SIGSEGV after their last line."""
    with _clients_lock:
        clients = [client for (pid, _), client in _clients.items() if pid == process_id()]
        _clients.clear()
    for client in clients:
        try:
            client.close()
        except OrbitError as error:
            logger.info("client not closed cleanly error=%s", error)

"""The client of a Spark process: routes, questions and their errors are those of ``orbitmq.client``.

One ``ClientInstance`` for each set of servers and keys, on a loop of its own, lives as long as the process; drivers
and executors ask through it. It joins no group and sends no heartbeat. Only the bytes of pulls go another way
(``pool.py``), at addresses that are chosen here.
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
"""Every broker has it, so reading needs no group to be created."""
CALL_TIMEOUT_S: Final = 5.0
_AT_ONCE: Final = 500
_CLIENTS_MAX: Final = 16


class ServerClient:
    """Asks name servers and brokers. Methods without ``async`` wait for their answer and may be called by any
    thread but the loop's."""

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
            # Routes are asked for when a query wants them; in between nothing is kept up.
            route_refresh_s=3600,
            heartbeat_s=3600,
            close_wait_s=1,
        )
        self.instance = ClientInstance(self, access.name_servers, options, clock=SYSTEM_CLOCK)
        self.instance.start()

    def close(self) -> None:
        """End connections and loop."""
        try:
            self.loop.run(self.instance.stop())
        finally:
            self.loop.close()

    # What the instance asks (Member).
    def topics(self) -> set[str]:
        return set()

    def producer_data(self) -> ProducerData | None:
        return None

    def consumer_data(self) -> ConsumerData | None:
        return None

    # -- name servers ----------------------------------------------------------------------------------

    async def route(self, topic: str) -> TopicRoute:
        """The route of a topic now. Raises ``TopicNotFound``, ``NameServerError``."""
        return await self.instance.book.refresh(topic)

    async def routes_of(self, topics: Sequence[str]) -> list[TopicRoute | OrbitError]:
        """The route of each topic, or why there is none; many questions are on the way at once."""
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
        """The same for a thread."""
        return self.loop.run(self.route(topic))

    def known_route(self, topic: str) -> TopicRoute | None:
        """The newest route there is: a new one, or the last known while no name server answers or knows it."""
        try:
            return self.fetch_route(topic)
        except (TopicNotFound, NameServerError):
            return self.instance.book.route(topic)

    async def all_topics(self) -> list[str]:
        """Every topic the name servers know. Raises ``NameServerError``."""
        answer = await self._ask_name_servers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return list(TopicList.decode(answer.body).topic_list)

    async def _broker_data(self, name: str) -> BrokerData | None:
        """The addresses of a broker, whatever topics it has; the last known ones where no name server says."""
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
        """The answers of one broker, in order; many questions are on the way at once. Raises the error of a
        refusal."""
        answers: list[Frame] = []
        for first in range(0, len(headers), _AT_ONCE):
            some = headers[first : first + _AT_ONCE]
            answers += await asyncio.gather(*(self.instance.call(address, code, header) for header in some))
        return answers

    async def is_deleted(self, topic: str, broker: str) -> bool:
        """Whether a broker says that it has no such topic. A broker that does not answer says nothing."""
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
        """The result of ``work`` on the loop. Raises ``RequestTimeoutError`` when the time is over."""

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
    """A pull whose answer has no messages, only offsets."""
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
    """The answer; raises the error of one that is a refusal."""
    if answer.code != ResponseCode.SUCCESS:
        raise error_for_code(answer.code, answer.remark)
    return answer


def replicas(data: BrokerData | None) -> list[tuple[int, str]]:
    """Id and address of each server of a broker, the master first."""
    return (
        [] if data is None else sorted(data.broker_addrs.items(), key=lambda one: (one[0] != MASTER_ID, one))
    )


# -- one for each process ------------------------------------------------------------------------------

_clients: Final[dict[tuple[int, Access], ServerClient]] = {}
_clients_lock: Final = threading.Lock()


def server_client(access: Access) -> ServerClient:
    """The client of this process for these servers and keys. Raises ``ConfigError`` for TLS files that cannot be
    used."""
    key = (process_id(), access)
    with _clients_lock:
        client = _clients.pop(key, None) or ServerClient(access)
        _clients[key] = client  # the last used one is the last
        dropped = []
        while len(_clients) > _CLIENTS_MAX:
            old = next(iter(_clients))
            dropped.append((old[0], _clients.pop(old)))
    for pid, old_client in dropped:
        if pid == process_id():  # one of before a fork has no loop here
            old_client.close()
    return client


@atexit.register
def close_clients() -> None:
    """Stop the loops of this process. One that still runs while the interpreter is finalized may crash it: 1 of 150
    short programs ended with SIGSEGV after their last line."""
    with _clients_lock:
        clients = [client for (pid, _), client in _clients.items() if pid == process_id()]
        _clients.clear()
    for client in clients:
        try:
            client.close()
        except OrbitError as error:
            logger.info("client not closed in order error=%s", error)

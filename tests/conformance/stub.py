"""A name server and brokers that answer as a test defines, and record the requests they receive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from tests.unit.transport.peers import address_of, serving

from orbitmq.codes import ResponseCode
from orbitmq.model.route import BrokerData, QueueData, TopicRoute
from orbitmq.requests import RequestCode
from orbitmq.transport.router import PARKED, Answer, Call, Reply, Route
from orbitmq.wire.bodies import ConsumerIdList, LockBatchRequest, LockBatchResponse
from orbitmq.wire.bodies.route import encode_route
from orbitmq.wire.header import Header

__all__ = ["StubCluster", "sent", "stub_cluster"]

Respond = Callable[[str, int], Answer]
"""From the name of the broker and the number of the send (from 0) to its answer."""


def sent(queue_id: int = 0, code: int = ResponseCode.SUCCESS, offset: int = 7) -> Reply:
    """Returns the response to a stored send."""
    fields = {
        "msgId": "7F00000100002A9F0000000000000000",
        "queueId": str(queue_id),
        "queueOffset": str(offset),
    }
    return Reply(code, ext=fields)


@dataclass
class StubCluster:
    """The behaviour of the servers, and the requests they received."""

    brokers: int
    respond: Respond
    name_server: str = ""
    addresses: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, int, dict[str, str]]] = field(default_factory=list)
    """Server (empty: the name server), code and fields of each request, in order."""
    sends: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    known_topics: set[str] | None = None
    """None: the route of every topic is known."""
    members: list[str] = field(default_factory=list)
    locked_by: str = ""
    """A client that has every lock."""
    slow: dict[str, float] = field(default_factory=dict)
    """Seconds until a broker answers a send."""
    replicas: dict[str, dict[int, str]] = field(default_factory=dict)
    """Addresses by broker id of each broker name in routes, instead of one master each."""
    on_pull: Callable[[str, Call[Header]], Answer] | None = None
    """Answers pulls and pops, which otherwise wait for good."""
    refuses_members: bool = False

    def count(self, code: int) -> int:
        return sum(1 for _, asked, _ in self.asked if asked == code)

    def route(self, call: Call[Header]) -> Answer:
        fields = call.frame.ext_fields
        self.asked.append(("", int(RequestCode.GET_ROUTEINFO_BY_TOPIC), fields))
        if self.known_topics is not None and fields["topic"] not in self.known_topics:
            return Reply(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        replicas = self.replicas or {name: {0: self.addresses[name]} for name in sorted(self.addresses)}
        route = TopicRoute(
            broker_datas=[
                BrokerData(broker_name=name, broker_addrs=addresses) for name, addresses in replicas.items()
            ],
            queue_datas=[
                QueueData(broker_name=name, perm=6, read_queue_nums=2, write_queue_nums=2)
                for name in replicas
            ],
        )
        return Reply(body=encode_route(route, standard=True))

    def on_send(self, broker: str, call: Call[Header]) -> Answer:
        number = len(self.sends)
        self.sends.append((broker, call.frame.ext_fields))
        answer = self.respond(broker, number)
        if broker in self.slow and isinstance(answer, Reply):
            asyncio.get_running_loop().call_later(self.slow[broker], call.reply, answer)
            return PARKED
        return answer

    def note(self, broker: str, code: int, call: Call[Header]) -> Answer:
        self.asked.append((broker, code, call.frame.ext_fields))
        if code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            if self.refuses_members:
                return Reply(ResponseCode.SYSTEM_ERROR, "no consumer of this group")
            return Reply(body=ConsumerIdList(consumer_id_list=self.members).encode())
        if code == RequestCode.LOCK_BATCH_MQ:
            request = LockBatchRequest.decode(call.body)
            free = not self.locked_by or self.locked_by == request.client_id
            return Reply(body=LockBatchResponse(lock_ok_mq_set=request.mq_set if free else []).encode())
        if code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET):
            return Reply(ext={"offset": "0"})
        if code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE):
            return PARKED if self.on_pull is None else self.on_pull(broker, call)
        return Reply()


_NOTED = (
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.CONSUMER_SEND_MSG_BACK,
)


@asynccontextmanager
async def stub_cluster(respond: Respond | None = None, *, brokers: int = 1) -> AsyncIterator[StubCluster]:
    """Runs servers until the block ends."""
    stub = StubCluster(brokers, respond or (lambda broker, number: sent()))
    async with AsyncExitStack() as stack:
        for index in range(brokers):
            name = f"broker-{'abcd'[index]}"
            routes = [Route(code, partial(stub.note, name, int(code)), Header) for code in _NOTED]
            routes += [
                Route(code, partial(stub.on_send, name), Header)
                for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
            ]
            stub.addresses[name] = address_of(await stack.enter_async_context(serving(routes)))
        route = Route(RequestCode.GET_ROUTEINFO_BY_TOPIC, stub.route, Header)
        stub.name_server = address_of(await stack.enter_async_context(serving([route])))
        yield stub

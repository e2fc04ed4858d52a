"""A simulated cluster: an ``Admin`` whose calls are recorded and answered by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from orbitmq.admin import Admin
from orbitmq.admin.errors import UnreachableError
from orbitmq.codes import ResponseCode
from orbitmq.model.route import BrokerData, QueueData, TopicRoute
from orbitmq.requests import RequestCode
from orbitmq.wire import bodies
from orbitmq.wire.frame import Frame, FrameDecoder, encode_response
from orbitmq.wire.header import Header, encode_ext

__all__ = ["NS", "NS2", "SLAVE", "A", "Asked", "B", "Scripted"]

NS, NS2 = "10.0.0.1:9876", "10.0.0.2:9876"
A, SLAVE, B = "10.0.1.1:10911", "10.0.1.2:10911", "10.0.2.1:10911"
R = TypeVar("R")

CLUSTER = bodies.ClusterInfo(
    broker_addr_table={
        "broker-a": BrokerData(broker_name="broker-a", broker_addrs={0: A, 1: SLAVE}, cluster="C"),
        "broker-b": BrokerData(broker_name="broker-b", broker_addrs={0: B}, cluster="C"),
    },
    cluster_addr_table={"C": ["broker-b", "broker-a"]},
)


class Asked(NamedTuple):
    """A recorded call: its target, its code, and its fields and body."""

    address: str
    code: int
    fields: dict[str, str]
    body: bytes


class Scripted(Admin):
    """Two name servers; a cluster C of broker-a with a slave, and broker-b. Every change is accepted."""

    def __init__(self, **more: Any) -> None:
        super().__init__(f"{NS};{NS2}", **more)
        self.asked: list[Asked] = []
        self.down: set[str] = set()
        self.answers: dict[int, Callable[[Asked], bytes | int | dict[str, str]]] = {
            RequestCode.GET_BROKER_CLUSTER_INFO: lambda asked: CLUSTER.encode()
        }
        """By code: a body, the code of a refusal, or header fields."""

    async def call(
        self,
        address: str,
        code: int,
        header: Header | dict[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        role: str = "broker",
    ) -> Frame:
        fields = encode_ext(header) if isinstance(header, Header) else dict(header or {})
        asked = Asked(address, int(code), fields, body)
        self.asked.append(asked)
        if address in self.down:
            raise UnreachableError(role, address, "down")
        answers = self.answers.get(int(code))
        answer = b"" if answers is None else answers(asked)
        refusal = answer if isinstance(answer, int) else ResponseCode.SUCCESS
        (frame,) = FrameDecoder().feed(
            encode_response(
                int(refusal),
                1,
                ext=answer if isinstance(answer, dict) else None,
                body=answer if isinstance(answer, bytes) else b"",
                remark="as scripted" if refusal else None,
            )
        )
        return frame

    def route_of(self, topic: str, queues: int = 2, perm: int = 6) -> None:
        """Both brokers have the topic, each with that many queues; no other topic has a route."""
        route = TopicRoute(
            queue_datas=[
                QueueData(
                    broker_name=name,
                    perm=perm,
                    read_queue_nums=queues,
                    write_queue_nums=queues,
                    topic_sys_flag=0,
                )
                for name in CLUSTER.broker_addr_table
            ],
            broker_datas=list(CLUSTER.broker_addr_table.values()),
        )
        self.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda asked: (
            bodies.encode_route(route, standard=True)
            if asked.fields["topic"] == topic
            else int(ResponseCode.TOPIC_NOT_EXIST)
        )

    def topics(self, *names: str) -> None:
        """Sets the topics that the name servers list."""
        listed = bodies.TopicList(topic_list=list(names)).encode()
        self.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = lambda asked: listed

    def of(self, code: int) -> list[Asked]:
        """Returns the calls with this code."""
        return [asked for asked in self.asked if asked.code == code]

    def run(self, coroutine: Awaitable[R]) -> R:
        async def main() -> R:
            return await coroutine

        return asyncio.run(main())

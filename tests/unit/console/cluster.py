"""A broker and a name server that answer the requests of a console from memory; the console is called
without HTTP.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar
from zlib import crc32

import httpx

from orbitmq.admin import Admin
from orbitmq.codes import ResponseCode
from orbitmq.console.app import Console
from orbitmq.console.settings import ConsoleSettings
from orbitmq.errors import ConnectionLostError
from orbitmq.model.route import BrokerData, QueueData, TopicRoute
from orbitmq.model.subscription import subscribe_by_tags
from orbitmq.record.codec import Record, encode_record
from orbitmq.record.hosts import encode_host
from orbitmq.record.ids import parse_offset_message_id
from orbitmq.record.properties import encode_properties
from orbitmq.requests import RequestCode
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.bodies import ClusterInfo, TopicList, encode_route
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import Header
from orbitmq.wire.headers import OffsetResponse, PullMessageResponse
from orbitmq.wire.javajson import encode as encode_java

__all__ = ["BROKER", "Cluster", "browse"]

BROKER: Final = "10.0.0.1:10911"
NAME_SERVER: Final = "10.0.0.9:9876"
_CLUSTER: Final = "DefaultCluster"
_TOKEN: Final = re.compile(r'name="token" value="([^"]+)"')

T = TypeVar("T")


def ok(header: Header | None = None, body: bytes = b"") -> Frame:
    from orbitmq.wire.header import encode_ext

    fields = {} if header is None else encode_ext(header)
    return Frame(ResponseCode.SUCCESS, 0, ext_raw=encode_java(fields) if fields else b"", body=body)


class Cluster:
    """A cluster in which every topic has one queue. ``asked`` records the target address of every request."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.clock = ManualClock(now_ms)
        self.topics: dict[str, list[bytes]] = {}
        self.records: dict[str, list[Record]] = {}
        self.asked: list[tuple[str, int]] = []
        self.up = True

    def store(
        self, topic: str, body: bytes, properties: Mapping[str, str] | None = None, *, sys_flag: int = 0
    ) -> str:
        """Stores a message; returns its unique id."""
        rows = self.records.setdefault(topic, [])
        log_offset = sum(map(len, self.records.values())) * 1_000_000
        unique = f"7F0000010001{len(rows):020X}"
        record = Record(
            topic=topic,
            queue_id=0,
            body=body,
            properties=encode_properties({"UNIQ_KEY": unique, **(properties or {})}),
            born_timestamp_ms=self.clock.now_ms(),
            born_host=encode_host("10.0.0.2", 4000),
            flag=0,
            sys_flag=sys_flag,
            reconsume_times=0,
            prepared_offset=0,
            queue_offset=len(rows),
            log_offset=log_offset,
            store_timestamp_ms=self.clock.now_ms(),
            store_host=encode_host("10.0.0.1", 10911),
            body_crc=crc32(body),
            magic=0,
            size=0,
        )
        rows.append(record)
        self.topics.setdefault(topic, []).append(
            encode_record(
                record, record.queue_offset, log_offset, record.store_timestamp_ms, record.store_host
            )
        )
        return unique

    # -- what an RPC client of the console has -----------------------------------------------------------------

    async def call(
        self, address: str, code: int, header: object, body: bytes, *, timeout_s: float, ext: dict[str, str]
    ) -> Frame:
        self.asked.append((address, code))
        if not self.up or address not in (BROKER, NAME_SERVER):
            raise ConnectionLostError("connection refused")
        match code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                info = ClusterInfo(
                    broker_addr_table={"broker-a": self._place()}, cluster_addr_table={_CLUSTER: ["broker-a"]}
                )
                return ok(body=info.encode())
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return self._route(ext["topic"])
            case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
                return ok(body=TopicList(topic_list=sorted(self.topics)).encode())
            case RequestCode.GET_BROKER_CONFIG:
                return ok(body=b"brokerName=broker-a\nmessageDelayLevel=1s 5s\n")
            case RequestCode.GET_MIN_OFFSET:
                return ok(OffsetResponse(offset=0))
            case RequestCode.GET_MAX_OFFSET:
                return ok(OffsetResponse(offset=len(self.topics.get(ext["topic"], ()))))
            case RequestCode.PULL_MESSAGE:
                return self._pull(ext)
            case RequestCode.QUERY_MESSAGE:
                return self._query(ext)
            case RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG:
                return Frame(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, 0, remark="no such group")
            case RequestCode.VIEW_MESSAGE_BY_ID:
                return self._view(int(ext["offset"]))
        return Frame(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 0, remark=f"no code {code} here")

    def _place(self) -> BrokerData:
        return BrokerData(broker_addrs={0: BROKER}, broker_name="broker-a", cluster=_CLUSTER)

    def _route(self, topic: str) -> Frame:
        if topic not in self.topics and topic != "broker-a":
            return Frame(ResponseCode.TOPIC_NOT_EXIST, 0, remark=f"No topic route info of {topic}")
        queues = QueueData(broker_name="broker-a", perm=6, read_queue_nums=1, write_queue_nums=1)
        route = TopicRoute(broker_datas=[self._place()], queue_datas=[queues])
        return ok(body=encode_route(route, standard=True))

    def _pull(self, ext: dict[str, str]) -> Frame:
        topic, begin = ext["topic"], int(ext["queueOffset"])
        rows, records = self.topics.get(topic, []), self.records.get(topic, [])
        end = min(len(rows), begin + int(ext["maxMsgNums"]))
        wanted = subscribe_by_tags(topic, ext["subscription"] if ext["expressionType"] == "TAG" else "*")
        chosen = [
            rows[one]
            for one in range(begin, end)
            if wanted.matches_tag(records[one].property_map().get("TAGS", ""))
        ]
        header = PullMessageResponse(
            suggest_which_broker_id=0, next_begin_offset=end, min_offset=0, max_offset=len(rows)
        )
        answer = ok(header, b"".join(chosen))
        if not chosen:
            answer.code = ResponseCode.PULL_NOT_FOUND
        return answer

    def _query(self, ext: dict[str, str]) -> Frame:
        unique = ext.get("_UNIQUE_KEY_QUERY") == "true" or ext.get("uniqueKeyQuery") == "true"
        found = [
            row
            for row, record in zip(
                self.topics.get(ext["topic"], ()), self.records.get(ext["topic"], ()), strict=True
            )
            if (
                record.unique_key == ext["key"]
                if unique
                else ext["key"] in record.property_map().get("KEYS", "").split()
            )
        ]
        return ok(body=b"".join(found)) if found else Frame(ResponseCode.QUERY_NOT_FOUND, 0, remark="none")

    def _view(self, log_offset: int) -> Frame:
        for topic, records in self.records.items():
            for row, record in zip(self.topics[topic], records, strict=True):
                if record.log_offset == log_offset:
                    return ok(body=row)
        return Frame(ResponseCode.SYSTEM_ERROR, 0, remark=f"no message at {log_offset}")

    async def close(self) -> None:
        """Nothing is open."""

    def offset_id(self, topic: str, index: int) -> str:
        """Returns the id by which the broker finds a record."""
        found = self.records[topic][index].offset_message_id
        assert parse_offset_message_id(found)
        return found


class Browser:
    """A console over a cluster, queried like a browser would."""

    def __init__(self, cluster: Cluster, settings: ConsoleSettings) -> None:
        self.cluster = cluster
        admin = Admin(NAME_SERVER, clock=cluster.clock)
        admin._rpc = cluster  # type: ignore[assignment]  # has what is used of it
        self.console = Console(admin, settings)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.console.app),
            base_url="http://localhost",
            headers={"accept": "text/html", "origin": "http://localhost"},
        )

    async def get(self, path: str, **query: str) -> httpx.Response:
        return await self.client.get(path, params=query or None)

    async def post(self, action: str, **form: str) -> httpx.Response:
        """Submits a form of a page; it is confirmed only if requested."""
        token = _TOKEN.search((await self.get("/topics")).text)
        assert token is not None
        return await self.client.post(f"/do/{action}", data={"token": token.group(1), **form})


def browse(
    cluster: Cluster, work: Callable[[Browser], Awaitable[T]], settings: ConsoleSettings | None = None
) -> T:
    """Runs ``work`` with a browser of a console over the cluster."""

    async def run() -> T:
        browser = Browser(cluster, settings or ConsoleSettings())
        await browser.console.services.sampler.round()
        cluster.asked.clear()
        try:
            return await work(browser)
        finally:
            await browser.client.aclose()
            browser.console.services.history.close()

    return asyncio.run(run())

"""A stream over Apache's broker and over ours: few questions, and a group that Apache's mqadmin finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.apache.artifacts import LATEST
from tests.apache.mqadmin import mqadmin
from tests.apache.servers import ApacheBroker, ApacheNamesrv, create_topic
from tests.support.waiting import until

from orbitmq.client import Message
from orbitmq.client.net.instance import ClientInstance
from orbitmq.client.sync import Producer
from orbitmq.requests import RequestCode
from orbitmq.spark.options import SourceOptions
from orbitmq.spark.source.stream import TopicStreamReader
from orbitmq.testing import run_broker

pytestmark = [pytest.mark.slow, pytest.mark.apache]


@dataclass(frozen=True)
class Target:
    name_server: str
    create_topic: Callable[[str, int], object]


@pytest.fixture(params=["orbitmq", "apache"])
def target(request: pytest.FixtureRequest, apache_tools: None) -> Iterator[Target]:
    with ExitStack() as stack:
        if request.param == "orbitmq":
            broker = stack.enter_context(run_broker())
            yield Target(
                broker.name_server, lambda topic, count: broker.create_topic(topic, queue_count=count)
            )
            return
        namesrv = stack.enter_context(ApacheNamesrv(LATEST))
        apache = stack.enter_context(ApacheBroker(LATEST, namesrv))
        yield Target(
            namesrv.address, lambda topic, count: create_topic(namesrv, apache, topic, queue_count=count)
        )


def test_a_stream_asks_little_and_its_group_is_found_by_mqadmin(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[int] = Counter()
    call = ClientInstance.call

    async def counting(self: ClientInstance, address: str, code: int, *rest: Any, **more: Any) -> Any:
        asked[int(code)] += 1
        return await call(self, address, code, *rest, **more)

    monkeypatch.setattr(ClientInstance, "call", counting)
    target.create_topic("Wide", 16)
    with Producer("wide", target.name_server) as producer:
        for number in range(40):
            producer.send(Message(topic="Wide", body=b"%d" % number))
    given = {
        "namesrvAddr": target.name_server,
        "topic": "Wide",
        "startingOffsets": "earliest",
        "group": "to-lake",
    }
    source = TopicStreamReader(SourceOptions.parse(given, streaming=True), ["body"])
    place = source.initialOffset()
    end = source.latestOffset(place, ReadAllAvailable())
    assert sum(sum(queues.values()) for queues in end["Wide"].values()) == 40
    bodies = [
        body
        for part in source.partitions(place, end)
        for batch in source.read(part)
        for body in batch.column(0).to_pylist()
    ]
    assert sorted(map(int, bodies)) == list(range(40))
    assert asked[RequestCode.GET_MAX_OFFSET] == asked[RequestCode.GET_MIN_OFFSET] == 0

    def listed() -> bool:
        source.latestOffset(
            end, ReadAllAvailable()
        )  # a trigger; one whose commit is late leaves it to the next
        output = mqadmin(LATEST, target.name_server, "consumerProgress", "-g", "to-lake").output
        return "Consume Diff Total: 0" in output and output.count("Wide ") == 16

    until(listed, "mqadmin lists the group", 60)

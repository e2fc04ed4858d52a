"""Cached responses: both dialects, the bound, and queries parsed once."""

from __future__ import annotations

import json

import pytest
from tests.unit.namesrv.brokers import registration

from orbitmq.codes import SerializeType
from orbitmq.errors import HeaderFieldError
from orbitmq.model.route import TopicRoute
from orbitmq.namesrv.route_cache import QueryCache, RouteCache, RouteQuery
from orbitmq.namesrv.route_table import RouteTable
from orbitmq.requests import RequestCode
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.frame import Frame, FrameDecoder, encode_request


def query_frame(form: SerializeType = SerializeType.JSON, **fields: str) -> Frame:
    [frame] = FrameDecoder().feed(encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, fields, b"", form))
    return frame


def table(name: str = "a") -> RouteTable:
    table = RouteTable(ManualClock())
    table.register(registration(name=name))
    return table


def test_bodies_have_apaches_members_in_both_dialects() -> None:
    cache = RouteCache(table().route, 1_000_000)
    queues = (
        '"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]'
    )
    for standard, broker_id in ((True, '"0"'), (False, "0")):
        body = cache.body("T", standard=standard)
        assert body is not None
        assert body.decode() == (
            f'{{"brokerDatas":[{{"brokerAddrs":{{{broker_id}:"a0:1"}},"brokerName":"a","cluster":"C",'
            f'"enableActingMaster":false}}],"filterServerTable":{{}},{queues}}}'
        )
        assert cache.body("none", standard=standard) is None


def test_standard_body_is_ascii() -> None:
    body = RouteCache(table("grün").route, 1_000_000).body("T", standard=True)
    assert body is not None
    assert body.isascii()
    assert json.loads(body)["queueDatas"][0]["brokerName"] == "grün"


def test_body_is_built_once_and_again_after_forget() -> None:
    routes = table()
    built: list[str] = []

    def route(topic: str) -> TopicRoute | None:
        built.append(topic)
        return routes.route(topic)

    cache = RouteCache(route, 1_000_000)
    for _ in range(3):
        cache.body("T", standard=True)
    cache.forget(("U",))
    cache.body("T", standard=True)
    assert built == ["T"]
    cache.forget(("T", "U"))
    cache.body("T", standard=True)
    assert built == ["T", "T"]


def test_cache_never_holds_more_than_its_bound() -> None:
    routes = RouteTable(ManualClock())
    topics = [f"T{number}" for number in range(50)]
    routes.register(registration(topics))
    cache = RouteCache(routes.route, 1_000)
    for topic in topics * 2:
        for standard in (True, False):
            assert cache.body(topic, standard=standard) is not None
        assert cache._bytes == sum(
            len(b) for bodies in (cache._standard, cache._bare) for b in bodies.values()
        )
        assert cache._bytes <= 1_000
    tiny = RouteCache(routes.route, 10)
    assert tiny.body("T0", standard=True) is not None
    assert tiny._bytes == 0


@pytest.mark.parametrize("form", list(SerializeType))
def test_query_is_read_once_per_text(form: SerializeType) -> None:
    queries = QueryCache()
    plain = queries.query(query_frame(form, topic="T", bname="ignored"))
    assert plain == RouteQuery("T", False, "")
    assert queries.query(query_frame(form, topic="T", bname="ignored")) is plain
    assert queries.query(query_frame(form, topic="T", acceptStandardJsonOnly="true")).standard_json
    zoned = queries.query(query_frame(form, topic="T", __ZONE_MODE="true", __ZONE_NAME="z"))
    assert zoned.zone_name == "z"
    assert queries.query(query_frame(form, topic="T", __ZONE_MODE="false", __ZONE_NAME="z")).zone_name == ""


def test_query_without_topic_names_the_field() -> None:
    with pytest.raises(HeaderFieldError, match="topic"):
        QueryCache().query(query_frame())


def test_queries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orbitmq.namesrv.route_cache._QUERIES_MAX", 10)
    queries = QueryCache()
    for number in range(35):
        assert queries.query(query_frame(topic=f"T{number}")).topic == f"T{number}"
        assert len(queries._known) <= 10
    queries.query(query_frame(topic="x" * 600))
    assert all(len(raw) <= 512 for _, raw in queries._known)

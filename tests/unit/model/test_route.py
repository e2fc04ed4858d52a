"""Routes and queues."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.golden.data import frames

from orbitmq.errors import InvalidParameter
from orbitmq.model.route import BrokerData, MessageQueue, QueueData, TopicRoute, parse_order_conf


def queue(topic: str, broker: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)


def broker(name: str, *ids: int) -> BrokerData:
    return BrokerData(
        broker_name=name, cluster="c", broker_addrs={broker_id: f"{name}:{broker_id}" for broker_id in ids}
    )


def queues(name: str, perm: int = 6, read: int = 2, write: int = 3) -> QueueData:
    return QueueData(broker_name=name, perm=perm, read_queue_nums=read, write_queue_nums=write)


def test_queue_text_and_json_are_javas() -> None:
    assert str(queue("T", "b", 3)) == "MessageQueue [topic=T, brokerName=b, queueId=3]"
    assert msgspec.json.encode(queue("T", "b", 0)) == b'{"brokerName":"b","queueId":0,"topic":"T"}'


def test_queues_sort_as_in_java() -> None:
    # Java compares UTF-16 units: a character beyond the first plane (D83D...) comes before U+FF21.
    ordered = [
        queue("A", "b", 2),
        queue("A", "b", 10),
        queue("A", "c", 0),
        queue("a", "b", 0),
        queue("\U0001f600", "b", 0),
        queue("\uff21", "b", 0),
    ]
    shuffled = [ordered[at] for at in (3, 5, 0, 4, 2, 1)]
    assert sorted(shuffled) == ordered
    assert len({*ordered, *ordered}) == len(ordered)


def test_recorded_routes_decode_and_encode_to_the_same_members() -> None:
    bodies = [
        frame["response"]["bodyText"]
        for frame in frames()
        if frame["code"] == 105 and frame.get("response") and '"0":' in frame["response"].get("bodyText", "")
    ]
    assert bodies
    for body in bodies:
        route = msgspec.json.decode(body, type=TopicRoute)
        assert json.loads(msgspec.json.encode(route)) == json.loads(body)
        assert route.broker_datas[0].master_address


def test_queues_to_send_to_need_a_master_and_the_right_to_write() -> None:
    route = TopicRoute(
        broker_datas=[broker("d", 0), broker("b", 0, 1), broker("a", 1), broker("c", 0)],
        queue_datas=[queues("d", write=1), queues("b"), queues("a"), queues("c", perm=4), queues("gone")],
    )
    assert route.publish_queues("T") == [
        queue("T", "b", 0),
        queue("T", "b", 1),
        queue("T", "b", 2),
        queue("T", "d", 0),
    ]


def test_queues_to_consume_need_the_right_to_read_alone() -> None:
    route = TopicRoute(broker_datas=[broker("a", 1)], queue_datas=[queues("b", perm=2), queues("a", read=2)])
    assert route.subscribe_queues("T") == [queue("T", "a", 0), queue("T", "a", 1)]


def test_queues_of_an_ordered_topic_are_those_of_its_configuration() -> None:
    route = TopicRoute(broker_datas=[broker("a", 0)], queue_datas=[queues("a")], order_topic_conf="z:2;a:1")
    assert route.publish_queues("T") == [queue("T", "z", 0), queue("T", "z", 1), queue("T", "a", 0)]


@pytest.mark.parametrize("text", ["a", "a:", ":3", "a:x", "a:-1", "a:99999999", "a:1;b"])
def test_an_order_configuration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        parse_order_conf(text)


def test_an_order_configuration_may_end_with_a_separator() -> None:
    assert parse_order_conf("a:1;b:2;") == [("a", 1), ("b", 2)]


def test_pull_address_is_the_one_suggested_or_the_next_slave_or_any() -> None:
    data = broker("a", 0, 2)
    assert data.read_address(0) == (0, "a:0")
    assert data.read_address(2) == (2, "a:2")
    assert data.read_address(1) == (2, "a:2")
    assert data.read_address(7) == (0, "a:0")
    assert broker("a", 3).read_address(0) == (3, "a:3")
    assert broker("a").read_address(0) is None
    assert broker("a", 3).master_address is None


def test_routes_are_compared_whatever_the_order_of_their_parts() -> None:
    one = TopicRoute(broker_datas=[broker("a", 0), broker("b", 0)], queue_datas=[queues("a"), queues("b")])
    other = TopicRoute(broker_datas=[broker("b", 0), broker("a", 0)], queue_datas=[queues("b"), queues("a")])
    assert one.same_as(other)
    assert one != other
    assert not one.same_as(TopicRoute(broker_datas=one.broker_datas, queue_datas=[queues("a")]))
    assert one.broker("b") == broker("b", 0)
    assert one.broker("x") is None
    assert one.same_as(msgspec.structs.replace(other, order_topic_conf=None))

"""Responses to QueryRoute and QueryAssignment."""

from __future__ import annotations

import pytest

from orbitmq.model.route import BrokerData, QueueData, TopicRoute
from orbitmq.proxy.brokers import TopicFacts
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.routes import RouteAnswers
from orbitmq.proxy.statuses import Refused

ASKED = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="balancer", port=443)])


def _facts(*queues: QueueData, kind: str = "NORMAL", slaves: bool = False) -> TopicFacts:
    names = {data.broker_name for data in queues}
    brokers = [
        BrokerData(
            broker_name=name,
            broker_addrs={0: f"{name}:10911", **({1: f"{name}-slave:10911"} if slaves else {})},
        )
        for name in sorted(names)
    ]
    return TopicFacts(TopicRoute(queue_datas=list(queues), broker_datas=brokers), [], [], kind)


def _queues(name: str = "a", perm: int = 6, read: int = 2, write: int = 2) -> QueueData:
    return QueueData(broker_name=name, perm=perm, read_queue_nums=read, write_queue_nums=write)


def _route(
    facts: TopicFacts, *, local: bool = False, config: ProxyConfig | None = None
) -> list[pb.MessageQueue]:
    answers = RouteAnswers(config or ProxyConfig(port=8081), local=local)
    request = pb.QueryRouteRequest(topic=pb.Resource(name="T"), endpoints=ASKED)
    response = answers.route(facts, request)
    assert response.status.code == pb.OK
    return list(response.message_queues)


def test_client_of_a_cluster_stays_with_the_host_it_asked() -> None:
    queue = _route(_facts(_queues()))[0]
    assert queue.broker.endpoints.scheme == pb.DOMAIN_NAME
    assert [(one.host, one.port) for one in queue.broker.endpoints.addresses] == [("balancer", 8081)]
    kept = _route(_facts(_queues()), config=ProxyConfig(endpoint_port_from_request=True))[0]
    assert kept.broker.endpoints.addresses[0].port == 443


@pytest.mark.parametrize(
    ("address", "scheme"), [("", pb.DOMAIN_NAME), ("192.0.2.1", pb.IPv4), ("2001:db8::1", pb.IPv6)]
)
def test_client_of_a_broker_goes_to_the_broker(address: str, scheme: pb.AddressScheme) -> None:
    queue = _route(_facts(_queues()), local=True, config=ProxyConfig(local_address=address))[0]
    assert queue.broker.endpoints.scheme == scheme
    assert queue.broker.endpoints.addresses[0].host == (address or "a")


@pytest.mark.parametrize(
    ("perm", "read", "write", "expected"),
    [
        (6, 2, 2, [pb.READ_WRITE, pb.READ_WRITE]),
        (6, 3, 1, [pb.READ, pb.READ, pb.READ_WRITE]),
        (6, 1, 3, [pb.WRITE, pb.WRITE, pb.READ_WRITE]),
        (4, 2, 2, [pb.READ, pb.READ]),
        (2, 2, 2, [pb.WRITE, pb.WRITE]),
        (0, 2, 1, [pb.NONE]),
    ],
)
def test_queues_are_numbered_by_what_can_be_done(
    perm: int, read: int, write: int, expected: list[pb.Permission]
) -> None:
    found = _route(_facts(_queues(perm=perm, read=read, write=write)))
    assert [(queue.id, queue.permission) for queue in found] == list(enumerate(expected))


def test_each_member_of_a_broker_is_named() -> None:
    found = _route(_facts(_queues("a", read=1, write=1), _queues("b", read=1, write=1), slaves=True))
    assert [(queue.broker.name, queue.broker.id) for queue in found] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
    ]


def test_queues_of_a_broker_without_an_address_are_left_out() -> None:
    facts = _facts(_queues())
    facts.route.queue_datas.append(_queues("gone"))
    assert {queue.broker.name for queue in _route(facts)} == {"a"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("NORMAL", [pb.NORMAL]),
        ("FIFO", [pb.FIFO]),
        ("MIXED", [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]),
        ("UNSPECIFIED", [pb.MESSAGE_TYPE_UNSPECIFIED]),
    ],
)
def test_types_of_messages_follow_the_topic(kind: str, expected: list[pb.MessageType]) -> None:
    assert list(_route(_facts(_queues(), kind=kind))[0].accept_message_types) == expected


def _assigned(facts: TopicFacts, *, fifo: bool = False) -> list[tuple[str, int]]:
    request = pb.QueryAssignmentRequest(topic=pb.Resource(name="T"), endpoints=ASKED)
    response = RouteAnswers(ProxyConfig(), local=False).assignment(facts, request, fifo=fifo)
    return [(one.message_queue.broker.name, one.message_queue.id) for one in response.assignments]


def test_everyone_is_assigned_all_that_can_be_read() -> None:
    facts = _facts(_queues("a"), _queues("b", perm=2))
    assert _assigned(facts) == [("a", -1)]
    assert _assigned(facts, fifo=True) == [("a", 0), ("a", 1)]
    with pytest.raises(Refused) as refused:
        _assigned(_facts(_queues(perm=2)))
    assert refused.value.code == pb.FORBIDDEN


@pytest.mark.parametrize("what", ["addresses", "host", "namespace"])
def test_what_is_answered_for_each_queue_is_bounded(what: str) -> None:
    """Otherwise a request of a megabyte would get a response of a megabyte for each queue."""
    endpoints = pb.Endpoints(scheme=pb.DOMAIN_NAME)
    topic = pb.Resource(name="T")
    if what == "addresses":
        endpoints.addresses.extend([pb.Address(host="h", port=1)] * 65)
    elif what == "host":
        endpoints.addresses.add(host="h" * 5000)
    else:
        topic.resource_namespace = "n" * 5000
    answers = RouteAnswers(ProxyConfig(), local=False)
    with pytest.raises(Refused) as refused:
        answers.route(_facts(_queues()), pb.QueryRouteRequest(topic=topic, endpoints=endpoints))
    assert refused.value.code == pb.ILLEGAL_ACCESS_POINT
    with pytest.raises(Refused):
        answers.assignment(
            _facts(_queues()), pb.QueryAssignmentRequest(topic=topic, endpoints=endpoints), fifo=False
        )

"""Answers of the name server: routes, clusters, topics, key-value tables (105, 106, 206, 219, 901 and others).

Corresponds to Apache's TopicRouteData, ClusterInfo, TopicList, KVTable, GetBrokerMemberGroupResponseBody.
"""

from __future__ import annotations

from orbitmq.model.route import BrokerData, TopicRoute
from orbitmq.wire import javajson
from orbitmq.wire.bodies.base import Body, always
from orbitmq.wire.header import Int64

__all__ = [
    "BrokerMemberGroup",
    "ClusterInfo",
    "KvTable",
    "MemberGroup",
    "TopicList",
    "decode_route",
    "encode_route",
]


def encode_route(route: TopicRoute, *, standard: bool) -> bytes:
    """Returns the body of the answer to GET_ROUTEINFO_BY_TOPIC (105).

    With ``standard`` the broker ids are quoted, for clients of version 4.9.4 and later and for those that request it.
    Other clients need unquoted ids: the Go client reads every quoted id as 0, so that it would take the last slave of
    a broker for its master.
    """
    return javajson.encode_standard(route) if standard else javajson.encode(route)


def decode_route(data: bytes) -> TopicRoute:
    """Decode a route in either form. Raises ``BodyError``."""
    return javajson.decode(data, TopicRoute)


class ClusterInfo(Body, frozen=True, kw_only=True):
    """Answer to GET_BROKER_CLUSTER_INFO (106)."""

    broker_addr_table: dict[str, BrokerData] = always(dict)
    cluster_addr_table: dict[str, list[str]] = always(dict)


class TopicList(Body, frozen=True, kw_only=True):
    """Answer to 206, 224, 304, 305, 311, 312, 313 and 343."""

    broker_addr: str | None = None
    topic_list: list[str] = always(list)


class KvTable(Body, frozen=True, kw_only=True):
    """Answer to GET_KVLIST_BY_NAMESPACE (219), GET_BROKER_RUNTIME_INFO (28) and REGISTER_BROKER (103)."""

    table: dict[str, str] = always(dict)


class BrokerMemberGroup(Body, frozen=True, kw_only=True):
    """The replicas of the brokers with one name."""

    broker_addrs: dict[Int64, str] = always(dict)
    broker_name: str | None = None
    cluster: str | None = None


class MemberGroup(Body, frozen=True, kw_only=True):
    """Answer to GET_BROKER_MEMBER_GROUP (901)."""

    broker_member_group: BrokerMemberGroup | None = None

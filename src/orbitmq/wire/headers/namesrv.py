"""Headers of requests to the name server (100-105, 205, 206, 216, 217, 219, 224, 322, 327, 901, 904) and of its own
call 905.

Corresponds to Apache's classes in remoting.protocol.header.namesrv.
"""

from __future__ import annotations

from msgspec import field

from orbitmq.wire.header import Header, Int32, Int64
from orbitmq.wire.headers.base import TopicRpcRequest

__all__ = [
    "AddWritePermOfBrokerRequest",
    "AddWritePermOfBrokerResponse",
    "BrokerHeartbeatRequest",
    "DeleteKvConfigRequest",
    "DeleteTopicInNamesrvRequest",
    "GetBrokerMemberGroupRequest",
    "GetKvConfigRequest",
    "GetKvConfigResponse",
    "GetKvlistByNamespaceRequest",
    "GetRouteinfoByTopicRequest",
    "GetTopicsByClusterRequest",
    "NotifyMinBrokerIdChangeRequest",
    "PutKvConfigRequest",
    "QueryDataVersionRequest",
    "QueryDataVersionResponse",
    "RegisterBrokerRequest",
    "RegisterBrokerResponse",
    "RegisterTopicInNamesrvRequest",
    "UnregisterBrokerRequest",
    "WipeWritePermOfBrokerRequest",
    "WipeWritePermOfBrokerResponse",
]


class GetRouteinfoByTopicRequest(TopicRpcRequest, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None
    """The answer must have quoted map keys, whatever the client's version."""
    zone_mode: bool | None = field(name="__ZONE_MODE", default=None)
    zone_name: str | None = field(name="__ZONE_NAME", default=None)


class RegisterBrokerRequest(Header, kw_only=True):
    """REGISTER_BROKER (103)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    ha_server_addr: str | None = None
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool | None = None
    body_crc32: Int32 | None = field(name="bodyCrc32", default=None)
    """0 or absent disables the check."""
    zone_name: str | None = field(name="__ZONE_NAME", default=None)


class RegisterBrokerResponse(Header, kw_only=True):
    """Answer to REGISTER_BROKER (103). The fields are set for a slave whose master is known."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerRequest(Header, kw_only=True):
    """UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionRequest(Header, kw_only=True):
    """QUERY_DATA_VERSION (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponse(Header, kw_only=True):
    changed: bool


class BrokerHeartbeatRequest(Header, kw_only=True):
    """BROKER_HEARTBEAT (904), oneway."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_mills: Int64 | None = None  # sic
    election_priority: Int32 | None = None


class GetBrokerMemberGroupRequest(Header, kw_only=True):
    """GET_BROKER_MEMBER_GROUP (901)."""

    cluster_name: str
    broker_name: str


class NotifyMinBrokerIdChangeRequest(Header, kw_only=True):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905), oneway from the name server to a broker."""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class RegisterTopicInNamesrvRequest(TopicRpcRequest, kw_only=True):
    """REGISTER_TOPIC_IN_NAMESRV (217)."""

    topic: str


class DeleteTopicInNamesrvRequest(TopicRpcRequest, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV (216). The 4.9.7 tools put the topic into ``clusterName`` and send no topic."""

    topic: str | None = None
    cluster_name: str | None = None


class GetTopicsByClusterRequest(Header, kw_only=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class WipeWritePermOfBrokerRequest(Header, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER (205)."""

    broker_name: str


class WipeWritePermOfBrokerResponse(Header, kw_only=True):
    wipe_topic_count: Int32


class AddWritePermOfBrokerRequest(Header, kw_only=True):
    """ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class AddWritePermOfBrokerResponse(Header, kw_only=True):
    add_topic_count: Int32


class PutKvConfigRequest(Header, kw_only=True):
    """PUT_KV_CONFIG (100). The handler refuses missing fields, like Apache's."""

    namespace: str | None = None
    key: str | None = None
    value: str | None = None


class GetKvConfigRequest(Header, kw_only=True):
    """GET_KV_CONFIG (101)."""

    namespace: str
    key: str


class GetKvConfigResponse(Header, kw_only=True):
    value: str | None = None


class DeleteKvConfigRequest(Header, kw_only=True):
    """DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class GetKvlistByNamespaceRequest(Header, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str

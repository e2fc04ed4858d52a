"""Declares the requests for registration, routes and the settings of name servers."""

from __future__ import annotations

from typing import Final

from orbitmq.requests.declare import Request, Server
from orbitmq.wire.headers import namesrv

__all__ = ["NameServers"]

_CONTROLLED: Final = "roles come from the configuration here, not from a controller"


class NameServers:
    """Requests for registration, routes and the settings of name servers."""

    PUT_KV_CONFIG = Request(
        100,
        namesrv.PutKvConfigRequest,
        served_by=(Server.NAME_SERVER,),
        admin=(
            "updateKvConfig",
            "updateOrderConf",
        ),
    )
    GET_KV_CONFIG = Request(
        101,
        namesrv.GetKvConfigRequest,
        namesrv.GetKvConfigResponse,
        served_by=(Server.NAME_SERVER,),
        admin=("updateOrderConf",),
    )
    DELETE_KV_CONFIG = Request(
        102, namesrv.DeleteKvConfigRequest, served_by=(Server.NAME_SERVER,), admin=("deleteKvConfig",)
    )
    GET_KVLIST_BY_NAMESPACE = Request(
        219, namesrv.GetKvlistByNamespaceRequest, served_by=(Server.NAME_SERVER,)
    )
    REGISTER_BROKER = Request(
        103, namesrv.RegisterBrokerRequest, namesrv.RegisterBrokerResponse, served_by=(Server.NAME_SERVER,)
    )
    UNREGISTER_BROKER = Request(104, namesrv.UnregisterBrokerRequest, served_by=(Server.NAME_SERVER,))
    BROKER_HEARTBEAT = Request(904, namesrv.BrokerHeartbeatRequest, served_by=(Server.NAME_SERVER,))
    QUERY_DATA_VERSION = Request(
        322,
        namesrv.QueryDataVersionRequest,
        namesrv.QueryDataVersionResponse,
        served_by=(Server.NAME_SERVER,),
    )
    GET_BROKER_MEMBER_GROUP = Request(
        901, namesrv.GetBrokerMemberGroupRequest, served_by=(Server.NAME_SERVER,)
    )
    NOTIFY_MIN_BROKER_ID_CHANGE = Request(
        905, namesrv.NotifyMinBrokerIdChangeRequest, served_by=(), unless=_CONTROLLED
    )
    GET_ROUTEINFO_BY_TOPIC = Request(
        105,
        namesrv.GetRouteinfoByTopicRequest,
        served_by=(Server.NAME_SERVER,),
        admin=(
            "topicRoute",
            "allocateMQ",
        ),
    )
    GET_BROKER_CLUSTER_INFO = Request(
        106,
        served_by=(Server.NAME_SERVER,),
        admin=(
            "clusterList",
            "topicClusterList",
        ),
    )
    WIPE_WRITE_PERM_OF_BROKER = Request(
        205,
        namesrv.WipeWritePermOfBrokerRequest,
        namesrv.WipeWritePermOfBrokerResponse,
        served_by=(Server.NAME_SERVER,),
        admin=("wipeWritePerm",),
    )
    ADD_WRITE_PERM_OF_BROKER = Request(
        327,
        namesrv.AddWritePermOfBrokerRequest,
        namesrv.AddWritePermOfBrokerResponse,
        served_by=(Server.NAME_SERVER,),
        admin=("addWritePerm",),
    )
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = Request(206, served_by=(Server.NAME_SERVER,), admin=("topicList",))
    DELETE_TOPIC_IN_NAMESRV = Request(
        216, namesrv.DeleteTopicInNamesrvRequest, served_by=(Server.NAME_SERVER,), admin=("deleteTopic",)
    )
    REGISTER_TOPIC_IN_NAMESRV = Request(
        217, namesrv.RegisterTopicInNamesrvRequest, served_by=(Server.NAME_SERVER,)
    )
    GET_TOPICS_BY_CLUSTER = Request(224, namesrv.GetTopicsByClusterRequest, served_by=(Server.NAME_SERVER,))
    GET_SYSTEM_TOPIC_LIST_FROM_NS = Request(304, served_by=(Server.NAME_SERVER,))
    GET_UNIT_TOPIC_LIST = Request(311, served_by=(Server.NAME_SERVER,))
    GET_HAS_UNIT_SUB_TOPIC_LIST = Request(312, served_by=(Server.NAME_SERVER,))
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = Request(313, served_by=(Server.NAME_SERVER,))
    UPDATE_NAMESRV_CONFIG = Request(318, served_by=(Server.NAME_SERVER,), admin=("updateNamesrvConfig",))
    GET_NAMESRV_CONFIG = Request(319, served_by=(Server.NAME_SERVER,), admin=("getNamesrvConfig",))

"""Declares the requests for client membership, and the calls from brokers to clients."""

from __future__ import annotations

from orbitmq.requests.declare import RETIRED, Request, Server
from orbitmq.wire.headers import admin, client

__all__ = ["Clients"]


class Clients:
    """Requests for client membership, and calls from brokers to clients."""

    HEART_BEAT = Request(34, client.HeartBeatRequest, client.HeartBeatResponse)
    UNREGISTER_CLIENT = Request(35, client.UnregisterClientRequest)
    CHECK_CLIENT_CONFIG = Request(46)
    GET_CLIENT_CONFIG = Request(47, served_by=(), unless=RETIRED)
    NOTIFY_CONSUMER_IDS_CHANGED = Request(
        40, client.NotifyConsumerIdsChangedRequest, served_by=(Server.CLIENT,)
    )
    GET_CONSUMER_CONNECTION_LIST = Request(
        203, admin.GetConsumerConnectionListRequest, admin=("consumerConnection",)
    )
    GET_PRODUCER_CONNECTION_LIST = Request(
        204, admin.GetProducerConnectionListRequest, admin=("producerConnection",)
    )
    GET_ALL_PRODUCER_INFO = Request(328, admin=("producer",))
    RESET_CONSUMER_CLIENT_OFFSET = Request(220, client.ResetOffsetRequest, served_by=(Server.CLIENT,))
    GET_CONSUMER_STATUS_FROM_CLIENT = Request(
        221, client.GetConsumerStatusRequest, served_by=(Server.CLIENT,)
    )
    INVOKE_BROKER_TO_RESET_OFFSET = Request(
        222,
        client.ResetOffsetRequest,
        admin=(
            "resetOffsetByTime",
            "skipAccumulatedMessage",
        ),
    )
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = Request(223, client.GetConsumerStatusRequest)
    GET_CONSUMER_RUNNING_INFO = Request(
        307,
        client.GetConsumerRunningInfoRequest,
        served_by=(Server.BROKER, Server.CLIENT),
        admin=("consumerStatus",),
    )
    CONSUME_MESSAGE_DIRECTLY = Request(
        309,
        client.ConsumeMessageDirectlyRequest,
        served_by=(Server.BROKER, Server.CLIENT),
        admin=(
            "queryMsgById",
            "queryMsgByUniqueKey",
        ),
    )

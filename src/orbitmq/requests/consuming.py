"""Declares the requests for pulls, queries, offsets and queue locks."""

from __future__ import annotations

from orbitmq.codes import KernelRequest
from orbitmq.requests.declare import Request, Server
from orbitmq.wire.headers import consume, send

__all__ = ["Consuming"]


class Consuming:
    """Requests for pulls, queries, offsets and queue locks."""

    PULL_MESSAGE = Request(
        KernelRequest.PULL_MESSAGE,
        consume.PullMessageRequest,
        consume.PullMessageResponse,
        served_by=(Server.BROKER, Server.FILTER_SERVER),
        fast_port=False,
        admin=(
            "queryMsgByOffset",
            "printMsg",
            "printMsgByQueue",
            "consumeMessage",
        ),
    )
    LITE_PULL_MESSAGE = Request(
        KernelRequest.LITE_PULL_MESSAGE,
        consume.PullMessageRequest,
        consume.PullMessageResponse,
        fast_port=False,
    )
    CONSUMER_SEND_MSG_BACK = Request(36, send.ConsumerSendMsgBackRequest)
    QUERY_MESSAGE = Request(
        12,
        consume.QueryMessageRequest,
        consume.QueryMessageResponse,
        admin=(
            "queryMsgByKey",
            "queryMsgByUniqueKey",
            "queryMsgTraceById",
        ),
    )
    VIEW_MESSAGE_BY_ID = Request(33, consume.ViewMessageByIdRequest, admin=("queryMsgById",))
    QUERY_CONSUMER_OFFSET = Request(14, consume.QueryConsumerOffsetRequest, consume.OffsetResponse)
    UPDATE_CONSUMER_OFFSET = Request(15, consume.UpdateConsumerOffsetRequest, admin=("cloneGroupOffset",))
    SEARCH_OFFSET_BY_TIMESTAMP = Request(29, consume.SearchOffsetByTimestampRequest, consume.OffsetResponse)
    GET_MAX_OFFSET = Request(30, consume.GetMaxOffsetRequest, consume.OffsetResponse)
    GET_MIN_OFFSET = Request(31, consume.GetMinOffsetRequest, consume.OffsetResponse)
    GET_EARLIEST_MSG_STORETIME = Request(
        32, consume.GetEarliestMsgStoretimeRequest, consume.GetEarliestMsgStoretimeResponse
    )
    GET_CONSUMER_LIST_BY_GROUP = Request(38, consume.GetConsumerListByGroupRequest)
    LOCK_BATCH_MQ = Request(41, consume.LockBatchMqRequest)
    UNLOCK_BATCH_MQ = Request(42, consume.UnlockBatchMqRequest)

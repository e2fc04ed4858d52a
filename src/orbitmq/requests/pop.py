"""Declares the requests for POP consuming, queue assignment and the lite topics of 5.5."""

from __future__ import annotations

from typing import Final

from orbitmq.requests.declare import Request
from orbitmq.wire.headers import pop

__all__ = ["Pop"]

_LITE: Final = "lite topics of 5.5 are not served"


class Pop:
    """Requests for POP consuming, queue assignment and the lite topics of 5.5."""

    QUERY_ASSIGNMENT = Request(400)
    SET_MESSAGE_REQUEST_MODE = Request(401, admin=("setConsumeMode",))
    GET_ALL_MESSAGE_REQUEST_MODE = Request(402)
    POP_MESSAGE = Request(200050, pop.PopMessageRequest, pop.PopMessageResponse, fast_port=False)
    ACK_MESSAGE = Request(200051, pop.AckMessageRequest)
    BATCH_ACK_MESSAGE = Request(200151)
    PEEK_MESSAGE = Request(200052, pop.PeekMessageRequest, pop.PopMessageResponse, fast_port=False)
    CHANGE_MESSAGE_INVISIBLETIME = Request(
        200053, pop.ChangeMessageInvisibletimeRequest, pop.ChangeMessageInvisibletimeResponse
    )
    NOTIFICATION = Request(200054, pop.NotificationRequest, pop.NotificationResponse, fast_port=False)
    POLLING_INFO = Request(200055, pop.PollingInfoRequest, pop.PollingInfoResponse, fast_port=False)
    POP_ROLLBACK = Request(200056, admin=("exportPopRecord",))
    POP_LITE_MESSAGE = Request(200070, served_by=(), unless=_LITE)
    LITE_SUBSCRIPTION_CTL = Request(200071, served_by=(), unless=_LITE)
    ACK_LITE_MESSAGE = Request(200072, served_by=(), unless=_LITE)
    NOTIFY_UNSUBSCRIBE_LITE = Request(
        200073, served_by=(), unless="brokers send this to clients, not the other way round"
    )
    GET_BROKER_LITE_INFO = Request(200074, served_by=(), unless=_LITE)
    GET_PARENT_TOPIC_INFO = Request(200075, served_by=(), unless=_LITE)
    GET_LITE_TOPIC_INFO = Request(200076, served_by=(), unless=_LITE)
    GET_LITE_CLIENT_INFO = Request(200077, served_by=(), unless=_LITE)
    GET_LITE_GROUP_INFO = Request(200078, served_by=(), unless=_LITE)
    TRIGGER_LITE_DISPATCH = Request(200079, served_by=(), unless=_LITE)

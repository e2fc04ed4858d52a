"""Declares the requests for sends, replies and transactions."""

from __future__ import annotations

from orbitmq.codes import KernelRequest
from orbitmq.requests.declare import Request, Server
from orbitmq.wire.headers import admin, send

__all__ = ["Sending"]


class Sending:
    """Requests for sends, replies and transactions."""

    SEND_MESSAGE = Request(KernelRequest.SEND_MESSAGE, send.SendMessageRequest, send.SendMessageResponse)
    SEND_MESSAGE_V2 = Request(
        KernelRequest.SEND_MESSAGE_V2,
        send.SendMessageRequestV2,
        send.SendMessageResponse,
        admin=(
            "sendMessage",
            "checkMsgSendRT",
            "sendMsgStatus",
            "clusterRT",
        ),
    )
    SEND_BATCH_MESSAGE = Request(
        KernelRequest.SEND_BATCH_MESSAGE, send.SendMessageRequestV2, send.SendMessageResponse
    )
    SEND_REPLY_MESSAGE = Request(324, send.SendMessageRequest, send.SendMessageResponse)
    SEND_REPLY_MESSAGE_V2 = Request(325, send.SendMessageRequestV2, send.SendMessageResponse)
    PUSH_REPLY_MESSAGE_TO_CLIENT = Request(
        326, send.PushReplyMessageToClientRequest, served_by=(Server.CLIENT,)
    )
    END_TRANSACTION = Request(37, send.EndTransactionRequest)
    CHECK_TRANSACTION_STATE = Request(39, send.CheckTransactionStateRequest, served_by=(Server.CLIENT,))
    RESUME_CHECK_HALF_MESSAGE = Request(323, admin.ResumeCheckHalfMessageRequest)
    RECALL_MESSAGE = Request(370, send.RecallMessageRequest, send.RecallMessageResponse)

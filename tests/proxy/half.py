"""A transaction that is ended through another proxy than the one its half message was sent through."""

from __future__ import annotations

import grpc
from tests.proxy.golden import SERVICE, metadata

from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb

__all__ = ["check_foreign_end", "end", "send_half"]


def send_half(endpoint: str, topic: str, message_id: str) -> None:
    message = pb.Message(topic=pb.Resource(name=topic), body=b"half")
    message.system_properties.message_id = message_id
    message.system_properties.message_type = pb.TRANSACTION
    with grpc.insecure_channel(endpoint) as channel:
        call = channel.unary_unary(
            SERVICE + "SendMessage",
            pb.SendMessageRequest.SerializeToString,
            pb.SendMessageResponse.FromString,
        )
        answer = call(pb.SendMessageRequest(messages=[message]), metadata=metadata("half"), timeout=10)
    assert answer.status.code == pb.OK, answer


def end(endpoint: str, topic: str, message_id: str, resolution: pb.TransactionResolution) -> int:
    """The code of the answer."""
    request = pb.EndTransactionRequest(
        topic=pb.Resource(name=topic),
        message_id=message_id,
        transaction_id=message_id,
        resolution=resolution,
        source=pb.SOURCE_CLIENT,
    )
    with grpc.insecure_channel(endpoint) as channel:
        call = channel.unary_unary(
            SERVICE + "EndTransaction",
            pb.EndTransactionRequest.SerializeToString,
            pb.EndTransactionResponse.FromString,
        )
        return int(call(request, metadata=metadata("half"), timeout=10).status.code)


def check_foreign_end(first: str, second: str, topic: str) -> None:
    """Sent through the first proxy and committed through the second: once; another one is rolled back."""
    kept, dropped = "01FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFA1", "01FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFA2"
    send_half(first, topic, kept)
    send_half(first, topic, dropped)
    assert end(second, topic, "01FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFA3", pb.COMMIT) == pb.INTERNAL_SERVER_ERROR
    assert end(second, topic, dropped, pb.ROLLBACK) == pb.OK
    assert end(second, topic, kept, pb.COMMIT) == pb.OK
    assert end(second, topic, kept, pb.COMMIT) == pb.INTERNAL_SERVER_ERROR

"""Statuses inside answers. They report business errors, while the call itself succeeds."""

from __future__ import annotations

from typing import Final

from orbitmq.codes import ResponseCode
from orbitmq.errors import BrokerError, ConnectionLostError, OrbitError, RequestTimeoutError, TopicNotFound
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb

__all__ = ["OK", "Refused", "common_status", "refused_by", "status", "status_of_code"]

OK: Final = pb.Status(code=pb.OK, message="OK")

_BROKER_CODES: Final[dict[int, pb.Code]] = {
    int(ResponseCode.SUCCESS): pb.OK,
    int(ResponseCode.SYSTEM_BUSY): pb.TOO_MANY_REQUESTS,
    int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED): pb.NOT_IMPLEMENTED,
    int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST): pb.CONSUMER_GROUP_NOT_FOUND,
    int(ResponseCode.LMQ_QUOTA_EXCEEDED): pb.LITE_TOPIC_QUOTA_EXCEEDED,
    int(ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED): pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}


class Refused(Exception):
    """A refusal: the call is answered with a status other than OK."""

    def __init__(self, code: pb.Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> pb.Status:
        return status(self.code, self.message)


def status(code: pb.Code, message: str = "") -> pb.Status:
    """Returns a status. The default message is the name of the code."""
    return pb.Status(code=code, message=message or pb.Code.Name(code))


def status_of_code(code: int, remark: str | None) -> pb.Status:
    """Maps a broker's response code to a client status."""
    return status(_BROKER_CODES.get(code, pb.INTERNAL_SERVER_ERROR), remark or "")


def refused_by(error: OrbitError) -> Refused:
    """Converts a failed call to a broker or name server into a client status."""
    if isinstance(error, TopicNotFound):
        return Refused(pb.TOPIC_NOT_FOUND, f"CODE: 17  DESC: {error.remark}")
    if isinstance(error, BrokerError):
        return Refused(
            _BROKER_CODES.get(error.response_code, pb.INTERNAL_SERVER_ERROR), error.remark or str(error)
        )
    if isinstance(error, RequestTimeoutError):
        return Refused(pb.PROXY_TIMEOUT, str(error))
    if isinstance(error, ConnectionLostError):
        return Refused(pb.INTERNAL_SERVER_ERROR, str(error))
    return Refused(pb.INTERNAL_SERVER_ERROR, str(error))


def common_status(statuses: list[pb.Status]) -> pb.Status:
    """Returns one status for several entries: their common status if all agree, otherwise MULTIPLE_RESULTS."""
    codes = {entry.code for entry in statuses}
    return status(codes.pop()) if len(codes) == 1 else status(pb.MULTIPLE_RESULTS)

"""The exceptions of servers and clients, in one tree.

There are three kinds of failure, which are never mixed: the peer violated the protocol (``RemoteProtocolError``), a
request was refused (``BrokerError``), or our own data is damaged (``CorruptionError``). A ``BrokerError`` is raised
in a handler, sent by the router as its response code, and raised again by the client that receives this code. Whether
a retry may help is an attribute of the class.
"""

from __future__ import annotations

from typing import ClassVar

from orbitmq.codes import ResponseCode

__all__ = [
    "BodyError",
    "BrokerError",
    "ConfigError",
    "ConnectFailedError",
    "ConnectionLostError",
    "CorruptionError",
    "FrameError",
    "HeaderFieldError",
    "OrbitError",
    "RecordError",
    "RemoteProtocolError",
    "RequestTimeoutError",
    "error_for_code",
]


class OrbitError(Exception):
    """The base of all exceptions that this package raises on purpose. Whether a retry may help is an attribute, so
    callers need not compare codes."""

    retriable: bool = False
    """The same request may succeed when it is made again, perhaps to another broker."""
    stale_route: bool = False
    """The topic route may be out of date: refresh it before another attempt."""
    was_sent: bool = True
    """False: the request surely never reached the server, so making it again cannot do anything twice."""


class RemoteProtocolError(OrbitError):
    """The peer sent something the protocol does not allow."""


class FrameError(RemoteProtocolError):
    """A frame cannot be parsed. The connection is closed, because the next frame cannot be found."""


class HeaderFieldError(RemoteProtocolError):
    """A field of a whole frame is missing or malformed. The request is answered with an error that names the
    field."""


class BodyError(RemoteProtocolError):
    """The JSON body of a whole frame, or a config file in that dialect, cannot be parsed. Answered like a malformed
    field."""


class RecordError(RemoteProtocolError):
    """The bytes of a message (record, batch entry, properties or compressed body) cannot be parsed."""


class ConnectionLostError(OrbitError, ConnectionError):
    """The connection closed, or could not be opened, before the response arrived."""

    retriable = True
    stale_route = True


class ConnectFailedError(ConnectionLostError):
    """The connection to send the request over could not be opened."""

    was_sent = False


class RequestTimeoutError(OrbitError, TimeoutError):
    """No response arrived within the timeout."""

    retriable = True
    stale_route = True


class ConfigError(OrbitError):
    """A configuration file or option cannot be used. The text names the file, line, key and accepted values."""


class CorruptionError(OrbitError):
    """Bytes on our own disk differ from those written. The store has stopped accepting writes."""


class BrokerError(OrbitError):
    """A server refused a request. Used by both servers and clients."""

    code: ClassVar[int] = ResponseCode.SYSTEM_ERROR
    by_code: ClassVar[dict[int, type[BrokerError]]] = {}

    def __init__(self, remark: str = "", *, code: int | None = None) -> None:
        super().__init__(remark)
        self.remark = remark
        self.response_code: int = self.code if code is None else code

    def __init_subclass__(cls) -> None:
        assert cls.code not in BrokerError.by_code, f"{cls.__name__}: code {cls.code} is taken"
        BrokerError.by_code[cls.code] = cls

    def __str__(self) -> str:
        return f"{self.remark or type(self).__name__} (code {self.response_code})"


class ServerError(BrokerError):
    code, retriable = ResponseCode.SYSTEM_ERROR, True


class SystemBusy(BrokerError):
    code, retriable = ResponseCode.SYSTEM_BUSY, True


class RequestCodeNotSupported(BrokerError):
    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class TransactionFailed(BrokerError):
    code = ResponseCode.TRANSACTION_FAILED


class SlaveNotAvailable(BrokerError):
    code = ResponseCode.SLAVE_NOT_AVAILABLE


class MessageIllegal(BrokerError):
    code = ResponseCode.MESSAGE_ILLEGAL


class ServiceNotAvailable(BrokerError):
    code, retriable, stale_route = ResponseCode.SERVICE_NOT_AVAILABLE, True, True


class VersionNotSupported(BrokerError):
    code = ResponseCode.VERSION_NOT_SUPPORTED


class NoPermission(BrokerError):
    code, retriable, stale_route = ResponseCode.NO_PERMISSION, True, True


class TopicNotFound(BrokerError):
    code, retriable, stale_route = ResponseCode.TOPIC_NOT_EXIST, True, True


class TopicExistAlready(BrokerError):
    code = ResponseCode.TOPIC_EXIST_ALREADY


class QueryNotFound(BrokerError):
    code = ResponseCode.QUERY_NOT_FOUND


class SubscriptionParseFailed(BrokerError):
    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED


class SubscriptionNotExist(BrokerError):
    code = ResponseCode.SUBSCRIPTION_NOT_EXIST


class SubscriptionNotLatest(BrokerError):
    code = ResponseCode.SUBSCRIPTION_NOT_LATEST


class SubscriptionGroupNotExist(BrokerError):
    code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class FilterDataNotExist(BrokerError):
    code = ResponseCode.FILTER_DATA_NOT_EXIST


class FilterDataNotLatest(BrokerError):
    code = ResponseCode.FILTER_DATA_NOT_LATEST


class InvalidParameter(BrokerError):
    code = ResponseCode.INVALID_PARAMETER


class ConsumerNotOnline(BrokerError):
    code = ResponseCode.CONSUMER_NOT_ONLINE


class ConsumeMsgTimeout(BrokerError):
    code = ResponseCode.CONSUME_MSG_TIMEOUT


class NoMessage(BrokerError):
    code = ResponseCode.NO_MESSAGE


class BrokerNotExist(BrokerError):
    code = ResponseCode.BROKER_NOT_EXIST


class FlowControl(BrokerError):
    code = ResponseCode.FLOW_CONTROL


class IllegalOperation(BrokerError):
    code = ResponseCode.ILLEGAL_OPERATION


class GoAway(BrokerError):
    code, retriable, stale_route = ResponseCode.GO_AWAY, True, True


class NoBuyerId(BrokerError):
    code, retriable = ResponseCode.NO_BUYER_ID, True


class NotInCurrentUnit(BrokerError):
    code, retriable = ResponseCode.NOT_IN_CURRENT_UNIT, True


def error_for_code(code: int, remark: str | None) -> BrokerError:
    """Returns the exception that a client raises for a refusal."""
    return BrokerError.by_code.get(code, BrokerError)(remark or "", code=code)

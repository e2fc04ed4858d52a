"""Errors that a client raises itself, each with a code, a hint, and whether a retry may help.

If a server refuses a request, the client raises the ``BrokerError`` of the response code, with the hint as a note.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Final

from orbitmq.client.delays import delay_level_for
from orbitmq.codes import ClientErrorCode, ResponseCode
from orbitmq.errors import BrokerError, ConnectFailedError, OrbitError

__all__ = [
    "BodyMismatch",
    "ClientClosedError",
    "ClientError",
    "ClientStateError",
    "ForkedError",
    "NameServerError",
    "NoMasterError",
    "NoRouteError",
    "OffsetOutOfRangeError",
    "ReplyTimeoutError",
    "RetryLater",
    "SendConnectionError",
    "SendFailed",
    "SendTimeoutError",
    "TooManyInFlightError",
    "add_hint",
    "hint_for",
    "is_retriable",
]


class ClientError(OrbitError):
    """A failure on the client's side of the wire."""

    code: int = ClientErrorCode.BROKER_NOT_EXIST_EXCEPTION
    hint: str = ""
    """What to do about it: the last sentence of the text."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}. {self.hint}" if self.hint else text


class ClientStateError(ClientError):
    """The client was used before its start, started twice, or changed in a state that does not allow the change."""


class ClientClosedError(ClientStateError):
    """The client was stopped."""


class ForkedError(ClientStateError):
    """The client was started in one process and used in a child process."""

    hint = "Sockets cannot be shared between processes: create and start the client after the fork"


class NameServerError(ClientError, ConnectionError):
    """No name server could be reached."""

    code = ClientErrorCode.NO_NAME_SERVER_EXCEPTION
    retriable = True
    hint = "Check the name server address and that it can be reached from here"


class NoRouteError(ClientError):
    """The name server has no queue of the topic."""

    code = ClientErrorCode.NOT_FOUND_TOPIC_EXCEPTION
    retriable = True
    hint = "Create the topic, or set autoCreateTopicEnable=true on a broker registered with this name server"


class NoMasterError(ConnectFailedError):
    """No known route names a master of the broker."""

    code: int = ClientErrorCode.BROKER_NOT_EXIST_EXCEPTION
    hint: str = "Check the broker name, and that its master is registered with this name server"


class SendFailed(ClientError):
    """All attempts of a send failed. The last failure is the cause of this error; ``brokers`` lists the brokers
    tried.

    An idempotent producer can send the message again under its ``message_id``.
    """

    retriable = True

    def __init__(
        self,
        text: str,
        *,
        code: int,
        attempts: int,
        brokers: tuple[str, ...] = (),
        hint: str = "",
        message_id: str = "",
    ) -> None:
        super().__init__(text)
        if hint:
            self.hint = hint
        self.code = code
        self.attempts = attempts
        self.brokers = brokers
        self.message_id = message_id


class SendTimeoutError(SendFailed, TimeoutError):
    """A send did not complete in time. The message may have been stored."""

    hint = "The message may be stored: use an idempotent producer or handler before sending it again"


class SendConnectionError(SendFailed, ConnectionError):
    """No broker could be reached, or the connection was lost before the answer."""

    hint = "Check that the broker runs and that the address it registered can be reached from here"


class TooManyInFlightError(ClientError, TimeoutError):
    """More sends are waiting than the producer allows."""

    retriable = True
    hint = "Await some of the sends before starting more"


class ReplyTimeoutError(ClientError, TimeoutError):
    """The request was stored, but no reply arrived in time."""

    code = ClientErrorCode.REQUEST_TIMEOUT_EXCEPTION
    retriable = True


class BodyMismatch(ClientError, ValueError):
    """A body does not match the type its reader expects."""


class OffsetOutOfRangeError(ClientError):
    """A seek to an offset outside the queue's range."""


class RetryLater(Exception):
    """Raised by a handler to have this message redelivered. For a batch, the messages after the first ``done`` are
    redelivered.

    ``text`` is kept with the message as its ``RETRY_REASON``.

    ``delay`` is a timedelta or seconds, rounded up to a level of the broker. Alternatively set ``delay_level``: 0
    lets the broker decide, -1 dead-letters the message.
    """

    def __init__(
        self,
        text: str = "",
        *,
        delay: timedelta | float | None = None,
        delay_level: int = 0,
        done: int = 0,
    ) -> None:
        super().__init__(text)
        self.delay_level = delay_level if delay is None else delay_level_for(delay)
        self.done = done


_HINTS: Final[dict[int, str]] = {
    ResponseCode.SYSTEM_BUSY: "The broker is overloaded: send slower, or spread over more brokers",
    ResponseCode.MESSAGE_ILLEGAL: "The broker refuses the message itself: check its size, topic and properties",
    ResponseCode.SERVICE_NOT_AVAILABLE: "The broker takes no writes now: a slave, a full disk or a shutdown",
    ResponseCode.NO_PERMISSION: "Check the permissions of the topic or group, and the access key if lists are on",
    ResponseCode.TOPIC_NOT_EXIST: "Create the topic, or set autoCreateTopicEnable=true on the broker",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: (
        "Create the consumer group, or set autoCreateSubscriptionGroup=true on the broker"
    ),
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "Check the filter expression",
    ResponseCode.SUBSCRIPTION_NOT_LATEST: (
        "The members of the group subscribe differently: all must use the same topics and expressions"
    ),
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "The server is older than the feature, or of another kind",
}


def is_retriable(error: OrbitError, codes: Collection[int] = ()) -> bool:
    """Whether another attempt may succeed, according to the class of the error or to codes that the user added."""
    return error.retriable or (isinstance(error, BrokerError) and error.response_code in codes)


def hint_for(code: int) -> str:
    """Returns what a user can do about a refusal; empty if there is no hint."""
    return _HINTS.get(code, "")


def add_hint(error: BrokerError) -> BrokerError:
    """Returns the same error with its hint added as a note, which is shown under the traceback."""
    hint = hint_for(error.response_code)
    if hint and hint not in getattr(error, "__notes__", ()):
        error.add_note(hint)
    return error

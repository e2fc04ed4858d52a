"""Who may make a call: signatures of clients, and rights on topics and groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

import msgspec

from orbitmq.auth.control import AccessControl
from orbitmq.auth.model import Action, Need, User
from orbitmq.auth.needs import group_need, topic_need
from orbitmq.errors import NoPermission
from orbitmq.proxy.http2.call import Call
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import Refused

__all__ = ["Access", "Right", "SignedCalls", "What"]


class What(Enum):
    """What is done to a topic or a group."""

    PUB = "PUB"
    SUB = "SUB"
    EITHER = "PUB or SUB"


class Right(msgspec.Struct, frozen=True):
    """A right a call needs."""

    kind: str
    """Topic or Group."""
    name: str
    what: What

    @classmethod
    def pub_topic(cls, topic: str) -> Right:
        return cls("Topic", topic, What.PUB)

    @classmethod
    def sub_topic(cls, topic: str) -> Right:
        return cls("Topic", topic, What.SUB)

    @classmethod
    def any_of_topic(cls, topic: str) -> Right:
        return cls("Topic", topic, What.EITHER)

    @classmethod
    def sub_group(cls, group: str) -> Right:
        return cls("Group", group, What.SUB)


class Access(Protocol):
    """Decides about calls."""

    async def check(self, call: Call, rights: tuple[Right, ...]) -> None:
        """Raises ``Refused``."""


class SignedCalls:
    """Calls signed by users of a broker (Apache: GrpcMessagingApplication's pipelines of authentication)."""

    def __init__(self, control: AccessControl, learn: Callable[[str], Awaitable[None]] | None = None) -> None:
        """``learn`` makes a user known to ``control`` before it is asked, where it lives in another process."""
        self._control = control
        self._learn = learn

    async def check(self, call: Call, rights: tuple[Right, ...]) -> None:
        """Raises ``Refused``, with UNAUTHORIZED for a missing right as well: so does Apache's proxy."""
        control = self._control
        try:
            signature = _signature(call)
            if self._learn is not None and signature is not None:
                await self._learn(signature.name)
            user = self._user(signature)
            if control.authorizes:
                control.authorize_needs(user, map(_need, rights), call.remote.rpartition(":")[0])
        except NoPermission as error:
            raise Refused(pb.UNAUTHORIZED, error.remark) from None

    def _user(self, signature: _Signature | None) -> User:
        if signature is None:
            return self._control.user(None)
        return self._control.authenticate_content(signature.name, signature.content, signature.digest)


class _Signature(msgspec.Struct, frozen=True):
    """Who claims to have signed a call, what was signed, and the HMAC."""

    name: str
    content: bytes
    digest: bytes


def _signature(call: Call) -> _Signature | None:
    """None without one. What is signed is the call's date, as it was sent; there is no check of the clock. Raises
    ``NoPermission``."""
    given = call.header("authorization")
    if not given:
        return None
    fields = dict(_field(part) for part in given.partition(" ")[2].split(","))
    if "Credential" not in fields or "Signature" not in fields:
        raise NoPermission("authentication header is incorrect.")
    date = call.header("x-mq-date-time")
    if not date:
        raise NoPermission("datetime is null.")
    try:
        digest = bytes.fromhex(fields["Signature"])
    except ValueError:
        raise NoPermission("authentication header is incorrect.") from None
    return _Signature(fields["Credential"].partition("/")[0], date.encode(), digest)


def _field(part: str) -> tuple[str, str]:
    name, _, value = part.strip().partition("=")
    return name, value


def _need(right: Right) -> Need:
    actions = {
        What.PUB: (Action.PUB,),
        What.SUB: (Action.SUB,),
        What.EITHER: (Action.PUB, Action.SUB),
    }[right.what]
    return topic_need(right.name, *actions) if right.kind == "Topic" else group_need(right.name, *actions)

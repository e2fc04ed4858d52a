"""Access control for calls: client signatures, and rights on topics and groups.

A client signs only the date of its call. Official clients send their local time with a literal Z, so a date is
accepted if it is correct in some time zone (``SignedDates``). A header from last year is thus rejected, but one from
earlier today is not. Only TLS keeps others from reading a header and reusing it.
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from orbitmq.auth.acl_files import AclFiles
from orbitmq.auth.control import AccessControl
from orbitmq.auth.model import Action, Need, User
from orbitmq.auth.needs import cluster_need, group_need, pop_retry_needs, topic_need
from orbitmq.auth.stored import BrokerFacts
from orbitmq.errors import NoPermission, ServerError
from orbitmq.model.names import RETRY_PREFIX
from orbitmq.proxy.http2.call import Call
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import Refused
from orbitmq.runtime.clock import Clock

__all__ = ["Access", "ListedCalls", "Right", "SignedCalls", "SignedDates", "What"]

_SLACK_S: Final = 15 * 60
_EASTERNMOST_S: Final = 14 * 3600
_WESTERNMOST_S: Final = 12 * 3600


class What(Enum):
    """An action on a topic or a group."""

    PUB = "PUB"
    SUB = "SUB"
    EITHER = "PUB or SUB"


_ACTIONS: Final = {
    What.PUB: (Action.PUB,),
    What.SUB: (Action.SUB,),
    What.EITHER: (Action.PUB, Action.SUB),
}


class Right(msgspec.Struct, frozen=True):
    """A right that a call requires."""

    kind: str
    """``Topic`` or ``Group``."""
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
    """Authorizes calls."""

    @property
    def version(self) -> int:
        """A number that changes whenever users or their rights may have changed."""

    async def check(self, call: Call, rights: tuple[Right, ...]) -> str:
        """Check that the call is signed and has the rights. Returns the name of the user. Raises ``Refused``."""

    def allows(self, user: str, right: Right, remote: str) -> bool:
        """Returns whether a user who has already signed a call currently has this right."""


class SignedDates:
    """Checks that a signed date may be the time of its call."""

    def __init__(self, mode: str, clock: Clock) -> None:
        """``mode`` is ``zones`` (local time of any zone), ``utc``, or ``off`` (no check)."""
        self._clock = clock
        self._is_on = mode != "off"
        zones = mode == "zones"
        self._ahead_s = _SLACK_S + (_EASTERNMOST_S if zones else 0)
        self._behind_s = _SLACK_S + (_WESTERNMOST_S if zones else 0)

    def check(self, call: Call, date: str) -> None:
        """Check the date when the call is first checked, not later: a Telemetry stream outlives its date.

        Raises ``NoPermission``.
        """
        if not self._is_on or call.is_dated:
            return
        try:
            signed_s = _seconds(date)
        except ValueError:
            raise NoPermission("datetime is not of the form yyyyMMddTHHmmssZ.") from None
        ahead_s = signed_s - self._clock.now_ms() / 1000
        if not -self._behind_s <= ahead_s <= self._ahead_s:
            raise NoPermission(f"datetime {date} is not the time of this call in any accepted time zone.")
        call.is_dated = True


@lru_cache(maxsize=256)
def _seconds(date: str) -> float:
    """Returns a date of the form ``yyyyMMddTHHmmssZ`` as seconds since 1970 UTC. Raises ``ValueError``."""
    if len(date) != 16 or date[8] != "T" or date[15] != "Z" or not date.isascii():
        raise ValueError
    parts = [date[:4], date[4:6], date[6:8], date[9:11], date[11:13], date[13:15]]
    if not all(part.isdigit() for part in parts):
        raise ValueError
    year, month, day, hour, minute, second = map(int, parts)
    return datetime.datetime(year, month, day, hour, minute, second, tzinfo=datetime.UTC).timestamp()


class ListedCalls:
    """Authorizes calls signed with the accounts of 4.x access lists."""

    def __init__(self, files: AclFiles, dates: SignedDates) -> None:
        self._files = files
        self._dates = dates

    @property
    def version(self) -> int:
        return self._files.version

    def allows(self, user: str, right: Right, remote: str) -> bool:
        needs = _needs((right,), self._files.facts)
        return all(self._files.allows(user, need, _host(remote)) for need in needs)

    async def check(self, call: Call, rights: tuple[Right, ...]) -> str:
        """Check the signature and the rights. Returns the account's name. Raises ``Refused``."""
        try:
            signature = _signature(call) or _Signature("", b"", b"")
            name = self._files.check_content(
                signature.name,
                signature.content,
                signature.digest,
                _needs(rights, self._files.facts),
                _host(call.remote),
            )
            if name and signature.content:
                self._dates.check(call, signature.content.decode())
        except (NoPermission, ServerError) as error:
            raise Refused(pb.UNAUTHORIZED, error.remark) from None
        return name


class SignedCalls:
    """Authorizes calls signed by users of a broker.

    Corresponds to the authentication pipelines of Apache's GrpcMessagingApplication.
    """

    def __init__(
        self,
        control: AccessControl,
        dates: SignedDates,
        learn: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """``learn`` loads a user into ``control`` before each check; used if another process manages the users."""
        self._control = control
        self._dates = dates
        self._learn = learn

    @property
    def version(self) -> int:
        return self._control.version

    def allows(self, user: str, right: Right, remote: str) -> bool:
        needs = _needs((right,), self._control.facts)
        return all(self._control.allows(user, need, _host(remote)) for need in needs)

    async def check(self, call: Call, rights: tuple[Right, ...]) -> str:
        """Check the signature and the rights. Returns the user's name.

        Raises ``Refused`` with UNAUTHORIZED even for a missing right, like Apache's proxy.
        """
        control = self._control
        try:
            signature = _signature(call)
            if self._learn is not None and signature is not None:
                await self._learn(signature.name)
            user = self._user(signature)
            if signature is not None:
                self._dates.check(call, signature.content.decode())
            if control.authorizes:
                control.authorize_needs(user, _needs(rights, control.facts), _host(call.remote))
        except NoPermission as error:
            raise Refused(pb.UNAUTHORIZED, error.remark) from None
        return user.name

    def _user(self, signature: _Signature | None) -> User:
        if signature is None:
            return self._control.user(None)
        return self._control.authenticate_content(signature.name, signature.content, signature.digest)


class _Signature(msgspec.Struct, frozen=True):
    """A call's signature: the claimed user, the signed content and the HMAC."""

    name: str
    content: bytes
    digest: bytes


def _signature(call: Call) -> _Signature | None:
    """Parse the signature of a call. Returns None for an unsigned call. Raises ``NoPermission``.

    The signed content is the call's date as sent.
    """
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


def _host(remote: str) -> str:
    return remote.rpartition(":")[0]


def _field(part: str) -> tuple[str, str]:
    name, _, value = part.strip().partition("=")
    return name, value


def _needs(rights: Sequence[Right], facts: BrokerFacts) -> Iterator[Need]:
    """Yields everything that a broker would require of the user. The broker itself only checks the rights of the
    proxy.
    """
    groups = [right.name for right in rights if right.kind != "Topic"]
    for right in rights:
        actions = _ACTIONS[right.what]
        if right.kind != "Topic":
            yield group_need(right.name, *actions)
            continue
        yield topic_need(right.name, *actions)
        if right.name.startswith(RETRY_PREFIX) and facts.is_strict:
            # The proxy delivers retries under their own topic. A retry topic may belong to a group and topic that
            # only the broker knows.
            yield cluster_need(facts.cluster, Action.GET)
        elif right.what is What.SUB:
            for group in groups:
                yield from pop_retry_needs(facts, group, right.name)

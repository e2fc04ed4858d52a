"""The check in front of every request (Apache: ``AuthenticationPipeline`` and ``AuthorizationPipeline``).

A server passes ``AccessControl.check`` to its router as the guard. A refused request raises ``NoPermission`` (code
16) with Apache's text and reaches no handler. Protocols without frames (gRPC) call its parts: ``authenticate``,
``authenticate_content`` and ``authorize_needs``.

Every request is checked independently. Apache's "stateful" strategies trust a connection after its first accepted
request; their class names are accepted, but do not change the checks. Only the verdicts on (user, right, address) are
cached, and every change of a user or policy clears the cache.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from orbitmq.auth.model import Decision, Need, User, UserStatus
from orbitmq.auth.needs import APACHE_ROWS, ROWS, Asked
from orbitmq.auth.signature import ACCESS_KEY, is_signed
from orbitmq.auth.stored import BrokerFacts
from orbitmq.auth.table import AuthTable
from orbitmq.codes import SerializeType, Version
from orbitmq.errors import HeaderFieldError, NoPermission

if TYPE_CHECKING:
    from orbitmq.wire.frame import Frame

__all__ = ["AccessControl", "checked_fields"]

audit = logging.getLogger("orbitmq.audit")

_ROCKETMQ: Final = int(SerializeType.ROCKETMQ)
_VERDICTS_MAX: Final = 20_000
_ALLOWED: Final = ""
_FIELDS_MAX: Final = 4_096
"""Maximum number of header fields. Sorting them to check a signature is work done for unauthenticated
peers."""
_JSON_BYTES_MAX: Final = 256 * 1024
"""Maximum size of a JSON header that is parsed twice. Properties have 32 KiB, or six times that with every character
escaped."""
_encode_json: Final = msgspec.json.Encoder().encode


class AccessControl:
    """Checks requests against the users and policies of 5.x."""

    def __init__(
        self,
        table: AuthTable,
        facts: BrokerFacts,
        *,
        authorize: bool = True,
        apache_rows: bool = False,
        authentication_whitelist: frozenset[str] = frozenset(),
        authorization_whitelist: frozenset[str] = frozenset(),
    ) -> None:
        self.table = table
        table.on_change = self.forget
        self.facts = facts
        self.authorizes = authorize
        self._rows = APACHE_ROWS if apache_rows else ROWS
        self._apache = apache_rows
        self._unauthenticated = authentication_whitelist
        self._unauthorized = authorization_whitelist
        self._verdicts: dict[tuple[str, Need, str], str] = {}
        self.refused_count = 0
        self.version = 0
        """Counts the changes of users and policies."""
        self.changed: list[Callable[[], None]] = []
        """Called when users or policies have changed."""

    def forget(self) -> None:
        """Clear the cached verdicts and notify ``changed``. Called on every change of a user or policy."""
        self._verdicts.clear()
        self.version += 1
        for subscriber in self.changed:
            subscriber()

    # -- frames ----------------------------------------------------------------------------------------

    def check(self, frame: Frame, address: str) -> User | None:
        """Check a request from a peer at that IP address. Raises ``NoPermission`` if it is refused. Returns the user
        who signed it, or None if the request code needs no signature."""
        fields = checked_fields(frame)
        try:
            user = None
            if str(frame.code) not in self._unauthenticated:
                user = self.authenticate(fields, frame.body, version=frame.version)
            if self.authorizes and str(frame.code) not in self._unauthorized:
                self.authorize(user, frame.code, fields, frame.body, address)
        except NoPermission as error:
            self._refused(fields, frame.code, address, error)
            raise
        return user

    def _refused(self, fields: Mapping[str, str], code: int, address: str, error: NoPermission) -> None:
        self.refused_count += 1
        audit.info(
            "request refused user=%r code=%d address=%s reason=%r",
            fields.get(ACCESS_KEY, ""),
            code,
            address,
            error.remark,
        )

    # -- parts -----------------------------------------------------------------------------------------

    def user(self, name: str | None) -> User:
        """Returns the enabled user of that name. Raises ``NoPermission`` with Apache's text."""
        if not name:
            raise NoPermission("username cannot be null.")
        user = self.table.users.get(name)
        if user is None:
            raise NoPermission(f"User:{name} is not found.")
        if user.status is UserStatus.DISABLE:
            raise NoPermission(f"User:{name} is disabled.")
        return user

    def authenticate(self, fields: Mapping[str, str], body: bytes, *, version: int = Version.OURS) -> User:
        """Returns the user who signed these fields and this body. Raises ``NoPermission``."""
        user = self.user(fields.get(ACCESS_KEY))
        if not is_signed(fields, body, user.password, version=version):
            raise NoPermission("check signature failed.")
        return user

    def authenticate_content(self, name: str | None, content: bytes, digest: bytes) -> User:
        """Returns the user who signed ``content`` of a gRPC request; ``digest`` is the raw HMAC-SHA1. Raises
        ``NoPermission``."""
        user = self.user(name)
        if not hmac.compare_digest(hmac.digest(user.password.encode(), content, "sha1"), digest):
            raise NoPermission("check signature failed.")
        return user

    def authorize(
        self, user: User | None, code: int, fields: Mapping[str, str], body: bytes, address: str
    ) -> None:
        """Check that the user may send that request. Raises ``NoPermission``."""
        if user is not None and user.is_super:
            return
        row = self._rows.get(code)
        if row is None:
            if self._apache:
                return
            raise NoPermission(
                f"request code {code} is not in the table of rights; only Super users may send it."
            )
        self.authorize_needs(user, row(Asked(fields, body, self.facts)), address)

    def authorize_needs(self, user: User | None, needs: Iterable[Need], address: str) -> None:
        """Check that the user has all of these rights. Raises ``NoPermission`` for the first missing one."""
        if user is not None and user.is_super:
            return
        for need in needs:
            if user is None:
                raise NoPermission("Authorization failed. Please verify your access rights and try again.")
            reason = self._verdict(user, need, address)
            if reason and (need.instead is None or self._verdict(user, need.instead, address)):
                raise NoPermission(reason)

    def allows(self, name: str, need: Need, address: str) -> bool:
        """Whether a user whose signature was checked earlier currently has this right."""
        try:
            user = self.user(name)
            if self.authorizes:
                self.authorize_needs(user, (need,), address)
        except NoPermission:
            return False
        return True

    def signer(self, frame: Frame) -> str:
        """Returns the name of the user who signed a frame that passed ``check``; empty if there is none."""
        fields = frame.ext_fields
        if str(frame.code) in self._unauthenticated:
            try:
                return self.authenticate(fields, frame.body, version=frame.version).name
            except NoPermission:
                return ""
        return fields.get(ACCESS_KEY, "")

    def _verdict(self, user: User, need: Need, address: str) -> str:
        """Returns the reason for a refusal; empty if the user has the right."""
        key = (user.name, need, address)
        known = self._verdicts.get(key)
        if known is not None:
            return known
        policies = self.table.policies.get(user.name)
        entry = None if policies is None else policies.deciding(need, address)
        if entry is not None and entry.decision is Decision.ALLOW:
            verdict = _ALLOWED
        else:
            why = "no matched policies" if entry is None else "the decision is deny"
            verdict = f"{user.subject} has no permission to access {need.text} from {address}, {why}."
        if len(self._verdicts) >= _VERDICTS_MAX:
            self._verdicts.clear()
        self._verdicts[key] = verdict
        return verdict


def checked_fields(frame: Frame) -> Mapping[str, str]:
    """Returns the fields of a frame. Raises ``NoPermission`` if a field has two different values: the checks and a
    handler might read different ones."""
    try:
        fields = frame.ext_fields
    except HeaderFieldError as error:
        raise NoPermission(str(error)) from None
    if len(fields) > _FIELDS_MAX:
        raise NoPermission(f"the header has {len(fields):,} fields; the limit is {_FIELDS_MAX:,}.")
    raw = frame.ext_raw
    # In the usual case the lengths alone show that every entry is there once.
    if frame.serialize_type == _ROCKETMQ:
        size = sum(map(len, fields)) + sum(map(len, fields.values())) + 6 * len(fields)
        if size != len(raw) and _contradicts(raw):
            raise NoPermission("the header gives a field two values, or too many fields.")
    elif fields and _encode_json(fields) != raw and _contradicts_in_json(raw):
        raise NoPermission("the header gives a field two values, or is too long to be checked.")
    return fields


def _contradicts(raw: bytes) -> bool:
    """Whether a name has two different values, or there are too many fields to tell. A repeated equal value is fine:
    Java's 5.x client writes the fields of a signed request twice, once from the header and once from the map that was
    signed."""
    seen: dict[bytes, bytes] = {}
    position, end, count = 0, len(raw), 0
    while position + 2 <= end:
        count += 1
        if count > 2 * _FIELDS_MAX:
            return True
        key_end = position + 2 + int.from_bytes(raw[position : position + 2], "big")
        value_end = key_end + 4 + int.from_bytes(raw[key_end : key_end + 4], "big")
        value = raw[key_end + 4 : value_end]
        if seen.setdefault(raw[position + 2 : key_end], value) != value:
            return True
        position = value_end
    return False


def _contradicts_in_json(raw: bytes) -> bool:
    if len(raw) > _JSON_BYTES_MAX:
        return True
    found: list[bool] = []

    def check(pairs: list[tuple[str, object]]) -> None:
        seen: dict[str, object] = {}
        found.append(any(seen.setdefault(name, value) != value for name, value in pairs))

    try:
        json.loads(raw, object_pairs_hook=check)
    except (ValueError, RecursionError):
        return True
    return any(found)

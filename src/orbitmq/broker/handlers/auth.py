"""Serves requests 3001 to 3010, for users and policies (Apache: the auth part of AdminBrokerProcessor).

Codes and texts are Apache's, with two differences. Passwords are not returned, except with
``authCompatibility=apache`` and to a slave that uses its inner credentials. A resource that cannot be parsed never
counts as "all of them".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from orbitmq.auth.infos import REPLICA, acl_info, parse_acl, parse_user, user_status_of, user_type_of
from orbitmq.auth.model import (
    Policies,
    PolicyType,
    Resource,
    User,
    named,
)
from orbitmq.auth.table import AuthTable
from orbitmq.errors import InvalidParameter, NoPermission, ServerError
from orbitmq.requests import RequestCode
from orbitmq.transport.router import Call, Reply, Route
from orbitmq.wire import javajson
from orbitmq.wire.bodies.auth import AclInfo, UserInfo
from orbitmq.wire.frame import Frame
from orbitmq.wire.headers import Empty

__all__ = ["AuthHandlers"]

_ENTRIES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthHandlers:
    """Manages users and policies for operators."""

    table: AuthTable
    checked: bool
    """Whether requests are authenticated."""
    signer_of: Callable[[Frame], str]
    """Returns the verified user of a request, empty without a valid signature."""
    answers_passwords: bool
    inner_user: str
    on_change: Callable[[], None]

    def routes(self) -> list[Route]:
        return [
            Route(RequestCode.AUTH_CREATE_USER, self.create_user, Empty),
            Route(RequestCode.AUTH_UPDATE_USER, self.update_user, Empty),
            Route(RequestCode.AUTH_DELETE_USER, self.delete_user, Empty),
            Route(RequestCode.AUTH_GET_USER, self.user, Empty),
            Route(RequestCode.AUTH_LIST_USER, self.list_users, Empty),
            Route(RequestCode.AUTH_CREATE_ACL, self.store_acl, Empty),
            Route(RequestCode.AUTH_UPDATE_ACL, self.store_acl, Empty),
            Route(RequestCode.AUTH_DELETE_ACL, self.delete_acl, Empty),
            Route(RequestCode.AUTH_GET_ACL, self.acl, Empty),
            Route(RequestCode.AUTH_LIST_ACL, self.list_acls, Empty),
        ]

    # -- users -----------------------------------------------------------------------------------------

    def create_user(self, call: Call[Empty]) -> Reply:
        name = _name(call)
        user = parse_user(name, _user_body(call))
        if name in self.table.users:
            raise NoPermission("The user is existed")
        if not user.password.strip():
            raise NoPermission("password can not be blank")
        if user.is_super and not self._by_super(call):
            raise ServerError("The super user can only be create by super user")
        self.table.store_user(user)
        self.on_change()
        return Reply()

    def update_user(self, call: Call[Empty]) -> Reply:
        name = _name(call)
        info = _user_body(call)
        old = self.table.users.get(name)
        if old is None:
            raise NoPermission("The user is not exist")
        new = old
        if info.password and info.password.strip():
            new = replace(new, password=info.password)
        if info.user_type and info.user_type.strip():
            new = replace(new, type=user_type_of(info.user_type))
        if info.user_status and info.user_status.strip():
            new = replace(new, status=user_status_of(info.user_status))
        if (old.is_super or new.is_super) and not self._by_super(call):
            raise NoPermission("The super user can only be update by super user")
        self.table.store_user(new)
        self.on_change()
        return Reply()

    def delete_user(self, call: Call[Empty]) -> Reply:
        name = _name(call)
        old = self.table.users.get(name)
        if old is not None and old.is_super and not self._by_super(call):
            raise NoPermission("The super user can only be update by super user")
        self.table.delete_user(name)
        self.on_change()
        return Reply()

    def user(self, call: Call[Empty]) -> Reply:
        user = self.table.users.get(_name(call))
        return Reply() if user is None else Reply(body=self._info(user, call).encode())

    def list_users(self, call: Call[Empty]) -> Reply:
        text = call.frame.ext_fields.get("filter", "")
        found = [
            self._info(self.table.users[name], call) for name in sorted(self.table.users) if text in name
        ]
        return Reply(body=javajson.encode(found)) if found else Reply()

    def _info(self, user: User, call: Call[Empty]) -> UserInfo:
        fields = call.frame.ext_fields
        to_slave = (
            self.checked
            and REPLICA in fields
            and bool(self.inner_user)
            and self.signer_of(call.frame) == self.inner_user
        )
        return UserInfo(
            password=user.password if self.answers_passwords or to_slave else None,
            user_status=user.status.text,
            user_type=user.type.text,
            username=user.name,
        )

    def _by_super(self, call: Call[Empty]) -> bool:
        if not self.checked:
            return True
        asking = self.table.users.get(self.signer_of(call.frame))
        return asking is not None and asking.is_super

    # -- policies --------------------------------------------------------------------------------------

    def store_acl(self, call: Call[Empty]) -> Reply:
        info = AclInfo.decode(call.body) if call.body else None
        if info is None or not info.policies:
            raise ServerError("AuthorizationException: The body of acl is null")
        subject = (
            info.subject if info.subject and info.subject.strip() else call.frame.ext_fields.get("subject")
        )
        name = _subject(subject)
        if name is None:
            raise ServerError("An system error occurred, please try again later.")
        given = parse_acl(info)
        if name not in self.table.users:
            raise NoPermission(f"The subject of User:{name} is not exist.")
        policies = self.table.policies.get(name, Policies())
        for kind in PolicyType:
            merged = {entry.resource: entry for entry in policies.of(kind)}
            merged |= {entry.resource: entry for entry in given.of(kind)}
            if len(merged) > _ENTRIES_MAX:
                raise InvalidParameter(f"a user has {_ENTRIES_MAX} entries at most")
            policies = policies.with_entries(kind, tuple(merged.values()))
        self.table.store_policies(name, policies)
        self.on_change()
        return Reply()

    def delete_acl(self, call: Call[Empty]) -> Reply:
        fields = call.frame.ext_fields
        name = self._known_subject(fields.get("subject"))
        policies = self.table.policies.get(name)
        if policies is None:
            raise NoPermission("The acl is not exist.")
        text = fields.get("resource", "")
        if text.strip():
            resource = Resource.parse(text)
            kind = named(PolicyType, fields.get("policyType") or "Custom")
            if resource is None or not isinstance(kind, PolicyType):
                raise InvalidParameter("the resource or policyType cannot be read; nothing was deleted")
            left = tuple(entry for entry in policies.of(kind) if entry.resource != resource)
            policies = policies.with_entries(kind, left)
            self.table.store_policies(name, policies if policies.custom or policies.default else None)
        else:
            self.table.store_policies(name, None)
        self.on_change()
        return Reply()

    def acl(self, call: Call[Empty]) -> Reply:
        name = self._known_subject(call.frame.ext_fields.get("subject"))
        policies = self.table.policies.get(name)
        return Reply() if policies is None else Reply(body=acl_info(name, policies).encode())

    def list_acls(self, call: Call[Empty]) -> Reply:
        fields = call.frame.ext_fields
        subject_filter, resource_filter = fields.get("subjectFilter", ""), fields.get("resourceFilter", "")
        found = []
        for name in sorted(self.table.policies):
            if subject_filter not in f"User:{name}":
                continue
            policies = self.table.policies[name]
            for kind in PolicyType:
                matching = tuple(e for e in policies.of(kind) if resource_filter in e.resource.text)
                policies = policies.with_entries(kind, matching)
            if policies.custom or policies.default:
                found.append(acl_info(name, policies))
        return Reply(body=javajson.encode(found)) if found else Reply()

    def _known_subject(self, text: str | None) -> str:
        name = _subject(text)
        if name is None:
            raise NoPermission("The subject is null.")
        if name not in self.table.users:
            raise NoPermission("The subject is not exist.")
        return name


def _name(call: Call[Empty]) -> str:
    name = call.frame.ext_fields.get("username", "")
    if not name.strip():
        raise InvalidParameter("The username is blank")
    return name


def _user_body(call: Call[Empty]) -> UserInfo:
    if not call.body:
        raise InvalidParameter("The body of user is null")
    return UserInfo.decode(call.body)


def _subject(text: str | None) -> str | None:
    kind, separator, name = (text or "").strip().partition(":")
    return name if separator and kind.lower() == "user" and name else None

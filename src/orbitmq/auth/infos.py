"""Converts users and policies from and to the bodies of requests 3001 to 3010."""

from __future__ import annotations

import ipaddress
from typing import Final

from orbitmq.auth.model import (
    Action,
    Decision,
    Entry,
    Policies,
    PolicyType,
    Resource,
    User,
    UserStatus,
    UserType,
    named,
)
from orbitmq.errors import NoPermission
from orbitmq.wire.bodies.auth import AclInfo, PolicyEntry, PolicyInfo, UserInfo

__all__ = ["REPLICA", "acl_info", "parse_acl", "parse_user", "user_status_of", "user_type_of"]

REPLICA: Final = "orbitmqReplica"
"""A field of a slave's or proxy's request for users. With it, the answer to the inner user includes the
passwords."""


def user_type_of(text: str | None) -> UserType:
    found = named(UserType, text)
    return found if isinstance(found, UserType) else UserType.NORMAL


def user_status_of(text: str | None) -> UserStatus:
    found = named(UserStatus, text)
    return found if isinstance(found, UserStatus) else UserStatus.ENABLE


def parse_user(name: str, info: UserInfo) -> User:
    """Parse a user from a request."""
    return User(name, info.password or "", user_type_of(info.user_type), user_status_of(info.user_status))


def parse_acl(info: AclInfo) -> Policies:
    """Parse policies from a request. Raises ``NoPermission`` with Apache's text."""
    result = Policies()
    for policy in info.policies or ():
        kind = named(PolicyType, policy.policy_type or "Custom")
        if not isinstance(kind, PolicyType):
            raise NoPermission("The policy type is illegal.")
        entries = tuple(_entry(entry) for entry in policy.entries or ())
        result = result.with_entries(kind, (*result.of(kind), *entries))
    if not result.custom and not result.default:
        raise NoPermission("The policies is empty.")
    return result


def _entry(info: PolicyEntry) -> Entry:
    resource = Resource.parse(info.resource)
    if resource is None:
        raise NoPermission("The resource is null.")
    actions = tuple(a for a in (named(Action, text) for text in info.actions or ()) if isinstance(a, Action))
    if not actions:
        raise NoPermission("The actions is empty.")
    if Action.ANY in actions:
        raise NoPermission("The actions can not be Any.")
    for text in info.source_ips or ():
        if not text.strip():
            raise NoPermission("The source ip is empty.")
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise NoPermission("The source ip is invalid.") from None
    decision = named(Decision, info.decision)
    if not isinstance(decision, Decision):
        raise NoPermission("The decision is null or illegal.")
    return Entry(resource, tuple(dict.fromkeys(actions)), decision, tuple(info.source_ips or ()))


def acl_info(name: str, policies: Policies) -> AclInfo:
    """Returns the wire form of a user's policies."""
    return AclInfo(
        subject=f"User:{name}",
        policies=[
            PolicyInfo(
                policy_type=kind.name.capitalize(),
                entries=[
                    PolicyEntry(
                        resource=entry.resource.text,
                        actions=[action.name.capitalize() for action in entry.actions],
                        source_ips=list(entry.source_ips) or None,
                        decision=entry.decision.name.capitalize(),
                    )
                    for entry in policies.of(kind)
                ],
            )
            for kind in PolicyType
            if policies.of(kind)
        ],
    )

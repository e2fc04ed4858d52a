"""Users and access lists of 5.x on the wire (Apache: ``UserInfo``, ``AclInfo``)."""

from __future__ import annotations

from orbitmq.wire.bodies.base import Body

__all__ = ["AclInfo", "PolicyEntry", "PolicyInfo", "UserInfo"]


class UserInfo(Body, frozen=True, kw_only=True):
    """A user of 5.x access control."""

    password: str | None = None
    user_status: str | None = None
    user_type: str | None = None
    username: str | None = None


class PolicyEntry(Body, frozen=True, kw_only=True):
    actions: list[str] | None = None
    decision: str | None = None
    resource: str | None = None
    source_ips: list[str] | None = None


class PolicyInfo(Body, frozen=True, kw_only=True):
    entries: list[PolicyEntry] | None = None
    policy_type: str | None = None


class AclInfo(Body, frozen=True, kw_only=True):
    """The access list of one subject."""

    policies: list[PolicyInfo] | None = None
    subject: str | None = None

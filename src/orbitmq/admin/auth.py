"""Users and access lists of Apache 5.3 and later (ACL 2.0)."""

from __future__ import annotations

from collections.abc import Sequence

from orbitmq.admin.base import Change, Changed, Result
from orbitmq.admin.session import Admin
from orbitmq.codes import ResponseCode
from orbitmq.errors import error_for_code
from orbitmq.requests import RequestCode
from orbitmq.wire.bodies import decode_body
from orbitmq.wire.bodies.auth import AclInfo, PolicyEntry, PolicyInfo, UserInfo

__all__ = [
    "AclEntry",
    "AclInfo",
    "Acls",
    "PolicyEntry",
    "PolicyInfo",
    "User",
    "UserInfo",
    "Users",
    "acls",
    "copy_acls",
    "copy_users",
    "delete_acl",
    "delete_user",
    "policy_of",
    "store_acl",
    "store_user",
    "users",
]


class User(Result, kw_only=True):
    username: str
    password: str
    user_type: str
    user_status: str


class Users(Result, kw_only=True):
    users: list[User]


class AclEntry(Result, kw_only=True):
    subject: str
    policy_type: str = ""
    resource: str = ""
    actions: list[str]
    source_ips: list[str]
    decision: str = ""


class Acls(Result, kw_only=True):
    acls: list[AclEntry]


# -- users -------------------------------------------------------------------------------------------------


async def _users_at(admin: Admin, address: str, username: str | None, pattern: str | None) -> list[UserInfo]:
    if username is not None:
        answer = await admin.call(address, RequestCode.AUTH_GET_USER, {"username": username})
        if answer.code == ResponseCode.USER_NOT_EXIST:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark)
        return [UserInfo.decode(answer.body)] if answer.body else []
    answer = await admin.ask(address, RequestCode.AUTH_LIST_USER, {"filter": pattern} if pattern else None)
    return decode_body(list[UserInfo], answer.body) if answer.body else []


async def users(
    admin: Admin,
    *,
    broker: str | None,
    cluster: str | None,
    username: str | None = None,
    pattern: str | None = None,
) -> Users:
    """Returns users of a broker or of the masters of a cluster.

    Selects the user ``username``, those whose name contains ``pattern``, or all.
    """
    rows = [
        User(
            username=info.username or "",
            password=info.password or "",
            user_type=info.user_type or "",
            user_status=info.user_status or "",
        )
        for address in await admin.targets(broker, cluster)
        for info in await _users_at(admin, address, username, pattern)
    ]
    return Users(users=rows)


async def store_user(
    admin: Admin, info: UserInfo, *, create: bool, broker: str | None, cluster: str | None
) -> Changed:
    """Create or change a user on a broker or on every broker of a cluster."""
    code = RequestCode.AUTH_CREATE_USER if create else RequestCode.AUTH_UPDATE_USER
    return await admin.change_each(
        await admin.targets(broker, cluster, slaves=True),
        f"user {info.username} {'created' if create else 'changed'}",
        code,
        {"username": info.username or ""},
        info.encode(),
    )


async def delete_user(admin: Admin, username: str, *, broker: str | None, cluster: str | None) -> Changed:
    """Delete a user from a broker or from every broker of a cluster."""
    targets = await admin.targets(broker, cluster, slaves=True)
    fields = {"username": username}
    return await admin.change_each(targets, f"user {username} deleted", RequestCode.AUTH_DELETE_USER, fields)


async def copy_users(admin: Admin, source: str, target: str, names: Sequence[str] = ()) -> Changed:
    """Copy users from one broker to another: those in ``names``, or all if it is empty."""
    origin, goal = await admin.address(source), await admin.address(target)
    if names:
        found = [info for name in names for info in await _users_at(admin, origin, name, None)]
    else:
        found = await _users_at(admin, origin, None, None)
    done: list[Change] = []
    for info in found:
        exists = await _users_at(admin, goal, info.username or "", None)
        changed = await store_user(admin, info, create=not exists, broker=goal, cluster=None)
        done += changed.changes
    return Changed(changes=done)


# -- access lists ------------------------------------------------------------------------------------------


async def _acls_at(admin: Admin, address: str, subject: str | None, filters: dict[str, str]) -> list[AclInfo]:
    if subject is not None:
        answer = await admin.call(address, RequestCode.AUTH_GET_ACL, {"subject": subject})
        if answer.code == ResponseCode.POLICY_NOT_EXIST:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_code(answer.code, answer.remark)
        return [AclInfo.decode(answer.body)] if answer.body else []
    answer = await admin.ask(address, RequestCode.AUTH_LIST_ACL, filters)
    return decode_body(list[AclInfo], answer.body) if answer.body else []


async def acls(
    admin: Admin,
    *,
    broker: str | None,
    cluster: str | None,
    subject: str | None = None,
    subject_filter: str | None = None,
    resource_filter: str | None = None,
) -> Acls:
    """Returns the access list of ``subject``, or all that match the filters. Each entry becomes a row."""
    filters = {"subjectFilter": subject_filter, "resourceFilter": resource_filter}
    given = {name: text for name, text in filters.items() if text}
    rows = [
        row
        for address in await admin.targets(broker, cluster)
        for info in await _acls_at(admin, address, subject, given)
        for row in _acl_rows(info)
    ]
    return Acls(acls=rows)


def _acl_rows(info: AclInfo) -> list[AclEntry]:
    rows = [
        AclEntry(
            subject=info.subject or "",
            policy_type=policy.policy_type or "",
            resource=entry.resource or "",
            actions=entry.actions or [],
            source_ips=entry.source_ips or [],
            decision=entry.decision or "",
        )
        for policy in info.policies or ()
        for entry in policy.entries or ()
    ]
    return rows or [AclEntry(subject=info.subject or "", actions=[], source_ips=[])]


def policy_of(
    subject: str,
    resources: Sequence[str],
    actions: Sequence[str],
    decision: str,
    source_ips: Sequence[str] | None,
) -> AclInfo:
    """Returns an access list with one policy, which has an entry for each resource."""
    entries = [
        PolicyEntry(
            resource=resource,
            actions=list(actions),
            decision=decision,
            source_ips=None if source_ips is None else list(source_ips),
        )
        for resource in resources
    ]
    return AclInfo(subject=subject, policies=[PolicyInfo(entries=entries)])


async def store_acl(
    admin: Admin, info: AclInfo, *, create: bool, broker: str | None, cluster: str | None
) -> Changed:
    """Create or change an access list on a broker or on every broker of a cluster."""
    code = RequestCode.AUTH_CREATE_ACL if create else RequestCode.AUTH_UPDATE_ACL
    return await admin.change_each(
        await admin.targets(broker, cluster, slaves=True),
        f"access list of {info.subject} {'created' if create else 'changed'}",
        code,
        {"subject": info.subject or ""},
        info.encode(),
    )


async def delete_acl(
    admin: Admin, subject: str, resource: str | None, *, broker: str | None, cluster: str | None
) -> Changed:
    """Delete the access list of a subject, or only its entries for one resource."""
    fields = {"subject": subject} | ({"resource": resource} if resource else {})
    targets = await admin.targets(broker, cluster, slaves=True)
    action = f"access list of {subject} deleted"
    return await admin.change_each(targets, action, RequestCode.AUTH_DELETE_ACL, fields)


async def copy_acls(admin: Admin, source: str, target: str, subjects: Sequence[str] = ()) -> Changed:
    """Copy access lists from one broker to another: those of ``subjects``, or all if it is empty."""
    origin, goal = await admin.address(source), await admin.address(target)
    if subjects:
        found = [info for one in subjects for info in await _acls_at(admin, origin, one, {})]
    else:
        found = await _acls_at(admin, origin, None, {})
    done: list[Change] = []
    for info in found:
        exists = await _acls_at(admin, goal, info.subject or "", {})
        changed = await store_acl(admin, info, create=not exists, broker=goal, cluster=None)
        done += changed.changes
    return Changed(changes=done)

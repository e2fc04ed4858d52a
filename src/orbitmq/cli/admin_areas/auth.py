"""Commands for users and access lists of Apache 5.3 and later."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

import click

from orbitmq.admin import Admin, auth
from orbitmq.admin.base import Changed
from orbitmq.cli.admin_kit.declare import Args, Command, Flag, targets
from orbitmq.cli.admin_kit.output import Part, changed, table

__all__ = ["COMMANDS"]

_TARGET: Final = targets()
_USER: Final = Flag(names=("-u", "--username"), help="User.", required=True)
_SUBJECT: Final = Flag(names=("-s", "--subject"), help="Who: User:name.", required=True)
_FROM: Final = Flag(
    names=("-f", "--fromBroker"), help="Broker to copy from.", required=True, completes="broker"
)
_TO: Final = Flag(names=("-t", "--toBroker"), help="Broker to copy to.", required=True, completes="broker")
_ACL: Final = (
    *_TARGET.flags,
    _SUBJECT,
    Flag(names=("-r", "--resources"), help="What: Topic:name,Group:name, or *.", required=True),
    Flag(names=("-a", "--actions"), help="Pub,Sub,Create,Update,Delete,Get,List or All.", required=True),
    Flag(names=("-d", "--decision"), help="Allow or Deny.", required=True),
    Flag(names=("-i", "--sourceIp"), help="From where: addresses joined by commas."),
)


def _users_view(result: auth.Users, args: Args) -> list[Part]:
    columns = {
        "UserName": "username",
        "Password": "password",
        "UserType": "user_type",
        "UserStatus": "user_status",
    }
    return [table(result.users, columns)]


def _acls_view(result: auth.Acls, args: Args) -> list[Part]:
    columns: dict[str, Any] = {
        "Subject": "subject",
        "PolicyType": "policy_type",
        "Resource": "resource",
        "Actions": lambda r: f"[{', '.join(r.actions)}]",
        "SourceIp": lambda r: f"[{', '.join(r.source_ips)}]",
        "Decision": "decision",
    }
    return [table(result.acls, columns)]


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _store_user(admin: Admin, args: Args, *, create: bool) -> Awaitable[Changed]:
    if not create and not (args["password"] or args["userType"] or args["userStatus"]):
        raise click.UsageError("nothing to change: give -p, -t or -s")
    info = auth.UserInfo(
        username=args["username"],
        password=args["password"],
        user_type=args["userType"],
        user_status=args.get("userStatus"),
    )
    return auth.store_user(admin, info, create=create, broker=args["brokerAddr"], cluster=args["clusterName"])


def _store_acl(admin: Admin, args: Args, *, create: bool) -> Awaitable[Changed]:
    info = auth.policy_of(
        args["subject"],
        _split(args["resources"]),
        _split(args["actions"]),
        args["decision"],
        _split(args["sourceIp"]) if args["sourceIp"] else None,
    )
    return auth.store_acl(admin, info, create=create, broker=args["brokerAddr"], cluster=args["clusterName"])


_USERS: Final = (
    Command(
        name="createUser",
        help="Create a user.",
        flags=(
            *_TARGET.flags,
            _USER,
            Flag(names=("-p", "--password"), help="Password.", required=True),
            Flag(names=("-t", "--userType"), help="Super or Normal."),
        ),
        one_of=_TARGET.keys,
        call=lambda admin, a: _store_user(admin, a, create=True),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="updateUser",
        help="Change a user.",
        flags=(
            *_TARGET.flags,
            _USER,
            Flag(names=("-p", "--password"), help="New password."),
            Flag(names=("-t", "--userType"), help="Super or Normal."),
            Flag(names=("-s", "--userStatus"), help="enable or disable."),
        ),
        one_of=_TARGET.keys,
        call=lambda admin, a: _store_user(admin, a, create=False),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="deleteUser",
        help="Delete a user.",
        flags=(*_TARGET.flags, _USER),
        one_of=_TARGET.keys,
        call=lambda admin, a: auth.delete_user(
            admin, a["username"], broker=a["brokerAddr"], cluster=a["clusterName"]
        ),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="getUser",
        help="One user.",
        flags=(*_TARGET.flags, _USER),
        one_of=_TARGET.keys,
        call=lambda admin, a: auth.users(
            admin, broker=a["brokerAddr"], cluster=a["clusterName"], username=a["username"]
        ),
        view=_users_view,
        results=(auth.Users,),
    ),
    Command(
        name="listUser",
        help="All users.",
        flags=(*_TARGET.flags, Flag(names=("-f", "--filter"), help="Only names that contain this.")),
        one_of=_TARGET.keys,
        call=lambda admin, a: auth.users(
            admin, broker=a["brokerAddr"], cluster=a["clusterName"], pattern=a["filter"]
        ),
        view=_users_view,
        results=(auth.Users,),
    ),
    Command(
        name="copyUser",
        help="Copy users from broker to broker.",
        flags=(_FROM, _TO, Flag(names=("-u", "--usernames"), help="Only these, joined by commas.")),
        call=lambda admin, a: auth.copy_users(admin, a["fromBroker"], a["toBroker"], _split(a["usernames"])),
        view=changed,
        results=(Changed,),
    ),
)

_ACLS: Final = (
    Command(
        name="createAcl",
        help="Create an access list.",
        flags=_ACL,
        one_of=_TARGET.keys,
        call=lambda admin, a: _store_acl(admin, a, create=True),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="updateAcl",
        help="Change an access list.",
        flags=_ACL,
        one_of=_TARGET.keys,
        call=lambda admin, a: _store_acl(admin, a, create=False),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="deleteAcl",
        help="Delete an access list, or its entries for one resource.",
        flags=(
            *_TARGET.flags,
            _SUBJECT,
            Flag(names=("-r", "--resources"), help="Only the entries of this resource."),
        ),
        one_of=_TARGET.keys,
        call=lambda admin, a: auth.delete_acl(
            admin, a["subject"], a["resources"], broker=a["brokerAddr"], cluster=a["clusterName"]
        ),
        view=changed,
        results=(Changed,),
    ),
    Command(
        name="getAcl",
        help="The access list of one subject.",
        flags=(*_TARGET.flags, _SUBJECT),
        one_of=_TARGET.keys,
        call=lambda admin, a: auth.acls(
            admin, broker=a["brokerAddr"], cluster=a["clusterName"], subject=a["subject"]
        ),
        view=_acls_view,
        results=(auth.Acls,),
    ),
    Command(
        name="listAcl",
        help="All access lists.",
        flags=(
            *_TARGET.flags,
            Flag(names=("-s", "--subject"), help="Only subjects that contain this."),
            Flag(names=("-r", "--resource"), help="Only resources that contain this."),
        ),
        one_of=_TARGET.keys,
        call=lambda admin, a: auth.acls(
            admin,
            broker=a["brokerAddr"],
            cluster=a["clusterName"],
            subject_filter=a["subject"],
            resource_filter=a["resource"],
        ),
        view=_acls_view,
        results=(auth.Acls,),
    ),
    Command(
        name="copyAcl",
        help="Copy access lists from broker to broker.",
        flags=(_FROM, _TO, Flag(names=("-s", "--subjects"), help="Only these, joined by commas.")),
        call=lambda admin, a: auth.copy_acls(admin, a["fromBroker"], a["toBroker"], _split(a["subjects"])),
        view=changed,
        results=(Changed,),
    ),
)

COMMANDS: Final = (*_USERS, *_ACLS)

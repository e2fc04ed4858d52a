"""Users and policies of a broker, in two files (Apache: ``AuthenticationMetadataManagerImpl`` and its counterpart for
policies).

``config/users.json`` and ``config/acls.json`` map names to the JSON values that Apache keeps in RocksDB. Secrets are
stored in plain text, because signatures are computed from them, so only the files' owner may read the files. A change
is written to the file first. It then applies to every later request, on open connections too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from orbitmq.auth.model import (
    Action,
    Decision,
    Entry,
    Pattern,
    Policies,
    PolicyType,
    Resource,
    ResourceType,
    User,
    UserStatus,
    UserType,
)
from orbitmq.errors import BodyError, ServerError
from orbitmq.runtime.safe_file import SafeFile
from orbitmq.wire import javajson

__all__ = ["AuthTable"]

logger = logging.getLogger(__name__)
V = TypeVar("V")


class AuthTable:
    """Users by name, and their policies."""

    def __init__(self, users_file: SafeFile | None = None, policies_file: SafeFile | None = None) -> None:
        self._users_file = users_file
        self._policies_file = policies_file
        self.users: dict[str, User] = {}
        self.policies: dict[str, Policies] = {}
        """Policies by user name."""
        self.on_change: Callable[[], None] | None = None

    def load(self) -> None:
        """Read both files. Raises ``CorruptionError``, because a broker must not start without its users."""
        if self._users_file is not None:
            self.users = self._users_file.load(lambda content: _read(content, _user)) or {}
        if self._policies_file is not None:
            self.policies = self._policies_file.load(lambda content: _read(content, _policies)) or {}

    def store_user(self, user: User) -> None:
        """Create or replace a user. Raises ``ServerError`` with nothing changed if the disk fails."""
        users = self.users | {user.name: user}
        self._save_users(users)
        self.users = users
        self._changed()

    def delete_user(self, name: str) -> None:
        """Delete the user and its policies, if it exists."""
        if name in self.policies:
            self.store_policies(name, None)
        if name in self.users:
            users = {key: user for key, user in self.users.items() if key != name}
            self._save_users(users)
            self.users = users
            self._changed()

    def store_policies(self, name: str, policies: Policies | None) -> None:
        """Replace a user's policies; ``None`` deletes them."""
        changed = {key: value for key, value in self.policies.items() if key != name}
        if policies is not None:
            changed[name] = policies
        self._save_policies(changed)
        self.policies = changed
        self._changed()

    def replace(self, users: Iterable[User], policies: Mapping[str, Policies]) -> bool:
        """Replace the tables with a master's; returns whether anything changed."""
        new_users = {user.name: user for user in users}
        new_policies = dict(policies)
        if new_users == self.users and new_policies == self.policies:
            return False
        self._save_users(new_users)
        self._save_policies(new_policies)
        self.users, self.policies = new_users, new_policies
        self._changed()
        return True

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _save_users(self, users: Mapping[str, User]) -> None:
        _save(self._users_file, {name: _user_json(users[name]) for name in sorted(users)})

    def _save_policies(self, policies: Mapping[str, Policies]) -> None:
        content = {f"User:{name}": _policies_json(name, policies[name]) for name in sorted(policies)}
        _save(self._policies_file, content)


def _save(file: SafeFile | None, content: Mapping[str, Any]) -> None:
    if file is None:
        return
    try:
        file.save(javajson.encode_pretty(content))
    except OSError as error:
        logger.error("table not written path=%s error=%s", file.path, error)
        raise ServerError(f"{file.path} cannot be written: {error.strerror or error}") from None


def _read(content: bytes, parse: Callable[[dict[str, Any]], V]) -> dict[str, V]:
    raw = javajson.loads(content, bytes_max=256 << 20)
    if not isinstance(raw, dict):
        raise BodyError("the file is not a JSON object")
    try:
        return {name.removeprefix("User:"): parse(value) for name, value in raw.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BodyError(f"an entry cannot be read: {error}") from None


def _user(value: dict[str, Any]) -> User:
    return User(
        str(value["username"]),
        str(value["password"]),
        UserType(value.get("userType", UserType.NORMAL)),
        UserStatus(value.get("userStatus", UserStatus.ENABLE)),
    )


def _user_json(user: User) -> dict[str, Any]:
    return {
        "password": user.password,
        "subjectType": 1,
        "userStatus": int(user.status),
        "userType": int(user.type),
        "username": user.name,
    }


def _policies(value: dict[str, Any]) -> Policies:
    result = Policies()
    for policy in value.get("policies") or ():
        entries = tuple(_entry(entry) for entry in policy.get("entries") or ())
        result = result.with_entries(PolicyType(policy.get("policyType", 1)), entries)
    return result


def _entry(value: dict[str, Any]) -> Entry:
    resource = value["resource"]
    return Entry(
        Resource(
            ResourceType(resource["resourceType"]),
            resource.get("resourceName") or "",
            Pattern(resource["resourcePattern"]),
        ),
        tuple(Action(action) for action in value["actions"]),
        Decision(value["decision"]),
        tuple((value.get("environment") or {}).get("sourceIps") or ()),
    )


def _policies_json(name: str, policies: Policies) -> dict[str, Any]:
    return {
        "policies": [
            {"entries": [_entry_json(entry) for entry in policies.of(kind)], "policyType": int(kind)}
            for kind in PolicyType
            if policies.of(kind)
        ],
        "subject": {"subjectType": 1, "username": name},
    }


def _entry_json(entry: Entry) -> dict[str, Any]:
    value: dict[str, Any] = {
        "actions": [int(action) for action in entry.actions],
        "decision": int(entry.decision),
        "resource": {
            "resourceName": entry.resource.name,
            "resourcePattern": int(entry.resource.pattern),
            "resourceType": int(entry.resource.type),
        },
    }
    if entry.source_ips:
        value["environment"] = {"sourceIps": list(entry.source_ips)}
    return value

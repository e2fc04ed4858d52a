"""Users, policies and resources as values (Apache: ``org.apache.rocketmq.auth``, its model classes).

The enumerations have the numbers of Apache's stored form. They are persisted in our files too, so never renumber
them.
"""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "Action",
    "Decision",
    "Entry",
    "Need",
    "Pattern",
    "Policies",
    "PolicyType",
    "Resource",
    "ResourceType",
    "User",
    "UserStatus",
    "UserType",
    "named",
]


class UserType(enum.IntEnum):
    SUPER = 1
    NORMAL = 2

    @property
    def text(self) -> str:
        return "Super" if self is UserType.SUPER else "Normal"


class UserStatus(enum.IntEnum):
    ENABLE = 1
    DISABLE = 2

    @property
    def text(self) -> str:
        return self.name.lower()


class PolicyType(enum.IntEnum):
    CUSTOM = 1
    DEFAULT = 2


class Decision(enum.IntEnum):
    ALLOW = 1
    DENY = 2


class ResourceType(enum.IntEnum):
    ANY = 1
    CLUSTER = 2
    NAMESPACE = 3
    TOPIC = 4
    GROUP = 5


class Pattern(enum.IntEnum):
    ANY = 1
    LITERAL = 2
    PREFIXED = 3


class Action(enum.IntEnum):
    ALL = 1
    ANY = 2
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9


def named(kind: type[enum.IntEnum], text: str | None) -> enum.IntEnum | None:
    """Returns the member with that name, ignoring case; ``None`` for an unknown name."""
    return kind.__members__.get(text.strip().upper()) if text else None


@dataclass(frozen=True, slots=True)
class User:
    """A user who signs requests. ``password`` is the signing secret and is never shown."""

    name: str
    password: str = field(repr=False)
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    @property
    def is_super(self) -> bool:
        return self.type is UserType.SUPER

    @property
    def subject(self) -> str:
        return f"User:{self.name}"


@dataclass(frozen=True, slots=True)
class Resource:
    """What an entry applies to: one object, all names with a prefix, everything of a type, or everything."""

    type: ResourceType
    name: str
    pattern: Pattern

    @classmethod
    def parse(cls, text: str | None) -> Resource | None:
        """Parse the text form of a resource, such as ``Topic:orders*``. Returns ``None`` if it is invalid."""
        if not text or not text.strip():
            return None
        text = text.strip()
        if text == "*":
            return cls(ResourceType.ANY, "", Pattern.ANY)
        kind_text, _, name = text.partition(":")
        kind = named(ResourceType, kind_text)
        if kind is None or kind is ResourceType.ANY:
            return None
        assert isinstance(kind, ResourceType)
        if name == "*":
            return cls(kind, "", Pattern.ANY)
        if name.endswith("*"):
            return cls(kind, name[:-1], Pattern.PREFIXED)
        return cls(kind, name, Pattern.LITERAL)

    @property
    def text(self) -> str:
        if self.type is ResourceType.ANY:
            return "*"
        suffix = "" if self.pattern is Pattern.LITERAL else "*"
        return f"{self.type.name.capitalize()}:{self.name}{suffix}"

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sort key by specificity: a greater rank is more specific."""
        order = {Pattern.LITERAL: 2, Pattern.PREFIXED: 1, Pattern.ANY: 0}
        return (0 if self.type is ResourceType.ANY else 1, order[self.pattern], len(self.name))

    def covers(self, kind: ResourceType, name: str) -> bool:
        if self.type is ResourceType.ANY:
            return True
        if self.type is not kind:
            return False
        if self.pattern is Pattern.ANY:
            return True
        return name.startswith(self.name) if self.pattern is Pattern.PREFIXED else name == self.name


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a policy."""

    resource: Resource
    actions: tuple[Action, ...]
    decision: Decision
    source_ips: tuple[str, ...] = ()

    def matches(self, need: Need, address: str) -> bool:
        if not self.resource.covers(need.type, need.name):
            return False
        if Action.ALL not in self.actions and not any(action in self.actions for action in need.actions):
            return False
        return not self.source_ips or any(_contains(text, address) for text in self.source_ips)


def _contains(text: str, address: str) -> bool:
    if "/" not in text:
        return text == address
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Policies:
    """All entries of a user."""

    custom: tuple[Entry, ...] = ()
    default: tuple[Entry, ...] = ()

    def of(self, kind: PolicyType) -> tuple[Entry, ...]:
        return self.custom if kind is PolicyType.CUSTOM else self.default

    def with_entries(self, kind: PolicyType, entries: tuple[Entry, ...]) -> Policies:
        return (
            Policies(entries, self.default) if kind is PolicyType.CUSTOM else Policies(self.custom, entries)
        )

    def deciding(self, need: Need, address: str) -> Entry | None:
        """Returns the entry that decides, or ``None`` if no entry matches. Custom entries are considered before
        Default ones. The most specific matching entry decides; if several are equally specific, a Deny."""
        for entries in (self.custom, self.default):
            matching = [entry for entry in entries if entry.matches(need, address)]
            if matching:
                return max(matching, key=lambda entry: (entry.resource.rank, entry.decision is Decision.DENY))
        return None


class Need(NamedTuple):
    """A right that a request requires: any one of the actions on the resource. A tuple, because every checked request
    creates and hashes some."""

    type: ResourceType
    name: str
    actions: tuple[Action, ...]
    instead: Need | None = None
    """A right that is accepted in place of this one."""

    @property
    def text(self) -> str:
        return f"{self.type.name.capitalize()}:{self.name}"

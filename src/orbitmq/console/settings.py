"""Settings of a console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import NamedTuple

from orbitmq.errors import ConfigError

__all__ = ["Bodies", "ConsoleSettings", "OptionMeaning", "Role"]


class Role(IntEnum):
    """User roles. Each includes the permissions of the roles before it."""

    VIEWER = 1
    """May only read."""
    OPERATOR = 2
    """May send and resend messages and move offsets."""
    ADMIN = 3
    """May create, change and delete topics, groups, users and settings."""

    @classmethod
    def parse(cls, text: str) -> Role:
        """Parse the name of a role, ignoring case. Raises ``ConfigError`` if it is invalid."""
        try:
            return cls[text.strip().upper()]
        except KeyError:
            raise ConfigError(f"no such role: {text!r}; there are viewer, operator and admin") from None


class Bodies(StrEnum):
    """How message bodies are shown."""

    SHOW = "show"
    MASK = "mask"
    OFF = "off"


class OptionMeaning(NamedTuple):
    """A broker option's description, and whether it can be changed at runtime."""

    doc: str
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """The settings of a console."""

    state: Path | None = None
    """Directory for the history and the audit log. If it is None, both are only kept in memory."""
    users: Path | None = None
    """File with the users; see ``security.UserFile``."""
    broker_login: bool = False
    """Whether users log in as users of the broker, which then checks their permissions."""
    bodies: Bodies = Bodies.SHOW
    masks: tuple[str, ...] = ()
    """Names of JSON fields and properties whose values ``bodies=mask`` hides."""
    pipelines: tuple[Path, ...] = ()
    """Directories with pipeline checkpoints."""
    sample_s: float = 10.0
    history_hours: int = 24
    read_only: bool = False
    hosts: frozenset[str] = frozenset()
    """Accepted host names in addition to loopback names. With a login, an empty set accepts any."""
    secure_cookies: bool = False
    meanings: Mapping[str, OptionMeaning] = field(default_factory=dict)

    @property
    def needs_login(self) -> bool:
        return self.users is not None or self.broker_login

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
    """User roles; each includes the permissions of those before it."""

    VIEWER = 1
    """Read only."""
    OPERATOR = 2
    """Sends, resends, moves offsets."""
    ADMIN = 3
    """Creates, changes and deletes topics, groups, users and settings."""

    @classmethod
    def parse(cls, text: str) -> Role:
        """Raises ``ConfigError``."""
        try:
            return cls[text.strip().upper()]
        except KeyError:
            raise ConfigError(f"no such role: {text!r}; there are viewer, operator and admin") from None


class Bodies(StrEnum):
    """How much of message bodies is shown."""

    SHOW = "show"
    MASK = "mask"
    OFF = "off"


class OptionMeaning(NamedTuple):
    """A broker option's description, and whether it can be changed at runtime."""

    doc: str
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """All settings; a console is created from these and an ``Admin``."""

    state: Path | None = None
    """Directory of the history and the audit log. With None both are kept in memory only."""
    users: Path | None = None
    """A file of users; see ``security.UserFile``."""
    broker_login: bool = False
    """Users log in as users of the broker, which then checks the permissions of each."""
    bodies: Bodies = Bodies.SHOW
    masks: tuple[str, ...] = ()
    """JSON fields and properties whose values are hidden with ``bodies=mask``."""
    pipelines: tuple[Path, ...] = ()
    """Directories with pipeline checkpoints."""
    sample_s: float = 10.0
    history_hours: int = 24
    read_only: bool = False
    hosts: frozenset[str] = frozenset()
    """Accepted host names in addition to loopback ones; with a login, empty means any."""
    secure_cookies: bool = False
    meanings: Mapping[str, OptionMeaning] = field(default_factory=dict)

    @property
    def needs_login(self) -> bool:
        return self.users is not None or self.broker_login

"""How a console is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import NamedTuple

from orbitmq.errors import ConfigError

__all__ = ["Bodies", "ConsoleSettings", "OptionMeaning", "Role"]


class Role(IntEnum):
    """Who may what; each role may what the ones before it may."""

    VIEWER = 1
    """Looks."""
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
    """What is shown of message bodies."""

    SHOW = "show"
    MASK = "mask"
    OFF = "off"


class OptionMeaning(NamedTuple):
    """What a broker option does, and whether it can be changed while the broker runs."""

    doc: str
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """All of them; a console is made from one of these and an ``Admin``."""

    state: Path | None = None
    """Directory of the history and the audit log; None: both only live as long as the process."""
    users: Path | None = None
    """A file of users; see ``security.UserFile``."""
    broker_login: bool = False
    """People log in with users of the broker; the broker then decides what each of them may do."""
    bodies: Bodies = Bodies.SHOW
    masks: tuple[str, ...] = ()
    """Names of JSON fields and of properties whose values are hidden with ``bodies=mask``."""
    pipelines: tuple[Path, ...] = ()
    """Directories with checkpoints of pipelines."""
    sample_s: float = 10.0
    history_hours: int = 24
    read_only: bool = False
    hosts: frozenset[str] = frozenset()
    """Names the console answers to beside loopback ones; empty with a login: any."""
    secure_cookies: bool = False
    meanings: Mapping[str, OptionMeaning] = field(default_factory=dict)

    @property
    def needs_login(self) -> bool:
        return self.users is not None or self.broker_login

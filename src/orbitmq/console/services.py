"""Objects shared by the pages of a console: the cluster, the sampled data, and the state of the console."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import jinja2

from orbitmq.admin import Admin
from orbitmq.console.history import History
from orbitmq.console.jobs import ResendJob
from orbitmq.console.masking import Masking
from orbitmq.console.sampler import Sampler
from orbitmq.console.security import AuditLog
from orbitmq.console.settings import ConsoleSettings
from orbitmq.runtime.tasks import TaskOwner

__all__ = ["TAILS_MAX", "Services"]

TAILS_MAX: Final = 10


@dataclass(slots=True)
class Services:
    """The shared objects, created once by the console. Every page gets them through its ``View``."""

    admin: Admin
    settings: ConsoleSettings
    sampler: Sampler
    history: History
    audit: AuditLog
    masking: Masking
    tasks: TaskOwner
    templates: jinja2.Environment
    jobs: dict[str, ResendJob] = field(default_factory=dict)
    tails: int = 0
    """Number of open live tails, at most ``TAILS_MAX``."""

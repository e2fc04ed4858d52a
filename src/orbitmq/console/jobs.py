"""Resends dead letters in bulk: a background task with a rate limit, progress and a stop button."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

from orbitmq.admin import Admin
from orbitmq.admin.deadletters import DeadLetter, resend_paced
from orbitmq.errors import OrbitError

__all__ = ["ResendJob"]


@dataclass(slots=True)
class ResendJob:
    """A running or finished bulk resend."""

    key: str
    group: str
    topic: str
    """Target topic; if empty, each dead letter goes to its original topic."""
    per_second: float
    letters: list[DeadLetter]
    user: str
    begun_ms: int
    sent: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    state: str = "running"
    """One of ``running``, ``stopped``, ``done`` and ``broken``."""
    error: str = ""
    stop: bool = False

    @property
    def total(self) -> int:
        return len(self.letters)

    async def run(self, admin: Admin) -> None:
        try:
            resending = resend_paced(
                admin, self.group, self.letters, topic=self.topic, per_second=self.per_second
            )
            async with aclosing(resending) as steps:  # type: ignore[type-var]  # a generator
                async for letter, fresh in steps:
                    if fresh.startswith("!"):
                        self.failed.append((letter.message.message_id, fresh[1:]))
                    else:
                        self.sent += 1
                    if self.stop:
                        break
            self.state = "stopped" if self.stop and self.sent + len(self.failed) < self.total else "done"
        except OrbitError as error:
            self.state, self.error = "broken", str(error)

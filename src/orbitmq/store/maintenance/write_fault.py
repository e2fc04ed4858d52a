"""Reports appends the disk refused: immediately in the log, and in ``/readyz`` until the disk accepts writes again.

Appends are still attempted, because the next one may be smaller or space may have been freed. The fault ends with a
successful append, or when no append has been attempted for a while and there is free space.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

__all__ = ["WriteFault"]

logger = logging.getLogger(__name__)

QUIET_S: Final = 10.0
"""After this long without a refusal, free disk space ends the fault."""
ROOM_BYTES: Final = 1 << 20
_REPEAT_S: Final = 60.0


class WriteFault:
    """The current write fault, if any."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._log_end = 0
        self._at = self._told_at = 0.0
        self._count = 0
        self.reason = ""
        """Why appends are currently refused; empty when they are not."""

    def refused(self, reason: str, log_end: int) -> None:
        """Record that the disk refused an append at ``log_end``. The first refusal is logged immediately, later ones
        once a minute with a count."""
        now = self._monotonic()
        self._count += 1
        self._at, self._log_end = now, log_end
        if not self.reason or now - self._told_at >= _REPEAT_S:
            logger.error("sends refused reason=%s log_end=%d refused=%d", reason, log_end, self._count)
            self._told_at = now
        self.reason = reason

    def look(self, log_end: int, available_bytes: Callable[[], int]) -> None:
        """Clear the fault if it is over. Called periodically. ``available_bytes`` is called only if it is needed."""
        if not self.reason:
            return
        written = log_end > self._log_end
        if written or (self._monotonic() - self._at >= QUIET_S and available_bytes() >= ROOM_BYTES):
            logger.warning("sends accepted again log_end=%d refused=%d", log_end, self._count)
            self.reason = ""
            self._count = 0

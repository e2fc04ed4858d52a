"""Saves every part, every table and the store when a broker stops, even if some of these saves fail."""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from orbitmq.store.errors import StoreError

__all__ = ["LastSaves", "SaveRefused"]

logger = logging.getLogger(__name__)

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class SaveRefused(OSError):
    """Some of the final saves failed. The text says which ones, and the consequences."""

    def __init__(self, failed: dict[str, OSError | StoreError]) -> None:
        self.failed = failed
        numbers = [error.errno for error in failed.values() if isinstance(error, OSError) and error.errno]
        number = next((one for one in numbers if one in _FULL), numbers[0] if numbers else errno.EIO)
        first = next(iter(failed.values()))
        reason = (first.strerror if isinstance(first, OSError) else None) or str(first)
        if number in _FULL:
            reason = "the disk is full"
        super().__init__(
            number,
            f"stopped, but not everything could be saved ({', '.join(failed)}): {reason}. No acknowledged message "
            "is lost; the next start recovers from the log",
        )


class LastSaves:
    """Runs the final saves and collects their errors, so that a failure does not prevent the other saves."""

    def __init__(self) -> None:
        self.failed: dict[str, OSError | StoreError] = {}

    def save(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, StoreError) as error:
            self._note(what, error)

    async def stop(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (OSError, StoreError) as error:
            self._note(what, error)

    def _note(self, what: str, error: OSError | StoreError) -> None:
        if isinstance(error, SaveRefused):
            self.failed.update(error.failed)
            return
        logger.error("not saved at shutdown what=%s error=%s", what, error)
        self.failed[what] = error

    def check(self) -> None:
        """Raise ``SaveRefused`` if any save failed."""
        if self.failed:
            raise SaveRefused(self.failed)

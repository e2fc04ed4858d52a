"""Decides how many calls of a plain function are handed to a thread together.

Handing over one call costs tens of microseconds, more than most functions take. So quick functions are handed over in
groups that are expected to take a few milliseconds. The duration of each call is measured on the threads.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CUT_S", "CallTime"]

_GROUP_MAX: Final = 256
_GROUP_S: Final = 0.005
"""Expected duration of a group."""
_QUICK_S: Final = 30e-6
"""A function that waits for anything outside the process takes longer than this."""
CUT_S: Final = 0.02
"""A group that takes longer is cut: its thread begins no further call."""


class CallTime:
    """Estimates the duration of one call. It starts with a pessimistic estimate, so the first groups are single
    calls."""

    __slots__ = ("_expected_s",)

    def __init__(self) -> None:
        self._expected_s = _GROUP_S

    @property
    def quick(self) -> bool:
        """Whether the function is so fast that it certainly only computes and never waits."""
        return self._expected_s < _QUICK_S

    @property
    def group_size(self) -> int:
        """The number of calls per group."""
        return max(1, min(_GROUP_MAX, int(_GROUP_S / self._expected_s)))

    def note(self, took_s: float, count: int) -> None:
        """Record that a group of ``count`` calls took ``took_s``."""
        self._expected_s = max(1e-6, (self._expected_s + took_s / max(1, count)) / 2)

    def note_cut(self) -> None:
        """Record that a call took longer than expected."""
        self._expected_s = max(self._expected_s, _GROUP_S)

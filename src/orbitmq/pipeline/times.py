"""Parses human-readable times into milliseconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from orbitmq.spark.errors import SpecError

__all__ = ["duration_s", "milliseconds", "moment_text"]


def milliseconds(value: str | int, path: str) -> int:
    """Returns an ISO 8601 time (UTC by default) as milliseconds since 1970. A number, also as text, is in
    milliseconds already. Raises ``SpecError``."""
    if isinstance(value, int):
        return value
    text = value.strip()
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SpecError(
            path,
            f"{value!r} is not a time: write 2026-05-01T12:00:00Z, 2026-05-01 or milliseconds since 1970",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def moment_text(value_ms: int) -> str:
    """Returns a time in milliseconds since 1970 as ISO 8601 text in UTC."""
    return datetime.fromtimestamp(value_ms / 1000, UTC).isoformat(timespec="milliseconds")


_UNIT_S: Final = {
    "millisecond": 0.001,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86_400.0,
    "week": 604_800.0,
}
_PART: Final = re.compile(rf"(\d+(?:\.\d+)?)\s+({'|'.join(_UNIT_S)})s?", re.IGNORECASE)


def duration_s(text: str) -> float:
    """Returns the seconds of a duration such as ``1 hour 30 minutes``, which must have been validated
    (``plan.py``)."""
    return sum(float(count) * _UNIT_S[unit.lower()] for count, unit in _PART.findall(text))

"""Times as people write them, as milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime

from orbitmq.spark.pipeline.errors import SpecError

__all__ = ["milliseconds", "moment_text"]


def milliseconds(value: str | int, path: str) -> int:
    """Milliseconds of an ISO 8601 text (UTC unless it says otherwise) or of a number that is them already."""
    if isinstance(value, int):
        return value
    text = value.strip()
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SpecError(
            path, f"{value!r} is no time: write 2026-05-01T12:00:00Z, 2026-05-01 or milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def moment_text(value_ms: int) -> str:
    """ISO 8601 in UTC."""
    return datetime.fromtimestamp(value_ms / 1000, UTC).isoformat(timespec="milliseconds")

"""Times as mqadmin takes them."""

from __future__ import annotations

from datetime import datetime

import click

__all__ = ["parse_time"]


def parse_time(text: str, now_ms: int) -> int:
    """Milliseconds of ``now``, of a number of milliseconds, or of local time as ``yyyy-MM-dd#HH:mm:ss:SSS``."""
    text = text.strip()
    if text == "now":
        return now_ms
    try:
        return int(text)
    except ValueError:
        pass
    main, separator, millis = text.rpartition(":")
    try:
        if separator and main.count(":") == 2:
            when = datetime.strptime(main, "%Y-%m-%d#%H:%M:%S").astimezone()
            return int(when.timestamp()) * 1000 + int(millis)
        return int(datetime.strptime(text, "%Y-%m-%d#%H:%M:%S").astimezone().timestamp()) * 1000
    except ValueError:
        raise click.UsageError(
            f"{text!r} is no time: give now, milliseconds since 1970, or 2026-01-31#23:59:59:000"
        ) from None

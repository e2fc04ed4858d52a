"""Parses times in mqadmin's format, in ISO 8601, or relative to now."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import click

__all__ = ["parse_time"]

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RELATIVE: Final = re.compile(r"-(\d{1,9})([smhd])")


def parse_time(text: str, now_ms: int) -> int:
    """Returns a time in milliseconds since 1970.

    The text is ``now``, a number of milliseconds, a time ago (``-15m``, with units s, m, h and d), ISO 8601
    (``2026-01-31T23:59:59``, local time unless it names a zone), or mqadmin's ``2026-01-31#23:59:59:000``.
    """
    text = text.strip()
    if text == "now":
        return now_ms
    if relative := _RELATIVE.fullmatch(text):
        return now_ms - int(relative[1]) * _UNIT_MS[relative[2]]
    try:
        return int(text)
    except ValueError:
        pass
    main, separator, millis = text.rpartition(":")
    try:
        if "#" not in text:
            return int(datetime.fromisoformat(text).timestamp() * 1000)
        if separator and main.count(":") == 2:
            when = datetime.strptime(main, "%Y-%m-%d#%H:%M:%S").astimezone()
            return int(when.timestamp()) * 1000 + int(millis)
        return int(datetime.strptime(text, "%Y-%m-%d#%H:%M:%S").astimezone().timestamp()) * 1000
    except ValueError:
        raise click.UsageError(
            f"{text!r} is not a time: give now, -15m (a time ago), 2026-01-31T23:59:59, milliseconds since 1970, "
            "or 2026-01-31#23:59:59:000"
        ) from None

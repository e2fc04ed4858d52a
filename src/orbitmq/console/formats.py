"""Formats values for people. An unknown value is shown as a question mark, never as zero."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup, escape

from orbitmq.model.topic import perm_text

__all__ = ["FILTERS"]

_UNKNOWN: Final = Markup('<span class="unknown" title="unknown">?</span>')
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number(value: float | None) -> Markup | str:
    return _UNKNOWN if value is None else f"{int(value):,}"


def counted(value: int, what: str) -> str:
    """Formats a number with its noun: ``1 group``, ``2 groups``."""
    if value == 1:
        what = what.removesuffix("ies") + "y" if what.endswith("ies") else what.removesuffix("s")
    return f"{value:,} {what}"


def rate(value: float | None) -> Markup | str:
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value else "0"


def size(value: float | None) -> Markup | str:
    if value is None:
        return _UNKNOWN
    amount = float(value)
    for unit in _SIZES:
        if abs(amount) < 1024 or unit == _SIZES[-1]:
            return f"{amount:,.0f} {unit}" if unit == "B" else f"{amount:,.1f} {unit}"
        amount /= 1024
    return _UNKNOWN


def percent(value: float | None) -> Markup | str:
    return _UNKNOWN if value is None else f"{value * 100:.0f} %"


def moment(value_ms: float | None) -> Markup:
    """Formats a time in UTC. The browser shows it relative to now, and on hover exactly, in the reader's time
    zone.
    """
    if value_ms is None or value_ms <= 0:
        return _UNKNOWN
    exact = datetime.fromtimestamp(value_ms / 1000, UTC)
    text = exact.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" data-ms="{}" title="{} UTC">{} UTC</time>').format(
        exact.isoformat(), int(value_ms), text, text
    )


def exact(value_ms: float | None) -> Markup:
    """Formats a time with milliseconds."""
    if value_ms is None or value_ms <= 0:
        return _UNKNOWN
    when = datetime.fromtimestamp(value_ms / 1000, UTC)
    text = when.strftime("%Y-%m-%d %H:%M:%S.") + f"{when.microsecond // 1000:03d}"
    return Markup('<time class="exact" datetime="{}" data-ms="{}" title="{} UTC">{} UTC</time>').format(
        when.isoformat(), int(value_ms), text, text
    )


def span(value_ms: float | None) -> Markup | str:
    """Formats a duration."""
    if value_ms is None:
        return _UNKNOWN
    seconds = value_ms / 1000
    if seconds < 1:
        return "0 s" if value_ms == 0 else f"{int(value_ms)} ms"
    for limit, unit, each in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            amount = seconds / each
            return f"{amount:.0f} {unit}" if amount >= 10 or each == 1 else f"{amount:.1f} {unit}"
    return f"{seconds / 86_400:.1f} d"


def text(value: object) -> Markup | str:
    """Returns a value as text, or the mark for unknown values."""
    return _UNKNOWN if value is None or value == "" else escape(str(value))


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "number": number,
    "counted": counted,
    "rate": rate,
    "size": size,
    "percent": percent,
    "moment": moment,
    "exact": exact,
    "span": span,
    "known": text,
    "perm": perm_text,
    "q": lambda value: quote(str(value), safe=""),
}

"""Checks arguments where the user passes them in, with readable ``TypeError`` and ``ValueError`` texts."""

from __future__ import annotations

from typing import Final

__all__ = ["check_type", "shown"]

_KINDS: Final[dict[type, str]] = {str: "a string", dict: "a dictionary of strings", bool: "True or False"}


def check_type(name: str, value: object, kind: type) -> None:
    """Raise ``TypeError`` unless ``value`` is of this kind. ``name`` is the argument's name in the error text."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {shown(value)}; {_KINDS.get(kind, f'a {kind.__name__}')} is accepted")


def shown(value: object) -> str:
    """Returns a value and its type as a short text for error messages."""
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"

"""Describes why a handler failed: exception type, message, and location in the user's code."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Final

__all__ = ["reason_of"]

_OWN: Final = str(Path(__file__).parents[2])
_STANDARD_LIBRARY: Final = str(Path(os.__file__).parent) + os.sep
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_TEXT_MAX: Final = 700
"""Of 1,024 bytes, which leaves room for the place."""


def reason_of(error: BaseException) -> str:
    """Returns, for example, ``ValueError: no such customer (shop/orders.py:17 in book)``."""
    name = type(error).__qualname__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a faulty __str__ of the user's must not stop the retry
        text = ""
    place = _place(error.__traceback__)
    return name + (f": {text[:_TEXT_MAX]}" if text else "") + (f" ({place})" if place else "")


def _place(traceback: TracebackType | None) -> str:
    """Returns the innermost frame outside libraries. In an installed application, where there is no such frame,
    returns the outermost frame; empty if there is none."""
    outermost = innermost = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith((_OWN, "<frozen")):
            shown = f"{'/'.join(Path(code.co_filename).parts[-2:])}:{traceback.tb_lineno} in {code.co_name}"
            outermost = outermost or shown
            if not _is_library(code.co_filename):
                innermost = shown
        traceback = traceback.tb_next
    return innermost or outermost


def _is_library(file: str) -> bool:
    return file.startswith(_STANDARD_LIBRARY) or not _INSTALLED.isdisjoint(Path(file).parts)

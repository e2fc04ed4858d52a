"""Chooses the kernel once, on import.

The compiled kernel is used if it is installed, has the interface version ``API`` and provides every function.
``ORBITMQ_KERNEL=plain`` or ``fast`` forces the choice. Type hints come from the plain functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import isfunction
from types import ModuleType
from typing import Any, Final

API: Final = 16
"""Version of the functions below, their signatures and their results; ``kernel/src/lib.rs`` has the same number."""


def _interface() -> Mapping[str, Callable[..., Any]]:
    """Returns the functions of the plain kernel and those of its classes that have a compiled twin, by name."""
    modules = (
        *("answers", "columns", "frames", "hashes", "index", "pops", "pulls", "records", "select"),
        "sends",
    )
    listed = (
        (name, getattr(module, name))
        for module in (import_module(f"orbitmq.kernel.plain.{each}") for each in modules)
        for name in module.__all__
    )
    return {name: value for name, value in listed if isfunction(value) or name in ("Filter", "Sends")}


def _load(wanted: str) -> ModuleType | None:
    """Returns the compiled kernel, or None if the plain one must be used. Raises ``ImportError`` if ``wanted`` is
    invalid, or if it is ``fast`` and the compiled kernel cannot be used."""
    if wanted not in ("", "plain", "fast"):
        raise ImportError(f"ORBITMQ_KERNEL is {wanted!r}; the accepted values are plain and fast")
    if wanted == "plain":
        return None
    try:
        fast = import_module("orbitmq_kernel")
    except ImportError as error:
        if wanted == "fast":
            raise ImportError(
                f"ORBITMQ_KERNEL=fast, but the compiled kernel cannot be imported ({error}); "
                "install orbitmq again where cargo is present; a checkout: make setup"
            ) from error
        return None
    reason = _mismatch(fast)
    if not reason:
        return fast
    if wanted == "fast":
        raise ImportError(f"ORBITMQ_KERNEL=fast, but the compiled kernel {reason}; build it again")
    return None


def _mismatch(fast: ModuleType) -> str:
    """Returns why a compiled kernel cannot be used; empty if it can.

    The interface version alone is not enough, because two branches may have raised it to the same value.
    """
    found = getattr(fast, "API", None)
    if found != API:
        return f"has interface {found}, {API} is needed"
    missing = [name for name in PLAIN if not hasattr(fast, name)]
    return f"has no {', '.join(missing)}" if missing else ""


PLAIN: Final = _interface()
"""Functions of the plain kernel by name."""
_fast: Final = _load(os.environ.get("ORBITMQ_KERNEL", ""))
NAME: Final = "plain" if _fast is None else "fast"
"""Name of the kernel this process uses."""
_compiled: Final = {} if _fast is None else {name: getattr(_fast, name) for name in PLAIN}

__all__ = list(_compiled)
globals().update(_compiled)

"""Loads both kernels, for tests that compare them. It is in this folder because only this harness may skip tests."""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from orbitmq.kernel.chosen import NAME, PLAIN, _mismatch

Kernel = Any
"""The functions of one kernel by name; what they take and return is what the tests are about."""


def load(name: str) -> Kernel:
    """Returns a kernel by name. Where cargo is missing there is no fast one: the test is skipped, or fails where
    skipping is not allowed (`CI=true` or `ORBITMQ_REQUIRE_APACHE=1`).
    """
    if name == "plain":
        return SimpleNamespace(NAME="plain", **PLAIN)
    try:
        fast = importlib.import_module("orbitmq_kernel")
        mismatch = _mismatch(fast)
        reason = f"the compiled kernel {mismatch}" if mismatch else ""
    except ImportError as error:
        reason = f"the compiled kernel is not built ({error})"
    if reason:
        reason += ": run scripts/build_kernel.sh"
        if os.environ.get("CI") == "true" or os.environ.get("ORBITMQ_REQUIRE_APACHE") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return fast


def require_opcode_counts() -> None:
    """Skips a test of opcode counts where they differ: with another kernel or another Python than CI's."""
    if NAME != "fast":
        pytest.skip("opcodes are counted with the compiled kernel")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("opcodes are counted on Python 3.11")


@cache
def both() -> list[Kernel]:
    """Returns the plain kernel and, where it is built, the compiled one, for tests that compare them within
    one case.
    """
    found = [load("plain")]
    try:
        found.append(load("fast"))
    except pytest.skip.Exception:
        pass
    return found

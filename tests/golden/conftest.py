"""Tests here that take ``kernel`` run twice: on the definition and on its compiled twin."""

from __future__ import annotations

import sys

import pytest
from tests.apache.kernels import Kernel, load

import orbitmq.kernel as kernel_package
from orbitmq.kernel.chosen import PLAIN


@pytest.fixture(params=["plain", "fast"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """One kernel, in place of the chosen one in every module that imported something of it."""
    wanted = load(request.param)
    new = {id(getattr(kernel_package, name)): getattr(wanted, name) for name in PLAIN}
    for path, module in list(sys.modules.items()):
        if path.startswith("orbitmq.") and not path.startswith("orbitmq.kernel"):
            for name, value in list(vars(module).items()):
                if id(value) in new:
                    monkeypatch.setattr(module, name, new[id(value)])
    return wanted

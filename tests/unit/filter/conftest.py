"""Every test in this folder that takes ``kernel`` runs twice: on the definition and on the compiled kernel."""

from __future__ import annotations

import pytest
from tests.apache.kernels import Kernel, load


@pytest.fixture(params=["plain", "fast"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return load(request.param)

"""Every test here that takes ``kernel`` runs twice: on the definition and on its compiled twin."""

from __future__ import annotations

import pytest
from tests.apache.kernels import Kernel, load


@pytest.fixture(params=["plain", "fast"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return load(request.param)

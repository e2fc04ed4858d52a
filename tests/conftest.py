"""Options and settings shared by all tests."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("orbitmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("orbitmq")

# The servers that tests start as processes load most of the package. Without .pyc files each of them, and each worker
# of pytest-xdist, compiles all of it again: about a second of CPU for a server, ten for a worker.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = [
    "tests.support.measure",
    "tests.support.port_guard",
    "tests.support.schedule",
    "tests.support.tiers",
]

FUZZ_SECONDS_DEFAULT = 30.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fuzz-seconds",
        type=float,
        default=FUZZ_SECONDS_DEFAULT,
        help="how long the tests marked fuzz run in total; they share it equally",
    )
    parser.addoption(
        "--target",
        action="append",
        choices=("ours", "apache-5.5.0", "apache-4.9.7", "apache-5.5.1"),
        help="which servers tests/conformance runs against; may be given several times; all without it",
    )
    parser.addoption(
        "--fuzz-seed",
        type=int,
        default=None,
        help="the seed a failed fuzz test printed; without it every run has its own",
    )

"""Connections that are kept between tasks."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

KEEPS_ONE = """
import sys
from orbitmq.spark.options import Access
from orbitmq.spark.pool import borrow, give_back

access = Access("")
give_back(borrow(sys.argv[1], access, timeout_s=10), access)
"""


@pytest.mark.slow
def test_process_that_ends_closes_the_connections_it_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        done = subprocess.run(
            [sys.executable, "-W", "always::ResourceWarning", "-c", KEEPS_ONE, f"{host}:{port}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")

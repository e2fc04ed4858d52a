"""Tests the guard of ports. It is active in this process, as in every other test."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing

import pytest
from tests.support.ports import free_ports

from orbitmq.transport.ports import bind_port, bind_port_and_fast_port


def port_the_kernel_gave() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_server_on_a_port_the_kernel_gave_before_is_refused() -> None:
    port = port_the_kernel_gave()
    with pytest.raises(OSError, match=f"port {port} .*tests/support/ports.py"):
        bind_port("127.0.0.1", port)
    with pytest.raises(OSError, match=f"port {port}"):
        bind_port_and_fast_port("127.0.0.1", port)
    with pytest.raises(OSError, match=f"port {port}"):
        subprocess.run([sys.executable, "-c", "", "--set", f"listenPort={port}"], check=False)


def test_port_in_use_reaches_the_code_under_test() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="is in use"):
        bind_port("127.0.0.1", server.getsockname()[1])


def test_reserved_ports_port_0_and_its_neighbours_are_let_through() -> None:
    with closing(bind_port("127.0.0.1", free_ports()[0])):
        pass
    main, fast = bind_port_and_fast_port("127.0.0.1", 0)
    with closing(main), closing(fast):
        assert main.getsockname()[1] - fast.getsockname()[1] == 2

"""Ports bound before serving, and the error when one cannot be bound."""

from __future__ import annotations

import pytest

from orbitmq.transport.ports import bind_port, bind_port_and_fast_port

HOST = "127.0.0.1"


def test_port_in_use_is_named_in_the_error() -> None:
    with bind_port(HOST, 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} of 127.0.0.1 is in use"):
            bind_port(HOST, port)


def test_address_of_another_machine_is_named_in_the_error() -> None:
    with pytest.raises(OSError, match=r"cannot bind port 0 of 192\.0\.2\.1"):
        bind_port("192.0.2.1", 0)


def test_fast_port_is_two_below() -> None:
    main, fast = bind_port_and_fast_port(HOST, 0)
    with main, fast:
        assert fast.getsockname()[1] == main.getsockname()[1] - 2

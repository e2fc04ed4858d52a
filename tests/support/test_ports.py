"""Tests the ports handed out to servers of tests."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.ports import PortBlocks, broker_ports, free_ports


def test_ports_are_below_those_the_kernel_chooses_and_differ_by_the_steps() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port, fast, ha = free_ports(-2, 1)
    assert (port - fast, ha - port) == (2, 1)
    assert ha < low
    assert fast > ha - port


def test_port_that_was_handed_out_is_not_handed_out_again() -> None:
    found = [port for _ in range(30) for port in free_ports(-2, 1)]
    assert len(set(found)) == len(found)


def test_ports_of_a_broker_leave_room_for_those_it_takes_beside_its_own() -> None:
    taken = [port for _ in range(20) for port in neighbours(broker_ports())]
    assert len(set(taken)) == len(taken)


def neighbours(ports: dict[str, int]) -> tuple[int, ...]:
    broker = ports["port"]
    return broker - 2, broker, broker + 1, ports["name_server_port"]


def test_port_in_use_is_left_out(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", free_ports()[0])) as server,
        closing(PortBlocks(server.getsockname()[1] - 1, server.getsockname()[1] + 3, 4, tmp_path)) as blocks,
    ):
        taken = server.getsockname()[1]
        assert blocks.take(1) == [taken + 1, taken + 2]


def test_another_process_gets_other_blocks_until_the_first_has_ended(tmp_path: Path) -> None:
    first = free_ports(*range(1, 60))[0]
    with closing(PortBlocks(first, first + 60, 20, tmp_path)) as one:
        with closing(PortBlocks(first, first + 60, 20, tmp_path)) as two:
            ports_of_one = [port for _ in range(20) for port in one.take()]
            ports_of_two = [port for _ in range(40) for port in two.take()]
            assert set(ports_of_one) & set(ports_of_two) == set()
            assert two.take() == [ports_of_two[0]], "its own blocks are reused when all are in use"
            with (
                closing(PortBlocks(first, first + 60, 20, tmp_path)) as third,
                pytest.raises(RuntimeError, match="locked every block"),
            ):
                third.take()
        with closing(PortBlocks(first, first + 60, 20, tmp_path)) as fourth:
            assert set(fourth.take()) <= set(ports_of_two)

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.support.ports import PortRange, free_ports, range_of_worker


def worker(number: int, count: int) -> tuple[int, int]:
    return range_of_worker({"PYTEST_XDIST_WORKER": f"gw{number}", "PYTEST_XDIST_WORKER_COUNT": str(count)})


def test_workers_have_ranges_that_do_not_overlap() -> None:
    ranges = [worker(number, 3) for number in range(3)]
    assert [first for first, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
    assert ranges[0][0] == range_of_worker({})[0]
    assert ranges[-1][1] <= range_of_worker({})[1]


def test_no_outgoing_connection_can_take_a_port() -> None:
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    assert not ephemeral.exists() or range_of_worker({})[1] <= int(ephemeral.read_text().split()[0])


def test_each_port_is_handed_out_once_per_round() -> None:
    first = free_ports()[0]
    ports = PortRange(first, first + 60)
    taken = [port for _ in range(5) for port in ports.take(-2, 1)]
    assert len(set(taken)) == len(taken)
    for base, below, above in zip(*[iter(taken)] * 3, strict=True):
        assert (below, above) == (base - 2, base + 1)


def test_port_in_use_is_skipped_and_a_full_range_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", free_ports()[0])) as server:
        port = server.getsockname()[1]
        with pytest.raises(RuntimeError, match="no free ports"):
            PortRange(port, port + 1).take()
        with pytest.raises(RuntimeError, match="no free ports"):
            PortRange(port - 1, port + 2).take(1, 2)

"""Which address this machine has, for those who must tell others."""

from __future__ import annotations

import socket

__all__ = ["own_address"]


def own_address() -> str:
    """The address other machines would reach us at; the loopback address on a machine without a network.

    Connecting a datagram socket sends nothing: it only makes the system choose a route and thus an address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"

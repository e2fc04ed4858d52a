"""Finds the address at which others reach this machine, and formats host names with ports."""

from __future__ import annotations

import socket

from orbitmq.errors import ConfigError

__all__ = ["bare_host", "join_address", "literal_address", "own_address"]


def bare_host(host: str) -> str:
    """Returns a host without the brackets of an IPv6 address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def join_address(host: str, port: int) -> str:
    """Returns ``host:port``, with an IPv6 address in brackets."""
    host = bare_host(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def literal_address(host: str) -> str:
    """Returns the IP address of a host, preferring IPv4 like Java. Raises ``ConfigError`` if the host has no
    address."""
    try:
        found = socket.getaddrinfo(bare_host(host), None, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # ValueError: a host name no resolver can take
        raise ConfigError(f"the host {host} has no address: {error}") from None
    first = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return str(first[4][0])


def own_address() -> str:
    """Returns the address at which other machines would reach this one, or the loopback address if there is no
    network.

    Connecting a datagram socket sends nothing. It only makes the system choose a route and thus an address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"

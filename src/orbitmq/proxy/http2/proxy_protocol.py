"""HAProxy's PROXY protocol, versions 1 and 2, with which a load balancer forwards the client's address."""

from __future__ import annotations

import ipaddress
import socket
from enum import Enum
from typing import Final

from orbitmq.errors import ConfigError
from orbitmq.proxy.http2.frames import H2Error

__all__ = ["Balancers", "ProxyHeader", "read_proxy_header"]

_LINE_START: Final = b"PROXY "
_LINE_BYTES_MAX: Final = 107
_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_FIXED_BYTES: Final = 16


class Balancers:
    """The load balancers that are trusted to state a client's address."""

    def __init__(self, text: str = "") -> None:
        """``text`` lists addresses and networks, separated by commas. Raises ``ConfigError``."""
        try:
            self._networks = [
                ipaddress.ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip()
            ]
        except ValueError as error:
            raise ConfigError(f"proxyProtocolFrom={text} cannot be read: {error}") from None

    def trusts(self, host: str) -> bool:
        if not self._networks:
            return False
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._networks)


class ProxyHeader(Enum):
    """Results of parsing that have no address."""

    ABSENT = "absent"
    INCOMPLETE = "incomplete"


def read_proxy_header(data: bytes) -> tuple[int, str] | ProxyHeader:
    """Parse a PROXY header. Returns its length and the client's ``host:port``. Raises ``H2Error``.

    The address is empty for a connection of the balancer itself.
    """
    for start in (_LINE_START, _SIGNATURE):
        if data[: len(start)] == start[: len(data)]:
            if len(data) < len(start):
                # HTTP/2's "PRI " and "PROXY " share their first two bytes.
                return ProxyHeader.INCOMPLETE
            return _line(data) if start is _LINE_START else _binary(data)
    return ProxyHeader.ABSENT


def _line(data: bytes) -> tuple[int, str] | ProxyHeader:
    end = data.find(b"\r\n", 0, _LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= _LINE_BYTES_MAX:
            raise H2Error(H2Error.PROTOCOL, "PROXY line without an end")
        return ProxyHeader.INCOMPLETE
    words = data[:end].decode("latin-1").split(" ")
    if len(words) == 6 and words[1] in ("TCP4", "TCP6") and words[4].isascii() and words[4].isdigit():
        try:
            return end + 2, f"{ipaddress.ip_address(words[2])}:{int(words[4])}"
        except ValueError:
            raise H2Error(H2Error.PROTOCOL, "PROXY line without an address") from None
    if words[1:2] == ["UNKNOWN"]:
        return end + 2, ""
    raise H2Error(H2Error.PROTOCOL, "malformed PROXY line")


def _binary(data: bytes) -> tuple[int, str] | ProxyHeader:
    if len(data) < _FIXED_BYTES:
        return ProxyHeader.INCOMPLETE
    size = _FIXED_BYTES + int.from_bytes(data[14:16], "big")
    if data[12] >> 4 != 2 or size > 4096:
        raise H2Error(H2Error.PROTOCOL, "malformed PROXY header")
    if len(data) < size:
        return ProxyHeader.INCOMPLETE
    command, family = data[12] & 15, data[13] >> 4
    if command == 1 and family == 1 and size >= _FIXED_BYTES + 12:
        return size, f"{socket.inet_ntop(socket.AF_INET, data[16:20])}:{int.from_bytes(data[24:26], 'big')}"
    if command == 1 and family == 2 and size >= _FIXED_BYTES + 36:
        return size, f"{socket.inet_ntop(socket.AF_INET6, data[16:32])}:{int.from_bytes(data[48:50], 'big')}"
    return size, ""

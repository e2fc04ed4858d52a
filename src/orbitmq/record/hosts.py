"""Socket addresses as stored in records: the address, then the port in four bytes."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from orbitmq.errors import RecordError
from orbitmq.kernel.layout import HOST_V4, HOST_V4_BYTES, HOST_V6, HOST_V6_BYTES

__all__ = ["decode_host", "encode_host", "host_text"]


@lru_cache(maxsize=65536)
def encode_host(address: str, port: int) -> bytes:
    """Returns an address in 8 bytes (IPv4) or 20 bytes (IPv6). Cached, because a connection's address is stored with
    each message.

    An IPv4 address mapped into IPv6 (the peer of a dual-stack socket) is stored as IPv4, like in Java; a zone
    (``%eth0``) is dropped. Raises ``RecordError`` for anything that is not a literal address.
    """
    try:
        if ":" not in address:
            return HOST_V4.pack(IPv4Address(address).packed, _port(port))
        six = IPv6Address(address.partition("%")[0])
    except (AddressValueError, ValueError):
        raise RecordError(f"{address!r} is not an IP address") from None
    if six.ipv4_mapped is not None:
        return HOST_V4.pack(six.ipv4_mapped.packed, _port(port))
    return HOST_V6.pack(six.packed, _port(port))


@lru_cache(maxsize=65536)
def decode_host(data: bytes) -> tuple[str, int]:
    """Returns the address and port in 8 or 20 bytes. Raises ``RecordError`` for any other length."""
    if len(data) == HOST_V4_BYTES:
        packed, port = HOST_V4.unpack(data)
        return str(IPv4Address(packed)), port
    if len(data) == HOST_V6_BYTES:
        packed, port = HOST_V6.unpack(data)
        return str(IPv6Address(packed)), port
    raise RecordError(f"a host takes {HOST_V4_BYTES} or {HOST_V6_BYTES} bytes, not {len(data)}")


def host_text(data: bytes) -> str:
    """Returns an encoded host as text: ``10.0.0.1:10911`` or ``[fe80::1]:10911``."""
    address, port = decode_host(data)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _port(port: int) -> int:
    if not 0 <= port <= 0xFFFF:
        raise RecordError(f"port {port} is out of range")
    return port

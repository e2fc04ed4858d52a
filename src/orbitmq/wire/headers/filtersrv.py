"""Headers of filter servers: 301, 302 (Apache, up to 4.2: RegisterFilterServerRequestHeader and related headers)."""

from __future__ import annotations

from msgspec import field

from orbitmq.wire.header import Header, Int32, Int64

__all__ = ["RegisterFilterServerRequest", "RegisterFilterServerResponse", "RegisterMessageFilterClassRequest"]


class RegisterFilterServerRequest(Header, kw_only=True):
    """REGISTER_FILTER_SERVER (301), repeated every few seconds."""

    filter_server_addr: str


class RegisterFilterServerResponse(Header, kw_only=True):
    broker_name: str
    broker_id: Int64


class RegisterMessageFilterClassRequest(Header, kw_only=True):
    """REGISTER_MESSAGE_FILTER_CLASS (302); the body is the source."""

    consumer_group: str
    topic: str
    class_name: str
    class_crc: Int32 = field(name="classCRC", default=0)
    """CRC-32 of the source with the top bit cleared; 0 disables the check."""

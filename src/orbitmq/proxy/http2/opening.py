"""Setup of a connection.

TLS, plain text and the PROXY protocol of load balancers share the port and are distinguished by their first bytes.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from orbitmq.proxy.http2.frames import PREFACE, H2Error
from orbitmq.proxy.http2.proxy_protocol import Balancers, ProxyHeader, read_proxy_header
from orbitmq.transport.tls import TLS_RECORD_START, ServerTls, TlsFilter, TlsMode

__all__ = ["Opening"]


class Opening:
    """Detects a peer's protocol and address."""

    def __init__(self, tls: ServerTls, balancers: Balancers, write: Callable[[bytes], None]) -> None:
        """``write`` sends raw bytes."""
        self._server_tls = tls
        self._balancers = balancers
        self._write = write
        self._proxy_read = False
        self.tls: TlsFilter | None = None
        self.address = ""
        """The client's ``host:port`` as stated by a load balancer; empty if none did."""
        self.rest = b""
        """Received bytes that are too few to identify the protocol."""

    def decrypt(self, data: bytes) -> bytes:
        """Decrypt received bytes, and send what TLS answers. Raises ``H2Error`` if TLS fails."""
        assert self.tls is not None
        try:
            plain, answer = self.tls.receive(data)
        except ssl.SSLError as error:
            self._write(self.tls.pending())
            self.tls = None
            raise H2Error(H2Error.PROTOCOL, f"TLS failed: {error.reason}") from None
        if answer:
            self._write(answer)
        return plain

    def read(self, data: bytes, host: str) -> bytes | None:
        """Returns the bytes after the preface, or None until it is complete. Raises ``H2Error``."""
        data = self.rest + data
        self.rest = b""
        if not self._proxy_read and self.tls is None:
            found = read_proxy_header(data)
            if found is ProxyHeader.INCOMPLETE:
                self.rest = data
                return None
            self._proxy_read = True
            if isinstance(found, tuple):
                if not self._balancers.trusts(host):
                    raise H2Error(H2Error.PROTOCOL, "PROXY protocol from an address not in proxyProtocolFrom")
                used, self.address = found
                data = data[used:]
        if not data:
            return None
        if self.tls is None and data[0] == TLS_RECORD_START:
            if self._server_tls.context is None or self._server_tls.mode is TlsMode.DISABLED:
                raise H2Error(H2Error.PROTOCOL, "TLS is not enabled on this port")
            self.tls = TlsFilter(self._server_tls.context, server_side=True)
            data = self.decrypt(data)
        elif self.tls is None and self._server_tls.mode is TlsMode.ENFORCING:
            raise H2Error(H2Error.PROTOCOL, "only TLS is accepted on this port")
        if len(data) < len(PREFACE) and PREFACE.startswith(data):
            self.rest = data
            return None
        if not data.startswith(PREFACE):
            raise H2Error(H2Error.PROTOCOL, "not HTTP/2")
        return data[len(PREFACE) :]

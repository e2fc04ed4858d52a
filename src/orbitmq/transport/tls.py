"""TLS beside plain text on one port, as a filter between socket bytes and frames.

Apache's permissive mode decides by the first byte of a connection (0x16 is a TLS handshake record; no plain frame
can start with it, its length would be over the limit). asyncio cannot look at a byte and then hand it to its
own TLS, so the filter drives ``ssl.SSLObject`` over memory buffers itself. It never touches a socket.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from orbitmq.errors import ConfigError

__all__ = ["TLS_RECORD_START", "ServerTls", "TlsFilter", "TlsMode", "client_context", "server_context"]

TLS_RECORD_START: Final = 0x16
_READ_BYTES: Final = 256 * 1024


class TlsMode(StrEnum):
    """What a server port accepts."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A server's choice: what it accepts, and with which certificate. No context means plain only."""

    mode: TlsMode = TlsMode.PERMISSIVE
    context: ssl.SSLContext | None = None


def server_context(
    certificate: Path, key: Path, *, password: str | None = None, trusted: Path | None = None
) -> ssl.SSLContext:
    """A server's context from PEM files; with ``trusted`` clients must present a certificate it signed."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password)
        if trusted is not None:
            context.load_verify_locations(trusted)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files cannot be used: {certificate}, {key}: {error}") from error


def client_context(
    *,
    trusted: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    password: str | None = None,
) -> ssl.SSLContext:
    """A client's context. Without ``trusted`` any server certificate is accepted, as Apache's test mode does."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        if trusted is not None:
            context.load_verify_locations(trusted)
        else:
            context.verify_mode = ssl.CERT_NONE
        if certificate is not None:
            context.load_cert_chain(certificate, key, password)
        return context
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files cannot be used: {error}") from error


class TlsFilter:
    """One end of a TLS session over memory. Raises ``ssl.SSLError`` when the peer breaks the protocol."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._waiting: list[bytes] = []
        self._ready = False
        self.held_bytes = 0
        """Plain bytes that wait for the end of the handshake."""

    def start(self) -> bytes:
        """Bytes to send first (a client's hello)."""
        self._handshake()
        return self._outgoing.read()

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Feed socket bytes; gives the plain bytes they hold and the bytes to send back."""
        self._incoming.write(data)
        if not self._ready:
            self._handshake()
        plain: list[bytes] = []
        if self._ready:
            try:
                while chunk := self._session.read(_READ_BYTES):
                    plain.append(chunk)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                pass  # The peer closed its side; the socket's own end follows.
        return b"".join(plain), self._outgoing.read()

    def pending(self) -> bytes:
        """Bytes still to send after ``receive`` raised: the alert."""
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        """Bytes to send for ``data``; held back until the handshake is over."""
        if not self._ready:
            self._waiting.append(data)
            self.held_bytes += len(data)
            return b""
        self._session.write(data)
        return self._outgoing.read()

    def _handshake(self) -> None:
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            return
        self._ready = True
        for data in self._waiting:
            self._session.write(data)
        self._waiting.clear()
        self.held_bytes = 0

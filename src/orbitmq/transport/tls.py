"""Accepts TLS and plain text on one port, as a filter between socket bytes and frames.

Apache's permissive mode decides by the first byte of a connection: 0x16 is a TLS handshake record, and no plain frame
can start with it because its length would exceed the limit. asyncio cannot look at a byte and then pass it to its own
TLS, so the filter drives ``ssl.SSLObject`` over memory buffers. It never touches a socket.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from orbitmq.errors import ConfigError
from orbitmq.runtime.options import option

__all__ = [
    "TLS_RECORD_START",
    "OutgoingTls",
    "ServerTls",
    "TlsConfig",
    "TlsFilter",
    "TlsMode",
    "client_context",
    "client_tls",
    "outgoing_context",
    "self_signed_context",
    "server_context",
    "server_tls",
    "verifying_context",
]

logger = logging.getLogger(__name__)

TLS_RECORD_START: Final = 0x16
_READ_BYTES: Final = 256 * 1024


class TlsMode(StrEnum):
    """The kinds of connections a server port accepts."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingTls:
    """TLS settings for connections to other servers, under Apache's names."""

    tls_outgoing: bool = option(
        False,
        apache="tls.enable",
        doc="Use TLS for what this server sends to others; tls.server.mode=enforcing implies it for brokers.",
    )
    tls_client_trusted: str = option(
        "",
        apache="tls.client.trustCertPath",
        doc="PEM file with the authorities the certificates of others are checked by.",
    )
    tls_client_certificate: str = option(
        "", apache="tls.client.certPath", doc="PEM file of the certificate shown to others."
    )
    tls_client_key: str = option("", apache="tls.client.keyPath", doc="PEM file of its private key.")
    tls_client_key_password: str = option(
        "", apache="tls.client.keyPassword", secret=True, doc="Password of that private key."
    )
    tls_client_checks_server: bool = option(
        False, apache="tls.client.authServer", doc="Check the certificates of others against trustCertPath."
    )
    tls_client_checks_host: bool = option(
        False,
        apache="tls.client.checkHostName",
        doc="With authServer: the certificate must also name the host or address that is connected to. Apache never "
        "looks at that, so certificates made for it often name neither.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig(OutgoingTls):
    """TLS settings of a server, under Apache's names. They are system properties in Apache and configuration keys
    here."""

    tls_mode: TlsMode = option(  # noqa: RUF009 - a field declaration, not a shared value
        TlsMode.PERMISSIVE,
        apache="tls.server.mode",
        doc="TLS on the port: disabled, permissive (both, told apart by the first byte) or enforcing.",
    )
    tls_test_mode: str = option(
        "",
        apache="tls.test.mode.enable",
        choices=("", "true", "false"),
        doc="true: a self-signed certificate is made when the first client asks for TLS. Empty: so without certPath.",
    )
    tls_certificate: str = option("", apache="tls.server.certPath", doc="PEM file of the server certificate.")
    tls_key: str = option("", apache="tls.server.keyPath", doc="PEM file of the private key.")
    tls_key_password: str = option(
        "", apache="tls.server.keyPassword", secret=True, doc="Password of the private key."
    )
    tls_authenticate_clients: bool = option(
        False,
        apache="tls.server.authClient",
        doc="Clients must present a certificate signed by trustCertPath.",
    )
    tls_client_authentication: str = option(
        "none",
        apache="tls.server.need.client.auth",
        choices=("none", "optional", "require"),
        doc="Whether clients are asked for a certificate; require is the same as authClient=true, optional checks it "
        "when one is given.",
    )
    tls_trusted: str = option(
        "", apache="tls.server.trustCertPath", doc="PEM file with the trusted authorities."
    )


class ServerTls:
    """Decides which connections a server accepts, and with which certificate. Without a context and without ``make``,
    it accepts only plain connections."""

    def __init__(
        self,
        mode: TlsMode = TlsMode.PERMISSIVE,
        context: ssl.SSLContext | None = None,
        *,
        make: Callable[[], ssl.SSLContext] | None = None,
        files: Sequence[Path] = (),
        trusted: Path | None = None,
    ) -> None:
        """``make`` creates a context on a thread when one is first needed.

        If a context is given from the start, ``make`` is called again for new connections when all ``files`` have
        changed (a certificate and its key are a pair) or ``trusted`` alone has.
        """
        self.mode = mode
        self._context = context
        self._make = make
        self._files = tuple(files)
        self._trusted = () if trusted is None else (trusted,)
        self._seen = _stamps(self._files)
        self._seen_trusted = _stamps(self._trusted)
        self._waiting: list[Callable[[], None]] = []

    @property
    def watched(self) -> tuple[Path, ...]:
        """The files that are checked for every new connection; empty if TLS is off."""
        return () if self.mode is TlsMode.DISABLED else self._files + self._trusted

    @property
    def context(self) -> ssl.SSLContext | None:
        """The context for a new connection, reloaded if the files have changed. If it is None, see ``can_make``."""
        if self._files and self._make is not None:
            changed: tuple[Path, ...] = ()
            stamps = _stamps(self._files)
            if _all_changed(self._seen, stamps):
                self._seen = stamps
                changed = self._files
            stamps = _stamps(self._trusted)
            if self._trusted and _all_changed(self._seen_trusted, stamps):
                self._seen_trusted = stamps
                changed += self._trusted
            if changed:
                self._reload(self._make, changed)
        return self._context

    def _reload(self, make: Callable[[], ssl.SSLContext], changed: Sequence[Path]) -> None:
        try:
            self._context = make()
            logger.info("certificate reloaded files=%s", ",".join(map(str, changed)))
        except ConfigError as error:
            logger.error("certificate not reloaded, keeping the previous one error=%s", error)

    async def ready(self) -> ssl.SSLContext:
        """Returns the context for a port that only accepts TLS, creating it if necessary; ``can_make`` tells whether
        that is possible. Raises ``ConfigError``."""
        if self._context is None:
            assert self._make is not None
            self._context = await asyncio.get_running_loop().run_in_executor(None, self._make)
        return self.context or self._context

    @property
    def can_make(self) -> bool:
        """Whether a context can still be created, so that ``when_made`` is worth waiting for."""
        return self._context is None and self._make is not None and not self._files

    def when_made(self, then: Callable[[], None]) -> None:
        """Create the context on a thread. Then call ``then`` on the loop, even if that failed; ``context`` is still
        None in that case."""
        self._waiting.append(then)
        if len(self._waiting) > 1:
            return
        make = self._make
        assert make is not None
        made = asyncio.get_running_loop().run_in_executor(None, make)
        made.add_done_callback(self._made)

    def _made(self, made: asyncio.Future[ssl.SSLContext]) -> None:
        try:
            self._context = made.result()
            logger.info("created a self-signed certificate for TLS; set tls.server.certPath to use your own")
        except (ConfigError, OSError, ValueError, asyncio.CancelledError) as error:
            self._make = None
            logger.error("cannot create a certificate for TLS error=%s", error)
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()


def _stamps(paths: Sequence[Path]) -> tuple[tuple[int, int] | None, ...]:
    return tuple(_stamp(path) for path in paths)


def _all_changed(seen: Sequence[tuple[int, int] | None], stamps: Sequence[tuple[int, int] | None]) -> bool:
    return all(new is not None and new != old for new, old in zip(stamps, seen, strict=True))


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def server_tls(config: TlsConfig) -> ServerTls:
    """Returns which connections a port accepts. Raises ``ConfigError`` if the files cannot be used."""
    if config.tls_mode is TlsMode.DISABLED:
        return ServerTls(TlsMode.DISABLED)
    if config.tls_test_mode == "true" and config.tls_certificate:
        logger.warning("tls.test.mode.enable=true is ignored because tls.server.certPath is set")
    required = config.tls_authenticate_clients or config.tls_client_authentication == "require"
    asked = required or config.tls_client_authentication == "optional"
    if not config.tls_certificate:
        if config.tls_test_mode == "false" and config.tls_mode is TlsMode.ENFORCING:
            raise ConfigError("tls.server.mode=enforcing needs tls.server.certPath and tls.server.keyPath")
        if required:
            raise ConfigError("client certificates are required, but tls.server.certPath is not set")
        make = None if config.tls_test_mode == "false" else self_signed_context
        return ServerTls(config.tls_mode, make=make)
    if asked and not config.tls_trusted:
        raise ConfigError("client certificates are requested, but tls.server.trustCertPath is not set")
    certificate, key = Path(config.tls_certificate), Path(config.tls_key or config.tls_certificate)

    def load() -> ssl.SSLContext:
        context = server_context(
            certificate,
            key,
            password=config.tls_key_password or None,
            trusted=Path(config.tls_trusted) if asked else None,
        )
        if asked and not required:
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    return ServerTls(
        config.tls_mode,
        load(),
        make=load,
        files=tuple(dict.fromkeys((certificate, key))),
        trusted=Path(config.tls_trusted) if asked else None,
    )


def client_tls(config: TlsConfig) -> ssl.SSLContext | None:
    """Returns the context for connections to other servers; None if TLS is off. Raises ``ConfigError`` if the files
    cannot be used."""
    if not config.tls_outgoing and config.tls_mode is not TlsMode.ENFORCING:
        return None
    return outgoing_context(config)


def outgoing_context(config: OutgoingTls) -> ssl.SSLContext:
    """Returns the client's TLS context, whether or not TLS is on for ordinary requests. Raises ``ConfigError``."""
    if config.tls_client_checks_server and not config.tls_client_trusted:
        raise ConfigError("tls.client.authServer=true needs tls.client.trustCertPath")
    if config.tls_client_checks_host and not config.tls_client_checks_server:
        raise ConfigError("tls.client.checkHostName=true needs tls.client.authServer=true")
    return client_context(
        check_host=config.tls_client_checks_host,
        trusted=Path(config.tls_client_trusted) if config.tls_client_checks_server else None,
        certificate=Path(config.tls_client_certificate) if config.tls_client_certificate else None,
        key=Path(config.tls_client_key) if config.tls_client_key else None,
        password=config.tls_client_key_password or None,
    )


def self_signed_context() -> ssl.SSLContext:
    """Returns a server context with a new self-signed certificate (EC P-256, CN=localhost, valid for ten years). The
    key is on disk only while OpenSSL reads it, readable only by its owner."""
    # Imported here because it takes most of a second, and most servers never need it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=3650))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    with tempfile.NamedTemporaryFile() as file:  # made with mode 0600
        file.write(text)
        file.flush()
        return server_context(Path(file.name), Path(file.name))


def server_context(
    certificate: Path, key: Path, *, password: str | None = None, trusted: Path | None = None
) -> ssl.SSLContext:
    """Returns a server context from PEM files. With ``trusted``, clients must present a certificate signed by one of
    these authorities."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
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
    check_host: bool = True,
) -> ssl.SSLContext:
    """Returns a client context.

    With ``trusted`` (a PEM file of authorities) a server's certificate must be signed by one of them and match the
    host or address of the connection. Routes contain addresses, so brokers' certificates need an IP address among
    their alternative names; ``check_host=False`` skips the check of names. Without ``trusted`` any certificate is
    accepted, like in Apache's test mode, and a warning is logged.
    """
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        if trusted is not None:
            context.check_hostname = check_host
            context.load_verify_locations(trusted)
        else:
            context.verify_mode = ssl.CERT_NONE
            logger.warning(
                "TLS without a CA: any certificate is accepted, so an intermediary can read the traffic; set a CA"
            )
        if certificate is not None:
            context.load_cert_chain(certificate, key, password)
        return context
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files cannot be used: {error}") from error


def verifying_context() -> ssl.SSLContext:
    """Returns a client context that trusts this machine's authorities and checks names."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class TlsFilter:
    """One end of a TLS session over memory. Its methods raise ``ssl.SSLError`` if the peer violates the protocol."""

    def __init__(self, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        """``host`` is the host that a client connects to. Its context may check the certificate against it."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=host
        )
        self._waiting: list[bytes] = []
        self._ready = False
        self.held_bytes = 0
        """Plain bytes held back until the handshake ends."""

    def start(self) -> bytes:
        """Start the handshake. Returns the first bytes to send (a client's hello)."""
        self._handshake()
        return self._outgoing.read()

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Process bytes from the socket. Returns the plain bytes they contain and the bytes to send back."""
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
        """Returns the bytes still to be sent after ``receive`` raised an error: the alert."""
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        """Returns the bytes to send for ``data``. ``data`` is held back until the handshake is complete."""
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

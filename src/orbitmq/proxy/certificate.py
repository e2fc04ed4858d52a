"""The proxy's certificate, either loaded from files and reloaded when they change, or generated at startup."""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from orbitmq.errors import ConfigError
from orbitmq.proxy.config import ProxyConfig
from orbitmq.runtime.clock import Clock
from orbitmq.transport.tls import ServerTls, TlsMode, server_context

__all__ = ["file_times", "server_tls"]

_VALID_BEFORE: Final = datetime.timedelta(days=365)
_VALID_UNTIL: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
_ALPN: Final = ["h2"]


def server_tls(config: ProxyConfig, clock: Clock) -> ServerTls:
    """Returns the port's TLS mode and certificate. Raises ``ConfigError``."""
    mode = TlsMode(config.tls_mode)
    if mode is TlsMode.DISABLED:
        return ServerTls(mode)
    context = _self_signed(clock) if config.tls_test_mode else _from_files(config)
    context.set_alpn_protocols(_ALPN)
    return ServerTls(mode, context)


def file_times(config: ProxyConfig) -> tuple[float, ...]:
    """Returns the modification times of the certificate files; empty if no files are used."""
    if config.tls_test_mode or config.tls_mode == TlsMode.DISABLED:
        return ()
    try:
        return tuple(Path(name).stat().st_mtime for name in (config.tls_certificate, config.tls_key))
    except OSError:
        return ()


def _from_files(config: ProxyConfig) -> ssl.SSLContext:
    if not config.tls_certificate or not config.tls_key:
        raise ConfigError("tlsTestModeEnable=false needs tlsCertPath and tlsKeyPath")
    return server_context(
        Path(config.tls_certificate), Path(config.tls_key), password=config.tls_key_password or None
    )


def _self_signed(clock: Clock) -> ssl.SSLContext:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.fromtimestamp(clock.now_ms() / 1000, datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID_BEFORE)
        .not_valid_after(_VALID_UNTIL)
        .sign(key, hashes.SHA256())
    )
    # ssl reads certificates from files only.
    with tempfile.TemporaryDirectory(prefix="orbitmq-tls-") as folder:
        certificate_file, key_file = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        key_file.touch(mode=0o600)
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return server_context(certificate_file, key_file)

"""The TLS filter: two ends joined in memory, no socket."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from tests.unit.transport.certificates import Certificates, make_certificates

from orbitmq.errors import ConfigError
from orbitmq.transport.tls import (
    TLS_RECORD_START,
    TlsConfig,
    TlsFilter,
    TlsMode,
    client_context,
    self_signed_context,
    server_context,
    server_tls,
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def two_ends(certificates: Certificates, *, client_trusts: Path | None = None) -> tuple[TlsFilter, TlsFilter]:
    server = TlsFilter(server_context(certificates.server, certificates.server_key), server_side=True)
    client = TlsFilter(client_context(trusted=client_trusts), server_side=False)
    return client, server


def shake_hands(client: TlsFilter, server: TlsFilter) -> tuple[bytes, bytes]:
    """Carries bytes back and forth until both are silent; returns the plain bytes each end read."""
    read_by_client = read_by_server = b""
    to_server = client.start()
    assert to_server[0] == TLS_RECORD_START
    while to_server:
        plain, to_client = server.receive(to_server)
        read_by_server += plain
        plain, to_server = client.receive(to_client)
        read_by_client += plain
    return read_by_client, read_by_server


@pytest.mark.parametrize("size", [1, 16_384, 16_385, 3_000_000])
def test_bytes_cross_both_ways_whatever_their_size(certificates: Certificates, size: int) -> None:
    client, server = two_ends(certificates, client_trusts=certificates.authority)
    shake_hands(client, server)
    data = bytes(range(256)) * (size // 256 + 1)
    assert server.receive(client.encrypt(data))[0] == data
    assert client.receive(server.encrypt(data))[0] == data


def test_bytes_sent_before_the_handshake_are_held_and_follow_it_in_order(certificates: Certificates) -> None:
    client, server = two_ends(certificates)
    assert client.encrypt(b"first ") == b""
    assert client.encrypt(b"second") == b""
    assert client.held_bytes == 12
    _, read_by_server = shake_hands(client, server)
    assert read_by_server == b"first second"
    assert client.held_bytes == 0


def test_bytes_arrive_however_the_records_are_cut(certificates: Certificates) -> None:
    client, server = two_ends(certificates)
    shake_hands(client, server)
    records = client.encrypt(b"a" * 1000) + client.encrypt(b"b" * 1000)
    plain = b"".join(server.receive(bytes([byte]))[0] for byte in records)
    assert plain == b"a" * 1000 + b"b" * 1000


def test_client_that_does_not_trust_the_server_raises_and_has_an_alert_to_send(
    certificates: Certificates,
) -> None:
    client, server = two_ends(certificates, client_trusts=certificates.stranger)
    with pytest.raises(ssl.SSLCertVerificationError):
        client.receive(server.receive(client.start())[1])
    assert client.pending()


def test_garbage_instead_of_a_handshake_raises(certificates: Certificates) -> None:
    _, server = two_ends(certificates)
    with pytest.raises(ssl.SSLError):
        server.receive(bytes([TLS_RECORD_START]) + b"\x03\x01" + b"\xff" * 100)


def test_server_context_from_missing_or_wrong_files_names_them(certificates: Certificates) -> None:
    missing = certificates.server.with_name("missing.pem")
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        server_context(missing, certificates.server_key)
    with pytest.raises(ConfigError, match=r"server\.pem"):
        server_context(certificates.server, certificates.client_key)


def test_client_context_from_missing_files_is_a_config_error(certificates: Certificates) -> None:
    with pytest.raises(ConfigError):
        client_context(trusted=certificates.server.with_name("missing.pem"))
    with pytest.raises(ConfigError):
        client_context(certificate=certificates.client, key=certificates.server_key)


# -- a server's choice ----------------------------------------------------------------------------------------


def test_changed_certificate_is_used_for_new_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    old = make_certificates(tmp_path)
    tls = server_tls(TlsConfig(tls_certificate=str(old.server), tls_key=str(old.server_key)))
    first = tls.context
    assert tls.context is first
    other = tmp_path / "new"
    other.mkdir()
    new = make_certificates(other)
    old.server.write_bytes(new.server.read_bytes() + b"\n")
    assert tls.context is first, "the key has not changed yet: half a pair is of no use"
    old.server_key.write_bytes(new.server_key.read_bytes() + b"\n")
    second = tls.context
    assert second is not first
    assert "certificate reloaded" in caplog.text
    assert second is not None
    client = TlsFilter(client_context(trusted=new.authority), server_side=False)
    shake_hands(client, TlsFilter(second, server_side=True))


def test_changed_certificate_that_cannot_be_used_leaves_the_old_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = make_certificates(tmp_path)
    tls = server_tls(TlsConfig(tls_certificate=str(old.server), tls_key=str(old.server_key)))
    first = tls.context
    old.server.write_text("broken")
    old.server_key.write_text("broken")
    assert tls.context is first
    assert "keeping the previous one" in caplog.text


def test_changed_authorities_alone_are_used_for_new_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    made = make_certificates(tmp_path)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(made.stranger.read_bytes())
    tls = server_tls(
        TlsConfig(
            tls_certificate=str(made.server),
            tls_key=str(made.server_key),
            tls_authenticate_clients=True,
            tls_trusted=str(trusted),
        )
    )
    assert trusted in tls.watched

    def connect() -> None:
        context = tls.context
        assert context is not None
        client = client_context(trusted=made.authority, certificate=made.client, key=made.client_key)
        shake_hands(TlsFilter(client, server_side=False), TlsFilter(context, server_side=True))

    with pytest.raises(ssl.SSLCertVerificationError):
        connect()
    trusted.write_bytes(made.authority.read_bytes() + b"\n")
    connect()
    assert f"certificate reloaded files={trusted}" in caplog.text
    last = tls.context
    trusted.write_text("broken")
    assert tls.context is last
    assert "keeping the previous one" in caplog.text
    connect()


def test_certificate_is_required_of_clients_when_the_options_say_so(certificates: Certificates) -> None:
    config = TlsConfig(
        tls_certificate=str(certificates.server),
        tls_key=str(certificates.server_key),
        tls_client_authentication="require",
        tls_trusted=str(certificates.authority),
    )
    context = server_tls(config).context
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_self_signed_certificate_serves_a_handshake() -> None:
    client = TlsFilter(client_context(), server_side=False)
    shake_hands(client, TlsFilter(self_signed_context(), server_side=True))
    assert client.encrypt(b"x")


def test_client_without_a_ca_says_so(caplog: pytest.LogCaptureFixture, certificates: Certificates) -> None:
    client_context(trusted=certificates.authority)
    assert not caplog.text
    client_context()
    assert "any certificate is accepted" in caplog.text


@pytest.mark.parametrize(
    "config",
    [
        TlsConfig(tls_mode=TlsMode.ENFORCING, tls_test_mode="false"),
        TlsConfig(tls_authenticate_clients=True),
        TlsConfig(tls_certificate="no-such.pem"),
    ],
)
def test_options_that_cannot_protect_are_refused(config: TlsConfig) -> None:
    with pytest.raises(ConfigError):
        server_tls(config)

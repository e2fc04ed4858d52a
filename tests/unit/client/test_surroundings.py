"""Settings that clients take from the environment where their code does not set them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from orbitmq.client.options import Credentials, ProducerOptions, build_options
from orbitmq.client.surroundings import name_servers_given
from orbitmq.errors import ConfigError


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESRV", "ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN", "TLS", "TLS_CA", "TLS_CERT"):
        monkeypatch.delenv(f"ORBITMQ_{name}", raising=False)
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


def test_our_variable_goes_before_apaches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_servers_given() == ""
    monkeypatch.setenv("NAMESRV_ADDR", "theirs:9876")
    assert name_servers_given() == "theirs:9876"
    monkeypatch.setenv("ORBITMQ_NAMESRV", "ours:9876")
    assert name_servers_given() == "ours:9876"


def test_keys_fill_what_code_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORBITMQ_ACCESS_KEY", "key")
    with pytest.raises(ConfigError, match="belong together"):
        build_options(ProducerOptions, None, {})
    monkeypatch.setenv("ORBITMQ_SECRET_KEY", "secret")
    monkeypatch.setenv("ORBITMQ_SECURITY_TOKEN", "token")
    assert build_options(ProducerOptions, None, {}).credentials == Credentials("key", "secret", "token")
    assert build_options(ProducerOptions, ProducerOptions(), {}).credentials is not None
    own = Credentials("own", "keys")
    assert build_options(ProducerOptions, None, {"credentials": own}).credentials == own
    assert build_options(ProducerOptions, ProducerOptions(credentials=own), {}).credentials == own
    assert build_options(ProducerOptions, None, {"credentials": None}).credentials is None


def test_tls_verifies_and_can_be_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert build_options(ProducerOptions, None, {}).tls is None
    monkeypatch.setenv("ORBITMQ_TLS", "true")
    context = build_options(ProducerOptions, None, {}).tls
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert build_options(ProducerOptions, None, {"tls": False}).tls is None
    monkeypatch.setenv("ORBITMQ_TLS", "maybe")
    with pytest.raises(ConfigError, match="ORBITMQ_TLS is 'maybe'"):
        build_options(ProducerOptions, None, {})
    monkeypatch.setenv("ORBITMQ_TLS", "true")
    monkeypatch.setenv("ORBITMQ_TLS_CERT", "mine.pem")
    with pytest.raises(ConfigError, match="needs ORBITMQ_TLS_CA"):
        build_options(ProducerOptions, None, {})
    monkeypatch.setenv("ORBITMQ_TLS_CA", str(tmp_path / "missing.pem"))
    with pytest.raises(ConfigError):
        build_options(ProducerOptions, None, {})

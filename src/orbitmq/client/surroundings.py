"""Reads client settings from environment variables, if the code does not set them.

The variables are ORBITMQ_NAMESRV (or NAMESRV_ADDR), ORBITMQ_ACCESS_KEY with ORBITMQ_SECRET_KEY and
ORBITMQ_SECURITY_TOKEN, and for TLS ORBITMQ_TLS=true, ORBITMQ_TLS_CA, ORBITMQ_TLS_CERT, ORBITMQ_TLS_KEY and
ORBITMQ_TLS_ANY_HOST=true.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from orbitmq.errors import ConfigError
from orbitmq.runtime.machine import environment
from orbitmq.transport.tls import client_context

__all__ = ["NAME_SERVER_VARIABLES", "keys_given", "name_servers_given", "tls_given"]

NAME_SERVER_VARIABLES: Final = ("ORBITMQ_NAMESRV", "NAMESRV_ADDR")
_YES: Final = frozenset({"1", "true", "yes", "on"})
_NO: Final = frozenset({"", "0", "false", "no", "off"})


def name_servers_given() -> str:
    """Returns the name server addresses in the environment; empty if there are none."""
    return next((found for name in NAME_SERVER_VARIABLES if (found := environment(name))), "")


def keys_given() -> tuple[str, str, str] | None:
    """Returns access key, secret key and security token; None if neither key is set. Raises ``ConfigError`` if only
    one of the two keys is set."""
    key, secret = environment("ORBITMQ_ACCESS_KEY"), environment("ORBITMQ_SECRET_KEY")
    if not key and not secret:
        return None
    if not (key and secret):
        raise ConfigError("ORBITMQ_ACCESS_KEY and ORBITMQ_SECRET_KEY belong together; one of them is missing")
    return key, secret, environment("ORBITMQ_SECURITY_TOKEN")


def tls_given() -> ssl.SSLContext | bool | None:
    """Returns the value for the client setting ``tls``. Raises ``ConfigError`` for files that cannot be used."""
    trusted, certificate, key = (_file(f"ORBITMQ_TLS_{name}") for name in ("CA", "CERT", "KEY"))
    wanted = _flag("ORBITMQ_TLS")
    if trusted is None:
        if certificate is not None:
            raise ConfigError("ORBITMQ_TLS_CERT needs ORBITMQ_TLS_CA: the certificates to trust")
        return True if wanted else None
    return client_context(
        trusted=trusted, certificate=certificate, key=key, check_host=not _flag("ORBITMQ_TLS_ANY_HOST")
    )


def _flag(name: str) -> bool:
    text = environment(name).strip().lower()
    if text not in _YES | _NO:
        raise ConfigError(f"{name} is {text!r}; true or false is accepted")
    return text in _YES


def _file(name: str) -> Path | None:
    path = environment(name)
    return Path(path) if path else None

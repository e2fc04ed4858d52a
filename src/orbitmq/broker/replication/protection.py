"""Decides who receives the replication stream, which contains every message of every topic. Apache's stream is plain
text and open to any slave.

With ``haTlsEnable`` a broker serves slaves over TLS only and follows its master over TLS. With authentication on, a
slave first sends its identity, signed with its inner credentials, and only a Super user receives the log.

Apache slaves can follow only the plain stream, which has no room for a signature. With access control on, it is sent
only to hosts whose broker has recently sent a signed slave request to the main port (``SlaveHosts``). An Apache slave
with inner credentials sends such requests every minute, and our slaves send one before they connect.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
import ssl
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from orbitmq.auth.config import AuthConfig, Credentials
from orbitmq.auth.control import AccessControl
from orbitmq.auth.signature import sign_fields
from orbitmq.errors import ConfigError, NoPermission
from orbitmq.transport.tls import ServerTls, TlsConfig, TlsMode, outgoing_context

__all__ = ["SlaveHosts", "StreamProtection"]

logger = logging.getLogger(__name__)

_PURPOSE = b"orbitmq replication stream"
"""Included in the signature, so that a request's signature cannot be reused for a stream."""


_SIGNED_IN_S: Final = 180.0
"""Our slaves sign in every 10 s, Apache's every minute. Open links are not closed."""
_HOSTS_MAX: Final = 256


class SlaveHosts:
    """The hosts that may receive a plain stream."""

    def __init__(self, always: str, now: Callable[[], float]) -> None:
        """``always`` lists addresses and networks that are always served, separated by commas; ``*`` stands for every
        address. Raises ``ConfigError``."""
        self._now = now
        self._any = always.strip() == "*"
        try:
            parts = [] if self._any else [part.strip() for part in always.split(",") if part.strip()]
            self._networks = [ipaddress.ip_network(part, strict=False) for part in parts]
        except ValueError as error:
            raise ConfigError(f"haSlaveAddresses={always} cannot be read: {error}") from None
        self._signed_in: dict[str, float] = {}

    def signed_in(self, host: str) -> None:
        """Record that a broker on this host has authenticated as a Super user."""
        if host not in self._signed_in and len(self._signed_in) >= _HOSTS_MAX:
            self._signed_in.clear()
        self._signed_in[host] = self._now()

    def refusal(self, host: str) -> str:
        """Returns why a slave on that host is refused; empty if it is served."""
        seen_s = self._signed_in.get(host)
        if self._any or (seen_s is not None and self._now() - seen_s <= _SIGNED_IN_S):
            return ""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return f"{host!r} is not an address"
        if any(address in network for network in self._networks):
            return ""
        return (
            "access control is on, and no broker on this host has signed in: give the slave "
            "innerClientAuthenticationCredentials, or list its address in haSlaveAddresses"
        )


class StreamProtection:
    """What each end of the stream requires and presents. Without arguments the stream is plain and open."""

    def __init__(
        self,
        *,
        server: ServerTls | None = None,
        client: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        control: AccessControl | None = None,
        hosts: SlaveHosts | None = None,
    ) -> None:
        """``control`` checks that a slave may receive the log; with it, the stream begins with a login. ``hosts`` are
        those that may receive a plain stream; without it, every host may."""
        self._server = server
        self.client = client
        """TLS context for a slave's connections; None for plain."""
        self._credentials = credentials
        self._control = control
        self._hosts = hosts

    @classmethod
    def of(
        cls, config: TlsConfig, server: ServerTls, auth: AuthConfig, control: AccessControl | None = None
    ) -> StreamProtection:
        """Returns the protection for ``haTlsEnable``. Raises ``ConfigError`` if the other options cannot protect the
        stream."""
        if server.mode is TlsMode.DISABLED:
            raise ConfigError("haTlsEnable=true cannot be combined with tls.server.mode=disabled")
        if not server.can_make and server.context is None:
            raise ConfigError("haTlsEnable=true needs tls.server.certPath when tls.test.mode.enable=false")
        if auth.authentication_enabled and auth.inner_user is None:
            raise ConfigError(
                "haTlsEnable=true with authenticationEnabled=true needs innerClientAuthenticationCredentials"
            )
        client = outgoing_context(config)
        return cls(server=server, client=client, credentials=auth.inner_user, control=control)

    async def accepts(self) -> ssl.SSLContext | None:
        """Returns the TLS context of the replication port, or None for a plain stream. Raises ``ConfigError``."""
        server = self._server
        if server is None:
            return None
        context = await server.ready()
        context.sni_callback = _newest(server)
        return context

    def hello(self) -> Mapping[str, str] | None:
        """Returns a slave's login, or None if none is required."""
        if self._credentials is None:
            return None
        fields = {"nonce": secrets.token_hex(16)}
        return sign_fields(fields, _PURPOSE, self._credentials.name, self._credentials.secret)

    def refusal(self, hello: bytes, host: str) -> str:
        """Returns why a slave with that login is refused; empty if it is served."""
        if self._control is None:
            return "" if self._hosts is None else self._hosts.refusal(host)
        try:
            fields = msgspec.json.decode(hello, type=dict[str, str])
            user = self._control.authenticate(fields, _PURPOSE)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return "it does not say which user it is"
        except NoPermission as error:
            return error.remark
        return "" if user.is_super else f"{user.subject} is not a Super user"


def _newest(server: ServerTls) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]:
    """Returns a callback that gives new connections the current certificate, because a listening socket keeps the
    context it was opened with."""

    def chosen(session: ssl.SSLObject, _name: str | None, first: ssl.SSLContext) -> None:
        newest = server.context
        if newest is not None and newest is not first:
            session.context = newest

    return chosen

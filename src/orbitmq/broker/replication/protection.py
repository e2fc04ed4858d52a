"""Who gets the replication stream: it holds every message of every topic. Apache's is plain and takes any slave.

With ``haTlsEnable`` a broker serves slaves over TLS only and follows its master over TLS. With authentication on, a
slave also sends first its identity, signed with its inner credentials, and only a Super user gets the log.

The plain stream is what Apache slaves can follow, and it has no room for a signature. With access control on it goes
only to hosts whose broker has just sent a signed request of a slave to the main port (``SlaveHosts``). A slave of
Apache with inner credentials sends such requests every minute, and one of ours before it connects.
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
"""Signed along, so that the signature of a request is not one of a stream."""


_SIGNED_IN_S: Final = 180.0
"""Slaves sign in every 10 s, Apache's every minute; a link that is open already is not closed."""
_HOSTS_MAX: Final = 256


class SlaveHosts:
    """The hosts a plain stream may go to."""

    def __init__(self, always: str, now: Callable[[], float]) -> None:
        """``always`` lists addresses and networks, separated by commas; ``*`` is every address. Raises
        ``ConfigError``."""
        self._now = now
        self._any = always.strip() == "*"
        try:
            parts = [] if self._any else [part.strip() for part in always.split(",") if part.strip()]
            self._networks = [ipaddress.ip_network(part, strict=False) for part in parts]
        except ValueError as error:
            raise ConfigError(f"haSlaveAddresses={always} cannot be read: {error}") from None
        self._signed_in: dict[str, float] = {}

    def signed_in(self, host: str) -> None:
        """A broker on this host has just shown that it is a Super user."""
        if host not in self._signed_in and len(self._signed_in) >= _HOSTS_MAX:
            self._signed_in.clear()
        self._signed_in[host] = self._now()

    def refusal(self, host: str) -> str:
        """Why a slave on that host gets no log; empty when it does."""
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
    """What both ends of the stream ask and show. Without arguments: nothing."""

    def __init__(
        self,
        *,
        server: ServerTls | None = None,
        client: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._server = server
        self.client = client
        """What a slave connects with; None for plain."""
        self._credentials = credentials
        self.control: AccessControl | None = None
        """Checks that a slave may have the log; None: no check."""
        self.hosts: SlaveHosts | None = None
        """The hosts a plain stream may go to; None: all."""

    @classmethod
    def of(cls, config: TlsConfig, server: ServerTls, auth: AuthConfig) -> StreamProtection:
        """Raises ``ConfigError`` when the options leave a stream unprotected that was to be protected."""
        if server.mode is TlsMode.DISABLED:
            raise ConfigError("haTlsEnable=true does not go with tls.server.mode=disabled")
        if not server.can_make and server.context is None:
            raise ConfigError("haTlsEnable=true needs tls.server.certPath when tls.test.mode.enable=false")
        if auth.authentication_enabled and auth.inner_user is None:
            raise ConfigError(
                "haTlsEnable=true with authenticationEnabled=true needs innerClientAuthenticationCredentials"
            )
        return cls(server=server, client=outgoing_context(config), credentials=auth.inner_user)

    async def accepts(self) -> ssl.SSLContext | None:
        """What the replication port is opened with; None for plain. Raises ``ConfigError``."""
        server = self._server
        if server is None:
            return None
        context = await server.ready()
        context.sni_callback = _newest(server)
        return context

    def hello(self) -> Mapping[str, str] | None:
        """A slave's login; None where none is needed."""
        if self._credentials is None:
            return None
        fields = {"nonce": secrets.token_hex(16)}
        return sign_fields(fields, _PURPOSE, self._credentials.name, self._credentials.secret)

    def refusal(self, hello: bytes, host: str) -> str:
        """Why a slave that said this gets no log; empty when it does."""
        if self.control is None:
            return "" if self.hosts is None else self.hosts.refusal(host)
        try:
            fields = msgspec.json.decode(hello, type=dict[str, str])
            user = self.control.authenticate(fields, _PURPOSE)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return "it does not say which user it is"
        except NoPermission as error:
            return error.remark
        return "" if user.is_super else f"{user.subject} is not a Super user"


def _newest(server: ServerTls) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]:
    """Hands new connections the certificate as it is now: a listening socket keeps the context it was opened
    with."""

    def chosen(session: ssl.SSLObject, _name: str | None, first: ssl.SSLContext) -> None:
        newest = server.context
        if newest is not None and newest is not first:
            session.context = newest

    return chosen

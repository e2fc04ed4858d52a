"""TLS and users of the replication stream (``haTlsEnable``). Apache has neither: its stream is always plain.

Off by default, so that Apache slaves can follow. Switched on, a broker serves slaves over TLS only and follows its
master over TLS. With authentication on, a slave also sends first its identity, signed with its inner credentials, and
only a Super user gets the log: it holds every message of every topic.
"""

from __future__ import annotations

import logging
import secrets
import ssl
from collections.abc import Callable, Mapping

import msgspec

from orbitmq.auth.config import AuthConfig, Credentials
from orbitmq.auth.control import AccessControl
from orbitmq.auth.signature import sign_fields
from orbitmq.errors import ConfigError, NoPermission
from orbitmq.transport.tls import ServerTls, TlsConfig, TlsMode, outgoing_context

__all__ = ["StreamProtection"]

logger = logging.getLogger(__name__)

_PURPOSE = b"orbitmq replication stream"
"""Signed along, so that the signature of a request is not one of a stream."""


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

    def refusal(self, hello: bytes) -> str:
        """Why a slave that said this gets no log; empty when it does."""
        if self.control is None:
            return ""
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

"""The connection options of ``produce``, ``consume`` and ``run``.

They are the same as those of the admin commands. With TLS, a client always verifies servers. It uses the system's
certificates unless ``--tlsCa`` names others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from typing import Any, Final, TypeVar

from orbitmq.cli.admin_kit.connect import CONNECTION_KEYS, connection_given, connection_options, open_admin
from orbitmq.cli.name_server import NAME_SERVER_DEFAULT

__all__ = ["ClientConnection", "client_connection"]

F = TypeVar("F", bound=Callable[..., Any])
_NOT_OURS: Final = frozenset({"as_json", "wide", "timeout_s"})
_VARIABLES: Final = {
    "namesrv_addr": "ORBITMQ_NAMESRV",
    "access_key": "ORBITMQ_ACCESS_KEY",
    "secret_key": "ORBITMQ_SECRET_KEY",
    "security_token": "ORBITMQ_SECURITY_TOKEN",
    "tls": "ORBITMQ_TLS",
    "tls_ca": "ORBITMQ_TLS_CA",
    "tls_any_host": "ORBITMQ_TLS_ANY_HOST",
    "tls_cert": "ORBITMQ_TLS_CERT",
    "tls_key": "ORBITMQ_TLS_KEY",
}


class ClientConnection:
    """The connection settings, merged from options, variables and the context."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._given = connection_given(options, os.environ)

    @property
    def name_servers(self) -> str:
        """The configured name server addresses, or the default address on this machine."""
        return str(self._given["namesrv_addr"] or NAME_SERVER_DEFAULT)

    @property
    def encrypted(self) -> bool:
        """Whether TLS is used."""
        return bool(self._given["tls"] or self._given["tls_ca"] or self._given["tls_cert"])

    async def topics(self) -> list[str]:
        """Returns the names of user topics that the name server knows; empty if it does not answer."""
        from orbitmq.admin.topics import topic_names
        from orbitmq.errors import OrbitError

        try:
            async with open_admin(self._given, os.environ) as admin:
                names = (await topic_names(admin)).topics
        except (OrbitError, OSError):
            return []
        return [name for name in names if not name.startswith("%")]

    def export(self, environment: MutableMapping[str, str]) -> None:
        """Set the environment variables from which clients read missing options."""
        for key, name in _VARIABLES.items():
            value = self._given[key]
            if value:
                environment[name] = "true" if value is True else str(value)
        if self.encrypted:
            environment["ORBITMQ_TLS"] = "true"


def client_connection(function: F) -> F:
    """Decorate a command with the options. It receives a ``ClientConnection`` as ``connection``."""

    def command(**given: Any) -> Any:
        options = {key: given.pop(key, None) for key in CONNECTION_KEYS}
        return function(**given, connection=ClientConnection(options))

    command.__doc__ = function.__doc__
    own = [option for option in connection_options() if option.name not in _NOT_OURS]
    for option in own:
        if option.name == "tls_ca":
            option.help = "Certificates to trust; without, those of this machine."
    command.__click_params__ = [*own, *getattr(function, "__click_params__", [])]  # type: ignore[attr-defined]
    return command  # type: ignore[return-value]  # click passes only keywords

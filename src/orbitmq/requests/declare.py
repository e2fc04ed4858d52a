"""Defines how a request is declared."""

from __future__ import annotations

import enum
from typing import Final, Self

from orbitmq.wire.header import Header
from orbitmq.wire.headers.base import Empty

__all__ = ["RETIRED", "Request", "Server", "UnservedRequest"]

RETIRED: Final = "no release of RocketMQ in use serves this"


class Server(enum.Enum):
    """A process that answers requests. Clients also answer those of brokers."""

    BROKER = "broker"
    NAME_SERVER = "name server"
    FILTER_SERVER = "filter server"
    CLIENT = "client"


class UnservedRequest(ValueError):
    """The handlers of a server and the declarations do not match."""


class Request(int):
    """A request code with everything that depends on it, as attributes."""

    name: str
    """The name in Apache's RequestCode; empty for a request that belongs to no area."""
    header: type[Header]
    answer: type[Header]
    """The header of the answer."""
    served_by: tuple[Server, ...]
    fast_port: bool
    """Whether a broker also serves it on listenPort - 2 (Apache's VIP channel)."""
    unless: str
    """Why no server here serves it, or, if some do, why they may be configured not to."""
    admin: tuple[str, ...]
    """The commands of ``orbitmq admin`` that send it."""

    def __new__(
        cls,
        code: int,
        header: type[Header] = Empty,
        answer: type[Header] = Empty,
        *,
        served_by: tuple[Server, ...] = (Server.BROKER,),
        fast_port: bool = True,
        unless: str = "",
        admin: tuple[str, ...] = (),
    ) -> Self:
        self = super().__new__(cls, code)
        self.name = ""
        self.header = header
        self.answer = answer
        self.served_by = served_by
        self.fast_port = fast_port
        self.unless = unless
        self.admin = admin
        return self

    def __set_name__(self, _owner: type, name: str) -> None:
        self.name = self.name or name

    def __repr__(self) -> str:
        return f"<{self.name or 'request'} {int(self)}>"

    def __str__(self) -> str:
        return int.__repr__(self)

    def refusal(self, server: Server) -> str:
        """Returns why ``server`` does not serve this request; empty if it must serve it."""
        if server in self.served_by or not self.served_by:
            return self.unless
        if self.served_by == (Server.CLIENT,):
            return "brokers send this to clients, not the other way round"
        return f"this is for a {' or '.join(one.value for one in self.served_by)}, not for a {server.value}"

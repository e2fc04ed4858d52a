"""Declares the requests of filter servers and those for the classes they run."""

from __future__ import annotations

from orbitmq.requests.declare import Request, Server
from orbitmq.wire.headers import filtersrv

__all__ = ["Filters"]


class Filters:
    """Requests of filter servers, and requests for the classes they run."""

    REGISTER_FILTER_SERVER = Request(301, filtersrv.RegisterFilterServerRequest)
    REGISTER_MESSAGE_FILTER_CLASS = Request(
        302, filtersrv.RegisterMessageFilterClassRequest, served_by=(Server.FILTER_SERVER,)
    )

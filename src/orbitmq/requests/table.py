"""Collects the declarations of all areas in one table."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from orbitmq.requests.access import Access
from orbitmq.requests.brokers import Brokers
from orbitmq.requests.clients import Clients
from orbitmq.requests.consuming import Consuming
from orbitmq.requests.declare import Request, Server, UnservedRequest
from orbitmq.requests.filters import Filters
from orbitmq.requests.groups import Groups
from orbitmq.requests.name_servers import NameServers
from orbitmq.requests.pop import Pop
from orbitmq.requests.replication import Replication
from orbitmq.requests.sending import Sending
from orbitmq.requests.topics import Topics

__all__ = ["BY_CODE", "RequestCode", "code_name", "refusals"]


class RequestCode(
    Sending, Consuming, Pop, Clients, Topics, Groups, Brokers, NameServers, Replication, Access, Filters
):
    """The declarations of all areas, by name."""


def _collected() -> dict[int, Request]:
    found: dict[int, Request] = {}
    for area in RequestCode.__bases__:
        for value in vars(area).values():
            if isinstance(value, Request):
                if value in found:
                    raise ValueError(f"request code {value} is declared twice")
                found[int(value)] = value
    return dict(sorted(found.items()))


BY_CODE: Final = _collected()


def code_name(code: int) -> str:
    """Returns the name of a request code, such as ``SEND_MESSAGE`` for 10, or the number if it is unknown."""
    request = BY_CODE.get(code)
    return str(int(code)) if request is None else request.name


def refusals(server: Server, served: Collection[int]) -> dict[int, str]:
    """Returns the reason for every request that ``server`` refuses, by code.

    Raises ``UnservedRequest`` if the handlers and the declarations do not match: either a declared request has
    neither a handler nor a reason, or a handler serves a request that is not declared for this server.
    """
    for code in served:
        if code in BY_CODE and server not in BY_CODE[code].served_by:
            raise UnservedRequest(f"{code_name(code)} ({code}) is not declared as served by a {server.value}")
    reasons: dict[int, str] = {}
    for code, request in BY_CODE.items():
        if code in served:
            continue
        reason = request.refusal(server)
        if not reason:
            raise UnservedRequest(
                f"{request.name} ({code}) has neither a handler nor a reason in a {server.value}"
            )
        reasons[code] = reason
    return reasons

"""Every request of the protocol, declared once.

A declaration is its request code: an ``int`` with its headers, who serves it and on which ports, why it is refused,
and the admin commands that send it. Routers, refusals, metrics and the reference are derived from these values. To
add a request, declare it in the module of its area and map it to a method in a handler.
"""

from __future__ import annotations

from orbitmq.requests.declare import Request, Server, UnservedRequest
from orbitmq.requests.table import BY_CODE, RequestCode, code_name, refusals

__all__ = ["BY_CODE", "Request", "RequestCode", "Server", "UnservedRequest", "code_name", "refusals"]

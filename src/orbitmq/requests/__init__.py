"""Every request of the protocol, declared once.

A ``Request`` is an ``int``, the request code, with attributes: its headers, the servers and ports that serve it, the
reason when it is refused, and the admin commands that send it. Routers, refusals, metrics and the reference are
derived from these declarations. To add a request, declare it in the module of its area and map it to a method in a
handler.
"""

from __future__ import annotations

from orbitmq.requests.declare import Request, Server, UnservedRequest
from orbitmq.requests.table import BY_CODE, RequestCode, code_name, refusals

__all__ = ["BY_CODE", "Request", "RequestCode", "Server", "UnservedRequest", "code_name", "refusals"]

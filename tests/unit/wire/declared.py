"""Header classes by request, from the declarations."""

from __future__ import annotations

from orbitmq.requests import BY_CODE
from orbitmq.wire.headers import Empty

REQUEST_HEADERS = {request: request.header for request in BY_CODE.values()}
RESPONSE_HEADERS = {request: request.answer for request in BY_CODE.values() if request.answer is not Empty}

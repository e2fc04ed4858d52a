"""Encoded routes, ready to send. Nearly all requests to a name server are route queries.

A query is two dictionary look-ups and one join: the raw bytes of its extension fields are looked up (clients repeat
them exactly), and so is the body of the topic. Bodies are built on first use and dropped when the table reports a
change. Both caches are bounded and emptied when full, which costs one round of rebuilding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from orbitmq.model.route import TopicRoute
from orbitmq.wire.bodies.route import encode_route
from orbitmq.wire.frame import Frame
from orbitmq.wire.header import decode_header
from orbitmq.wire.headers.namesrv import GetRouteinfoByTopicRequest

__all__ = ["QueryCache", "RouteCache", "RouteQuery"]

_QUERIES_MAX: Final = 16_384
_QUERY_BYTES_MAX: Final = 512


class RouteQuery(NamedTuple):
    """The parameters of a route query."""

    topic: str
    standard_json: bool
    """Quoted map keys, whatever the client's version."""
    zone_name: str
    """Return only this zone; empty for all."""


class QueryCache:
    """Parsed extension fields of route queries."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], RouteQuery] = {}

    def query(self, frame: Frame) -> RouteQuery:
        """Returns the parameters of a route query, parsing its fields only if they are not cached. Raises
        ``HeaderFieldError``."""
        key = (frame.serialize_type, frame.ext_raw)
        known = self._known.get(key)
        if known is not None:
            return known
        header = decode_header(GetRouteinfoByTopicRequest, frame)
        zone = (header.zone_name or "").strip() if header.zone_mode else ""
        query = RouteQuery(header.topic, header.accept_standard_json_only is True, zone)
        if len(frame.ext_raw) <= _QUERY_BYTES_MAX:
            if len(self._known) >= _QUERIES_MAX:
                self._known.clear()
            self._known[key] = query
        return query


class RouteCache:
    """Encoded routes by topic, in both JSON dialects."""

    def __init__(self, route: Callable[[str], TopicRoute | None], bytes_max: int) -> None:
        self._route = route
        self._bytes_max = bytes_max
        self._bytes = 0
        self._standard: dict[str, bytes] = {}
        self._bare: dict[str, bytes] = {}

    def body(self, topic: str, *, standard: bool) -> bytes | None:
        """Returns the encoded route, or ``None`` if the topic has no route."""
        bodies = self._standard if standard else self._bare
        body = bodies.get(topic)
        if body is not None:
            return body
        route = self._route(topic)
        if route is None:
            return None
        body = encode_route(route, standard=standard)
        if self._bytes + len(body) > self._bytes_max:
            self.clear()
        if len(body) <= self._bytes_max:
            bodies[topic] = body
            self._bytes += len(body)
        return body

    def forget(self, topics: Collection[str]) -> None:
        """Drop the routes of these topics, because they changed."""
        for bodies in (self._standard, self._bare):
            if not bodies:
                continue
            for topic in topics:
                body = bodies.pop(topic, None)
                if body is not None:
                    self._bytes -= len(body)

    def clear(self) -> None:
        """Drop every route."""
        self._standard.clear()
        self._bare.clear()
        self._bytes = 0

"""Request durations by code (Apache: RemotingMetricsManager).

Typed routes are wrapped when metrics are enabled, which adds a microsecond to each of their requests. The raw routes
(sends, pulls and route queries) are not: they are answered in bulk, and a microsecond is a large part of their cost.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Iterable
from typing import Any, Final

from orbitmq.codes import FrameFlag, ResponseCode
from orbitmq.errors import BrokerError
from orbitmq.metrics.families import Declared, Families, Histogram, Kind
from orbitmq.requests import code_name
from orbitmq.runtime.clock import Clock
from orbitmq.transport.router import Answer, Call, Handler, RawRoute, Reply, Route

__all__ = ["RPC_LATENCY", "RequestTimes"]

RPC_LATENCY: Final = Declared(
    "rocketmq_rpc_latency_milliseconds",
    Kind.HISTOGRAM,
    "Time from a request to its answer, by request and response code. Sends, pulls and route queries are not "
    "timed: they are answered in bulk.",
    ("is_long_polling", "protocol_type", "request_code", "response_code", "result"),
    (1, 3, 5, 7, 10, 100, 1000, 2000, 3000),
)
_ONEWAY: Final = int(FrameFlag.ONEWAY)
_SUCCESS: Final = int(ResponseCode.SUCCESS)
_CODES_MAX: Final = 2_000
"""Pairs of request and response code. Both come from our own tables, so this is never reached."""


class RequestTimes:
    """Measures the durations of the typed requests of one server."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._times: dict[tuple[int, int, str], Histogram] = {}

    def timed(self, routes: Iterable[Route | RawRoute]) -> list[Route | RawRoute]:
        """Returns the same routes, with the handlers of typed routes wrapped to be measured."""
        return [
            Route(route.code, self._wrapped(route.code, route.handler), route.header, route.fast_port)
            if isinstance(route, Route)
            else route
            for route in routes
        ]

    def _wrapped(self, code: int, handler: Handler) -> Handler:
        monotonic, note = self._monotonic, self._note

        @functools.wraps(handler)
        def run(call: Call[Any]) -> Answer | Awaitable[Answer]:
            started = monotonic()
            result = "oneway" if call.frame.flag & _ONEWAY else "success"
            try:
                answer = handler(call)
            except BrokerError as error:
                note(code, int(error.response_code), result, started)
                raise
            if isinstance(answer, Reply):
                note(code, answer.code, result, started)
            elif inspect.isawaitable(answer):
                return self._awaited(code, answer, result, started)
            return answer

        return run

    async def _awaited(self, code: int, answer: Awaitable[Answer], result: str, started: float) -> Answer:
        try:
            given = await answer
        except BrokerError as error:
            self._note(code, int(error.response_code), result, started)
            raise
        self._note(code, given.code if isinstance(given, Reply) else _SUCCESS, result, started)
        return given

    def _note(self, code: int, response_code: int, result: str, started: float) -> None:
        key = (code, response_code, result)
        times = self._times.get(key)
        if times is None:
            if len(self._times) >= _CODES_MAX:
                return
            times = self._times[key] = Histogram(RPC_LATENCY.bounds)
        times.add((self._monotonic() - started) * 1000)

    def report(self, families: Families) -> None:
        """Add the family of request durations to a response."""
        family = families.start(RPC_LATENCY)
        for (code, response_code, result), times in sorted(self._times.items()):
            family.add_histogram(
                times, "false", "remoting", code_name(code).lower(), _response_name(response_code), result
            )


def _response_name(code: int) -> str:
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return str(code)

"""Sends many requests at once on one blocking connection, to store half messages and to commit or roll them back.

Each of these needs a request per row, so the cost of a request determines the rate of the transactional sink. A
coroutine per request takes ten times as much CPU as the request itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from orbitmq.codes import FrameFlag
from orbitmq.errors import ConnectionLostError, OrbitError, RequestTimeoutError
from orbitmq.runtime.clock import SYSTEM_CLOCK, Clock
from orbitmq.spark.options import Access
from orbitmq.spark.pool import Link, borrow, give_back
from orbitmq.wire.frame import Frame, FrameDecoder, encode_binary_request

__all__ = ["Ask", "ask_brokers"]

_RESPONSE: Final = int(FrameFlag.RESPONSE)
_WINDOW: Final = 512
"""The most requests in flight on a connection."""
_WINDOW_BYTES: Final = 1024 * 1024
_WRITE_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 256 * 1024


class Ask(NamedTuple):
    """A request to the broker at an address."""

    address: str
    code: int
    fields: bytes
    """Extension fields in the binary form, signed if need be."""
    body: bytes = b""


def ask_brokers(asks: Sequence[Ask], access: Access, timeout_s: float) -> list[Frame | OrbitError]:
    """Returns the response to each request, or the error that prevented it. Requests to different brokers run
    concurrently.

    A request without a response may still have been executed.
    """
    by_address: dict[str, list[int]] = defaultdict(list)
    for number, one in enumerate(asks):
        by_address[one.address].append(number)
    outcomes: list[Frame | OrbitError] = [ConnectionLostError("not sent")] * len(asks)

    def work(numbers: list[int]) -> None:
        found = _ask([asks[number] for number in numbers], access, timeout_s)
        for number, outcome in zip(numbers, found, strict=True):
            outcomes[number] = outcome

    if len(by_address) == 1:
        work(*by_address.values())
    elif by_address:
        with ThreadPoolExecutor(len(by_address), "orbitmq-spark-bulk") as threads:
            list(threads.map(work, by_address.values()))
    return outcomes


def _ask(asks: Sequence[Ask], access: Access, timeout_s: float) -> list[Frame | OrbitError]:
    outcomes: list[Frame | None] = [None] * len(asks)
    link = None
    try:
        link = borrow(asks[0].address, access, timeout_s=timeout_s)
        _exchange(link, asks, outcomes, timeout_s)
    except OrbitError as error:
        if link is not None:
            link.close()
        return [error if one is None else one for one in outcomes]
    except BaseException:
        if link is not None:
            link.close()
        raise
    give_back(link, access)
    return [one for one in outcomes if one is not None]


def _exchange(
    link: Link,
    asks: Sequence[Ask],
    outcomes: list[Frame | None],
    timeout_s: float,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Sends the requests and fills in the responses. Raises ``ConnectionLostError``, or ``RequestTimeoutError`` if
    nothing arrives in time."""
    decoder = FrameDecoder()
    buffer = memoryview(bytearray(_READ_BYTES))
    numbers: dict[int, int] = {}
    """The requests in flight, by opaque."""
    sizes: list[int] = []
    sent = in_flight_bytes = 0
    deadline = clock.monotonic() + timeout_s
    while sent < len(asks) or numbers:
        gathered: list[bytes] = []
        gathered_bytes = 0
        while sent < len(asks) and len(numbers) < _WINDOW and in_flight_bytes < _WINDOW_BYTES:
            one = asks[sent]
            opaque = link.next_opaque()
            data = encode_binary_request(one.code, opaque, one.fields, one.body)
            numbers[opaque] = sent
            sizes.append(len(data))
            sent += 1
            in_flight_bytes += len(data)
            gathered.append(data)
            gathered_bytes += len(data)
            if gathered_bytes >= _WRITE_BYTES:
                break
        if gathered:
            link.send(b"".join(gathered))
            if len(numbers) < _WINDOW // 2 and sent < len(asks):
                continue
        count = link.receive(buffer)
        for frame in decoder.feed(bytes(buffer[:count])):
            number = numbers.pop(frame.opaque, None) if frame.flag & _RESPONSE else None
            if number is not None:
                outcomes[number] = frame
                in_flight_bytes -= sizes[number]
                deadline = clock.monotonic() + timeout_s
        if decoder.error is not None:
            raise ConnectionLostError(f"{link.address} sent a malformed frame: {decoder.error}")
        if clock.monotonic() >= deadline:
            raise RequestTimeoutError(f"no answer from {link.address} within {timeout_s:g} s")

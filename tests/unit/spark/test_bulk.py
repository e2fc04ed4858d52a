"""Requests in flight on one connection: each gets its own outcome, whatever the broker does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from orbitmq.errors import ConnectionLostError, OrbitError, RequestTimeoutError
from orbitmq.spark.options import Access
from orbitmq.spark.pool import close_idle
from orbitmq.spark.sink import bulk
from orbitmq.spark.sink.bulk import Ask, ask_brokers
from orbitmq.wire.frame import Frame, FrameDecoder, encode_oneway, encode_response

ACCESS = Access("127.0.0.1:1")
Work = Callable[[socket.socket, Iterator[Frame]], None]


@contextmanager
def broker(work: Work) -> Iterator[str]:
    """Runs ``work`` with a connection and the requests on it, until the peer closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as connection:
                work(connection, requests(connection))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            close_idle()
            thread.join(10)


def requests(connection: socket.socket) -> Iterator[Frame]:
    for frames in reads(connection):
        yield from frames


def reads(connection: socket.socket) -> Iterator[list[Frame]]:
    """Yields the requests of each read."""
    decoder = FrameDecoder()
    while data := connection.recv(65_536):
        yield decoder.feed(data)


def answer(frame: Frame) -> bytes:
    return encode_response(0, frame.opaque, None, frame.body, None, frame.serialize_type)


def asks(address: str, count: int) -> list[Ask]:
    return [Ask(address, 10, b"", b"%d" % number) for number in range(count)]


def test_answers_in_any_order_find_their_request_and_the_window_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk, "_WINDOW", 8)
    most = 0

    def backwards(connection: socket.socket, _frames: Iterator[Frame]) -> None:
        nonlocal most
        held: list[Frame] = []
        served = 0
        for frames in reads(connection):
            held += frames
            most = max(most, len(held))
            if len(held) >= 8 or served + len(held) == 30:
                connection.sendall(encode_oneway(39, 1) + b"".join(map(answer, reversed(held))))
                served += len(held)
                held.clear()

    with broker(backwards) as address:
        outcomes = ask_brokers(asks(address, 30), ACCESS, 10)
    assert [one.body for one in outcomes if isinstance(one, Frame)] == [
        b"%d" % number for number in range(30)
    ]
    assert most == 8


def test_requests_without_an_answer_have_the_reason_and_the_others_their_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def three_then_close(connection: socket.socket, frames: Iterator[Frame]) -> None:
        connection.sendall(b"".join(answer(next(frames)) for _ in range(3)))
        connection.shutdown(socket.SHUT_WR)
        for _ in frames:
            pass

    with broker(three_then_close) as address:
        outcomes = ask_brokers(asks(address, 5), ACCESS, 10)
    assert [type(one) for one in outcomes] == [Frame] * 3 + [ConnectionLostError] * 2

    def silent(_connection: socket.socket, frames: Iterator[Frame]) -> None:
        for _ in frames:
            pass

    with broker(silent) as address:
        outcomes = ask_brokers(asks(address, 2), ACCESS, 0.05)
    assert [type(one) for one in outcomes] == [RequestTimeoutError] * 2


def test_brokers_are_asked_at_the_same_time_and_one_that_is_down_costs_only_its_own() -> None:
    both = threading.Barrier(2, timeout=10)

    def together(connection: socket.socket, frames: Iterator[Frame]) -> None:
        for frame in frames:
            both.wait()
            connection.sendall(answer(frame))

    with socket.create_server(("127.0.0.1", 0)) as closed:
        down = f"127.0.0.1:{closed.getsockname()[1]}"
    with broker(together) as one, broker(together) as other:
        outcomes = ask_brokers(
            [Ask(one, 10, b"", b"1"), Ask(down, 10, b""), Ask(other, 10, b"", b"2")], ACCESS, 10
        )
    first, lost, second = outcomes
    assert isinstance(first, Frame)
    assert isinstance(second, Frame)
    assert (first.body, second.body) == (b"1", b"2")
    assert isinstance(lost, OrbitError)
    assert ask_brokers([], ACCESS, 10) == []

"""Sends of the synchronous producer: on the caller's thread in the normal case, over the loop otherwise."""

from __future__ import annotations

import inspect
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import orbitmq.client
from orbitmq.client import (
    ClientClosedError,
    ClientStateError,
    Message,
    SendContext,
    SendFailed,
    SendStatus,
    sync,
)
from orbitmq.client.produce.blocking import IDLE_S, BlockingConnection, BusyWait
from orbitmq.client.produce.shared_connection import SharedConnection
from orbitmq.errors import ConnectionLostError, MessageIllegal, RequestTimeoutError
from orbitmq.runtime.clock import SYSTEM_CLOCK, SystemClock
from orbitmq.testing import RunningBroker, run_broker
from orbitmq.wire.frame import Frame, FrameDecoder, encode_response


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


@contextmanager
def peer(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Runs a server for one connection after the other; yields its address."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            try:
                end, _ = listening.accept()
            except OSError:
                return
            with end:
                serve(end)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(10)
        assert not thread.is_alive()


def connect(address: str, busy_wait: BusyWait | None = None) -> BlockingConnection:
    return BlockingConnection(address, 3.0, SYSTEM_CLOCK, busy_wait or BusyWait())


def test_answers_are_matched_whatever_comes_before_and_however_they_are_cut() -> None:
    def serve(end: socket.socket) -> None:
        [request] = FrameDecoder().feed(end.recv(65_536))
        stray = encode_response(0, request.opaque + 7)
        answer = encode_response(0, request.opaque, body=b"this one")
        end.sendall(stray + answer[:9])
        end.sendall(answer[9:])

    with peer(serve) as address:
        connection = connect(address)
        assert connection.call(310, b"", b"x", 5.0, SYSTEM_CLOCK.monotonic()).body == b"this one"
        connection.close()


def test_busy_wait_pays_for_one_thread_while_answers_come_soon() -> None:
    busy_wait = BusyWait()
    assert busy_wait.pays(1.0)
    busy_wait.note(True)
    assert busy_wait.pays(2.0)
    waits = []
    for _ in range(10):
        busy_wait.note(False)
        waits.append(0)
        while not busy_wait.pays(3.0):
            waits[-1] += 1
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 256, 256], "ever rarer, but it never stops"
    waits.clear()
    for _ in range(9):
        busy_wait.note(True)
        waits.append(0)
        while not busy_wait.pays(3.0):
            waits[-1] += 1
    assert waits == [128, 64, 32, 16, 8, 4, 2, 0, 0], "one answer in time does not mean that the next is"
    with ThreadPoolExecutor(1) as other:
        assert not other.submit(busy_wait.pays, 4.0).result()
    assert not busy_wait.pays(4.05), "two threads send in turn"
    assert not busy_wait.pays(4.1)
    assert busy_wait.pays(4.2), "the other one has not sent for a while"


def test_busy_wait_is_given_up_on_a_machine_where_half_of_the_answers_are_late() -> None:
    """Each late one costs 200 us of a processor the broker may need."""
    busy_wait, chance = BusyWait(), random.Random(1)
    tried = 0
    for _ in range(10_000):
        if busy_wait.pays(1.0):
            tried += 1
            busy_wait.note(found=chance.random() < 0.5)
    assert tried < 1_000, "1,800 if a single answer in time were enough to go on"


def test_busy_wait_ends_when_something_else_takes_the_processor() -> None:
    class Preempted(SystemClock):
        def monotonic(self) -> float:
            times.append(times[-1] + 60e-6)
            return times[-1]

    times = [0.0]

    def serve(end: socket.socket) -> None:
        end.recv(1)

    with peer(serve) as address:
        connection = BlockingConnection(address, 3.0, Preempted(), BusyWait())
        del times[1:]
        assert connection._read_busily() is None
        assert len(times) == 3, "the time at its begin and after one read"
        connection.close()


@pytest.mark.parametrize("delay_s", [0.0, 0.05])
def test_answer_is_found_by_busy_wait_or_by_sleep(delay_s: float) -> None:
    noted: list[bool] = []

    class Noting(BusyWait):
        def note(self, found: bool) -> None:
            noted.append(found)

    def serve(end: socket.socket) -> None:
        decoder = FrameDecoder()
        while data := end.recv(65_536):
            for request in decoder.feed(data):
                threading.Event().wait(delay_s)
                end.sendall(encode_response(0, request.opaque, body=request.body))

    with peer(serve) as address:
        connection = connect(address, Noting())
        for number in range(20):
            body = b"%d" % number
            assert connection.call(310, b"", body, 5.0, SYSTEM_CLOCK.monotonic()).body == body
        connection.close()
    assert len(noted) == 20, "one busy-wait for each answer"
    if delay_s:
        assert not any(noted), "none comes so soon"


@pytest.mark.parametrize(
    ("sent", "error", "text"),
    [
        (b"", ConnectionLostError, "closed"),
        (b"GET / HTTP/1.1\r\n\r\n", ConnectionLostError, "malformed"),
    ],
)
def test_bad_peers_end_a_call_with_the_reason(sent: bytes, error: type[Exception], text: str) -> None:
    def serve(end: socket.socket) -> None:
        end.recv(65_536)
        end.sendall(sent)

    with peer(serve) as address:
        connection = connect(address)
        with pytest.raises(error, match=text):
            connection.call(310, b"", b"x", 5.0, SYSTEM_CLOCK.monotonic())
    # The peer has closed its end by now.
    assert not connection.is_alive()
    connection.close()


@pytest.mark.parametrize("trickle", [False, True])
@pytest.mark.slow
def test_call_ends_at_its_time_out_even_if_the_peer_trickles(trickle: bool) -> None:
    over = threading.Event()

    def serve(end: socket.socket) -> None:
        for byte in encode_response(0, 1, body=b"x" * 1000) if trickle else b"":
            end.sendall(bytes([byte]))
            if over.wait(0.02):
                return
        over.wait(10)

    with peer(serve) as address:
        connection = connect(address)
        started = SYSTEM_CLOCK.monotonic()
        with pytest.raises(RequestTimeoutError):
            connection.call(310, b"", b"x", 0.3, SYSTEM_CLOCK.monotonic())
        assert SYSTEM_CLOCK.monotonic() - started < 2.0
        over.set()
        connection.close()


def test_nobody_listening_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionLostError, match="cannot connect"):
        connect("127.0.0.1:1")


@pytest.mark.slow
def test_threads_send_side_by_side_and_share_a_connection(broker: RunningBroker) -> None:
    with sync.Producer("threads", broker.name_server) as producer:
        first = producer.send(Message("threads", "first"))  # over the loop: the route is not known yet
        assert not producer._sends._idle
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda n: producer.send(Message("threads", f"m{n}")), range(400)))
        assert len({(r.queue, r.queue_offset) for r in [first, *results]}) == 401
        assert len({r.message_id for r in results}) == 400
        [idle] = producer._sends._idle.values()
        [shared] = producer._sends._shared.values()
        assert len(idle) <= 8
        for connection in idle:
            connection.used_at -= 2 * IDLE_S
        shared.used_at -= 2 * IDLE_S
        producer._sends.close_idle()
        assert not idle
        assert not producer._sends._shared
        assert not shared.is_usable(0.0)
        producer._sends._busy_wait = BusyWait()  # as some time later
        batch = producer.send_batch(Message("threads", f"b{n}") for n in range(5))
        assert [r.status for r in batch] == [SendStatus.OK] * 5
        [kept] = idle
    assert not kept.is_alive()
    with pytest.raises(ClientClosedError):
        producer.send(Message("threads", "late"))


def shared_peer(end: socket.socket, hold: int = 1) -> None:
    """Answers requests with their bodies, the last first, ``hold`` of them at a time."""
    decoder = FrameDecoder()
    held: list[Frame] = []
    while data := end.recv(65_536):
        held += decoder.feed(data)
        if len(held) >= hold:
            answers = [encode_response(0, request.opaque, body=request.body) for request in reversed(held)]
            held.clear()
            end.sendall(b"".join(answers))


def call_shared(connection: SharedConnection, body: bytes, timeout_s: float = 10.0) -> bytes:
    return connection.call(310, b"", body, timeout_s, SYSTEM_CLOCK.monotonic()).body


def test_shared_connection_gives_each_thread_its_own_answer() -> None:
    with peer(lambda end: shared_peer(end, hold=8)) as address:
        connection = SharedConnection(address, 3.0, SYSTEM_CLOCK)
        with ThreadPoolExecutor(8) as pool:
            for _ in range(50):  # no response is sent before all eight requests have arrived
                bodies = [b"%d" % number for number in range(8)]
                assert list(pool.map(lambda body: call_shared(connection, body), bodies)) == bodies
        assert connection.waiting == 0
        connection.close()


@pytest.mark.slow
def test_reader_that_gives_up_leaves_the_reading_to_another() -> None:
    with peer(lambda end: shared_peer(end, hold=3)) as address:
        connection = SharedConnection(address, 3.0, SYSTEM_CLOCK)
        with ThreadPoolExecutor(2) as pool:
            early = pool.submit(call_shared, connection, b"early", 0.15)
            while connection.waiting == 0:  # it is the reader
                threading.Event().wait(0.001)
            second = pool.submit(call_shared, connection, b"second")
            with pytest.raises(RequestTimeoutError):
                early.result()
            assert connection.waiting == 1
            assert call_shared(connection, b"third") == b"third"
            assert second.result() == b"second"
        connection.close()


@pytest.mark.parametrize(("sent", "text"), [(b"", "closed"), (b"GET / HTTP/1.1\r\n\r\n", "malformed")])
def test_bad_peer_of_a_shared_connection_ends_every_call_with_the_reason(sent: bytes, text: str) -> None:
    def serve(end: socket.socket) -> None:
        decoder = FrameDecoder()
        seen = 0
        while seen < 4:
            seen += len(decoder.feed(end.recv(65_536)))
        end.sendall(sent)

    with peer(serve) as address:
        connection = SharedConnection(address, 3.0, SYSTEM_CLOCK)
        with ThreadPoolExecutor(4) as pool:
            for failed in [pool.submit(call_shared, connection, b"x") for _ in range(4)]:
                with pytest.raises(ConnectionLostError, match=text):
                    failed.result()
        assert not connection.is_usable(0.0)
        with pytest.raises(ConnectionLostError):
            call_shared(connection, b"late")


def test_thread_that_is_interrupted_ends_the_shared_connection_for_all() -> None:
    class Interrupted(BaseException): ...

    class Stepping:
        """A clock that raises in one thread, as a signal handler would."""

        thread = 0

        def now_ms(self) -> int:
            return SYSTEM_CLOCK.now_ms()

        def monotonic(self) -> float:
            if threading.get_ident() == self.thread:
                raise Interrupted
            return SYSTEM_CLOCK.monotonic()

    clock = Stepping()
    with peer(lambda end: shared_peer(end, hold=99)) as address:
        connection = SharedConnection(address, 3.0, clock)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(call_shared, connection, b"other")
            while connection.waiting == 0:
                threading.Event().wait(0.001)
            clock.thread = threading.get_ident()
            with pytest.raises(Interrupted):
                connection.call(310, b"", b"x", 5.0, SYSTEM_CLOCK.monotonic())
            with pytest.raises(ConnectionLostError, match="interrupted"):
                other.result()


@pytest.mark.slow
def test_shared_connection_that_died_while_idle_is_replaced(broker: RunningBroker) -> None:
    with sync.Producer("dead-shared", broker.name_server) as producer:
        producer.send(Message("dead-shared", "first"))
        queue = producer.queues("dead-shared")[0]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: producer.send(Message("dead-shared", f"m{n}")), range(100)))
            [shared] = producer._sends._shared.values()
            shared._socket.shutdown(socket.SHUT_RDWR)
            shared.used_at -= 60.0
            # A fixed queue has one attempt: it would fail if the dead connection were used.
            results = list(
                pool.map(lambda n: producer.send(Message("dead-shared", "x"), queue=queue), range(8))
            )
        assert {result.queue for result in results} == {queue}


@pytest.mark.slow
def test_dead_idle_connection_is_replaced_and_a_dead_one_in_use_retried(broker: RunningBroker) -> None:
    with sync.Producer("dead", broker.name_server) as producer:
        for _ in range(2):
            producer.send(Message("dead", "x"))
        [idle] = producer._sends._idle.values()
        for idle_for_s in (60.0, 0.0):  # one that is looked at before its use, and one that is not
            [connection] = idle
            connection._socket.shutdown(socket.SHUT_RDWR)
            connection.used_at -= idle_for_s
            assert producer.send(Message("dead", "y")).status is SendStatus.OK
            assert connection not in idle
            producer.send(Message("dead", "z"))
        queue = producer.queues("dead")[0]
        [connection] = idle
        connection._socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(SendFailed) as caught:
            producer.send(Message("dead", "one attempt"), queue=queue)
        assert caught.value.attempts == 1
        assert producer.send(Message("dead", "again"), queue=queue).queue == queue
        [connection] = idle
        connection._socket.shutdown(socket.SHUT_RDWR)
        connection.used_at -= 60.0  # looked at first: not even a send with one attempt notices
        assert producer.send(Message("dead", "noticed"), queue=queue).queue == queue


@pytest.mark.slow
def test_keys_selectors_hooks_and_refusals_are_as_in_the_asyncio_producer(broker: RunningBroker) -> None:
    with sync.Producer("rules", broker.name_server) as producer:
        producer.send(Message("rules", "x"))
        by_key = [producer.send(Message("rules", "x", shard_key="k")).queue for _ in range(3)]
        assert len(set(by_key)) == 1
        chosen = producer.send(Message("rules", "x"), select=lambda queues: queues[2])
        assert chosen.queue.queue_id == 2
        with pytest.raises(MessageIllegal):
            producer.send(Message("rules", ""))
        seen: list[SendContext] = []

        class Hook:
            def before_send(self, context: SendContext) -> None:
                seen.append(context)

            def after_send(self, context: SendContext) -> None:
                assert context.result is not None

        producer.add_hook(Hook())
        producer.send(Message("rules", "x"))
        producer.send_batch([Message("rules", "x")])
        assert len(seen) == 2

        async def on_the_loop() -> None:
            with pytest.raises(ClientStateError, match="wait for itself"):
                producer.send(Message("rules", "x"))

        producer._loop.run(on_the_loop())


FORK = """
import os, sys
from orbitmq import ForkedError, Message, sync
with sync.Producer("fork", sys.argv[1]) as producer:
    for _ in range(2):
        producer.send(Message("fork", "x"))
    child = os.fork()
    if child == 0:
        told = 0
        for call in (producer.send, producer.send_async, producer.send_oneway):
            try:
                call(Message("fork", "y"))
            except ForkedError:
                told += 1
        with sync.Producer("fork-child", sys.argv[1]) as new:
            new.send(Message("fork", "z"))
        os._exit(told)
    _, status = os.waitpid(child, 0)
    producer.send(Message("fork", "still works"))
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
def test_child_of_a_fork_is_told_to_make_its_own_client(broker: RunningBroker) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, broker.name_server], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr


@pytest.mark.parametrize("name", ["Producer", "PushConsumer", "LitePullConsumer", "PullConsumer"])
def test_facade_has_every_public_call_with_the_same_parameters(name: str) -> None:
    ours, plain = getattr(orbitmq.client, name), getattr(sync, name)
    # The interface that a client's instance requires (``Member``) is not for users.
    internal = {"topics", "producer_data", "consumer_data", "routes"}
    for call, function in inspect.getmembers(ours, inspect.isfunction):
        if call.startswith("_") or call in internal:
            continue
        assert hasattr(plain, call), f"{name}.{call}"
        wanted = list(inspect.signature(function).parameters)
        assert list(inspect.signature(getattr(plain, call)).parameters) == wanted, f"{name}.{call}"

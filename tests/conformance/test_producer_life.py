"""Sends under load, through failures and with mistakes: bounded, reported correctly, and without harm to
other sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.apache.servers import create_topic
from tests.conformance.stub import sent, stub_cluster
from tests.conformance.waiting import Collector, until

from orbitmq.client import (
    ClientClosedError,
    ConnectFailedError,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    NameServerError,
    Producer,
    PushConsumer,
    SendFailed,
    SendStatus,
    SendTimeoutError,
    TooManyInFlightError,
    sync,
)
from orbitmq.client.produce.sender import SendContext
from orbitmq.codes import ClientErrorCode, ResponseCode
from orbitmq.errors import BrokerError, HeaderFieldError, MessageIllegal, OrbitError, RequestTimeoutError
from orbitmq.requests import RequestCode
from orbitmq.testing import RunningBroker, run_broker
from orbitmq.transport.router import PARKED, Answer, Reply

FIRST = ConsumeFromWhere.FIRST_OFFSET
RETRIED = [1, 2, 14, 16, 17, 204, 205, 1500]


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with run_broker() as running:
        yield running


# -- routes -------------------------------------------------------------------------------------------


async def test_first_sends_to_a_new_topic_share_one_question_and_no_fate() -> None:
    async with stub_cluster() as stub:
        stub.known_topics = {"TBW102"}
        async with Producer("many", stub.name_server) as producer:
            sends = [asyncio.create_task(producer.send(Message("new", "x"))) for _ in range(200)]
            await asyncio.sleep(0)
            for send in sends[:3]:
                send.cancel()
            with pytest.raises(OrbitError):
                await producer.send(Message("new", "in no time"), timeout_s=0.000_001)
            results = await asyncio.gather(*sends, return_exceptions=True)
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 3
        assert sum(isinstance(result, Exception) for result in results[3:]) == 0
        assert stub.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) <= 4, "not one for each"


# -- bounds -------------------------------------------------------------------------------------------


async def test_ten_thousand_sends_at_once_are_all_stored(broker: RunningBroker) -> None:
    async with Producer("flood", broker.name_server, send_timeout_s=30.0, max_in_flight=500) as producer:
        await producer.send(Message("flood", "x"))
        most = 0

        async def send() -> bool:
            nonlocal most
            result = await producer.send(Message("flood", "x"))
            most = max(most, producer._sender.in_flight.count)
            return result.status is SendStatus.OK

        assert all(await asyncio.gather(*(send() for _ in range(10_000))))
        assert most <= 500


async def test_large_bodies_at_once_do_not_cut_the_connection(broker: RunningBroker) -> None:
    body = bytes(range(256)) * 4096  # 1 MiB
    async with Producer("large", broker.name_server, compress_over_bytes=2**31 - 1) as producer:
        results = await asyncio.gather(*(producer.send(Message("large", body)) for _ in range(150)))
    assert len({result.message_id for result in results}) == 150


async def test_place_that_is_not_there_in_time_is_a_time_out_of_its_own() -> None:
    async with stub_cluster(lambda broker, number: PARKED) as stub:  # noqa: SIM117 - one inside the other
        async with Producer("places", stub.name_server, max_in_flight=2) as producer:
            waiting = [asyncio.create_task(producer.send(Message("T", "x"))) for _ in range(2)]
            await until(lambda: len(stub.sends) == 2, "two on the way")
            with pytest.raises(TooManyInFlightError, match="2 sends are in flight"):
                await producer.send(Message("T", "third"), timeout_s=0.05)
            cancelled = asyncio.create_task(producer.send(Message("T", "fourth")))
            await asyncio.sleep(0)
            cancelled.cancel()
            for send in waiting:
                send.cancel()
            await asyncio.gather(*waiting, cancelled, return_exceptions=True)
            assert producer.in_flight == 0
            await producer.flush()


@pytest.mark.parametrize("linger_s", [0.0, 30.0])
async def test_flush_waits_for_all_that_was_handed_over(linger_s: float) -> None:
    answers = asyncio.Event()

    async def respond() -> Reply:
        await answers.wait()
        return sent()

    async with stub_cluster(lambda broker, number: cast(Any, respond())) as stub:  # noqa: SIM117 - as above
        async with Producer("flush", stub.name_server, max_in_flight=2, batch_linger_s=linger_s) as producer:
            # Two in flight on separate queues, a third waits for a slot, and one may be in a batch.
            queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
            sends = [asyncio.create_task(producer.send(Message("T", "x"), queue=queue)) for _ in range(3)]
            sends.append(asyncio.create_task(producer.send(Message("T", "piled"))))
            await until(lambda: len(stub.sends) == 2, "two on the way")
            flushing = asyncio.create_task(producer.flush())
            for _ in range(20):
                await asyncio.sleep(0)
            assert not flushing.done()
            assert producer.in_flight == 4
            answers.set()
            async with asyncio.timeout(10):
                await flushing
            assert producer.in_flight == 0
            assert len(stub.sends) == 4
            for _ in range(5):
                await asyncio.sleep(0)
            assert all(send.done() for send in sends)


# -- retries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", RETRIED)
async def test_code_that_another_broker_may_judge_differently_is_tried_there(code: int) -> None:
    """Row D13."""

    def respond(broker: str, number: int) -> Answer:
        return Reply(code, "not here") if number == 0 else sent()

    async with stub_cluster(respond, brokers=2) as stub, Producer("retry", stub.name_server) as producer:
        assert (await producer.send(Message("T", "x"))).status is SendStatus.OK
        assert len({broker for broker, _ in stub.sends}) == 2


async def test_code_that_every_broker_would_give_is_raised_at_once() -> None:
    async with stub_cluster(lambda broker, number: Reply(13, "illegal")) as stub:
        async with Producer("no-retry", stub.name_server) as producer:
            with pytest.raises(MessageIllegal):
                await producer.send(Message("T", "x"))
            assert len(stub.sends) == 1
        async with Producer("told", stub.name_server, retry_codes=frozenset({13})) as producer:
            with pytest.raises(SendFailed) as caught:
                await producer.send(Message("T", "x"))
        assert caught.value.attempts == len(stub.sends) - 1 == 3
        assert caught.value.code == 13
        assert isinstance(caught.value.__cause__, BrokerError)


@pytest.mark.parametrize("retries", [0, 2, 4])
async def test_attempts_are_counted_as_they_were_made(retries: int) -> None:
    """Rows D04, D15, E09."""
    async with stub_cluster(lambda broker, number: Reply(2, "busy"), brokers=2) as stub:
        options: dict[str, Any] = {} if retries == 2 else {"retries": retries}
        async with Producer("counted", stub.name_server, **options) as producer:
            with pytest.raises(SendFailed) as caught:
                await producer.send(Message("T", "x"))
        error = caught.value
        assert error.attempts == len(stub.sends) == 1 + retries
        assert set(error.brokers) == {broker for broker, _ in stub.sends}
        assert f"{1 + retries} {'attempts' if retries else 'attempt'} at broker-" in str(error)
        assert "topic T" in str(error)
        assert " ms" in str(error)
        assert str(error).endswith(
            "busy (code 2). The broker is overloaded: send slower, or spread over more brokers"
        )


async def test_time_used_up_is_a_timeout_error_and_lost_connections_are_connection_errors() -> None:
    """Row D16, with Python's own exception classes."""
    async with stub_cluster(lambda broker, number: PARKED) as stub:
        async with Producer("slow", stub.name_server) as producer:
            with pytest.raises(TimeoutError) as caught:
                await producer.send(Message("T", "x"), timeout_s=0.2)
            assert isinstance(caught.value, SendFailed)
            assert caught.value.code == ClientErrorCode.ACCESS_BROKER_TIMEOUT
        async with Producer("nowhere", stub.name_server, send_timeout_s=0.3) as producer:
            await producer.queues("T")
            stub.addresses = {"broker-a": "127.0.0.1:1"}
            await producer._instance.refresh_routes()
            with pytest.raises(ConnectionError) as lost:
                await producer.send(Message("T", "x"))
            assert isinstance(lost.value, SendFailed)
            assert lost.value.code == ClientErrorCode.CONNECT_BROKER_EXCEPTION
            assert isinstance(lost.value.__cause__, ConnectFailedError)


async def test_send_outlasts_a_broker_that_restarts(broker: RunningBroker) -> None:
    """Attempts are spread over the timeout of a send, not used up in a third of a second."""
    with OrbitNamesrv() as namesrv, OrbitBroker(namesrv) as server:
        async with Producer("restart", namesrv.address, send_timeout_s=15.0) as producer:
            await producer.send(Message("restart", "1"))
            await asyncio.to_thread(server.kill)
            sending = asyncio.create_task(producer.send(Message("restart", "2")))
            await asyncio.to_thread(server.start)
            assert (await sending).status is SendStatus.OK

            def plain() -> SendStatus:
                with sync.Producer("restart-plain", namesrv.address, send_timeout_s=15.0) as other:
                    other.send(Message("restart", "3"))
                    server.kill()
                    future = other.send_async(Message("restart", "4"))
                    server.start()
                    return future.result(20).status

            assert await asyncio.to_thread(plain) is SendStatus.OK


@pytest.mark.parametrize("frozen", [0, 1])
async def test_ready_means_that_a_master_answers(frozen: int) -> None:
    """One of two is enough, whichever comes first in the route; one that only accepts connections is not."""
    with (
        OrbitNamesrv() as namesrv,
        OrbitBroker(namesrv) as first,
        OrbitBroker(namesrv, brokerName="broker-b") as second,
    ):
        servers = [first, second]
        for server in servers:
            create_topic(namesrv, server, "ready", queue_count=1)
        async with Producer("ready", namesrv.address, call_timeout_s=0.5) as producer:
            try:
                servers[frozen].pause()
                await producer.wait_ready("ready", timeout_s=10.0)
                servers[1 - frozen].pause()
                with pytest.raises(RequestTimeoutError, match=r"not ready within 2 s: .+"):
                    await producer.wait_ready("ready", timeout_s=2.0)
            finally:
                for server in servers:
                    server.resume()
            await producer.wait_ready("ready", timeout_s=10.0)


async def test_stored_but_not_safe_is_the_result_when_nothing_better_comes() -> None:
    """Row D11: a FLUSH_DISK_TIMEOUT result is returned as is.

    With retry_when_not_safe, other brokers are tried first. If they all fail, that result is still returned.
    """

    def respond(broker: str, number: int) -> Answer:
        return sent(code=ResponseCode.FLUSH_DISK_TIMEOUT) if number == 0 else Reply(13, "illegal")

    async with stub_cluster(respond, brokers=2) as stub:
        async with Producer("not-safe", stub.name_server) as producer:
            result = await producer.send(Message("T", "x"))
            assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
            assert len(stub.sends) == 1
        stub.sends.clear()
        async with Producer("not-safe", stub.name_server, retry_when_not_safe=True) as producer:
            result = await producer.send(Message("T", "x"))
            assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
            assert len(stub.sends) == 2


async def test_cancelled_send_is_not_tried_again() -> None:
    """Row D14."""
    async with stub_cluster(lambda broker, number: PARKED, brokers=2) as stub:  # noqa: SIM117 - as above
        async with Producer("cancel", stub.name_server) as producer:
            send = asyncio.create_task(producer.send(Message("T", "x")))
            await until(lambda: stub.sends, "the first attempt")
            send.cancel()
            with pytest.raises(asyncio.CancelledError):
                await send
            await producer.queues("T")
            assert len(stub.sends) == 1


async def test_lost_answer_makes_a_duplicate_with_the_same_key() -> None:
    """Row N02: stored, response lost, resent."""

    async with stub_cluster(lambda broker, number: PARKED if number == 0 else sent(), brokers=2) as stub:
        async with Producer("twice", stub.name_server) as producer:
            send = asyncio.create_task(producer.send(Message("T", "x")))
            await until(lambda: stub.sends, "the first attempt")
            address = stub.addresses[stub.sends[0][0]]
            producer._instance.rpc._open[address].abort()
            await send
        keys = {fields["i"].split("UNIQ_KEY\x01")[1].split("\x02")[0] for _, fields in stub.sends}
        assert len(stub.sends) == 2
        assert len(keys) == 1


async def test_answer_that_cannot_be_read_is_an_error_without_another_attempt() -> None:
    """Row E05."""
    garbled = Reply(ext={"msgId": "A", "queueId": "x"})
    async with stub_cluster(lambda broker, number: garbled) as stub:  # noqa: SIM117 - as above
        async with Producer("garbled", stub.name_server) as producer:
            with pytest.raises(HeaderFieldError):
                await producer.send(Message("T", "x"))
            assert len(stub.sends) == 1
            assert producer.in_flight == 0


async def test_callback_that_raises_leaves_the_producer_working(broker: RunningBroker) -> None:
    """Row E03."""

    def run() -> None:
        with sync.Producer("callbacks", broker.name_server) as producer:
            called: list[bool] = []

            def fail(future: Any) -> None:
                called.append(future.result().status is SendStatus.OK)
                raise LookupError("of the user's")

            future = producer.send_async(Message("callbacks", "1"))
            future.add_done_callback(fail)
            future.result(10)
            assert producer.send(Message("callbacks", "2")).status is SendStatus.OK
            assert called == [True]

    await asyncio.to_thread(run)


async def test_no_socket_before_the_start_and_no_name_server_is_said() -> None:
    """Rows A09 and C03."""
    async with stub_cluster() as stub:
        producer = Producer("idle", stub.name_server)
        assert producer._instance._rpc is None
        with pytest.raises(ClientClosedError):
            await producer.send(Message("T", "x"))
        assert not stub.asked
    async with Producer("lost", "") as producer:
        with pytest.raises(NameServerError) as caught:
            await producer.send(Message("T", "x"))
        assert caught.value.code == ClientErrorCode.NO_NAME_SERVER_EXCEPTION


async def test_namespace_is_on_the_wire_at_every_attempt_and_not_in_the_result() -> None:
    """Row D08."""

    def respond(broker: str, number: int) -> Answer:
        return Reply(2, "busy") if number == 0 else sent()

    async with stub_cluster(respond, brokers=2) as stub:
        async with Producer("named", stub.name_server, namespace="ns") as producer:
            result = await producer.send(Message("T", "x"))
        assert [fields["b"] for _, fields in stub.sends] == ["ns%T", "ns%T"]
        assert result.queue.topic == "T"


# -- neighbours and hooks -----------------------------------------------------------------------------


async def test_bad_message_among_accumulated_ones_fails_alone(broker: RunningBroker) -> None:
    async with Producer("linger", broker.name_server, batch_linger_s=0.05) as producer:
        bad = Message("linger", b"")
        worse = Message("linger", "x", properties={"TAGS": "reserved"})
        async with asyncio.timeout(10):
            results = await asyncio.gather(
                *(producer.send(m) for m in [Message("linger", "1"), bad, Message("linger", "2"), worse]),
                return_exceptions=True,
            )
    assert [isinstance(result, Exception) for result in results] == [False, True, False, True]


async def test_broker_that_refuses_a_batch_takes_its_messages_alone() -> None:
    def respond(broker: str, number: int) -> Answer:
        return Reply(13, "one of them is illegal") if number in (0, 2) else sent()

    async with stub_cluster(respond) as stub:
        async with Producer("pile", stub.name_server, batch_linger_s=0.02) as producer:
            sends = (producer.send(Message("T", str(i))) for i in range(3))
            results = await asyncio.gather(*sends, return_exceptions=True)
        assert [isinstance(result, MessageIllegal) for result in results] == [False, True, False]


async def test_accumulated_sends_wait_for_room_and_keep_their_time() -> None:
    async with stub_cluster(lambda broker, number: PARKED) as stub:
        options: dict[str, Any] = {"batch_linger_s": 0.01, "batch_total_bytes": 100, "send_timeout_s": 1.0}
        async with Producer("room", stub.name_server, **options, close_wait_s=0.1) as producer:
            first = asyncio.create_task(producer.send(Message("T", "x" * 90)))
            with pytest.raises(SendTimeoutError, match=r"not answered within 0\.2 s"):
                await producer.send(Message("T", "y"), timeout_s=0.2)
            with pytest.raises(TooManyInFlightError, match=r"none left within 0\.2 s"):
                await producer.send(Message("T", "z" * 20), timeout_s=0.2)
            with pytest.raises(SendTimeoutError):
                await first
    async with stub_cluster() as stub:
        async with Producer("room", stub.name_server, **options) as producer:
            sends = [
                asyncio.create_task(producer.send(Message("T", "x" * size))) for size in (90, 20, 200, 20)
            ]
            await asyncio.sleep(0)
        results = await asyncio.gather(*sends)
        assert {result.status for result in results} == {SendStatus.OK}, (
            "stop lets those that wait for room end"
        )


class _Recorder:
    def __init__(self) -> None:
        self.before: list[str] = []
        self.after: list[tuple[str, bool]] = []

    def before_send(self, context: SendContext) -> None:
        self.before.append(context.mode)
        for message in context.messages:
            message.properties["seen"] = context.mode

    def after_send(self, context: SendContext) -> None:
        self.after.append((context.mode, context.error is None))


async def test_hooks_see_every_kind_of_send(broker: RunningBroker) -> None:
    """Row D18."""
    from orbitmq.client import ReplyTimeoutError, TransactionState

    hook = _Recorder()
    got = Collector()
    consumer = PushConsumer("hooked-readers", broker.name_server, from_where=FIRST)
    got.on(consumer, "hooked")
    async with Producer(
        "hooked", broker.name_server, check=lambda message: TransactionState.COMMIT
    ) as producer:
        producer.add_hook(hook)
        await producer.send(Message("hooked", "1"))
        await producer.send_oneway(Message("hooked", "2"))
        await producer.send_batch([Message("hooked", "3"), Message("hooked", "4")])
        await producer.send_in_transaction(Message("hooked", "5"), lambda m, i: TransactionState.COMMIT)
        with pytest.raises(ReplyTimeoutError):
            await producer.request(Message("hooked", "6"), timeout_s=0.2)
        async with consumer:
            await got.wait(6)
    modes = ["send", "oneway", "batch", "transaction", "request"]
    assert hook.before == modes
    assert hook.after == [*((mode, True) for mode in modes[:-1]), ("request", False)]
    assert {m.text(): m.user_properties["seen"] for m in got.messages} == dict(
        zip("123456", ["send", "oneway", "batch", "batch", "transaction", "request"], strict=True)
    )


async def test_selector_gets_queues_message_and_argument(broker: RunningBroker) -> None:
    async with Producer("select", broker.name_server) as producer:

        def choose(queues: list[MessageQueue], message: Message, argument: int) -> MessageQueue:
            return queues[(argument + len(message.body)) % len(queues)]

        queues = await producer.queues("select")
        result = await producer.send(Message("select", "xy"), select=choose, argument=1)
        assert result.queue.queue_id == queues[3].queue_id
        nothing: Any = lambda queues: None  # noqa: E731 - the mistake itself
        with pytest.raises(TypeError, match=r"select returned None .*; one of the queues"):
            await producer.send(Message("select", "xy"), select=nothing)


async def test_large_body_is_compressed_beside_the_loop(broker: RunningBroker) -> None:
    import random

    body = random.Random(1).randbytes(1 << 20).hex().encode() * 2
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Producer("compress", broker.name_server) as producer:
        await producer.queues("compress")
        counting = asyncio.create_task(count())
        prepared = await producer._prepare(Message("compress", body))
        counting.cancel()
        assert turns > 10, "the loop went on meanwhile"
        assert len(prepared.body) < len(body)
        await producer.send(Message("compress", body))


async def test_block_of_a_transaction_commits_or_rolls_back(broker: RunningBroker) -> None:
    from orbitmq.client import TransactionState

    got = Collector()
    consumer = PushConsumer("tx-readers", broker.name_server, from_where=FIRST)
    got.on(consumer, "tx")
    async with Producer("tx", broker.name_server, check=lambda message: TransactionState.UNKNOWN) as producer:
        async with producer.transaction(Message("tx", "kept")) as transaction:
            assert transaction.id
        with pytest.raises(LookupError):
            async with producer.transaction(Message("tx", "dropped")):
                raise LookupError
        assert transaction.result is not None
        assert transaction.result.transaction_state is TransactionState.COMMIT

        def plain() -> None:
            check = sync.Producer("tx", broker.name_server, check=lambda m: TransactionState.UNKNOWN)
            with check as other, other.transaction(Message("tx", "plain")):
                pass

        await asyncio.to_thread(plain)
        async with consumer:
            await got.wait(2)
    assert sorted(got.bodies) == ["kept", "plain"]


async def test_ready_when_a_broker_of_the_topic_answers(broker: RunningBroker) -> None:
    async with Producer("ready", broker.name_server) as producer:
        await producer.wait_ready("ready-topic")
    async with Producer("never", "127.0.0.1:1", call_timeout_s=0.2) as producer:
        with pytest.raises(TimeoutError, match="not ready within"):
            await producer.wait_ready(timeout_s=0.3)

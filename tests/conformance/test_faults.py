"""Cut and stalled connections, restarted brokers and name servers: no acknowledged message is lost, no resource
leaks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from tests.apache.ours import OrbitBroker, OrbitNamesrv
from tests.conformance.proxy import Proxy
from tests.conformance.waiting import Collector, until

from orbitmq.client import (
    ClientClosedError,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    NameServerError,
    NoRouteError,
    Producer,
    PushConsumer,
    SendFailed,
    SendStatus,
    sync,
)
from orbitmq.codes import ClientErrorCode
from orbitmq.errors import OrbitError
from orbitmq.testing import RunningBroker, run_broker

FIRST = ConsumeFromWhere.FIRST_OFFSET
NEAR, FAR = "127.0.0.1", "127.0.0.2"


@pytest.fixture(scope="module")
def behind_proxy() -> Iterator[RunningBroker]:
    """A broker that advertises another address than its own: the one a proxy listens on."""
    with run_broker(brokerIP1=FAR, name_server_port=0) as broker:
        yield broker


def proxy_for(broker: RunningBroker) -> Proxy:
    port = int(broker.address.rpartition(":")[2])
    return Proxy((FAR, port), (NEAR, port))


async def stored(producer: Producer, topic: str, text: str) -> bool:
    """Returns whether a send succeeds."""
    try:
        await producer.send(Message(topic, text))
    except OrbitError:
        return False
    return True


async def test_cut_connections_lose_nothing_acknowledged(behind_proxy: RunningBroker) -> None:
    acknowledged: set[str] = set()
    collector = Collector()
    async with proxy_for(behind_proxy) as proxy:
        consumer = PushConsumer(
            "cut-readers", behind_proxy.name_server, from_where=FIRST, pull_error_pause_s=0.05
        )
        collector.on(consumer, "cut")
        async with Producer("cut-writers", behind_proxy.name_server, retries=5) as producer:
            await producer.send(Message("cut", "first"))
            async with consumer:

                async def send(number: int) -> None:
                    try:
                        await producer.send(Message("cut", f"m{number}"))
                        acknowledged.add(f"m{number}")
                    except SendFailed:
                        pass  # told, so not lost

                for round_number in range(5):
                    sends = [send(round_number * 40 + i) for i in range(40)]
                    loop = asyncio.get_running_loop()
                    loop.call_soon(loop.call_soon, proxy.cut)  # after the first turn has written the sends
                    await asyncio.gather(*sends)
                await until(lambda: acknowledged <= set(collector.bodies), "every acknowledged message")
        assert proxy.connections > 2, "the proxy did cut"
    assert len(acknowledged) > 100


async def test_plain_sends_over_cut_connections_lose_nothing_acknowledged(
    behind_proxy: RunningBroker,
) -> None:
    acknowledged: set[str] = set()
    threads = set(threading.enumerate())
    loop = asyncio.get_running_loop()

    def send_from_threads(proxy: Proxy) -> None:
        with sync.Producer("plain-cut", behind_proxy.name_server, retries=5) as producer:
            producer.send(Message("plain-cut", "first"))

            def send(number: int) -> None:
                if number % 40 == 20:
                    loop.call_soon_threadsafe(proxy.cut)
                try:
                    producer.send(Message("plain-cut", f"m{number}"))
                    acknowledged.add(f"m{number}")
                except SendFailed:
                    pass  # told, so not lost

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(send, range(400)))

    async with proxy_for(behind_proxy) as proxy:
        await asyncio.to_thread(send_from_threads, proxy)
        assert proxy.connections > 4, "the proxy did cut"
        collector = Collector()
        consumer = PushConsumer("plain-cut-readers", behind_proxy.name_server, from_where=FIRST)
        collector.on(consumer, "plain-cut")
        async with consumer:
            await until(lambda: acknowledged <= set(collector.bodies), "every acknowledged message")
    assert len(acknowledged) > 100
    others = ("asyncio_", "orbitmq-broker")  # asyncio.to_thread; the broker starts workers when it needs them

    def left() -> list[str]:
        return [t.name for t in threading.enumerate() if t not in threads and not t.name.startswith(others)]

    await until(lambda: not left(), lambda: f"the producer's threads to end, left: {left()}")


async def test_stalled_broker_ends_a_send_in_time_with_the_reason(behind_proxy: RunningBroker) -> None:
    async with proxy_for(behind_proxy) as proxy, Producer("stall", behind_proxy.name_server) as producer:
        await producer.send(Message("stall", "x"))
        proxy.stall()
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(SendFailed) as caught:
            await producer.send(Message("stall", "y"), timeout_s=0.5)
        assert 0.4 < loop.time() - started < 3.0
        assert caught.value.code == ClientErrorCode.ACCESS_BROKER_TIMEOUT
        assert caught.value.retriable
        proxy.flow()
        await producer.send(Message("stall", "z"))


async def test_broker_killed_and_started_again_keeps_what_it_acknowledged() -> None:
    with OrbitNamesrv() as namesrv, OrbitBroker(namesrv) as broker:
        collector = Collector()
        acknowledged: set[str] = set()
        consumer = PushConsumer("kill-readers", namesrv.address, from_where=FIRST, pull_error_pause_s=0.1)
        collector.on(consumer, "kill")
        reader = LitePullConsumer("kill-pollers", namesrv.address, from_where=FIRST, pull_error_pause_s=0.1)
        reader.subscribe("kill")
        polled: set[str] = set()
        async with Producer("kill-writers", namesrv.address) as producer:
            for number in range(50):
                await producer.send(Message("kill", f"a{number}"))
                acknowledged.add(f"a{number}")
            async with consumer, reader:
                await collector.wait(10)
                polled |= {message.text() for message in await reader.poll(10.0)}
                await asyncio.to_thread(broker.kill)
                with pytest.raises(OrbitError):
                    await producer.send(Message("kill", "nobody there"), timeout_s=0.5)
                await asyncio.to_thread(broker.start)

                for number in range(20):
                    await until(partial(stored, producer, "kill", f"b{number}"), "a send to be stored")
                    acknowledged.add(f"b{number}")
                await until(lambda: acknowledged <= set(collector.bodies), "all messages after the restart")
                while not acknowledged <= polled:
                    batch = await reader.poll(10.0)
                    assert batch, f"never polled: {acknowledged - polled}"
                    polled |= {message.text() for message in batch}


async def test_name_server_may_be_away_while_routes_are_known() -> None:
    with OrbitNamesrv() as namesrv, OrbitBroker(namesrv):
        async with Producer("ns", namesrv.address, route_refresh_s=0.1, call_timeout_s=0.5) as producer:
            await producer.send(Message("away", "1"))
            await asyncio.to_thread(namesrv.kill)
            await asyncio.sleep(0.3)
            await producer.send(Message("away", "2"))
            with pytest.raises(NameServerError, match="no name server answers"):
                await producer.send(Message("unknown", "3"))


async def test_name_server_started_again_tells_new_routes() -> None:
    with OrbitNamesrv() as namesrv, OrbitBroker(namesrv, registerNameServerPeriod=10_000):
        collector = Collector()
        consumer = PushConsumer("ns-readers", namesrv.address, from_where=FIRST, call_timeout_s=0.5)
        collector.on(consumer, "again")
        async with (
            Producer("ns", namesrv.address, route_refresh_s=0.2, call_timeout_s=0.5) as producer,
            consumer,
        ):
            await producer.send(Message("again", "1"))
            await collector.wait(1)
            await asyncio.to_thread(namesrv.kill)
            await producer.send(Message("again", "2"))
            await collector.wait(2)
            await asyncio.to_thread(namesrv.start)

            await until(
                partial(stored, producer, "made-after-the-restart", "3"), "the broker to register again"
            )
            await producer.send(Message("again", "4"))
            await collector.wait(3)
        assert collector.bodies == ["1", "2", "4"]


async def test_second_name_server_answers_when_the_first_is_gone() -> None:
    with OrbitNamesrv() as first, OrbitNamesrv() as second:
        addresses = f"{first.address};{second.address}"
        with OrbitBroker(addresses):
            async with Producer("two", addresses, call_timeout_s=0.5) as producer:
                await producer.send(Message("two-a", "x"))
                await asyncio.to_thread(first.kill)
                # Only a name server has the route of a topic without any sends.
                result = await producer.send(Message("two-b", "x"))
                assert (result.status, result.queue.topic) == (SendStatus.OK, "two-b")
                await asyncio.to_thread(second.kill)
                with pytest.raises(NameServerError, match="no name server answers"):
                    await producer.send(Message("two-c", "x"))


async def test_errors_without_servers_say_what_to_do() -> None:
    async with Producer("lonely", "127.0.0.1:1", call_timeout_s=0.5) as producer:
        with pytest.raises(NameServerError, match="Check the name server address"):
            await producer.send(Message("any", "x"))
    with pytest.raises(ClientClosedError):
        await producer.send(Message("any", "x"))


async def test_missing_topic_without_auto_creation_says_what_to_do() -> None:
    with run_broker(autoCreateTopicEnable=False) as broker:
        async with Producer("strict", broker.name_server) as producer:
            with pytest.raises(NoRouteError, match="autoCreateTopicEnable") as caught:
                await producer.send(Message("nowhere", "x"))
            assert caught.value.code == 10005, "row C04: the code of Apache's client"


async def test_threads_of_plain_handlers_end_with_the_consumer(behind_proxy: RunningBroker) -> None:
    async with proxy_for(behind_proxy), Producer("threads", behind_proxy.name_server) as producer:
        await producer.send(Message("threads", "x"))
        seen: list[str] = []
        consumer = PushConsumer("thread-readers", behind_proxy.name_server, from_where=FIRST)
        consumer.subscribe("threads", handler=lambda message: seen.append(threading.current_thread().name))
        async with consumer:
            await until(lambda: seen, "a message")
    await until(lambda: not any(t.name.startswith(seen[0]) for t in threading.enumerate()), "threads ended")

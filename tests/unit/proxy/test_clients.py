"""The table of clients: which clients it holds, for how long, how much it may hold, and the settings they get."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orbitmq.model.group import GroupRetryPolicy, RetryPolicyType, SubscriptionGroupConfig
from orbitmq.proxy.clients import Client, ClientKey, Clients, attempts_of, client_type_name, merged_settings
from orbitmq.proxy.config import ProxyConfig
from orbitmq.proxy.http2.call import Call
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import Refused
from orbitmq.testing.manual_clock import ManualClock


class _Connection:
    """Can be the key of a weak table."""


def _call(host: str = "10.0.0.1", connection: object | None = None) -> Call:
    made = SimpleNamespace(
        connection=connection or _Connection(),
        remote=f"{host}:1",
        header=lambda name: name,
        done=False,
        written=[],
    )
    made.write = made.written.append
    return cast(Call, made)


def _consumer(group: str = "G", topics: int = 1) -> pb.Settings:
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
    settings.subscription.group.name = group
    for number in range(topics):
        settings.subscription.subscriptions.add().topic.name = f"T{number}"
    return settings


def _producer(*topics: str) -> pb.Settings:
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.SetInParent()
    for topic in topics:
        settings.publishing.topics.add().name = topic
    return settings


def _clients() -> tuple[Clients, ManualClock, list[Client]]:
    clock = ManualClock()
    clients = Clients(ProxyConfig(), clock)
    gone: list[Client] = []
    clients.gone.append(gone.append)
    return clients, clock, gone


def test_registered_client_is_known_until_it_unregisters() -> None:
    clients, _, gone = _clients()
    client = clients.register(ClientKey("c"), _consumer(), _call())
    assert clients.known(ClientKey("c")) is client
    assert (client.group, client.is_consumer, client.language) == ("G", True, "x-mq-language")
    assert clients.consumers("G") == [client]
    clients.unregister(ClientKey("c"))
    assert gone == [client]
    for call in (clients.known, clients.unregister):
        with pytest.raises(Refused) as refused:
            call(ClientKey("c"))
        assert refused.value.code == pb.UNRECOGNIZED_CLIENT_TYPE


def test_clients_of_two_users_with_one_id_are_two() -> None:
    clients, _, gone = _clients()
    first = clients.register(ClientKey("c", "alice"), _consumer(), _call())
    second = clients.register(ClientKey("c", "eve"), _consumer("E"), _call())
    assert first is not second
    clients.unregister(ClientKey("c", "eve"))
    assert clients.find(ClientKey("c", "alice")) is first
    assert clients.find(ClientKey("c")) is None
    assert gone == [second]


def test_silent_client_expires_and_one_that_is_heard_does_not() -> None:
    clients, clock, gone = _clients()
    silent = clients.register(ClientKey("silent"), _consumer(), _call())
    heard = clients.register(ClientKey("heard"), _consumer(), _call())
    adopted = clients.adopt(ClientKey("adopted"), _consumer(), _call())
    clock.advance(31_000)
    clients.expire()
    assert gone == [adopted], "without settings a client has to send heartbeats sooner"
    clients.mark_seen(heard)
    clock.advance(90_000)
    clients.expire()
    assert gone == [adopted, silent]
    assert len(clients) == 1


def test_adopted_client_that_sends_settings_is_a_client_like_others() -> None:
    clients, clock, gone = _clients()
    call = _call()
    adopted = clients.adopt(ClientKey("c"), _consumer(), call)
    assert not adopted.send(pb.TelemetryCommand()), "there is no stream yet"
    assert clients.register(ClientKey("c"), _consumer(), call) is adopted
    assert adopted.send(pb.TelemetryCommand())
    clock.advance(60_000)
    clients.expire()
    assert not gone
    clients.stream_ended(ClientKey("c"), _call())
    assert adopted.stream is call, "of another stream"
    clients.stream_ended(ClientKey("c"), call)
    assert not adopted.send(pb.TelemetryCommand())


def test_connection_brings_a_bounded_number_of_clients_without_settings() -> None:
    clients, _, _ = _clients()
    connection = _Connection()
    for number in range(256):
        clients.adopt(ClientKey(str(number)), _consumer(), _call(connection=connection))
    with pytest.raises(Refused) as refused:
        clients.adopt(ClientKey("more"), _consumer(), _call(connection=connection))
    assert refused.value.code == pb.TOO_MANY_REQUESTS
    clients.adopt(ClientKey("more"), _consumer(), _call())


def test_host_whose_settings_take_most_loses_the_largest_clients() -> None:
    clients, _, gone = _clients()
    clients._limit_bytes = 100_000
    small = clients.register(ClientKey("small"), _consumer(), _call("10.0.0.1"))
    for number in range(100):
        with contextlib.suppress(Refused):  # it may be the largest itself
            clients.register(ClientKey(f"large{number}"), _consumer(topics=100), _call("10.0.0.2"))
    assert clients.find(ClientKey("small")) is small
    assert gone
    assert small not in gone
    assert clients._size_bytes == sum(client.size_bytes for client in clients) <= 100_000
    for client in list(clients):
        clients.unregister(client.key)
    assert clients._size_bytes == 0


def test_settings_sent_again_are_counted_once() -> None:
    clients, _, _ = _clients()
    for topics in (5, 50, 1):
        client = clients.register(ClientKey("c"), _consumer(topics=topics), _call())
        assert clients._size_bytes == client.size_bytes


def test_producers_are_found_by_topic_while_their_stream_is_open() -> None:
    clients, _, _ = _clients()
    call = _call()
    producer = clients.register(ClientKey("p"), _producer("A", "B"), call)
    assert clients.producers("A") == clients.producers("B") == [producer]
    clients.register(ClientKey("p"), _producer("B", "C"), call)
    assert clients.producers("A") == []
    assert sorted(clients.published_topics()) == ["B", "C"]
    cast(Any, call).done = True
    assert clients.producers("B") == []
    clients.unregister(ClientKey("p"))
    assert clients.published_topics() == []


def test_receive_that_comes_before_the_settings_waits_for_them() -> None:
    clients, _, _ = _clients()

    async def run() -> tuple[Client | None, Client]:
        waiting = asyncio.ensure_future(clients.wait_known(ClientKey("c")))
        await asyncio.sleep(0)
        client = clients.register(ClientKey("c"), _consumer(), _call())
        return await waiting, client

    found, client = asyncio.run(run())
    assert found is client


def test_producer_gets_its_settings_with_what_the_server_decides() -> None:
    config = ProxyConfig()
    asked = _producer("A")
    asked.publishing.max_body_size = 1 << 30
    asked.metric.on = True
    settings = merged_settings(config, asked, None)
    assert settings.publishing.max_body_size == config.body_bytes_max
    assert settings.publishing.validate_message_type
    assert settings.HasField("metric")
    assert not settings.metric.on
    assert settings.backoff_policy.max_attempts == 3
    assert settings.backoff_policy.exponential_backoff.initial.ToMilliseconds() == 10
    assert [topic.name for topic in settings.publishing.topics] == ["A"]


def test_consumer_gets_the_settings_of_its_group() -> None:
    group = SubscriptionGroupConfig(group_name="G", retry_max_times=3, consume_message_orderly=True)
    settings = merged_settings(ProxyConfig(), _consumer(), group)
    assert settings.subscription.fifo
    assert settings.subscription.receive_batch_size == 32
    assert settings.subscription.long_polling_timeout.seconds == 20
    assert settings.backoff_policy.max_attempts == attempts_of(group) == 4
    delays = [delay.ToSeconds() for delay in settings.backoff_policy.customized_backoff.next]
    assert (delays[0], delays[-1], len(delays)) == (1, 7200, 18)
    assert not merged_settings(ProxyConfig(), _consumer(), None).subscription.fifo
    assert attempts_of(None) == 17


def test_group_with_exponential_backoff_says_so() -> None:
    policy = GroupRetryPolicy(type=RetryPolicyType.EXPONENTIAL)
    group = SubscriptionGroupConfig(group_name="G", group_retry_policy=policy)
    backoff = merged_settings(ProxyConfig(), _consumer(), group).backoff_policy
    assert backoff.WhichOneof("strategy") == "exponential_backoff"
    assert backoff.exponential_backoff.initial.ToSeconds() == 5
    assert backoff.exponential_backoff.max.ToSeconds() == 7200


def test_unknown_client_type_has_a_name() -> None:
    assert client_type_name(pb.PUSH_CONSUMER) == "PUSH_CONSUMER"
    assert client_type_name(99) == "99"

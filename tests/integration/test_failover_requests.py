"""Failover as clients and operators see it: routes, refusals, reads, role changes, a lost etcd, a lost store."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.apache.etcd import Etcd, etcd, memory_path, require_etcd
from tests.integration.bad_requests import PULL, SEND_V2
from tests.integration.failover_kit import TTL_S, Node, group, on_uvloop
from tests.integration.ha_kit import ask, assert_equal_logs, caught_up, name_server, put, rpc, until
from tests.support.waiting import until_async

from orbitmq.broker.replication.stream import encode_report, encode_transfer_head
from orbitmq.codes import ResponseCode
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.topic import TopicConfig
from orbitmq.namesrv.server import NameServer
from orbitmq.requests import RequestCode
from orbitmq.transport.client import RpcClient
from orbitmq.wire import javajson
from orbitmq.wire.frame import Frame

__all__ = ["etcd", "memory_path"]
pytestmark = pytest.mark.slow


async def change(client: RpcClient, node: Node, text: str) -> Frame:
    return await client.call(
        node.running.address, RequestCode.UPDATE_BROKER_CONFIG, body=text.encode(), timeout_s=30
    )


async def routed(client: RpcClient, names: NameServer) -> dict[int, str]:
    answer = await client.call(names.address, RequestCode.GET_BROKER_CLUSTER_INFO)
    table = javajson.loads(bytes(answer.body))["brokerAddrTable"]
    return {int(key): value for key, value in table["broker-a"]["brokerAddrs"].items()}


async def wait_routed(client: RpcClient, names: NameServer, expected: dict[int, str]) -> None:
    async def found() -> bool:
        return await routed(client, names) == expected

    await until_async(found, f"the route {expected}")


async def send(client: RpcClient, node: Node) -> Frame:
    fields = {**SEND_V2, "b": "T", "e": "0", "i": f"UNIQ_KEY\x01{0:0>32}\x02"}
    return await client.call(node.running.address, RequestCode.SEND_MESSAGE_V2, ext=fields, body=b"x")


async def first_transfer(node: Node) -> bytes:
    """Returns the head of the first transfer to an ordinary slave without a log; empty when the slave is rejected."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.running.config.ha_listen_port)
    writer.write(encode_report(0))
    try:
        return await asyncio.wait_for(reader.readexactly(12), 5)
    except (ConnectionError, asyncio.IncompleteReadError):
        return b""
    finally:
        writer.close()


def test_roles_change_by_request_through_etcd_and_routes_follow(etcd: Etcd, memory_path: Path) -> None:
    async def scenario() -> None:
        async with (
            name_server() as names,
            group(memory_path, etcd, name_servers=names.address) as brokers,
            rpc() as client,
        ):
            first = await brokers.settled()
            second = next(node for node in brokers.nodes if node is not first)
            addresses = {node: node.running.address for node in brokers.nodes}
            await wait_routed(client, names, {0: addresses[first], second.number: addresses[second]})
            await brokers.send(first, 400)
            # A slave outside of the group, like Apache's, gets the log only from the master.
            assert await first_transfer(first) == encode_transfer_head(0, 32_768)
            assert await first_transfer(second) == b""
            asked = await change(client, second, "brokerRole=SYNC_MASTER")
            assert asked.code == 0, asked.remark
            assert second.is_master
            assert not first.is_master
            await wait_routed(client, names, {0: addresses[second], first.number: addresses[first]})
            assert await brokers.settled() is second
            assert await brokers.send(second, 100) == ResponseCode.SUCCESS
            given = await change(client, second, f"brokerRole=SLAVE\nbrokerId={second.number}")
            assert given.code == 0, given.remark
            await until(lambda: first.is_master, "the other one", 15)
            assert await brokers.settled() is first
            assert_equal_logs(first.running, second.running)
            for node, text, reason in (
                (second, "brokerRole=ASYNC_MASTER", "failoverRole"),
                (first, "brokerRole=SLAVE\nbrokerId=77", "has the id"),
            ):
                refused = await change(client, node, text)
                assert refused.code == ResponseCode.SYSTEM_ERROR
                assert reason in (refused.remark or ""), refused.remark
            # A slave that lags cannot become master, and without another one the master does not step down.
            first.replication.accepting = False
            first.replication.cut()
            await until(lambda: first.failover.in_sync.members == {first.number}, "the shrunken set", 15)
            refused = await change(client, first, "brokerRole=SLAVE")
            assert "no other broker" in (refused.remark or ""), refused.remark
            refused = await change(client, second, "brokerRole=SYNC_MASTER")
            assert "in-sync set" in (refused.remark or ""), refused.remark
            assert first.is_master

    on_uvloop(scenario)


def test_consumers_get_only_what_the_in_sync_set_has_and_too_few_of_it_refuse_sends(
    etcd: Etcd, memory_path: Path
) -> None:
    async def scenario() -> None:
        async with (
            group(memory_path, etcd, slave_timeout_ms=1_500) as brokers,
            rpc() as client,
        ):
            master = await brokers.settled()
            other = next(node for node in brokers.nodes if node is not master)
            broker = master.running
            broker.topics.update(TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1))
            broker.groups.update(SubscriptionGroupConfig(group_name="readers"))
            assert (await send(client, master)).code == 0
            fields = {**PULL, "consumerGroup": "readers", "topic": "T", "queueId": "0", "sysFlag": "6"}
            fields |= {"subscription": "*", "suspendTimeoutMillis": "10000"}

            async def pull(offset: int) -> Frame:
                asked: dict[str, Any] = fields | {"queueOffset": str(offset)}
                return await client.call(broker.address, RequestCode.PULL_MESSAGE, ext=asked, timeout_s=15)

            assert (await pull(0)).code == 0
            master.replication.stall()
            waiting = asyncio.ensure_future(pull(1))
            sent = await send(client, master)
            assert sent.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert broker.store.max_offset("T", 0) == 2
            assert not waiting.done(), "a consumer would have seen what a failover takes back"
            # The slave leaves the set; only the master remains, and its log is the group's.
            found = await waiting
            assert found.code == 0
            assert broker.failover is not None
            assert broker.failover.in_sync.members == {master.number}
            assert (await send(client, master)).code == 0
            answer = await ask(client, broker, RequestCode.UPDATE_BROKER_CONFIG, b"minInSyncReplicas=2")
            assert answer.code == 0
            await until(lambda: bool(broker.gate.refusal), "the refusal")
            refused = await send(client, master)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "in-sync replicas" in (refused.remark or "")
            assert broker.store.max_offset("T", 0) == 3, "refused before it was written"
            other.heal()
            master.heal()
            await brokers.settled()
            await until(lambda: not broker.gate.refusal, "sends again")
            assert (await send(client, master)).code == 0

    on_uvloop(scenario)


def test_a_slave_shows_only_what_the_whole_in_sync_set_has(etcd: Etcd, memory_path: Path) -> None:
    async def scenario() -> None:
        options = {"slave_timeout_ms": 5_000, "not_caught_up_ms": 5_000}
        async with group(memory_path, etcd, count=3, **options) as brokers:
            master = await brokers.settled()
            second, third = (node for node in brokers.nodes if node is not master)
            assert await brokers.send(master, 40) == ResponseCode.SUCCESS

            def shown() -> int:
                return sum(second.running.store.read("T", queue_id, 0, 64).count for queue_id in range(4))

            await until(lambda: shown() == 40, "what is safe")
            await third.stop()
            put(master.running, 20, first=40)
            await until(lambda: caught_up(master.running, second.running), "the log")
            assert third.number in master.failover.in_sync.members
            assert shown() == 40, "an election may take back what only two of three have"
            await until(lambda: shown() == 60, "the set without the third")
            assert third.number not in master.failover.in_sync.members

    on_uvloop(scenario)


def test_lost_etcd_stops_writes_and_nothing_else(memory_path: Path) -> None:
    require_etcd()

    async def scenario() -> None:
        with Etcd() as own:
            async with group(memory_path, own) as brokers:
                master = await brokers.settled()
                assert await brokers.send(master, 50) == ResponseCode.SUCCESS
                await asyncio.to_thread(own.kill)
                await until(lambda: not brokers.masters, "the fence", TTL_S + 2)
                assert await brokers.send(master, 1) == ResponseCode.SYSTEM_BUSY
                for node in brokers.nodes:
                    assert node.running.store.read("T", 0, 0, 32).count > 0
                await asyncio.to_thread(own.start)
                again = await brokers.settled()
                assert await brokers.send(again, 50) == ResponseCode.SUCCESS
                assert_equal_logs(*(node.running for node in brokers.nodes))

    on_uvloop(scenario)


def test_emptied_store_is_never_elected_and_a_new_topic_survives_its_master(
    etcd: Etcd, memory_path: Path
) -> None:
    async def scenario() -> None:
        async with group(memory_path, etcd, metadata_sync_interval_ms=3_600_000) as brokers:
            first = await brokers.settled()
            second = next(node for node in brokers.nodes if node is not first)
            assert "Fresh" not in second.running.topics.configs
            first.running.topics.update(TopicConfig(topic_name="Fresh"))
            put(first.running, 40, topic="Fresh")
            assert await brokers.send(first, 40) == ResponseCode.SUCCESS
            # Both stop simultaneously, so both are in sync in etcd.
            for node in brokers.nodes:
                node.to_etcd.accepting = False
                node.to_etcd.cut()
            await until(lambda: not brokers.masters, "the fence")
            for node in brokers.nodes:
                await node.stop()
                node.heal()
            shutil.rmtree(first.root)
            await first.start()
            await until(lambda: first.failover.ineligible, "the bar", 15)
            await second.start()
            assert await brokers.settled() is second
            assert_equal_logs(second.running, first.running)
            assert second.running.topics.configs["Fresh"].write_queue_nums >= 4

    on_uvloop(scenario)

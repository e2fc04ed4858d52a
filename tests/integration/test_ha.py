"""Our slave behind our master: logs, tables, acknowledgements, faults of either side."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tests.integration.ha_kit import (
    BORN_HOST,
    SEGMENT_BYTES,
    ask,
    assert_equal_logs,
    caught_up,
    config_file,
    gate_code,
    ha_status,
    introduce,
    log_bytes,
    make_broker,
    name_server,
    pair,
    put,
    rpc,
    until,
)
from tests.support.waiting import until_async
from tests.unit.transport.loops import on_both_loops

from orbitmq.broker.broker import Broker
from orbitmq.broker.config import BrokerRole
from orbitmq.broker.replication.stream import encode_report, encode_transfer_head
from orbitmq.codes import ResponseCode
from orbitmq.errors import ConfigError
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.names import SCHEDULE_TOPIC
from orbitmq.model.topic import TopicConfig
from orbitmq.requests import RequestCode
from orbitmq.store.types import NewMessage
from orbitmq.wire import javajson

TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")


@pytest.mark.slow
def test_logs_are_equal_byte_for_byte_under_load_and_over_segments(tmp_path: Path) -> None:
    # Not on both loops: a busy machine may need more than the seconds such a test gets.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(replicate_100_000(tmp_path), 90))


async def replicate_100_000(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave):
        for first in range(0, 100_000, 2_000):
            put(master, 2_000, first=first)
            await asyncio.sleep(0)
        put(master, 1, body=b"big" * 60_000, first=100_000)
        await until(lambda: caught_up(master, slave), "all of the log", 60)
        assert master.store.max_log_offset > 15 * SEGMENT_BYTES
        assert slave.store.min_log_offset == 0
        assert_equal_logs(master, slave)
        async with rpc() as client:
            seen = await ha_status(client, master)
            (link,) = seen["haConnectionInfo"]
            assert (seen["master"], seen["inSyncSlaveNums"], link["diff"], link["inSync"]) == (
                True,
                1,
                0,
                True,
            )
            assert link["slaveAckOffset"] == link["transferFromWhere"] == seen["masterCommitLogMaxOffset"]
            own = (await ha_status(client, slave))["haClientRuntimeInfo"]
            assert own["masterAddr"] == master.ha_address
            assert own["maxOffset"] == master.store.max_log_offset


@on_both_loops
async def test_returning_slave_catches_up_and_new_one_gets_the_newest_segment_or_all(tmp_path: Path) -> None:
    async with make_broker(tmp_path / "master") as master:
        put(master, 100)
        for first in (100, 5_000):
            async with make_broker(tmp_path / "slave", BrokerRole.SLAVE, 1) as slave:
                introduce(slave, master)
                await until(lambda: caught_up(master, slave), "the log")
                assert slave.store.min_log_offset == 0
                assert_equal_logs(master, slave)
            put(master, 4_000, first=first)
        async with make_broker(tmp_path / "newest", BrokerRole.SLAVE, 2) as slave:
            introduce(slave, master)
            await until(lambda: caught_up(master, slave), "the newest segment")
            end = master.store.max_log_offset
            assert slave.store.min_log_offset == end - end % SEGMENT_BYTES > 0
            assert log_bytes(slave) == log_bytes(master, slave.store.min_log_offset)
    async with (
        make_broker(tmp_path / "master", new_slave_from_last_file=False) as master,
        make_broker(tmp_path / "whole", BrokerRole.SLAVE, 3) as slave,
    ):
        introduce(slave, master)
        await until(lambda: caught_up(master, slave), "the whole log")
        assert slave.store.min_log_offset == 0
        assert_equal_logs(master, slave)


@on_both_loops
async def test_tables_of_the_slave_become_the_masters(tmp_path: Path) -> None:
    async with (
        name_server() as names,
        make_broker(tmp_path / "m", name_servers=names.address, delay_offset_flush_interval_ms=100) as master,
        make_broker(tmp_path / "s", BrokerRole.SLAVE, 1, name_servers=names.address) as slave,
    ):
        put(master, 10)
        master.topics.update(TopicConfig(topic_name="Made", read_queue_nums=3, write_queue_nums=5))
        master.groups.update(SubscriptionGroupConfig(group_name="readers"))
        for queue_id in range(4):
            master.offsets.commit("test", "readers", "T", queue_id, 2)
        slave.offsets.commit("test", "readers", "T", 0, 1)
        slave.offsets.commit("test", "own", "T", 0, 1)
        slave.topics.update(TopicConfig(topic_name="OnlyHere"))
        await until(lambda: caught_up(master, slave), "the log, by what the name server told")
        await until(lambda: slave.offsets.query("readers", "T", 3) == 2, "the consumer offsets")
        await until(lambda: "readers" in slave.groups.configs, "the groups")
        assert slave.offsets.query("readers", "T", 0) == 2, "the master's offset wins"
        assert slave.offsets.query("own", "T", 0) == 1, "what the master does not have stays"
        slave.offsets.remove("own", "T")
        master.offsets.persist()
        master.schedule.persist()

        def differing() -> list[str]:
            return [
                name
                for name in TABLES
                if config_file(master, name) is None or config_file(master, name) != config_file(slave, name)
            ]

        await until_async(lambda: not differing(), lambda: f"equal files: {differing()}")
        assert "OnlyHere" not in slave.topics.configs
        assert slave.topics.configs["Made"].write_queue_nums == 5


@pytest.mark.slow
def test_four_files_are_equal_within_15_s_at_the_intervals_of_the_seeds(tmp_path: Path) -> None:
    async def scenario() -> None:
        usual: dict[str, Any] = {"metadata_sync_interval_ms": 10_000}
        async with (
            make_broker(tmp_path / "m", **usual) as master,
            make_broker(tmp_path / "s", BrokerRole.SLAVE, 1, **usual) as slave,
        ):
            introduce(slave, master)
            # The worst moment: right after a round, so that the next one is a whole interval away.
            first = TopicConfig(topic_name="First")
            master.topics.update(first)
            await until(lambda: "First" in slave.topics.configs, "the first round", 6)
            master.topics.update(TopicConfig(topic_name="Second"))
            master.groups.update(SubscriptionGroupConfig(group_name="readers"))
            put(master, 10)
            master.offsets.commit("test", "readers", "T", 0, 2)
            master.offsets.persist()
            master.schedule.persist()

            def equal() -> bool:
                return all(
                    config_file(master, name) is not None
                    and config_file(master, name) == config_file(slave, name)
                    for name in TABLES
                )

            await until(equal, "four equal files", 15)
            assert "Second" in slave.topics.configs

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 30))


@on_both_loops
async def test_sync_master_answers_by_what_slaves_have(tmp_path: Path) -> None:
    role = BrokerRole.SYNC_MASTER
    async with make_broker(tmp_path / "m", role, slave_timeout_ms=200) as master:
        put(master, 10)
        assert await gate_code(master) == ResponseCode.SLAVE_NOT_AVAILABLE
        async with make_broker(tmp_path / "s", BrokerRole.SLAVE, 1) as slave:
            introduce(slave, master)
            await until(lambda: caught_up(master, slave), "the log")
            for first in range(10, 1_000, 32):
                put(master, 32, first=first)
                assert await gate_code(master) == ResponseCode.SUCCESS
                assert caught_up(master, slave), "acknowledged means that the slave has it"
            # A connected slave that does not read.
            assert slave.roles.follower.link is not None
            slave.roles.follower.link._transport.pause_reading()  # type: ignore[union-attr]  # the link is up here
            put(master, 32, first=1_000)
            assert await gate_code(master) == ResponseCode.FLUSH_SLAVE_TIMEOUT
            slave.roles.follower.link._transport.resume_reading()  # type: ignore[union-attr]  # the link is up here
            await until(lambda: caught_up(master, slave), "the rest")
            assert await gate_code(master) == ResponseCode.SUCCESS
        await until(lambda: not master.roles.replicas.links, "the end of the link")
        put(master, 1, first=1_100)
        assert await gate_code(master) == ResponseCode.SLAVE_NOT_AVAILABLE


@on_both_loops
async def test_slave_with_more_than_its_master_is_refused_and_neither_log_changes(tmp_path: Path) -> None:
    async with make_broker(tmp_path / "m") as master:
        put(master, 10)
        reader, writer = await asyncio.open_connection("127.0.0.1", master.config.ha_listen_port)
        before = master.store.max_log_offset
        for piece in (encode_report(before + 1)[:3], encode_report(before + 1)[3:]):
            writer.write(piece)
            await writer.drain()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 5)
        writer.close()
        # Our own slave compares first, and does not even connect.
        async with make_broker(tmp_path / "s") as other:
            put(other, 200, body=b"another history")
        async with make_broker(tmp_path / "s", BrokerRole.SLAVE, 1) as slave:
            end = slave.store.max_log_offset
            introduce(slave, master)
            await asyncio.sleep(0.5)
            assert slave.store.max_log_offset == end
            assert slave.roles.follower.link is None
        assert master.store.max_log_offset == before


@on_both_loops
async def test_roles_change_places_and_the_old_masters_own_tail_is_cut(tmp_path: Path) -> None:
    """Row I05 among others: the promoted slave no longer queries its master."""
    async with pair(tmp_path) as (first, second), rpc() as client:
        put(first, 5_000)
        await until(lambda: caught_up(first, second), "the log")
        # The slave is promoted while the master still accepts messages that no other broker will ever have.
        await change(client, second, "brokerRole=ASYNC_MASTER")
        assert (second.config.role, second.config.broker_id) == (BrokerRole.ASYNC_MASTER, 0)
        assert second.roles._sync.master_address == ""
        put(first, 777, first=5_000, body=b"only here")
        put(second, 3_000, first=5_000, body=b"the new history")
        await change(client, first, "brokerRole=SLAVE\nbrokerId=2")
        assert (first.config.role, first.config.broker_id) == (BrokerRole.SLAVE, 2)
        introduce(first, second)
        await until(lambda: caught_up(second, first), "the new master's log")
        assert_equal_logs(second, first)
        assert not second.config.is_slave
        # And back.
        await change(client, second, "brokerRole=SLAVE")
        await change(client, first, "brokerRole=SYNC_MASTER")
        introduce(second, first)
        put(first, 100, first=9_000)
        await until(lambda: caught_up(first, second), "the log again")
        assert_equal_logs(first, second)
        refused = await ask(client, first, RequestCode.UPDATE_BROKER_CONFIG, b"brokerRole=SLAVE\nbrokerId=0")
        assert refused.code != 0
        assert first.config.role is BrokerRole.SYNC_MASTER


async def change(client: Any, broker: Broker, text: str) -> None:
    answer = await ask(client, broker, RequestCode.UPDATE_BROKER_CONFIG, text.encode())
    assert answer.code == 0, answer.remark


@on_both_loops
async def test_brokers_ask_and_tell_where_the_master_is(tmp_path: Path) -> None:
    async with (
        make_broker(tmp_path / "m") as master,
        make_broker(tmp_path / "s", BrokerRole.SLAVE, 1) as slave,
        rpc() as client,
    ):
        put(master, 10)
        answer = await ask(client, master, RequestCode.EXCHANGE_BROKER_HA_INFO)
        fields = dict(answer.ext_fields)
        assert fields["masterHaAddress"] == master.ha_address
        assert fields["masterAddress"] == master.address
        told = await client.call(slave.address, RequestCode.EXCHANGE_BROKER_HA_INFO, ext=fields)
        assert told.code == 0
        await until(lambda: caught_up(master, slave), "the log")
        json.dumps(await ha_status(client, slave))


@on_both_loops
async def test_name_server_knows_the_new_master_and_delayed_messages_go_on_there(tmp_path: Path) -> None:
    async with name_server() as names, rpc() as client:
        options: dict[str, Any] = {"name_servers": names.address}
        first = make_broker(tmp_path / "a", **options)
        await first.start()
        async with make_broker(tmp_path / "b", BrokerRole.SLAVE, 1, **options) as second:
            await until(
                lambda: bool(first.roles.replicas.status()), "the slave, by what the name server told"
            )
            delayed = NewMessage(
                SCHEDULE_TOPIC,
                0,
                b"later",
                b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x013\x02",
                0,
                BORN_HOST,
            )
            put(first, 10)
            first.store.append(delayed)
            await until(lambda: caught_up(first, second), "the log")
            await first.stop()
            await asyncio.sleep(0)
            assert second.store.max_offset("T", 3) == 2, "a slave delivers nothing"
            await change(client, second, "brokerRole=ASYNC_MASTER")
            await until(lambda: second.store.max_offset("T", 3) == 3, "the delayed message")

            async def taken_over() -> bool:
                answer = await client.call(names.address, RequestCode.GET_BROKER_CLUSTER_INFO)
                table = javajson.loads(bytes(answer.body))["brokerAddrTable"]
                addresses = {str(key): value for key, value in table["broker-a"]["brokerAddrs"].items()}
                return addresses == {"0": second.address}

            await until_async(taken_over, "the address of the new master")
        # The old master returns as a slave of the new one, notified by the name server.
        async with (
            make_broker(tmp_path / "b", **options) as second,
            make_broker(tmp_path / "a", BrokerRole.SLAVE, 1, **options) as first,
        ):
            put(second, 10, first=10)
            await until(lambda: caught_up(second, first), "the new master's log")
            assert_equal_logs(second, first)


@on_both_loops
async def test_slave_that_is_ahead_keeps_what_it_has_unless_told_to_cut_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(tmp_path) as (master, slave):
        put(master, 50)
        await until(lambda: caught_up(master, slave), "the log")
    async with make_broker(tmp_path / "slave") as alone:
        put(alone, 5, first=50)
        ahead = alone.store.max_log_offset
    async with make_broker(tmp_path / "master") as master:
        async with make_broker(tmp_path / "slave", BrokerRole.SLAVE, 1) as slave:
            introduce(slave, master)
            await until(lambda: "haTruncateSlave" in caplog.text, "the refusal")
            assert slave.store.max_log_offset == ahead
            assert not master.roles.replicas.links
        async with make_broker(tmp_path / "slave", BrokerRole.SLAVE, 1, cut_differing_log=True) as slave:
            introduce(slave, master)
            await until(lambda: caught_up(master, slave), "the cut")
            put(master, 20, first=60)
            await until(lambda: caught_up(master, slave), "the log")
            assert_equal_logs(master, slave)


@on_both_loops
async def test_idle_link_beats_and_a_silent_slave_is_cut(tmp_path: Path) -> None:
    quick: dict[str, Any] = {"replication_heartbeat_ms": 100, "replication_silence_ms": 1_000}
    async with make_broker(tmp_path / "m", **quick) as master:
        reader, writer = await asyncio.open_connection("127.0.0.1", master.config.ha_listen_port)
        writer.write(encode_report(0)[:3])
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.write(encode_report(0)[3:])
        assert await reader.readexactly(12) == encode_transfer_head(0, 0)
        put(master, 1)
        end = master.store.max_log_offset
        head = await reader.readexactly(12)
        while head == encode_transfer_head(0, 0):
            head = await reader.readexactly(12)
        assert head == encode_transfer_head(0, end)
        assert await reader.readexactly(end) == log_bytes(master)
        writer.write(encode_report(end // 2) + encode_report(end))
        assert await reader.readexactly(12) == encode_transfer_head(end, 0)
        assert master.roles.replicas.links[0].acknowledged == end, "of several reports the newest counts"
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1_000)
        assert not master.roles.replicas.links
        writer.close()


@on_both_loops
async def test_an_old_master_does_not_take_the_name_from_a_promoted_slave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with name_server() as names:
        options: dict[str, Any] = {"name_servers": names.address}
        old = make_broker(tmp_path / "a", BrokerRole.ASYNC_MASTER, 0, **options)
        await old.start()
        slave = make_broker(tmp_path / "b", BrokerRole.SLAVE, 1, **options)
        async with slave:
            await old.stop()
            await slave.roles.change(BrokerRole.ASYNC_MASTER, 0)
            await slave.registration.settled()
            again = make_broker(tmp_path / "a", BrokerRole.ASYNC_MASTER, 0, **options)
            with pytest.raises(ConfigError, match=f"already has a master, at {slave.address}"):
                await again.start()
            assert (
                f"second master of this name was started and refused to run broker=broker-a address={again.address}"
                in (caplog.text)
            )
            # It is accepted as a slave of the new one.
            async with make_broker(tmp_path / "a", BrokerRole.SLAVE, 1, **options):
                pass
        # A stopped master does not interfere, even if name servers still list it.
        async with make_broker(tmp_path / "a", BrokerRole.ASYNC_MASTER, 0, **options):
            pass

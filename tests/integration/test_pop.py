"""POP: redelivery, receipts, restarts, role changes, filters, long polls, order."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.integration.ha_kit import introduce, until
from tests.integration.ha_kit import make_broker as make_member
from tests.integration.pop_kit import (
    GROUP,
    TOPIC,
    PopClient,
    ack_fields,
    create_topic,
    serving,
    until_popped,
)
from tests.unit.transport.loops import run

from orbitmq.broker.config import BrokerRole
from orbitmq.broker.pop.checkpoints import Checkpoint
from orbitmq.kernel import checkpoint_bodies
from orbitmq.model.topic import TopicConfig
from orbitmq.record.codec import decode_records
from orbitmq.requests import RequestCode
from orbitmq.store.types import NewMessage
from orbitmq.transport.client import RpcClient
from orbitmq.wire.bodies import ConsumeStats

pytestmark = pytest.mark.slow

RETRIES = f"%RETRY%{GROUP}_{TOPIC}"


def bodies(messages: list[Any]) -> list[str]:
    return sorted(message.body for message in messages)


def test_message_not_acknowledged_in_time_comes_again_as_an_attempt_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            await client.send("a", tag="T")
            await client.send("b")
            first = await client.messages(invisibleTime=300)
            assert bodies(first) == ["a", "b"]
            await client.ack(first[1])
            again = await until_popped(client)
            (message,) = again
            properties = message.record.property_map()
            assert (message.body, message.record.reconsume_times) == ("a", 1)
            assert message.record.topic == TOPIC
            assert message.topic == RETRIES
            assert properties["ORIGIN_GROUP"] == GROUP
            assert properties["TAGS"] == "T"
            assert properties["1ST_POP_TIME"] == first[0].receipt.split(" ")[1]
            assert client.broker.topics.configs[RETRIES].read_queue_nums == 1
            assert (await client.ack(message)).code == 0
            assert not await client.messages(pollTime=400)

    run("uvloop", scenario)


def test_attempts_and_the_first_pop_time_are_kept_over_several_redeliveries(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, retry_topic_v2=True) as client:
            await client.send("a")
            (message,) = await client.messages(invisibleTime=100)
            first_time = message.receipt.split(" ")[1]
            for attempt in range(1, 4):
                (message,) = await until_popped(client, invisibleTime=100)
                assert message.record.reconsume_times == attempt
                assert message.topic == f"%RETRY%{GROUP}+{TOPIC}"
                assert message.record.property_map()["1ST_POP_TIME"] == first_time

    run("uvloop", scenario)


def test_changed_invisible_time_replaces_the_old_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            await client.send("a")
            (message,) = await client.messages(invisibleTime=300)
            answer = await client.hide(message, 60_000)
            assert answer.code == 0
            fields = answer.ext_fields
            assert not await client.messages(pollTime=700)  # longer than the first time
            parts = message.receipt.split(" ")
            parts[0] = str(message.record.queue_offset)
            parts[1:4] = [fields["popTime"], fields["invisibleTime"], fields["reviveQid"]]
            message.receipt = " ".join(parts)
            assert (await client.hide(message, 0, suspend="true")).code == 0
            (again,) = await until_popped(client)
            assert (again.body, again.record.reconsume_times) == ("a", 0)

    run("uvloop", scenario)


def test_batch_of_acknowledgements_names_the_topic_without_its_retry_prefix(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, queues=1) as client:
            for body in "abc":
                await client.send(body)
            await client.messages(invisibleTime=100)
            messages: list[Any] = []
            while len(messages) < 3:
                messages += await until_popped(client, invisibleTime=700)
            entries = []
            for message in messages:
                start, pop_time, invisible, revive, kind = message.receipt.split(" ")[:5]
                index = message.record.queue_offset - int(start)
                bits = base64.b64encode((1 << index).to_bytes(index // 8 + 1, "little")).decode()
                entries.append(
                    {"consumerGroup": GROUP, "t": TOPIC, "r": kind, "so": int(start), "q": 0}
                    | {"rq": int(revive), "pt": int(pop_time), "invisibleTime": int(invisible), "b": bits}
                )
            batch = json.dumps({"brokerName": "broker-a", "acks": entries}).encode()
            assert (await client.call(RequestCode.BATCH_ACK_MESSAGE, {}, batch)).code == 0
            assert not await client.messages(pollTime=1000)

    run("uvloop", scenario)


def test_consume_stats_tell_what_a_popping_group_has_in_hand(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, queues=1) as client:
            for number in range(5):
                await client.send(f"m{number}")
            popped = await client.messages(maxMsgNums=3)
            await client.ack(popped[0])
            answer = await client.call(
                RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": TOPIC}
            )
            lags = ConsumeStats.decode(answer.body).offset_table
            (lag,) = [lag for queue, lag in lags.items() if queue.queue_id == 0]
            assert (lag.broker_offset, lag.consumer_offset) == (5, 3)
            assert lag.pull_offset == 3 + 2, "mqadmin shows pull offset - consumer offset as Inflight"

    run("uvloop", scenario)


def test_checkpoint_of_apache_that_the_timer_delivers_is_seen_at_once(tmp_path: Path) -> None:
    """A store written by Apache: its checkpoints enter the revive topic while we run, shortly before they are due."""

    async def scenario() -> None:
        async with serving(tmp_path, queues=1) as client:
            await client.send("left")
            (message,) = await client.messages()
            await client.ack(message)
            broker = client.broker
            now_ms = broker.pop.clock.now_ms()
            checkpoint = Checkpoint(
                TOPIC, GROUP, 0, 0, now_ms - 4_500, 1_000, 0, range(1), 0, 0, -1, 0, False
            )
            properties = b"TAGS\x01ck\x02TIMER_OUT_MS\x01%d\x02" % now_ms
            [body] = checkpoint_bodies([checkpoint], "broker-a")
            host = broker.pop.store_host
            broker.puts.deliver([NewMessage(broker.pop.log.topic, 0, body, properties, now_ms, host)])
            (again,) = await until_popped(client)
            assert again.body == "left"

    run("uvloop", scenario)


def test_clean_restart_redelivers_what_was_not_acknowledged_and_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            for number in range(6):
                await client.send(f"m{number}", number % 2)
            taken = await client.messages(invisibleTime=400)
            assert len(taken) == 6
            for message in taken[:4]:
                await client.ack(message)
            left = bodies(taken[4:])
        async with serving(tmp_path) as client:
            assert len(client.broker.pop.log.table) == len({one.record.queue_id for one in taken[4:]})
            found: list[Any] = []
            while len(found) < 2:
                found += await until_popped(client)
            assert bodies(found) == left
            assert not await client.messages(pollTime=600)

    run("uvloop", scenario)


def test_kill_loses_no_hidden_message_and_hands_no_popped_one_out_early(tmp_path: Path) -> None:
    """A copy of a running broker's files equals the state after a kill."""

    async def scenario() -> None:
        async with serving(tmp_path / "running") as client:
            for number in range(8):
                await client.send(f"m{number}", number % 2)
            taken = await client.messages(invisibleTime=1500)
            for message in taken[:5]:
                await client.ack(message)
            client.broker.pop.flush()
            await client.ack(taken[5])  # this one is only in memory
            shutil.copytree(tmp_path / "running", tmp_path / "killed", copy_function=_copy_present)
        async with serving(tmp_path / "killed") as client:
            # The offset file does not contain the pop; the checkpoints do.
            assert not await client.messages()
            found: list[Any] = []
            while len(found) < 3:
                found += await until_popped(client)
            assert bodies(found) == bodies(taken[5:])

    run("uvloop", scenario)


def test_slave_that_becomes_master_redelivers_and_repeats_nothing_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        master = make_member(tmp_path / "master")
        slave = make_member(tmp_path / "slave", BrokerRole.SLAVE, 1)
        rpc = RpcClient()
        await slave.start()
        async with master:
            introduce(slave, master)
            create_topic(master)
            client = PopClient(rpc, master)
            for body in "abcd":
                await client.send(body)
            taken = await client.messages(invisibleTime=1000)
            for message in taken[:2]:
                await client.ack(message)
            refused = await PopClient(rpc, slave).pop()
            assert refused.code == 2
            master.pop.flush()
            await until(
                lambda: (
                    slave.store.max_log_offset == master.store.max_log_offset
                    and slave.topics.find(TOPIC) is not None
                ),
                "the slave to have everything",
            )
        try:
            await slave.roles.change(BrokerRole.ASYNC_MASTER, 0)
            client = PopClient(rpc, slave)
            found: list[Any] = []
            while len(found) < 2:
                found += await until_popped(client)
            assert bodies(found) == ["c", "d"]
        finally:
            await rpc.close()
            await slave.stop()

    run("uvloop", scenario)


def test_group_switched_to_pull_finds_what_it_popped_in_its_pull_retry_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, queues=1) as client:
            for body in "abc":
                await client.send(body)
            first, second, third = await client.messages(invisibleTime=1200)
            await client.ack(third)
            await client.hide(first, 0)
            broker = client.broker
            await until(lambda: broker.store.max_offset(RETRIES, 0) == 1, "the first redelivery")
            mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 0}
            answer = await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode())
            assert answer.code == 0
            pulled = f"%RETRY%{GROUP}"
            # One was waiting in the pop retry topic, the other is redelivered when its time is over.
            await until(lambda: broker.store.max_offset(pulled, 0) == 2, "both in the pull retry topic")
            found = decode_records(b"".join(broker.store.read(pulled, 0, 0, 32).slices))
            assert sorted(one.body for one in found) == [b"a", b"b"]
            assert {one.property_map()["RETRY_TOPIC"] for one in found} == {TOPIC}
            assert [one.reconsume_times for one in found] == [1, 1]
            assert not await client.messages()
            assert second.body == "b"

    run("uvloop", scenario)


def test_filters_by_tag_and_sql_move_past_what_they_do_not_take(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, queues=1) as client:
            for number in range(40):
                await client.send(
                    f"m{number}", tag="odd" if number % 2 else "even", properties=f"n\x01{number}\x02"
                )
            odd = await client.messages(exp="odd", maxMsgNums=4)
            assert [one.body for one in odd] == ["m1", "m3", "m5", "m7"]
            sql = await client.messages(expType="SQL92", exp="n > 30 AND TAGS = 'even'")
            assert [one.body for one in sql] == [f"m{number}" for number in range(32, 40, 2)]
            assert not await client.messages()
            # An acknowledgement finds its message although offsets have gaps.
            for message in (*odd[1:], *sql):
                await client.ack(message)
            await client.hide(odd[0], 0)
            assert [one.body for one in await until_popped(client)] == ["m1"]

    run("uvloop", scenario)


def test_long_poll_answered_by_a_message_by_a_redelivery_and_by_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            assert (await client.pop(pollTime=500)).code == 210
            assert 0.4 <= loop.time() - begun < 4.0
            waits = [
                asyncio.ensure_future(client.messages(pollTime=5000, queueId=where)) for where in (-1, 1)
            ]
            await until(lambda: client.broker._pop.waiters.count == 2, "two waiting pops")
            await client.send("x", 1)
            await client.send("y", 1)
            assert bodies([*await waits[0], *await waits[1]]) == ["x", "y"]
            assert client.broker._pop.waiters.count == 0
            # With a filter that does not match, the request stays parked.
            wait = asyncio.ensure_future(client.messages(pollTime=5000, exp="wanted"))
            await until(lambda: client.broker._pop.waiters.count == 1, "a waiting pop")
            await client.send("no", tag="other")
            await client.send("yes", tag="wanted")
            assert bodies(await wait) == ["yes"]

    run("uvloop", scenario)


def test_too_many_waiting_or_hidden_are_refused_with_209(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, pop_polling_per_key=1, pop_checkpoints_max=1) as client:
            waits = [asyncio.ensure_future(client.pop(pollTime=3000)) for _ in range(2)]
            await until(lambda: client.broker._pop.waiters.count == 2, "two waiting pops")
            assert (await client.pop(pollTime=3000)).code == 209
            await client.send("a")
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            assert (await client.pop()).code == 209
            await asyncio.gather(*waits)

    run("uvloop", scenario)


def test_reset_sends_a_popping_group_back_and_forgets_what_it_had(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, queues=1) as client:
            for body in "abc":
                await client.send(body)
            assert len(await client.messages(invisibleTime=500)) == 3
            client.broker.offsets.assign_reset(GROUP, TOPIC, 0, 1)
            again = await client.messages()
            assert bodies(again) == ["b", "c"]
            assert not await client.messages(pollTime=900)

    run("uvloop", scenario)


def test_ordered_messages_stay_where_they_are_until_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, queues=1) as client:
            for body in "abcd":
                await client.send(body)
            held = await client.messages(order="true", maxMsgNums=2, invisibleTime=60_000, attemptId="one")
            assert bodies(held) == ["a", "b"]
            assert not await client.messages(order="true", attemptId="two")
            waiting = asyncio.ensure_future(client.messages(order="true", pollTime=5000, attemptId="two"))
            await until(lambda: client.broker._pop.waiters.count == 1, "a waiting pop")
            stray = ack_fields(held[0]) | {"offset": "3"}
            assert (await client.call(RequestCode.ACK_MESSAGE, stray)).code == 13
            for message in held:
                assert (await client.ack(message)).code == 0
            assert bodies(await waiting) == ["c", "d"]
            assert client.broker.offsets.query(GROUP, TOPIC, 0) == 2
        async with serving(tmp_path, queues=1) as client:
            # The lock is read back: no other consumer gets them early.
            assert not await client.messages(order="true", attemptId="three")

    run("uvloop", scenario)


def test_higher_priority_is_popped_first_and_is_a_queue_number(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as client:
            attributes = {"message.type": "PRIORITY"}
            topic = TopicConfig(
                topic_name="Ranked", read_queue_nums=4, write_queue_nums=4, attributes=attributes
            )
            client.broker.topics.update(topic)
            for level, more in (
                ("0", ""),
                ("2", ""),
                ("9", ""),
                ("1", ""),
                ("x", ""),
                ("3", "DELAY\x010\x02"),
            ):
                await client.send(
                    f"p{level}", topic="Ranked", properties=f"_SYS_MSG_PRIORITY_\x01{level}\x02{more}"
                )
            found = await client.messages(topic="Ranked")
            assert [(one.body, one.record.queue_id) for one in found] == [
                ("p9", 3),
                ("p2", 2),
                ("p1", 1),
                ("p0", 0),
                ("px", 0),
                ("p3", 0),
            ]
            # A message of another type has no priority.
            assert "_SYS_MSG_PRIORITY_" not in found[-1].record.property_map()
            assert "_SYS_MSG_PRIORITY_" in found[0].record.property_map()

    asyncio.run(scenario())


def _copy_present(source: str, target: str) -> None:
    """Copies a file of a running broker, unless its worker thread has just renamed it."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)

"""Permissions apply to the data served: every known way around them, with policies of 5.x and lists of 4.x."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.integration.rights_kit import (
    COLLIDING_KEY,
    EVE,
    FORGED,
    GROUP,
    KEY,
    PRODUCERS,
    SALARY,
    TOPIC,
    Scene,
    heartbeat,
    scene,
)
from tests.integration.test_access_control import SEND, Asker, running

from orbitmq.codes import ResponseCode
from orbitmq.model.names import HALF_TOPIC, TIMER_TOPIC
from orbitmq.record.codec import decode_record, encode_record
from orbitmq.record.properties import encode_properties
from orbitmq.requests import Request, RequestCode
from orbitmq.store.types import NewMessage
from orbitmq.wire.frame import Frame

pytestmark = pytest.mark.slow

HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x01"
FIXED_BYTES = 88
"""Of a record with IPv4 hosts, up to its body."""
Test = Callable[[Scene], Awaitable[None]]
END = {"tranStateTableOffset": "0", "producerGroup": PRODUCERS}
QUERY = {"maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
PULL = {"queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0"}
PULL |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}


@pytest.fixture(params=[False, True], ids=["policies", "lists"])
def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Test], None]:
    def run(test: Test) -> None:
        async def with_scene() -> None:
            async with scene(tmp_path, is_4x=request.param) as made:
                await test(made)

        asyncio.run(with_scene())

    return run


def refused(answer: Frame) -> bool:
    is_list = answer.code == ResponseCode.SYSTEM_ERROR and "AclException" in (answer.remark or "")
    return answer.code == ResponseCode.NO_PERMISSION or is_list


def stored_in(made: Scene, topic: str) -> list[bytes]:
    return [record.body for record in made.records() if record.topic == topic]


def test_records_of_others_are_not_sent_back_to_a_group_of_ones_own(attacked: Callable[[Test], None]) -> None:
    async def test(made: Scene) -> None:
        for offset in made.offsets.values():
            for level in ("-1", "0"):
                fields = {"offset": f"+{offset:05}", "group": "eve", "delayLevel": level}
                assert refused(await made.eve.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)), offset
        sent = await made.eve.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "eve"}, b"own")
        own = next(record for record in made.records() if record.body == b"own")
        assert sent.code == 0
        fields = {"offset": str(own.log_offset), "group": "eve", "delayLevel": "-1"}
        assert (await made.eve.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)).code == 0
        assert stored_in(made, "%DLQ%eve") == [b"own"]

    attacked(test)


def test_reply_writes_to_the_reply_topic_only_and_creates_none(attacked: Callable[[Test], None]) -> None:
    async def reply(asker: Asker, topic: str) -> Frame:
        properties = encode_properties({"REPLY_TO_CLIENT": "eve@1", "UNIQ_KEY": "k"}).decode()
        fields = {**SEND, "b": topic, "i": properties}
        return await asker.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, FORGED)

    async def test(made: Scene) -> None:
        await made.eve.ask(RequestCode.HEART_BEAT, {}, heartbeat("", "askers"))
        for topic in (TOPIC, "fresh", f"%RETRY%{GROUP}", "rmq_sys_wheel_timer"):
            assert refused(await reply(made.eve, topic)), topic
        assert (await reply(made.eve, "DefaultCluster_REPLY_TOPIC")).code == 0
        assert (await reply(made.eve, "space%DefaultCluster_REPLY_TOPIC")).code == 0
        assert (await reply(made.root, "fresh")).code == ResponseCode.TOPIC_NOT_EXIST
        assert [frame.body for frame in made.pushed] == [FORGED, FORGED]
        assert stored_in(made, TOPIC) == [SALARY]
        assert stored_in(made, "DefaultCluster_REPLY_TOPIC") == [FORGED]
        for topic in ("fresh", "space%DefaultCluster_REPLY_TOPIC"):
            assert made.broker.topics.find(topic) is None

    attacked(test)


def test_records_of_others_are_not_pushed_to_a_consumer_of_ones_own(attacked: Callable[[Test], None]) -> None:
    async def test(made: Scene) -> None:
        await made.eve.ask(RequestCode.HEART_BEAT, {}, heartbeat("eve"))
        for offset in made.offsets.values():
            for more in ({}, {"topic": "eve"}):
                fields = {
                    "consumerGroup": "eve",
                    "clientId": "eve@1",
                    "msgId": made.message_id(offset),
                    **more,
                }
                assert refused(await made.eve.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields))
        assert made.pushed == []
        fields = {"consumerGroup": GROUP, "clientId": "alice@1"}
        fields["msgId"] = made.message_id(made.offsets["plain"])
        assert (await made.alice.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)).code == 0
        assert [SALARY in frame.body for frame in made.pushed_to_alice] == [True]

    attacked(test)


def test_client_never_sees_the_signature_of_the_operator_who_asks_it(
    attacked: Callable[[Test], None],
) -> None:
    """It covers neither code nor time: Eve could replay it as any request without its own fields."""

    async def test(made: Scene) -> None:
        await made.eve.ask(RequestCode.HEART_BEAT, {}, heartbeat("eve"))
        sent = await made.eve.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "eve"}, b"own")
        fields = {"consumerGroup": "eve", "clientId": "eve@1"}
        info = await made.root.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {**fields, "jstackEnable": "false"})
        direct = {**fields, "msgId": sent.ext_fields["msgId"]}
        consumed = await made.root.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, direct)
        assert (info.code, consumed.code) == (0, 0)
        asked = [RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY]
        assert [frame.code for frame in made.pushed] == asked
        for frame in made.pushed:
            assert frame.ext_fields.keys().isdisjoint({"AccessKey", "SecurityToken", "Signature"})

    attacked(test)


def test_only_publishers_of_the_real_topic_end_a_transaction(attacked: Callable[[Test], None]) -> None:
    async def test(made: Scene) -> None:
        fields = {**END, "commitLogOffset": str(made.offsets["half"])}
        for ending in ("8", "12"):
            for more in ({}, {"topic": "eve"}, {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}):
                ask = {**fields, "commitOrRollback": ending, **more}
                assert refused(await made.eve.ask(RequestCode.END_TRANSACTION, ask))
        assert stored_in(made, TOPIC) == [SALARY]
        # Client 4.9.7 names no topic.
        done = await made.alice.ask(RequestCode.END_TRANSACTION, {**fields, "commitOrRollback": "8"})
        assert done.code == 0, done.remark
        assert stored_in(made, TOPIC) == [SALARY, SALARY]

    attacked(test)


def test_half_message_is_shown_only_to_publishers_of_its_real_topic(attacked: Callable[[Test], None]) -> None:
    async def test(made: Scene) -> None:
        await made.eve.ask(RequestCode.HEART_BEAT, {}, heartbeat("eve", PRODUCERS))
        for _ in range(4):  # the producers of a group are queried in turn
            await made.broker.transactions.check()
        for asker in (made.eve, made.alice):  # anything pushed before a response has arrived with it
            await asker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "eve"})
        assert made.pushed == []
        assert {SALARY in frame.body for frame in made.pushed_to_alice} == {True}

    attacked(test)


def test_replies_to_a_client_are_not_diverted_by_its_name(attacked: Callable[[Test], None]) -> None:
    async def test(made: Scene) -> None:
        known = made.broker.tables.producers.channel_of("alice@1")
        await made.eve.ask(RequestCode.HEART_BEAT, {}, heartbeat("eve", "p", client="alice@1"))
        assert made.broker.tables.producers.channel_of("alice@1") is known is not None

    attacked(test)


def test_key_with_the_hash_of_another_topics_key_finds_nothing(attacked: Callable[[Test], None]) -> None:
    async def test(made: Scene) -> None:
        found = await made.alice.ask(RequestCode.QUERY_MESSAGE, {**QUERY, "topic": TOPIC, "key": KEY})
        assert found.body.count(SALARY) == 1
        fields = {**QUERY, "topic": "eve", "key": COLLIDING_KEY}
        stolen = await made.eve.ask(RequestCode.QUERY_MESSAGE, fields)
        assert (stolen.code, stolen.body) == (ResponseCode.QUERY_NOT_FOUND, b"")

    attacked(test)


def test_messages_of_others_are_not_acknowledged_by_another_name_of_a_field(
    attacked: Callable[[Test], None],
) -> None:
    """Apache's parsers also accept the long names of the fields of a batch; the later of two names counts."""

    async def test(made: Scene) -> None:
        start, pop_time, invisible, revive, *_ = made.receipt.split(" ")
        entry = {"t": "eve", "c": "eve", "so": int(start), "pt": int(pop_time), "it": int(invisible)}
        entry |= {"rq": int(revive), "q": 0, "r": "0", "b": "AQ=="}
        body = {"acks": [{**entry, "topic": TOPIC, "consumerGroup": GROUP}]}
        await made.root.ask(RequestCode.POP_ROLLBACK, {})  # acknowledgements kept in memory are stored
        log_end = made.broker.store.max_log_offset
        assert refused(await made.eve.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body))
        await made.root.ask(RequestCode.POP_ROLLBACK, {})
        assert made.broker.store.max_log_offset == log_end
        body = {"acks": [{**entry, "t": TOPIC, "c": GROUP}]}
        assert (await made.alice.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)).code == 0
        await made.root.ask(RequestCode.POP_ROLLBACK, {})
        assert made.broker.store.max_log_offset > log_end, "an acknowledgement is stored"

    attacked(test)


def test_retry_topic_of_a_longer_group_name_is_not_ones_own(attacked: Callable[[Test], None]) -> None:
    async def test(made: Scene) -> None:
        body = {"groupName": "pay_roll", "retryQueueNums": 1}
        assert (await made.root.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
        retry = {**SEND, "b": "%RETRY%pay_roll"}
        assert (await made.root.ask(RequestCode.SEND_MESSAGE_V2, retry, b"bonus")).code == 0
        pull = {**PULL, "topic": "%RETRY%pay_roll", "consumerGroup": GROUP}
        assert refused(await made.alice.ask(RequestCode.PULL_MESSAGE, pull))

    attacked(test)


@pytest.mark.parametrize(
    "code", [RequestCode.POP_MESSAGE, RequestCode.PEEK_MESSAGE, RequestCode.NOTIFICATION]
)
def test_pop_reads_no_retry_topic_that_is_also_another_groups(
    attacked: Callable[[Test], None], code: Request
) -> None:
    """A pop of the group ``eve`` and the topic ``eve`` also reads %RETRY%eve_eve."""

    async def test(made: Scene) -> None:
        pop = {"topic": "eve", "consumerGroup": "eve", "queueId": "-1", "maxMsgNums": "8", "initMode": "0"}
        pop |= {"invisibleTime": "60000", "pollTime": "0", "bornTime": "0", "exp": "*", "expType": "TAG"}
        pop["bornTime"] = str(made.broker._clock.now_ms())
        assert not refused(await made.eve.ask(code, pop))
        body = {"groupName": "eve_eve", "retryQueueNums": 1}
        assert (await made.root.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
        retry = {**SEND, "b": "%RETRY%eve_eve"}
        assert (await made.root.ask(RequestCode.SEND_MESSAGE_V2, retry, SALARY)).code == 0
        answer = await made.eve.ask(code, pop)
        assert (refused(answer), answer.body) == (True, b"")

    attacked(test)


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE])
def test_request_on_hold_is_refused_once_its_user_has_lost_the_right(
    attacked: Callable[[Test], None], code: Request
) -> None:
    async def test(made: Scene) -> None:
        await made.eve.ask(RequestCode.HEART_BEAT, {}, heartbeat("eve"))
        fields = {**PULL, "topic": "eve", "consumerGroup": "eve", "sysFlag": "6", "queueOffset": "0"}
        fields |= {"suspendTimeoutMillis": "8000", "exp": "*", "expType": "TAG", "initMode": "0"}
        fields |= {"invisibleTime": "60000", "pollTime": "8000", "bornTime": str(made.broker._clock.now_ms())}
        waits = asyncio.ensure_future(made.eve.ask(code, fields))
        stays = asyncio.ensure_future(made.alice.ask(code, fields | {"topic": TOPIC, "consumerGroup": GROUP}))
        for asker in (made.eve, made.alice):  # answered after everything sent before
            await asker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "eve"})
        if made.is_4x:
            lost = await made.root.ask(RequestCode.DELETE_ACL_CONFIG, {"accessKey": EVE[0]})
        else:
            lost = await made.root.ask(RequestCode.AUTH_DELETE_ACL, {"subject": f"User:{EVE[0]}"})
        assert lost.code == 0, lost.remark
        for topic in ("eve", TOPIC):
            sent = await made.root.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, "b": topic}, SALARY)
            assert sent.code == 0
        answer = await waits
        assert (refused(answer), answer.body) == (True, b"")
        assert SALARY in (await stays).body

    attacked(test)


def fake_record(made: Scene, message: NewMessage, queue_offset: int, span: int) -> bytes:
    """Returns the body of the next message: a record with the offset it will have, whose properties extend for
    ``span`` bytes into whatever is stored behind it.
    """
    body_at = made.broker.store.max_log_offset + FIXED_BYTES
    raw = bytearray(encode_record(message, queue_offset, body_at, 1, HOST))
    length = len(message.properties) + span
    raw[0:4] = (len(raw) + span).to_bytes(4, "big")
    raw[-len(message.properties) - 2 : len(raw) - len(message.properties)] = length.to_bytes(2, "big")
    return bytes(raw)


def test_record_forged_in_a_body_is_believed_by_no_check(attacked: Callable[[Test], None]) -> None:
    async def test(made: Scene) -> None:
        forged_at = made.broker.store.max_log_offset + FIXED_BYTES
        body = fake_record(made, NewMessage("eve", 0, b"x", b"A\x01B\x02", 1, HOST), 7, 400)
        await made.eve.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "eve"}, body)
        for _ in range(3):
            await made.alice.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, "b": TOPIC}, SALARY)
        raw = made.broker.store.record_at(forged_at)
        assert SALARY in bytes(raw or b""), (
            "the store takes it for a record that holds the messages behind it"
        )
        view = await made.eve.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(forged_at)})
        assert (refused(view), view.body) == (True, b"")
        back = {"offset": str(forged_at), "group": "eve", "delayLevel": "-1"}
        assert refused(await made.eve.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back))

    attacked(test)


def test_forged_half_message_ends_no_transaction_of_others(attacked: Callable[[Test], None]) -> None:
    async def test(made: Scene) -> None:
        forged_at = made.broker.store.max_log_offset + FIXED_BYTES
        properties = encode_properties({"REAL_TOPIC": "eve", "REAL_QID": "0", "PGROUP": PRODUCERS})
        body = fake_record(made, NewMessage(HALF_TOPIC, 0, b"x", properties, 1, HOST), 0, 0)
        await made.eve.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "eve"}, body)
        fields = {**END, "commitLogOffset": str(forged_at), "commitOrRollback": "12"}
        assert refused(await made.eve.ask(RequestCode.END_TRANSACTION, fields))
        fields = {**END, "commitLogOffset": str(made.offsets["half"]), "commitOrRollback": "8"}
        assert (await made.alice.ask(RequestCode.END_TRANSACTION, fields)).code == 0
        assert stored_in(made, TOPIC) == [SALARY, SALARY]

    attacked(test)


def test_recall_names_its_topic_with_the_key_if_asked_to(tmp_path: Path) -> None:
    async def run() -> list[bytes | None]:
        options = ("recallMessageEnable=true", "appendTopicForTimerDeleteKey=true")
        async with running(tmp_path, *options) as broker, Asker(broker.address, None) as asker:
            properties = encode_properties({"TIMER_DELAY_SEC": "3600", "UNIQ_KEY": "K"}).decode()
            sent = await asker.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "T", "i": properties}, b"x")
            fields = {"topic": "T", "recallHandle": sent.ext_fields["recallHandle"]}
            assert (await asker.ask(RequestCode.RECALL_MESSAGE, fields)).code == 0
            raw = broker.store.record_at(broker.store.log_offset_at(TIMER_TOPIC, 0, 1))
            return [decode_record(bytes(raw or b"")).find(b"TIMER_DEL_UNIQKEY")]

    assert asyncio.run(run()) == [b"T+K"]

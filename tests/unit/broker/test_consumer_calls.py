"""Offset resets and queries forwarded to consumers: 222, 223, 307, 309."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.broker.admin_kit import World, ask_slowly
from tests.unit.broker.kit import Asker

from orbitmq.broker.config import BrokerRole
from orbitmq.broker.handlers.consumer_calls import ConsumerCallHandlers, ResetHandlers
from orbitmq.codes import LanguageCode, ResponseCode
from orbitmq.errors import ConnectionLostError, RequestTimeoutError
from orbitmq.model.route import MessageQueue
from orbitmq.record.codec import decode_record
from orbitmq.record.ids import offset_message_id
from orbitmq.requests import RequestCode
from orbitmq.transport.router import Route
from orbitmq.wire import bodies
from orbitmq.wire.frame import Frame, FrameDecoder, encode_frame
from orbitmq.wire.header import encode_ext
from orbitmq.wire.headers import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusRequest,
    ResetOffsetRequest,
)
from orbitmq.wire.javajson import ObjectMap


class Calls(World):
    def __init__(self, directory: Path, **options: object) -> None:
        super().__init__(directory, **options)
        self.woken: list[tuple[str, int]] = []
        self.topic("T")
        self.group("g")
        for number in range(4):
            self.put("T", number % 2)
            self.clock.advance(1000)

    def reset_routes(self) -> list[Route]:
        return ResetHandlers(
            config=self.config,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            consumers=self.consumers,
            store=self.store,
            readable=lambda topic, queue_id: self.woken.append((topic, queue_id)),
        ).routes()

    def call_routes(self) -> list[Route]:
        return ConsumerCallHandlers(
            broker_name="broker-a",
            topics=self.topics,
            groups=self.groups,
            consumers=self.consumers,
            store=self.store,
        ).routes()

    def reset(
        self,
        timestamp: int = -1,
        *,
        topic: str = "T",
        group: str = "g",
        force: bool = True,
        queue_id: int | None = None,
        offset: int | None = None,
    ) -> Frame:
        header = ResetOffsetRequest(
            topic=topic, group=group, timestamp=timestamp, is_force=force, queue_id=queue_id, offset=offset
        )
        return Asker(self.reset_routes()).ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Calls]:
    world = Calls(tmp_path)
    yield world
    world.store.close()


@pytest.fixture
def old_way(tmp_path: Path) -> Iterator[Calls]:
    world = Calls(tmp_path, server_side_reset=False)
    yield world
    world.store.close()


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue(broker_name="broker-a", queue_id=queue_id, topic="T")


def table(frame: Frame) -> dict[int, int]:
    assert frame.code == ResponseCode.SUCCESS, frame.remark
    found = bodies.ResetOffset.decode(frame.body).offset_table
    return {key.queue_id: offset for key, offset in found.items()}


# -- resets in the broker ----------------------------------------------------------------------------------


def test_reset_to_the_end_and_by_time(world: Calls) -> None:
    start_ms = world.clock.now_ms() - 4000
    assert table(world.reset()) == {0: 2, 1: 2}
    assert table(world.reset(start_ms + 2000)) == {0: 1, 1: 1}
    assert table(world.reset(0)) == {0: 0, 1: 0}
    assert world.offsets.query("g", "T", 0) == 0
    assert world.offsets.reset_pending("g", "T", 1)


def test_reset_wakes_the_pulls_that_wait(world: Calls) -> None:
    world.reset()
    assert world.woken == [("T", 0), ("T", 1)]


def test_reset_of_one_queue_by_time_or_to_an_offset(world: Calls) -> None:
    assert table(world.reset(queue_id=1)) == {1: 2}
    assert table(world.reset(queue_id=1, offset=1)) == {1: 1}
    assert table(world.reset(queue_id=1, offset=-1)) == {1: 2}
    assert not world.offsets.reset_pending("g", "T", 0)


def test_reset_refuses_what_is_not_there(world: Calls) -> None:
    assert world.reset(topic="no").code == ResponseCode.TOPIC_NOT_EXIST
    assert world.reset(group="no").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    for refused in (
        world.reset(queue_id=2),
        world.reset(queue_id=0, offset=4),
        world.reset(queue_id=0, offset=-2),
    ):
        assert refused.code == ResponseCode.SYSTEM_ERROR
    world.topic("none", 0)
    assert world.reset(topic="none").code == ResponseCode.SYSTEM_ERROR
    assert not world.offsets.reset_pending("g", "T", 0)
    assert world.woken == []


def test_reset_is_refused_on_a_slave(tmp_path: Path) -> None:
    world = Calls(tmp_path, role=BrokerRole.SLAVE, broker_id=1)
    assert world.reset().code == ResponseCode.SYSTEM_ERROR
    world.store.close()


# -- resets through the clients ----------------------------------------------------------------------------


def test_old_way_tells_every_online_consumer(old_way: Calls) -> None:
    consumers = [old_way.consumer("g", "T", client=f"c{number}", number=number) for number in (1, 2)]
    consumers[0].notices.clear()  # the second one arrived
    consumers[0].bodies.clear()
    for queue_id in (0, 1):
        old_way.offsets.commit("", "g", "T", queue_id, 1)
    assert table(old_way.reset(0)) == {0: 0, 1: 0}
    for consumer in consumers:
        ((code, fields),) = consumer.notices
        assert code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        assert (fields["topic"], fields["group"], fields["isForce"]) == ("T", "g", "true")
        assert bodies.ResetOffset.decode(consumer.bodies[0]).offset_table == {queue(0): 0, queue(1): 0}
    assert old_way.offsets.query("g", "T", 0) == 1, "the clients commit, not the broker"


def test_old_way_without_force_only_goes_back(old_way: Calls) -> None:
    old_way.consumer("g", "T")
    old_way.offsets.commit("", "g", "T", 0, 1)
    old_way.offsets.commit("", "g", "T", 1, 2)
    assert table(old_way.reset(-1, force=False)) == {0: 1, 1: 2}
    assert table(old_way.reset(-1, force=True)) == {0: 2, 1: 2}


def test_old_way_speaks_lists_to_cpp(old_way: Calls) -> None:
    consumer = old_way.consumer("g", "T")
    for queue_id in (0, 1):
        old_way.offsets.commit("", "g", "T", queue_id, 1)
    header = ResetOffsetRequest(topic="T", group="g", timestamp=0, is_force=True)
    request = Frame(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, 7, language=LanguageCode.CPP, _ext=encode_ext(header)
    )
    answer = Asker(old_way.reset_routes()).dispatch(encode_frame(request))
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    told = bodies.ResetOffsetForCpp.decode(consumer.bodies[0]).offset_table
    assert [(entry.topic, entry.queue_id, entry.offset) for entry in told] == [("T", 0, 0), ("T", 1, 0)]


def test_old_way_needs_consumers_that_have_begun(old_way: Calls) -> None:
    assert old_way.reset(0).code == ResponseCode.SYSTEM_ERROR, "nothing consumed yet"
    for queue_id in (0, 1):
        old_way.offsets.commit("", "g", "T", queue_id, 1)
    assert old_way.reset(0).code == ResponseCode.CONSUMER_NOT_ONLINE


# -- questions ---------------------------------------------------------------------------------------------


def running_info(world: Calls, client: str = "c1") -> Frame:
    header = GetConsumerRunningInfoRequest(consumer_group="g", client_id=client, jstack_enable=True)
    return ask_slowly(world.call_routes(), RequestCode.GET_CONSUMER_RUNNING_INFO, header)


def test_question_and_answer_are_passed_on_as_they_are(world: Calls) -> None:
    consumer = world.consumer("g", "T")
    consumer.script.append(Frame(1, 0, remark="because", _ext={"x": "y"}, body=b"info"))
    answer = running_info(world)
    assert (answer.code, answer.remark, answer.ext_fields, answer.body) == (1, "because", {"x": "y"}, b"info")
    ((code, fields, body),) = consumer.calls
    assert code == RequestCode.GET_CONSUMER_RUNNING_INFO
    assert fields == {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "true"}
    assert body == b""


def test_question_to_a_consumer_that_is_away_silent_or_old(world: Calls) -> None:
    assert running_info(world).code == ResponseCode.SYSTEM_ERROR
    consumer = world.consumer("g", "T")
    consumer.script = [RequestTimeoutError("no answer"), ConnectionLostError("gone")]
    assert running_info(world).code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert running_info(world).code == ResponseCode.SYSTEM_ERROR
    assert running_info(world, "c2").code == ResponseCode.SYSTEM_ERROR
    group = world.consumers.group("g")
    assert group is not None
    next(iter(group.members.values())).version = 61
    refused = running_info(world)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "too old" in (refused.remark or "")


def test_message_is_handed_to_one_consumer(world: Calls) -> None:
    appended = world.put("T", body=b"once more")
    consumer = world.consumer("g", "T")
    consumer.script.append(Frame(0, 0, body=b"result"))
    msg_id = offset_message_id(b"\x7f\x00\x00\x01\x00\x00\x2a\x9f", appended.log_offset)
    header = ConsumeMessageDirectlyRequest(consumer_group="g", client_id="c1", msg_id=msg_id, topic="T")
    answer = ask_slowly(world.call_routes(), RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    assert (answer.code, answer.body) == (0, b"result")
    ((_, fields, body),) = consumer.calls
    assert decode_record(body).body == b"once more"
    assert (fields["brokerName"], fields["topicSysFlag"], fields["groupSysFlag"]) == ("broker-a", "0", "0")
    assert fields["msgId"] == msg_id


def test_message_that_cannot_be_found_is_refused_before_anybody_is_asked(world: Calls) -> None:
    consumer = world.consumer("g", "T")
    nowhere = offset_message_id(b"\x7f\x00\x00\x01\x00\x00\x2a\x9f", 3)
    negative = offset_message_id(b"\x7f\x00\x00\x01\x00\x00\x2a\x9f", -1)
    for msg_id in (None, "", "xyz", "00", nowhere, negative):
        header = ConsumeMessageDirectlyRequest(consumer_group="g", client_id="c1", msg_id=msg_id)
        answer = ask_slowly(world.call_routes(), RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        assert answer.code == ResponseCode.SYSTEM_ERROR, msg_id
    assert consumer.calls == []


def status(world: Calls, client: str | None = None) -> Frame:
    header = GetConsumerStatusRequest(topic="T", group="g", client_addr=client)
    return ask_slowly(world.call_routes(), RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)


def test_status_is_collected_from_all_who_answer(world: Calls) -> None:
    one, two, three, four = (
        world.consumer("g", "T", client=f"c{number}", number=number) for number in range(1, 5)
    )
    offsets = ObjectMap({queue(0): 7})
    one.script.append(Frame(0, 0, body=bodies.ConsumerStatus(message_queue_table=offsets).encode()))
    two.script.append(RequestTimeoutError("silent"))
    three.script.append(Frame(1, 0))
    four.script.append(Frame(0, 0, body=b"{no json"))
    answer = status(world)
    assert answer.code == ResponseCode.SUCCESS
    assert bodies.ConsumerStatus.decode(answer.body).consumer_table == {"c1": {queue(0): 7}}
    assert [code for code, _, _ in one.calls] == [RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT]


def test_status_of_one_client_asks_only_that_one(world: Calls) -> None:
    one = world.consumer("g", "T", client="c1", number=1)
    two = world.consumer("g", "T", client="c2", number=2)
    two.script.append(Frame(0, 0, body=bodies.ConsumerStatus().encode()))
    answer = status(world, "c2")
    assert bodies.ConsumerStatus.decode(answer.body).consumer_table == {"c2": {}}
    assert one.calls == []


def test_status_of_an_offline_group_is_refused(world: Calls) -> None:
    assert status(world).code == ResponseCode.SYSTEM_ERROR


def test_frames_of_these_tests_survive_their_own_encoding() -> None:
    (frame,) = FrameDecoder().feed(encode_frame(Frame(1, 2, language=LanguageCode.CPP, _ext={"a": "b"})))
    assert (frame.language, frame.ext_fields) == (LanguageCode.CPP, {"a": "b"})

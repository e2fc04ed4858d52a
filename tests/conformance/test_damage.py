"""Damaged records in responses reach no handler, and block neither other messages nor the queue."""

from __future__ import annotations

import logging

import pytest
from tests.conformance.stub import stub_cluster
from tests.conformance.waiting import Collector, until
from tests.unit.client.messages import received

from orbitmq.client import PullConsumer, PushConsumer
from orbitmq.client.consume.simple_consumer import SimpleConsumer
from orbitmq.record.codec import encode_record
from orbitmq.requests import RequestCode
from orbitmq.transport.router import PARKED, Answer, Call, Reply
from orbitmq.wire.header import Header

COUNT = 8
DAMAGED = 3


def stored(offset: int, damage: str) -> bytes:
    """Returns the record at an offset of the queue."""
    record = encode_record(
        received(offset, f"body {offset}".encode()).record, offset, offset * 100, 1, bytes(8)
    )
    if offset != DAMAGED or not damage:
        return record
    if damage == "crc":
        return record.replace(b"body 3", b"body 9")
    if damage == "magic":
        return record[:4] + bytes(4) + record[8:]
    return record[: len(record) // 2]  # of a queue unit that points elsewhere


class Queue:
    """Answers pulls of queue 0 like a broker that does not verify the records it reads."""

    def __init__(self, damage: str) -> None:
        self.damage = damage
        self.pulls: list[int] = []

    def __call__(self, broker: str, call: Call[Header]) -> Answer:
        fields = call.frame.ext_fields
        offset = int(fields["queueOffset"])
        if (fields["topic"], fields["queueId"]) != ("T", "0") or offset >= COUNT:
            return PARKED
        self.pulls.append(offset)
        end = min(COUNT, offset + int(fields["maxMsgNums"]))
        return Reply(
            ext={
                "nextBeginOffset": str(end),
                "minOffset": "0",
                "maxOffset": str(COUNT),
                "suggestWhichBrokerId": "0",
            },
            body=b"".join(stored(each, self.damage) for each in range(offset, end)),
        )


@pytest.mark.parametrize("damage", ["crc", "magic", "cut"])
@pytest.mark.parametrize("orderly", [False, True])
async def test_damaged_record_is_skipped_and_its_neighbours_are_delivered(
    caplog: pytest.LogCaptureFixture, damage: str, orderly: bool
) -> None:
    collector, queue = Collector(), Queue(damage)
    async with stub_cluster() as stub:
        stub.on_pull = queue
        consumer = PushConsumer("damaged", stub.name_server, orderly=orderly, pull_error_pause_s=0.01)
        collector.on(consumer, "T")
        stub.members = [consumer.client_id]
        async with consumer:
            await collector.wait(COUNT - 1, timeout_s=10)
            await until(
                lambda: COUNT in consumer._offsets.store.offsets.values(), "the offset behind all of them"
            )
    assert sorted(collector.bodies) == [f"body {each}" for each in range(COUNT) if each != DAMAGED]
    assert len(queue.pulls) <= 4, queue.pulls
    assert consumer.damaged_messages == 1
    [line] = [record for record in caplog.records if "damaged message skipped" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert "group=damaged topic=T broker=broker-a queue=0 offset=3 reason=" in line.getMessage()
    committed = [fields for _, code, fields in stub.asked if code == RequestCode.UPDATE_CONSUMER_OFFSET]
    assert {fields["commitOffset"] for fields in committed if fields["queueId"] == "0"} >= {str(COUNT)}


async def test_pull_of_a_damaged_record_alone_moves_on() -> None:
    async with stub_cluster() as stub:
        stub.on_pull = Queue("magic")
        async with PullConsumer("damaged-pulls", stub.name_server) as consumer:
            [queue, *_] = await consumer.fetch_queues("T")
            result = await consumer.pull(queue, DAMAGED)
            assert (result.messages, result.next_offset) == ([], DAMAGED + 1)
            result = await consumer.pull(queue, result.next_offset)
            assert [message.queue_offset for message in result.messages] == [4, 5, 6, 7]


@pytest.mark.parametrize("damage", ["crc", "magic"])
async def test_popped_record_that_is_damaged_is_acknowledged_and_not_delivered(
    caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """A record that is not acknowledged would be copied to the retry topic, with a CRC that fits its wrong body."""

    def answer(broker: str, call: Call[Header]) -> Answer:
        fields = {"popTime": "1", "invisibleTime": "60000", "reviveQid": "0", "restNum": "0"}
        body = b"".join(stored(each, damage) for each in range(COUNT))
        places = {"startOffsetInfo": "0 0 0", "msgOffsetInfo": "0 0 0,1,2,3,4,5,6,7"}
        return Reply(ext={**fields, **places}, body=body)

    async with stub_cluster() as stub:
        stub.on_pull = answer
        consumer = SimpleConsumer("damaged-pops", stub.name_server)
        consumer.subscribe("T")
        async with consumer:
            messages = await consumer.receive(wait_s=5.0)
    whole = range(COUNT) if damage == "crc" else range(DAMAGED)
    assert [message.queue_offset for message in messages] == [each for each in whole if each != DAMAGED]
    assert consumer.damaged_messages == 1
    acknowledged = [fields["offset"] for _, code, fields in stub.asked if code == RequestCode.ACK_MESSAGE]
    assert acknowledged == ["3"], "those behind a record of unknown length are redelivered by the broker"
    [line] = [record for record in caplog.records if "damaged message skipped" in record.getMessage()]
    assert "group=damaged-pops topic=T broker=broker-a queue=0 offset=3 reason=" in line.getMessage()

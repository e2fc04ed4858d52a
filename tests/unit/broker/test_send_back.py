"""CONSUMER_SEND_MSG_BACK: the destination of a message that a consumer could not handle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.kit import Asker, door, open_store, safe_file

from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.handlers.send_back import SendBackHandlers
from orbitmq.broker.statistics.stats import BrokerStats
from orbitmq.broker.tables.groups import GroupTable
from orbitmq.broker.tables.topics import TopicTable
from orbitmq.codes import ResponseCode
from orbitmq.model.group import SubscriptionGroupConfig
from orbitmq.model.names import HALF_TOPIC, SCHEDULE_TOPIC
from orbitmq.record.codec import Record, decode_record
from orbitmq.record.properties import decode_properties, encode_properties
from orbitmq.requests import RequestCode
from orbitmq.store.types import Appended, NewMessage
from orbitmq.testing.manual_clock import ManualClock
from orbitmq.wire.headers import ConsumerSendMsgBackRequest

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
GOLDEN = Path(__file__).parents[2] / "golden" / "apache-5.5.0" / "store-clean.messages.json"


class Bench:
    def __init__(self, directory: Path, **options: Any) -> None:
        clock = ManualClock()
        config = BrokerConfig(broker_name="broker-a", auto_create_groups=False, **options)
        self.store = open_store(directory, clock)
        self.topics = TopicTable(config, clock, safe_file(directory, "topics.json"), events=BrokerEvents())
        self.topics.load()
        self.groups = GroupTable(config, clock, safe_file(directory, "groups.json"), events=BrokerEvents())
        self.groups.load()
        self.groups.update(SubscriptionGroupConfig(group_name="G"))
        handlers = SendBackHandlers(
            config=config,
            store=self.store,
            topics=self.topics,
            groups=self.groups,
            puts=door(self.store, clock, config),
            stats=BrokerStats(),
        )
        self.asker = Asker(handlers.routes())

    def put(self, properties: dict[str, str] | None = None, **fields: Any) -> Appended:
        raw = encode_properties({"TAGS": "A", "UNIQ_KEY": "k", **(properties or {})})
        return self.store.append(NewMessage("T", 1, b"body", raw, 5, HOST, **fields))

    def send_back(self, log_offset: int, level: int = 0, **changes: Any) -> int:
        fields: dict[str, Any] = {
            "offset": log_offset,
            "group": "G",
            "delay_level": level,
            "origin_msg_id": "an id of the client's",
            "origin_topic": "T",
        }
        header = ConsumerSendMsgBackRequest(**(fields | changes))
        return self.asker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header).code

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        units = self.store.units(topic, queue_id, 0, 100)
        return [decode_record(self.store.record_at(offset, size) or b"") for offset, size, _ in units]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.store.close()


@pytest.mark.parametrize(
    ("times", "asked_level", "level"), [(0, 0, 3), (4, 0, 7), (0, 1, 1), (15, 0, 18), (2, 17, 17)]
)
def test_a_message_comes_again_after_the_level_of_its_count(
    bench: Bench, times: int, asked_level: int, level: int
) -> None:
    where = bench.put(reconsume_times=times)
    assert bench.send_back(where.log_offset, asked_level) == ResponseCode.SUCCESS
    [waiting] = bench.records(SCHEDULE_TOPIC, level - 1)
    found = waiting.property_map()
    assert (waiting.reconsume_times, found["DELAY"], found["WAIT"]) == (times + 1, str(level), "false")
    assert (found["REAL_TOPIC"], found["REAL_QID"], found["RETRY_TOPIC"]) == ("%RETRY%G", "0", "T")
    assert bench.topics.configs["%RETRY%G"].write_queue_nums == 1


def test_the_records_are_what_apache_stores(tmp_path: Path) -> None:
    records = json.loads(GOLDEN.read_text())["records"]
    [waiting] = [one for one in records if one["topic"] == SCHEDULE_TOPIC and one["reconsumeTimes"] == 1]
    [dead] = [one for one in records if one["topic"] == "%DLQ%GoldenG"]
    [first] = [
        one
        for one in records
        if one["topic"] == "GoldenT" and one["offsetMsgId"] == waiting["properties"]["ORIGIN_MESSAGE_ID"]
    ]
    bench = Bench(tmp_path)
    bench.groups.update(SubscriptionGroupConfig(group_name="GoldenG"))
    where = bench.store.append(
        NewMessage("GoldenT", 0, b"tag A", bytes.fromhex(first["propertiesHex"]), 5, HOST)
    )
    assert bench.send_back(where.log_offset, 1, group="GoldenG") == ResponseCode.SUCCESS
    assert bench.send_back(where.log_offset, -1, group="GoldenG") == ResponseCode.SUCCESS
    for topic, expected in ((SCHEDULE_TOPIC, waiting), ("%DLQ%GoldenG", dead)):
        [record] = bench.records(topic)
        found = record.property_map()
        origin = found.pop("ORIGIN_MESSAGE_ID")
        assert origin == f"{record.store_host.hex().upper()}{where.log_offset:016X}"
        assert found == {k: v for k, v in expected["properties"].items() if k != "ORIGIN_MESSAGE_ID"}
        assert (record.reconsume_times, record.sys_flag) == (1, 0)
    bench.store.close()


def test_what_it_was_first_is_remembered(bench: Bench) -> None:
    where = bench.put({"RETRY_TOPIC": "first", "ORIGIN_MESSAGE_ID": "id"}, reconsume_times=1)
    bench.send_back(where.log_offset)
    [waiting] = bench.records(SCHEDULE_TOPIC, 3)
    assert decode_properties(waiting.properties)["RETRY_TOPIC"] == "first"
    assert decode_properties(waiting.properties)["ORIGIN_MESSAGE_ID"] == "id"


@pytest.mark.parametrize(
    ("times", "level", "limit"), [(16, 0, None), (0, -1, None), (3, 0, 3), (0, 0, 0), (17, 5, None)]
)
def test_too_often_or_asked_for_means_dead(bench: Bench, times: int, level: int, limit: int | None) -> None:
    where = bench.put(reconsume_times=times)
    assert bench.send_back(where.log_offset, level, max_reconsume_times=limit) == ResponseCode.SUCCESS
    [dead] = bench.records("%DLQ%G")
    assert (dead.body, dead.reconsume_times, dead.property_map()["DELAY"]) == (b"body", times + 1, "0")
    assert bench.store.topics() == ["%DLQ%G", "T"]


def test_a_committed_transaction_or_a_timer_sent_back_is_neither_again(bench: Bench) -> None:
    where = bench.put({"TRAN_MSG": "true", "TIMER_OUT_MS": "1", "TIMER_DELAY_SEC": "9"}, sys_flag=8)
    bench.send_back(where.log_offset)
    bench.send_back(where.log_offset, -1)
    [waiting] = bench.records(SCHEDULE_TOPIC, 2)
    assert "TIMER_DELAY_SEC" not in waiting.property_map()
    assert len(bench.records("%DLQ%G")) == 1
    assert HALF_TOPIC not in bench.store.topics()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group": "unknown"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"offset": 10**12}, ResponseCode.SYSTEM_ERROR),
        ({"offset": 3}, ResponseCode.SYSTEM_ERROR),
        ({"offset": -1}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_what_cannot_be_found_is_refused(bench: Bench, changes: dict[str, Any], code: int) -> None:
    assert bench.send_back(bench.put().log_offset, **changes) == code
    assert bench.store.topics() == ["T"]


def test_a_group_without_retry_queues_drops_the_message(bench: Bench) -> None:
    bench.groups.update(SubscriptionGroupConfig(group_name="G", retry_queue_nums=0))
    assert bench.send_back(bench.put().log_offset) == ResponseCode.SUCCESS
    assert bench.store.topics() == ["T"]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"permission": 4}, ResponseCode.NO_PERMISSION),
        ({"role": BrokerRole.SLAVE, "broker_id": 1}, ResponseCode.SYSTEM_BUSY),
    ],
)
def test_a_broker_that_takes_no_messages_takes_none_back(
    tmp_path: Path, options: dict[str, Any], code: int
) -> None:
    bench = Bench(tmp_path, **options)
    assert bench.send_back(bench.put().log_offset) == code
    bench.store.close()


def test_reason_of_a_request_is_stored_and_confirmed(bench: Bench) -> None:
    where = bench.put({"RETRY_REASON": "of an earlier attempt"})
    header = ConsumerSendMsgBackRequest(
        offset=where.log_offset, group="G", delay_level=-1, retry_reason="no\x01such " + "x" * 5_000
    )
    answer = bench.asker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert answer.ext_fields == {"reasonStored": "true"}
    (dead,) = bench.records("%DLQ%G")
    reason = dead.property_map()["RETRY_REASON"]
    assert reason.startswith("no such xxx")
    assert len(reason) == 1_024


def test_send_back_without_a_reason_is_answered_and_stored_like_apaches(bench: Bench) -> None:
    where = bench.put({"RETRY_REASON": "of an earlier attempt"})
    header = ConsumerSendMsgBackRequest(offset=where.log_offset, group="G", delay_level=-1)
    assert bench.asker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header).ext_fields == {}
    (dead,) = bench.records("%DLQ%G")
    assert dead.property_map()["RETRY_REASON"] == "of an earlier attempt"


def test_reason_that_has_no_room_is_left_out(bench: Bench) -> None:
    where = bench.put({"large": "x" * 31_500})
    header = ConsumerSendMsgBackRequest(
        offset=where.log_offset, group="G", delay_level=0, retry_reason="y" * 900
    )
    assert bench.asker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header).code == ResponseCode.SUCCESS
    (waiting,) = bench.records(SCHEDULE_TOPIC, 2)
    assert "RETRY_REASON" not in waiting.property_map()

"""The owner of a stored record, whatever topic a request names."""

from __future__ import annotations

import pytest

from orbitmq.auth.stored import place_of
from orbitmq.record.codec import decode_record, encode_record
from orbitmq.record.properties import encode_properties
from orbitmq.store.types import NewMessage

HOST = bytes(8)


@pytest.mark.parametrize(
    ("topic", "properties", "stored_for", "origin"),
    [
        ("payroll", {"REAL_TOPIC": "eve", "RETRY_TOPIC": "eve", "ORIGIN_GROUP": "eve"}, "payroll", "payroll"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {"REAL_TOPIC": "payroll"}, "payroll", "payroll"),
        ("TRANS_CHECK_MAX_TIME_TOPIC", {"REAL_TOPIC": "payroll"}, "payroll", "payroll"),
        ("rmq_sys_wheel_timer", {"REAL_TOPIC": "payroll"}, "payroll", "payroll"),
        ("SCHEDULE_TOPIC_XXXX", {}, "SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX"),
        ("%RETRY%pay", {"RETRY_TOPIC": "payroll"}, "%RETRY%pay", "payroll"),
        ("%RETRY%pay", {}, "%RETRY%pay", "%RETRY%pay"),
        ("%DLQ%pay", {"RETRY_TOPIC": "payroll"}, "%DLQ%pay", "payroll"),
        (
            "SCHEDULE_TOPIC_XXXX",
            {"REAL_TOPIC": "%RETRY%pay", "RETRY_TOPIC": "payroll"},
            "%RETRY%pay",
            "payroll",
        ),
        ("%RETRY%pay_payroll", {"ORIGIN_GROUP": "pay"}, "%RETRY%pay_payroll", "payroll"),
        ("%RETRY%pay+payroll", {"ORIGIN_GROUP": "pay"}, "%RETRY%pay+payroll", "payroll"),
        (
            "%DLQ%pay",
            {"RETRY_TOPIC": "%RETRY%pay_payroll", "ORIGIN_GROUP": "pay"},
            "%DLQ%pay",
            "payroll",
        ),
        (
            "%RETRY%pay_payroll",
            {"ORIGIN_GROUP": "other"},
            "%RETRY%pay_payroll",
            "%RETRY%pay_payroll",
        ),
    ],
)
def test_record_belongs_to_the_topic_it_will_be_delivered_to_and_was_first_sent_to(
    topic: str, properties: dict[str, str], stored_for: str, origin: str
) -> None:
    message = NewMessage(topic, 0, b"x", encode_properties(properties), 0, HOST)
    record = decode_record(encode_record(message, 0, 0, 0, HOST))
    assert place_of(record) == (stored_for, origin)

"""Names of topics and groups."""

from __future__ import annotations

import pytest

from orbitmq.codes import ResponseCode
from orbitmq.errors import InvalidParameter, NoPermission
from orbitmq.model import names


@pytest.mark.parametrize("topic", ["T", "a-Z_0|9%", "t" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250])
def test_topics_that_are_allowed(topic: str) -> None:
    names.check_topic(topic)
    names.check_send_topic(topic)


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "  ",
        "a b",
        "a.b",
        "ä",
        "a\n",
        "a#b",
        "+",
        "t" * 128,
        "%RETRY%" + "g" * 249,
        "%DLQ%" + "g" * 251,
        "x%RETRY%" + "g" * 120,
    ],
)
def test_topics_that_are_refused_with_code_29(topic: str) -> None:
    with pytest.raises(InvalidParameter) as refusal:
        names.check_topic(topic)
    assert refusal.value.response_code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("group", ["", " ", "a b", "g" * 121, "é"])
def test_groups_that_are_refused(group: str) -> None:
    with pytest.raises(InvalidParameter):
        names.check_group(group)


def test_groups_that_are_allowed() -> None:
    names.check_group("g" * 120)
    names.check_group("CID_ONS-HTTP-PROXY")


@pytest.mark.parametrize("topic", sorted(names.SEND_FORBIDDEN_TOPICS))
def test_topics_only_the_broker_writes_are_refused_with_code_16(topic: str) -> None:
    assert names.is_send_forbidden(topic)
    with pytest.raises(NoPermission) as refusal:
        names.check_send_topic(topic)
    assert refusal.value.response_code == ResponseCode.NO_PERMISSION


def test_system_topics_are_a_set_and_a_prefix() -> None:
    assert names.SEND_FORBIDDEN_TOPICS < names.SYSTEM_TOPICS
    assert names.is_system_topic("TBW102")
    assert names.is_system_topic("rmq_sys_wheel_timer")
    assert not names.is_system_topic("RMQ_SYS_OTHER")
    assert names.is_system_group("CID_RMQ_SYS_TRANS")
    assert not names.is_system_group("TOOLS_CONSUMER")


def test_derived_names() -> None:
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dlq_topic("g") == "%DLQ%g"
    assert names.pop_retry_topic("t", "g") == "%RETRY%g_t"
    assert names.pop_retry_topic("t", "g", version_2=True) == "%RETRY%g+t"
    assert names.reply_topic("DefaultCluster") == "DefaultCluster_REPLY_TOPIC"
    assert names.group_of("%RETRY%g") == names.group_of("%DLQ%g") == "g"
    assert names.is_retry_topic("%RETRY%g")
    assert names.is_dlq_topic("%DLQ%g")
    assert names.without_prefix("plain") == "plain"


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("T", "ns%T"),
        ("%RETRY%g", "%RETRY%ns%g"),
        ("%DLQ%g", "%DLQ%ns%g"),
        ("ns%T", "ns%T"),
        ("%RETRY%ns%g", "%RETRY%ns%g"),
        ("TBW102", "TBW102"),
        ("rmq_sys_x", "rmq_sys_x"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("", ""),
    ],
)
def test_namespace_goes_behind_the_prefix_and_never_twice(name: str, wrapped: str) -> None:
    assert names.wrap_namespace("ns", name) == wrapped
    assert names.wrap_namespace("", name) == name


@pytest.mark.parametrize(
    ("name", "bare", "namespace"),
    [
        ("ns%T", "T", "ns"),
        ("%RETRY%ns%g", "%RETRY%g", "ns"),
        ("%DLQ%ns%g", "%DLQ%g", "ns"),
        ("other%T", "other%T", "other"),
        ("%RETRY%g", "%RETRY%g", ""),
        ("T", "T", ""),
        ("%odd", "%odd", ""),
        ("TBW102", "TBW102", ""),
        ("", "", ""),
    ],
)
def test_namespace_is_taken_off_again(name: str, bare: str, namespace: str) -> None:
    assert names.unwrap_namespace(name, "ns") == bare
    assert names.unwrap_namespace(name, "") == name
    assert names.namespace_of(name) == namespace

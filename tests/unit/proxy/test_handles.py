"""Receipt handles and their seal."""

from __future__ import annotations

import pytest

from orbitmq.errors import ConfigError
from orbitmq.proxy.handles import Handle, HandleSeal, parse_handle, seal_keys
from orbitmq.proxy.protocol import rocketmq_v2_pb2 as pb
from orbitmq.proxy.statuses import Refused

TEXT = "5 1794815090000 20000 6 0 broker-a 0 5 46315"
HANDLE = Handle(5, 1794815090000, 20000, 6, "0", "broker-a", 0, 5, 46315)
KEYS = seal_keys("first key of the cluster, second key of the cluster", "")


def _code(seal: HandleSeal, text: str, group: str = "G", topic: str = "T") -> int:
    with pytest.raises(Refused) as refused:
        seal.open(text, group, topic)
    return refused.value.code


def test_without_a_key_handles_are_those_of_apache() -> None:
    seal = HandleSeal()
    assert seal.text(HANDLE, "G", "T") == TEXT
    assert seal.open(TEXT, "G", "T") == (HANDLE, False)
    assert seal.open(TEXT + " seal-of-a-proxy-with-a-key", "G", "T") == (HANDLE, False)


def test_sealed_handle_is_read_back_and_by_apache_too() -> None:
    seal = HandleSeal(KEYS)
    text = seal.text(HANDLE, "G", "T")
    assert text.startswith(TEXT + " ")
    assert text.count(" ") == 9
    assert seal.open(text, "G", "T") == (HANDLE, True)
    assert parse_handle(text) == HANDLE


def test_seal_is_for_one_group_and_topic() -> None:
    seal = HandleSeal(KEYS)
    text = seal.text(HANDLE, "G", "T")
    for group, topic in (("G2", "T"), ("G", "T2"), ("G\nT", ""), ("T", "G")):
        assert _code(seal, text, group, topic) == pb.INVALID_RECEIPT_HANDLE


def test_every_field_is_sealed() -> None:
    seal = HandleSeal(KEYS)
    fields = seal.text(HANDLE, "G", "T").split(" ")
    for index in range(10):
        changed = [*fields]
        changed[index] = "other" if index in (4, 5, 9) else str(int(fields[index]) + 1)
        assert _code(seal, " ".join(changed)) == pb.INVALID_RECEIPT_HANDLE, index


@pytest.mark.parametrize("text", [TEXT, TEXT.rpartition(" ")[0], TEXT + " ", TEXT + " a b"])
def test_handle_without_a_seal_is_refused_unless_an_option_says_otherwise(text: str) -> None:
    assert _code(HandleSeal(KEYS), text) == pb.INVALID_RECEIPT_HANDLE


def test_plain_handle_is_accepted_where_apache_serves_the_same_cluster() -> None:
    seal = HandleSeal(KEYS, accepts_plain=True)
    assert seal.open(TEXT, "G", "T") == (HANDLE, False)
    broken = seal.text(HANDLE, "G", "T")[:-1] + "!"
    assert _code(seal, broken) == pb.INVALID_RECEIPT_HANDLE, "a wrong seal is worse than none"


def test_key_can_be_replaced_step_by_step() -> None:
    first, second = KEYS
    old, both, new = HandleSeal([first]), HandleSeal([second, first]), HandleSeal([second])
    assert both.open(old.text(HANDLE, "G", "T"), "G", "T") == (HANDLE, True)
    assert new.open(both.text(HANDLE, "G", "T"), "G", "T") == (HANDLE, True)
    assert _code(new, old.text(HANDLE, "G", "T")) == pb.INVALID_RECEIPT_HANDLE


def test_handle_without_a_log_offset_stays_one() -> None:
    handle = parse_handle(TEXT.rpartition(" ")[0])
    assert handle.log_offset is None
    seal = HandleSeal(KEYS)
    assert seal.open(seal.text(handle, "G", "T"), "G", "T") == (handle, True)


def test_keys_come_from_the_option_or_the_inner_secret() -> None:
    assert seal_keys("", "") == ()
    assert len(KEYS) == len(set(KEYS)) == 2
    assert seal_keys("", "inner secret") == seal_keys("", "inner secret") != seal_keys("", "other")
    assert seal_keys("the key of the cluster", "x") == seal_keys("the key of the cluster", "y")
    with pytest.raises(ConfigError, match="receiptHandleKey"):
        seal_keys("short", "")

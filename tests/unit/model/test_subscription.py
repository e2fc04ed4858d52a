"""Subscriptions."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.golden.data import frames

from orbitmq.codes import ResponseCode
from orbitmq.errors import SubscriptionParseFailed
from orbitmq.model.subscription import SubscriptionData, parse_subscription, subscribe_by_tags


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_no_expression_takes_all(expression: str | None) -> None:
    data = subscribe_by_tags("T", expression, 5)
    assert data == SubscriptionData(topic="T", sub_string="*", sub_version=5)
    assert data.takes_all
    assert data.matches_code(12345)
    assert data.matches_tag(None)


def test_tags_are_trimmed_as_in_java_and_hashed() -> None:
    data = subscribe_by_tags("T", " a ||\tb\0||  || c d ", 5)
    assert data.tags_set == {"a", "b", "c d"}
    assert data.code_set >= {97, 98}
    assert len(data.code_set) == 3
    assert data.sub_string == " a ||\tb\0||  || c d "
    assert not data.takes_all


def test_matching_by_code_then_by_tag() -> None:
    # "Aa" and "BB" have one Java hash: the broker lets both pass, the client keeps its own.
    data = subscribe_by_tags("T", "Aa")
    assert data.matches_code(2112)
    assert not data.matches_code(0)
    assert not data.matches_code(2113)
    assert data.matches_tag("Aa")
    assert not data.matches_tag("BB")
    assert not data.matches_tag(None)


def test_codes_are_compared_as_32_bits() -> None:
    data = subscribe_by_tags("T", "polygenelubricants")  # its Java hash is the smallest there is
    assert data.code_set == {-(2**31)}
    assert data.matches_code(-(2**31))
    assert data.matches_code(2**31)


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_nothing_but_separators_is_refused_with_code_23(expression: str) -> None:
    with pytest.raises(SubscriptionParseFailed) as refusal:
        subscribe_by_tags("T", expression)
    assert refusal.value.response_code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_blank_tags_between_separators_match_nothing() -> None:
    data = subscribe_by_tags("T", " || ")
    assert (data.tags_set, data.code_set) == (frozenset(), frozenset())
    assert not data.matches_code(0)


def test_sql_expressions_are_kept_as_they_are() -> None:
    data = parse_subscription("T", "a > 5", "SQL92", 7)
    assert (data.sub_string, data.expression_type, data.sub_version, data.code_set) == (
        "a > 5",
        "SQL92",
        7,
        frozenset(),
    )
    assert not data.is_tag_type
    assert not data.takes_all
    assert (
        parse_subscription("T", "a", None)
        == parse_subscription("T", "a", "TAG")
        == subscribe_by_tags("T", "a")
    )
    with pytest.raises(SubscriptionParseFailed):
        parse_subscription("T", "", "SQL92")


def test_recorded_heartbeats_decode_and_encode_to_the_same_subscriptions() -> None:
    seen = 0
    for frame in frames():
        if frame["code"] != 34 or not frame["request"].get("bodyText"):
            continue
        for consumer in json.loads(frame["request"]["bodyText"])["consumerDataSet"]:
            for members in consumer["subscriptionDataSet"]:
                data = msgspec.convert(members, SubscriptionData)
                written = json.loads(msgspec.json.encode(data))
                assert {
                    **written,
                    "codeSet": sorted(written["codeSet"]),
                    "tagsSet": sorted(written["tagsSet"]),
                } == {
                    **members,
                    "codeSet": sorted(members["codeSet"]),
                    "tagsSet": sorted(members["tagsSet"]),
                }
                assert data == parse_subscription(
                    data.topic, data.sub_string, data.expression_type, data.sub_version
                )
                seen += 1
    assert seen

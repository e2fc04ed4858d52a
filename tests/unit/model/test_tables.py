"""Topics, groups and data versions, and their JSON."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.golden.data import APACHE

from orbitmq.errors import InvalidParameter
from orbitmq.model.data_version import DataVersion
from orbitmq.model.group import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    RetryPolicyType,
    SubscriptionGroupConfig,
)
from orbitmq.model.members import to_object, unknown_members
from orbitmq.model.topic import (
    TopicConfig,
    TopicFilterType,
    alter_attributes,
    attributes_without_effect,
    is_inherited,
    is_perm_valid,
    is_readable,
    is_writable,
    parse_attribute_changes,
    perm_text,
)


@pytest.mark.parametrize(
    ("file", "table", "struct"),
    [
        ("topics.json", "topicConfigTable", TopicConfig),
        ("subscriptionGroup.json", "subscriptionGroupTable", SubscriptionGroupConfig),
    ],
)
def test_apaches_tables_decode_and_encode_to_the_same_members_in_the_same_order(
    file: str, table: str, struct: type[msgspec.Struct]
) -> None:
    content = json.loads((APACHE / "config" / file).read_bytes())
    assert content[table]
    for members in content[table].values():
        value = msgspec.convert(members, struct)
        assert list(json.loads(msgspec.json.encode(value)).items()) == list(members.items())
        assert unknown_members(struct, members) == {}
    version = msgspec.convert(content["dataVersion"], DataVersion)
    assert json.loads(msgspec.json.encode(version)) == content["dataVersion"]


def test_members_of_a_later_release_survive_a_rewrite() -> None:
    members = {"topicName": "T", "perm": 6, "aLaterMember": {"x": [1]}, "zone": "z"}
    unknown = unknown_members(TopicConfig, members)
    assert unknown == {"aLaterMember": {"x": [1]}, "zone": "z"}
    written = to_object(msgspec.structs.replace(msgspec.convert(members, TopicConfig), perm=4), unknown)
    assert (written["aLaterMember"], written["perm"], written["topicName"]) == ({"x": [1]}, 4, "T")
    assert list(written) == sorted(written)


def test_json_of_4x_lacks_members_and_still_decodes() -> None:
    topic = msgspec.json.decode(
        b'{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T",'
        b'"topicSysFlag":0,"writeQueueNums":4}',
        type=TopicConfig,
    )
    assert topic.attributes == {}
    group = msgspec.json.decode(b'{"groupName":"g","brokerId":0}', type=SubscriptionGroupConfig)
    assert (group.retry_max_times, group.which_broker_when_consume_slowly) == (16, 1)
    assert msgspec.json.decode(b'{"counter":3,"timestamp":5}', type=DataVersion).state_version == 0


def test_data_version_is_newer_by_epoch_then_counter_then_time() -> None:
    version = DataVersion(counter=3, timestamp_ms=10)
    assert version.next(20) == DataVersion(counter=4, timestamp_ms=20)
    assert version.next(5).newer_than(version)
    assert DataVersion(counter=3, timestamp_ms=11).newer_than(version)
    assert DataVersion(state_version=1).newer_than(version)
    assert not version.newer_than(version)
    assert version == DataVersion(counter=3, timestamp_ms=10) != DataVersion(counter=3, timestamp_ms=11)


@pytest.mark.parametrize(
    ("perm", "text"), [(0, "---"), (6, "RW-"), (7, "RWX"), (4, "R--"), (2, "-W-"), (1, "--X")]
)
def test_permission_text(perm: int, text: str) -> None:
    assert perm_text(perm) == text
    assert (is_readable(perm), is_writable(perm), is_inherited(perm)) == (
        "R" in text,
        "W" in text,
        "X" in text,
    )


def test_permissions_an_admin_may_set() -> None:
    assert [perm for perm in range(-2, 12) if is_perm_valid(perm)] == list(range(8))


def test_topic_in_short_form_reads_back() -> None:
    topic = TopicConfig(
        topic_name="T",
        read_queue_nums=3,
        write_queue_nums=4,
        perm=2,
        topic_filter_type=TopicFilterType.MULTI_TAG,
        attributes={"message.type": "FIFO"},
    )
    assert topic.to_text() == 'T 3 4 2 MULTI_TAG {"message.type":"FIFO"}'
    assert TopicConfig.from_text(topic.to_text()) == topic


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("T 1 2 6 SINGLE_TAG", {}),
        ("T 1 2 6 SINGLE_TAG ", {}),
        ("T 1 2 6 SINGLE_TAG {bad", {}),
        ('T 1 2 6 SINGLE_TAG {"a b":"c d"}', {"a b": "c d"}),
        ("T 1 2 6 SINGLE_TAG null", {}),
    ],
)
def test_topic_in_short_form_of_other_senders(text: str, attributes: dict[str, str]) -> None:
    topic = TopicConfig.from_text(text)
    assert (topic.topic_name, topic.read_queue_nums, topic.write_queue_nums) == ("T", 1, 2)
    assert topic.attributes == attributes


@pytest.mark.parametrize("text", ["", "T", "T 1 2 6", "T x 2 6 SINGLE_TAG", "T 1 2 6 NO_TAG"])
def test_topic_in_short_form_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        TopicConfig.from_text(text)


def test_attribute_changes_are_parsed_with_their_signs() -> None:
    changes = parse_attribute_changes("+message.type=FIFO,-reserve.time")
    assert changes == {"+message.type": "FIFO", "-reserve.time": ""}
    assert parse_attribute_changes(None) == parse_attribute_changes("") == {}


@pytest.mark.parametrize("text", ["message.type=FIFO", "-message.type=FIFO", "+message.type", "-a,-a"])
def test_attribute_changes_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        parse_attribute_changes(text)


def test_attributes_change() -> None:
    created = alter_attributes({}, {"+queue.type": "SimpleCQ", "+message.type": "FIFO"}, create=True)
    assert created == {"queue.type": "SimpleCQ", "message.type": "FIFO"}
    changed = alter_attributes(created, {"+message.type": "DELAY", "+reserve.time": "-1"}, create=False)
    assert changed == {"queue.type": "SimpleCQ", "message.type": "DELAY", "reserve.time": "-1"}
    assert alter_attributes(changed, {"-message.type": ""}, create=False).keys() == {
        "queue.type",
        "reserve.time",
    }


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("cleanup.policy", "COMPACTION", "topics are not compacted"),
        ("queue.type", "BatchCQ", "there are no batch consume queues"),
        ("message.type", "LITE", "lite topics are not served"),
        ("reserve.time", "100", "messages of all topics are kept for fileReservedTime hours"),
        ("lite.topic.expiration", "60", "lite topics are not served"),
    ],
)
def test_attributes_that_would_have_no_effect_are_refused(name: str, value: str, reason: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        alter_attributes({}, {f"+{name}": value}, create=True)
    assert refused.value.remark == f"attribute {name}={value} is refused: {reason}"
    assert attributes_without_effect({name: value, "message.type" * 2: "x"}) == {f"{name}={value}": reason}


def test_attributes_without_effect_can_be_removed() -> None:
    assert alter_attributes({"reserve.time": "100"}, {"-reserve.time": ""}, create=False) == {}
    assert attributes_without_effect({"message.type": "FIFO", "cleanup.policy": "DELETE"}) == {}


@pytest.mark.parametrize(
    ("changes", "create"),
    [
        ({"+unknown": "x"}, True),
        ({"+message.type": "LOUD"}, True),
        ({"-message.type": ""}, True),
        ({"message.type": "FIFO"}, True),
        ({"": "x"}, True),
        ({"+queue.type": "BatchCQ"}, False),
        ({"-reserve.time": ""}, False),
        ({"+reserve.time": "-2"}, False),
        ({"+reserve.time": "soon"}, False),
        ({"+reserve.time": str(2**63)}, False),
        ({"+message.type": "FIFO", "-message.type": ""}, False),
    ],
)
def test_attribute_changes_that_are_not_allowed(changes: dict[str, str], create: bool) -> None:
    with pytest.raises(InvalidParameter):
        alter_attributes({"message.type": "NORMAL", "queue.type": "SimpleCQ"}, changes, create=create)


def test_retries_wait_as_long_as_the_delay_levels_from_the_third_on() -> None:
    policy = GroupRetryPolicy()
    assert [policy.delay_ms(times) for times in (-1, 0, 1, 2)] == [10_000, 10_000, 30_000, 60_000]
    assert policy.delay_ms(15) == policy.delay_ms(100) == 7_200_000


def test_retries_of_an_exponential_policy_grow_to_the_limit() -> None:
    policy = GroupRetryPolicy(
        type=RetryPolicyType.EXPONENTIAL,
        exponential_retry_policy=ExponentialRetryPolicy(initial=1000, max=5000, multiplier=2),
    )
    assert [policy.delay_ms(times) for times in (-1, 0, 1, 2, 3, 99)] == [1000, 1000, 2000, 4000, 5000, 5000]


def test_retry_policy_that_is_chosen_but_not_given_falls_back_to_the_table() -> None:
    assert GroupRetryPolicy(type=RetryPolicyType.EXPONENTIAL).delay_ms(0) == 10_000
    decoded = msgspec.json.decode(
        b'{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1,2,3,4]},"exponentialRetryPolicy":null}',
        type=GroupRetryPolicy,
    )
    assert [decoded.delay_ms(times) for times in (0, 1, 2, 9)] == [3, 4, 4, 4]
    assert CustomizedRetryPolicy(next=()).delay_ms(0) == 10_000
    assert CustomizedRetryPolicy(next=(7,)).delay_ms(0) == 7

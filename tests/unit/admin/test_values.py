"""The conversion of values by admin functions, without a cluster."""

from __future__ import annotations

import msgspec
import pytest

from orbitmq.admin import Admin, NoNameServerError, UnknownNameError, UnreachableError
from orbitmq.admin.auth import policy_of
from orbitmq.admin.base import Change, Changed, properties_text, read_properties
from orbitmq.admin.groups import read_group_list
from orbitmq.admin.session import best_address
from orbitmq.admin.stats import sum_of_a_day
from orbitmq.admin.topics import new_topic, read_topic_list, system_flag
from orbitmq.errors import BodyError
from orbitmq.model.route import BrokerData
from orbitmq.wire.bodies import BrokerStatsData, BrokerStatsItem


def test_properties_text_of_any_value_is_read_back_the_same() -> None:
    values = {"a": "1", "path": "C:\\data", "lines": "one\ntwo\rthree", "empty": ""}
    assert read_properties(properties_text(values), "test") == values


def test_json_of_a_result_has_camel_case_keys() -> None:
    result = Changed(changes=[Change(target="127.0.0.1:1", action="done")])
    assert msgspec.json.decode(msgspec.json.encode(result)) == {
        "changes": [{"target": "127.0.0.1:1", "action": "done", "detail": ""}]
    }


def test_name_servers_are_split_at_semicolons_and_commas_without_repeats() -> None:
    assert Admin(" a:1; b:2,a:1 ;").name_servers == ["a:1", "b:2"]


def test_name_servers_without_any_are_an_error_of_their_own() -> None:
    with pytest.raises(NoNameServerError):
        Admin("").required_name_servers()


def test_best_address_is_the_master_else_any() -> None:
    both = BrokerData(broker_name="b", broker_addrs={1: "slave", 0: "master"})
    assert best_address(both) == "master"
    assert best_address(BrokerData(broker_name="b", broker_addrs={2: "slave"})) == "slave"
    assert best_address(BrokerData(broker_name="b", broker_addrs={})) is None


def test_sum_of_a_day_is_the_longest_there_is() -> None:
    day, hour, minute = (BrokerStatsItem(sum=number) for number in (0, 7, 5))
    assert sum_of_a_day(BrokerStatsData(stats_day=day, stats_hour=hour, stats_minute=minute)) == 7
    assert sum_of_a_day(BrokerStatsData(stats_minute=minute)) == 5
    assert sum_of_a_day(BrokerStatsData()) == sum_of_a_day(None) == 0


def test_new_topic_gets_what_the_tools_give_it() -> None:
    plain = new_topic("t", read=None, write=None, perm=None)
    assert (plain.read_queue_nums, plain.write_queue_nums, plain.perm) == (8, 8, 6)
    given = new_topic("t", read=0, write=3, perm=4)
    assert (given.read_queue_nums, given.write_queue_nums, given.perm) == (0, 3, 4)


def test_system_flag_has_a_bit_for_each_kind() -> None:
    assert [
        system_flag(unit=unit, unit_subscription=subscribed)
        for unit in (False, True)
        for subscribed in (False, True)
    ] == [0, 2, 1, 3]


def test_lists_of_a_file_are_read_and_broken_ones_refused() -> None:
    (topic,) = read_topic_list(b'[{"topicName":"t","readQueueNums":2}]')
    assert (topic.topic_name, topic.read_queue_nums) == ("t", 2)
    (group,) = read_group_list(b'[{"groupName":"g","retryMaxTimes":3}]')
    assert (group.group_name, group.retry_max_times) == ("g", 3)
    for broken in (b"", b"{}", b'[{"perm":6}]', b"[1]"):
        with pytest.raises(BodyError):
            read_topic_list(broken)
        with pytest.raises(BodyError):
            read_group_list(broken)


def test_policy_has_an_entry_for_each_resource() -> None:
    info = policy_of("User:bob", ["Topic:a", "Topic:b"], ["Pub"], "Allow", None)
    assert info.policies is not None
    (policy,) = info.policies
    assert policy.entries is not None
    assert [entry.resource for entry in policy.entries] == ["Topic:a", "Topic:b"]
    assert b"sourceIps" not in info.encode()


def test_errors_say_who_and_what() -> None:
    assert str(UnknownNameError("topic", "x", ["b", "a"])) == "there is no topic 'x'"
    assert UnknownNameError("topic", "x", ["b", "a"]).known == ["a", "b"]
    assert "name server at a:1" in str(UnreachableError("name server", "a:1", "refused"))

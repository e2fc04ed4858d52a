"""The group table."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from tests.golden import data
from tests.unit.broker.kit import CONFIG, read_json, safe_file

from orbitmq.broker.config import BrokerConfig
from orbitmq.broker.events import BrokerEvents
from orbitmq.broker.tables.groups import BUILT_IN_GROUPS, GroupTable
from orbitmq.errors import InvalidParameter
from orbitmq.model.group import GroupRetryPolicy, RetryPolicyType, SubscriptionGroupConfig
from orbitmq.testing.manual_clock import ManualClock

GOLDEN = data.APACHE / "config" / "subscriptionGroup.json"


def table(directory: Path, config: BrokerConfig = CONFIG) -> GroupTable:
    return GroupTable(
        config, ManualClock(), safe_file(directory, "subscriptionGroup.json"), events=BrokerEvents()
    )


def test_apaches_file_is_written_back_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "subscriptionGroup.json"
    path.write_bytes(GOLDEN.read_bytes())
    groups = table(tmp_path)
    groups.load()
    golden = json.loads(GOLDEN.read_bytes())
    assert groups.data_version.counter == golden["dataVersion"]["counter"]
    assert set(BUILT_IN_GROUPS) <= set(golden["subscriptionGroupTable"])
    groups.saves._dirty = True
    groups.persist()
    assert path.read_bytes() == GOLDEN.read_bytes()


def test_the_file_appears_with_the_first_group_of_its_own(tmp_path: Path) -> None:
    groups = table(tmp_path)
    assert set(groups.configs) == set(BUILT_IN_GROUPS)
    groups.persist()
    assert not (tmp_path / "subscriptionGroup.json").exists()
    created = groups.find("g")
    assert created is not None
    assert (created.retry_queue_nums, created.retry_max_times, created.consume_enable) == (1, 16, True)
    assert "g" in read_json(tmp_path / "subscriptionGroup.json")["subscriptionGroupTable"]
    assert groups.find("g") is created
    assert groups.data_version.counter == 1


@pytest.mark.parametrize("name", ["", "a b", "x" * 121, "g@t", "gr/p"])
def test_a_group_with_a_bad_name_is_not_created(tmp_path: Path, name: str) -> None:
    groups = table(tmp_path)
    assert groups.find(name) is None
    assert name not in groups.configs


def test_groups_are_not_created_when_that_is_off(tmp_path: Path) -> None:
    groups = table(tmp_path, BrokerConfig(auto_create_groups=False))
    assert groups.find("g") is None
    assert groups.find("TOOLS_CONSUMER") is not None
    assert groups.find("CID_RMQ_SYS_ANY") is not None
    strict = table(tmp_path, BrokerConfig(auto_create_groups=False, create_system_groups=False))
    assert strict.find("CID_RMQ_SYS_OTHER") is None


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    groups = table(tmp_path)
    policy = GroupRetryPolicy(type=RetryPolicyType.EXPONENTIAL)
    groups.update(SubscriptionGroupConfig(group_name="g", retry_max_times=3, group_retry_policy=policy))
    groups.forbid_reading("g", "T", forbidden=True)
    again = table(tmp_path)
    again.load()
    assert again.configs == groups.configs
    assert again.data_version == groups.data_version
    assert again.forbidden("g", "T")


def test_reading_can_be_forbidden_and_allowed(tmp_path: Path) -> None:
    groups = table(tmp_path)
    assert not groups.forbidden("g", "T")
    groups.forbid_reading("g", "T", forbidden=True)
    groups.forbid_reading("g", "U", forbidden=True)
    assert groups.forbidden_table == {"g": {"T": 4, "U": 4}}
    version = groups.data_version
    groups.forbid_reading("g", "T", forbidden=False)
    assert not groups.forbidden("g", "T")
    assert groups.forbidden("g", "U"), "Apache forgets all topics of the group here; that is not copied"
    groups.forbid_reading("g", "U", forbidden=False)
    assert groups.forbidden_table == {}
    assert groups.data_version.counter == version.counter + 2
    groups.forbid_reading("g", "U", forbidden=False)
    assert groups.data_version.counter == version.counter + 2


def test_attributes_are_altered_by_signed_changes(tmp_path: Path) -> None:
    groups = table(tmp_path)
    groups.apply([SubscriptionGroupConfig(group_name="g", attributes={"+priority.factor": "50"})])
    assert groups.configs["g"].attributes == {"priority.factor": "50"}
    groups.apply([SubscriptionGroupConfig(group_name="g", retry_max_times=2)])
    assert groups.configs["g"].attributes == {"priority.factor": "50"}
    for bad in (
        {"+priority.factor": "101"},
        {"+lite.sub.model": "x"},
        {"-lite.bind.topic": ""},
        {"+no": "1"},
    ):
        with pytest.raises(InvalidParameter):
            groups.apply(
                [
                    SubscriptionGroupConfig(group_name="new"),
                    SubscriptionGroupConfig(group_name="g", attributes=bad),
                ]
            )
    assert "new" not in groups.configs


def test_deleting_takes_the_bars_along(tmp_path: Path) -> None:
    groups = table(tmp_path)
    groups.find("g")
    groups.forbid_reading("g", "T", forbidden=True)
    assert groups.delete("g")
    assert not groups.delete("g")
    assert groups.forbidden_table == {}
    assert "g" not in read_json(tmp_path / "subscriptionGroup.json")["subscriptionGroupTable"]


def test_consuming_can_be_disabled(tmp_path: Path) -> None:
    groups = table(tmp_path)
    before = groups.find("g")
    assert before is not None
    groups.disable_consume("g")
    groups.disable_consume("unknown")
    assert groups.configs["g"] == msgspec.structs.replace(before, consume_enable=False)
    version = groups.data_version
    groups.disable_consume("g")
    assert groups.data_version == version


def test_a_master_s_table_replaces_ours(tmp_path: Path) -> None:
    groups = table(tmp_path)
    held = groups.configs
    groups.find("mine")
    version = groups.data_version.next(9)
    groups.replace_all({"g": SubscriptionGroupConfig(group_name="g")}, {"g": {"T": 4}}, version)
    assert groups.configs is held
    assert set(held) == {"g"}
    assert groups.forbidden("g", "T")
    assert groups.data_version == version


def test_members_we_do_not_know_survive_a_rewrite(tmp_path: Path) -> None:
    path = tmp_path / "subscriptionGroup.json"
    content = json.loads(GOLDEN.read_bytes())
    content["subscriptionGroupTable"]["GoldenG"]["liteSubClientQuota"] = 7
    content["somethingNew"] = [1, {"a": 2}]
    path.write_bytes(json.dumps(content).encode())
    groups = table(tmp_path)
    groups.load()
    groups.find("another")
    saved = read_json(path)
    assert saved["subscriptionGroupTable"]["GoldenG"]["liteSubClientQuota"] == 7
    assert saved["somethingNew"] == [1, {"a": 2}]


def test_log_names_the_settings_that_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    groups = table(tmp_path)
    config = SubscriptionGroupConfig(group_name="billing", retry_max_times=3)
    with caplog.at_level("INFO"):
        groups.update(config)
        groups.update(msgspec.structs.replace(config, consume_enable=False))
    assert caplog.messages == [
        "group created group=billing retry_max_times=3",
        "group changed group=billing consume_enable=False",
    ]

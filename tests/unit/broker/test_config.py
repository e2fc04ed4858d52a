"""Options of the broker."""

from __future__ import annotations

import pytest

from orbitmq.broker.config import BrokerConfig, BrokerRole, change_option, split_addresses
from orbitmq.errors import ConfigError
from orbitmq.runtime.options import config_from_properties, options_of, parse_properties
from orbitmq.store.config import StoreConfig


def from_text(text: str) -> BrokerConfig:
    config, unknown = config_from_properties(BrokerConfig, parse_properties(text, "broker.conf"))
    assert unknown == []
    return config


def test_every_key_is_declared_once_and_none_is_the_stores() -> None:
    keys = [option.key for option in options_of(BrokerConfig)]
    assert len(keys) == len(set(keys))
    assert not set(keys) & {option.key for option in options_of(StoreConfig)}
    assert all(option.doc.endswith(".") for option in options_of(BrokerConfig))


def test_the_file_of_an_apache_slave_is_read() -> None:
    config = from_text(
        "brokerName=b\nbrokerId=2\nbrokerRole=SLAVE\nnamesrvAddr=h1:9876;h2:9876\nlistenPort=20911\n"
        "brokerPermission=4\nautoCreateTopicEnable=false\nregisterNameServerPeriod=1000\n"
    )
    assert (config.broker_name, config.broker_id, config.role) == ("b", 2, BrokerRole.SLAVE)
    assert config.name_server_list == ["h1:9876", "h2:9876"]
    assert config.is_slave
    assert (config.readable, config.writable, config.auto_create_topics) == (True, False, False)


def test_a_slave_needs_an_id_and_a_master_has_none() -> None:
    with pytest.raises(ConfigError, match="brokerId greater than 0"):
        from_text("brokerRole=SLAVE\n")
    assert from_text("brokerId=3\nbrokerRole=SYNC_MASTER\n").broker_id == 0


@pytest.mark.parametrize("text", ["brokerRole=KING", "listenPort=70000", "brokerPermission=x", "brokerName="])
def test_a_bad_value_stops_the_start(text: str) -> None:
    with pytest.raises(ConfigError):
        from_text(text)


@pytest.mark.parametrize(("period_ms", "seconds"), [(1, 10), (10_000, 10), (30_000, 30), (600_000, 60)])
def test_the_period_of_registration_is_kept_within_apaches_bounds(period_ms: int, seconds: float) -> None:
    assert BrokerConfig(register_period_ms=period_ms).register_period_s == seconds


def test_addresses_are_split_without_blanks_and_repetitions() -> None:
    assert split_addresses(" a:1; ;b:2;a:1;") == ["a:1", "b:2"]
    assert split_addresses("") == []


def test_a_live_change_is_seen_by_every_holder() -> None:
    config = BrokerConfig()
    holder = config
    assert change_option(config, "brokerPermission", "2") == 2
    assert (holder.readable, holder.writable) == (False, True)


def test_a_live_change_of_the_stores_options_goes_through_the_same_door() -> None:
    config = StoreConfig()
    change_option(config, "fileReservedTime", "48")
    assert config.retention_hours == 48


def test_a_live_change_is_refused_for_bad_values_and_for_what_needs_a_restart() -> None:
    config = BrokerConfig()
    with pytest.raises(ConfigError, match="brokerPermission"):
        change_option(config, "brokerPermission", "99")
    with pytest.raises(ConfigError, match="restart"):
        change_option(config, "brokerName", "other")
    with pytest.raises(KeyError):
        change_option(config, "noSuchKey", "1")
    assert config == BrokerConfig()

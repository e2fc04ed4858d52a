"""How the server commands read their configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbitmq.broker.config import BrokerConfig, BrokerRole
from orbitmq.cli.servers import read_broker_settings, read_config
from orbitmq.errors import ConfigError


def test_options_that_need_each_other_may_be_set_one_by_one() -> None:
    config, _, unknown = read_config(BrokerConfig, None, ("brokerRole=SLAVE", "brokerId=1", "noSuchKey=7"))
    assert (config.role, config.broker_id, unknown) == (BrokerRole.SLAVE, 1, ["noSuchKey"])
    with pytest.raises(ConfigError, match="needs a brokerId"):
        read_config(BrokerConfig, None, ("brokerRole=SLAVE",))


def test_bad_value_is_told_with_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=a\nlistenPort=10911\n")
    with pytest.raises(ConfigError, match=r"--set:2: listenPort='x' is not a whole number"):
        read_config(BrokerConfig, str(file), ("brokerName=b", "listenPort=x"))
    with pytest.raises(
        ConfigError, match=r"^--set:1: there is no option listenPrt; did you mean listenPort\?"
    ):
        read_broker_settings(None, ("listenPrt=1",))
    with pytest.raises(ConfigError, match=r"^--set:1: there is no option listenPrt"):
        read_broker_settings(str(file), ("listenPrt=1",))
    file.write_text("brokerName=a\nlistenPort=x\n")
    with pytest.raises(ConfigError, match=r"broker\.conf:2: listenPort='x'"):
        read_config(BrokerConfig, str(file), ())
